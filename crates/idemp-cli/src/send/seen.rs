//! The last million keys of the input, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// How many keys are remembered.
const KEYS: usize = 1_000_000;

/// Remembers keys and what their bodies were, as fingerprints.
///
/// A key is told by 128 bits and a body by 64, under random keys of SipHash: that two of a million keys look the same
/// has a chance of 1 in 10^26, and that another body looks the same 1 in 10^19.
pub(super) struct Seen {
    bodies: HashMap<[u64; 2], u64>,
    /// Oldest first.
    order: VecDeque<[u64; 2]>,
    hashers: [RandomState; 2],
    most: usize,
}

/// Whether a key was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It was not, as far as we remember.
    New,
    /// It was, with the same body.
    Same,
    /// It was, with another body.
    Other,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self::of(KEYS)
    }

    fn of(most: usize) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self {
            bodies: HashMap::new(),
            order: VecDeque::new(),
            hashers,
            most,
        }
    }

    /// Looks a key up and remembers it. The oldest is forgotten if there are too many.
    pub(super) fn see(&mut self, key: &str, body: &[u8]) -> Sight {
        let [first, second] = &self.hashers;
        let (key, body) = ([first.hash_one(key), second.hash_one(key)], first.hash_one(body));
        if let Some(known) = self.bodies.get(&key) {
            return if *known == body { Sight::Same } else { Sight::Other };
        }
        if self.order.len() == self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.bodies.remove(&oldest);
        }
        self.bodies.insert(key, body);
        self.order.push_back(key);
        Sight::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_body_counts_and_the_oldest_key_is_forgotten() {
        let mut seen = Seen::of(2);
        assert_eq!(seen.see("a", b"1"), Sight::New);
        assert_eq!(seen.see("a", b"1"), Sight::Same);
        assert_eq!(seen.see("a", b"2"), Sight::Other);
        assert_eq!(seen.see("a", b"1"), Sight::Same, "the first body stays");
        assert_eq!(seen.see("b", b"1"), Sight::New);
        assert_eq!(seen.see("a", b"1"), Sight::Same);
        assert_eq!(seen.see("c", b"1"), Sight::New);
        assert_eq!(seen.see("b", b"1"), Sight::Same);
        assert_eq!(seen.see("a", b"1"), Sight::New, "it was the oldest");
        assert_eq!((seen.bodies.len(), seen.order.len()), (2, 2));
    }
}
