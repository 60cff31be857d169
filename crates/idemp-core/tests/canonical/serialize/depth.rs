//! Values in each other, to the greatest depth and beyond it.

use idemp_core::canonical::{self, CanonicalErrorKind as Kind, MAX_DEPTH};
use serde::{Serialize, Serializer};

use super::{Shape, refused, text_of};

/// Arrays in each other.
struct Nested(usize);

impl Serialize for Nested {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 1 {
            serializer.collect_seq([0_u8; 0])
        } else {
            serializer.collect_seq([Nested(self.0 - 1)])
        }
    }
}

#[test]
fn nesting() {
    let deepest = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    assert_eq!(text_of(&Nested(MAX_DEPTH)), deepest);
    refused(&Nested(MAX_DEPTH + 1), Kind::TooDeep, &"[0]".repeat(MAX_DEPTH));
    refused(
        &Shape::Tuple(0, "").nested(MAX_DEPTH - 1),
        Kind::TooDeep,
        &("[0]".repeat(MAX_DEPTH - 1) + "Tuple").replace("]T", "].T"),
    );
    assert!(canonical::to_vec(&Shape::Tuple(0, "").nested(MAX_DEPTH - 2)).is_ok());
}

/// A shape in arrays.
struct InArrays(Shape, usize);

impl Shape {
    fn nested(self, depth: usize) -> InArrays {
        InArrays(self, depth)
    }
}

impl Serialize for InArrays {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn inner<S: Serializer>(shape: &Shape, depth: usize, serializer: S) -> Result<S::Ok, S::Error> {
            struct Level<'s>(&'s Shape, usize);
            impl Serialize for Level<'_> {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    inner(self.0, self.1, serializer)
                }
            }
            if depth == 0 {
                shape.serialize(serializer)
            } else {
                serializer.collect_seq([Level(shape, depth - 1)])
            }
        }
        inner(&self.0, self.1, serializer)
    }
}

#[test]
fn the_deepest_value_needs_little_stack() {
    let mut value = serde_json::json!(1);
    for _ in 0..MAX_DEPTH / 2 {
        value = serde_json::json!({"b": 0, "a": [value]});
    }
    let thread = std::thread::Builder::new().stack_size(512 * 1024);
    let made = thread
        .spawn(move || canonical::to_vec(&value).map(|bytes| bytes.len()))
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(made.unwrap(), MAX_DEPTH / 2 * r#"{"a": [], "b": 0}"#.len() + 1);
}
