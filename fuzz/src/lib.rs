//! What comes from outside, beside a second opinion: each function takes any bytes and panics if the two differ.
//!
//! The targets of cargo-fuzz call them with what the fuzzer makes up, `tests/seeds.rs` with the seeds and their pieces.

mod canonical;
mod keys;
mod receive;
mod records;
mod retry_after;
mod signatures;

pub use canonical::canonical;
pub use keys::keys;
pub use receive::receive;
pub use records::records;
pub use retry_after::retry_after;
pub use signatures::signatures;

/// No fewer than the levels of arrays and objects in a JSON text.
fn levels(text: &[u8]) -> usize {
    text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count()
}
