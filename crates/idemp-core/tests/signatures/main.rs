//! `X-Signature-256` and Standard Webhooks against the recorded vectors, and what must never pass.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails loudly")]

mod secrets;
mod standard_webhooks;
mod x_signature_256;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

/// A vector whose `why` begins so may be decided otherwise by another sensible receiver.
pub(crate) const CONTESTED: &str = "contested: ";

/// Where our own rule differs from the recorded verdict: the vector's `why`, our verdict, our rule.
pub(crate) type Differing = (&'static str, bool, &'static str);

/// Our verdict on a vector: the recorded one, unless the table says otherwise. Ticks the table's line off.
pub(crate) fn expected(why: &str, recorded: bool, differing: &[Differing], seen: &mut Vec<&'static str>) -> bool {
    match differing.iter().find(|(name, ..)| *name == why) {
        None => recorded,
        Some((name, ours, _)) => {
            assert!(name.starts_with(CONTESTED), "{name}: only contested vectors may differ");
            assert_ne!(*ours, recorded, "{name}: the table says that we differ");
            seen.push(name);
            *ours
        }
    }
}

pub(crate) const NOW: u64 = 1_796_040_000;
/// The 24 bytes 1 to 24.
pub(crate) const SECRET: &str = "whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcY";
pub(crate) const BODY: &[u8] = b"{\"data\": {\"output\": \"ok\"}, \"event\": \"tool_end\"}";

pub(crate) fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

pub(crate) fn flipped(bytes: &[u8], bit: prop::sample::Index) -> Vec<u8> {
    let bit = bit.index(bytes.len() * 8);
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}
