//! `X-Signature-256` of bodies of one kilobyte and more.

use idemp_core::{Secret, Signer};

use crate::corpus;
use crate::machine;
use crate::measure::{Pairs, calls_of};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 21;
const SECRET: &[u8] = b"whsec_benchmark_secret";
const SIZES: [(usize, &str); 4] = [
    (1 << 10, "1 KiB"),
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (300 << 10, "300 KiB"),
];

pub(crate) fn run() -> anyhow::Result<Bench> {
    let about = "X-Signature-256 of a body, its hex digits included, and ring's bare HMAC-SHA256";
    let mut bench = Bench::new("hmac", about);
    // Without SHA instructions ring has hand-written assembly, and no target is set.
    let target = machine::has_sha().then_some(Target::SpeedAtLeast(0.95));
    let signer = Signer::new(&Secret::new(SECRET)?);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET);

    let mut compare = |what: &str, bodies: &[Vec<u8>]| {
        let bytes = bodies.iter().map(Vec::len).sum();
        let pairs = Pairs::take(
            ROUNDS,
            calls_of(|| {
                bodies
                    .iter()
                    .map(|body| signer.header(body).as_bytes()[70])
                    .fold(0, u8::wrapping_add)
            }),
            calls_of(|| {
                bodies
                    .iter()
                    .map(|body| ring::hmac::sign(&key, body).as_ref()[31])
                    .fold(0, u8::wrapping_add)
            }),
        )?;
        bench.compare(what, &pairs, Unit::MegabytesPerSecond(bytes), target);
        anyhow::Ok(())
    };
    for (size, name) in SIZES {
        compare(name, &[(0..size).map(|at| b' ' + (at % 95) as u8).collect()])?;
    }
    let large: Vec<Vec<u8>> = corpus::messages()?
        .iter()
        .filter(|message| message.body().len() >= 1 << 10)
        .map(|message| message.body().to_vec())
        .collect();
    compare(&format!("{} recorded bodies of at least 1 KiB", large.len()), &large)?;
    let sha = if machine::has_sha() {
        "yes"
    } else {
        "NO, so no target is set"
    };
    bench.fact("SHA instructions", sha);
    Ok(bench)
}
