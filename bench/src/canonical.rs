//! JSON text to canonical bytes.

use idemp_core::canonical;
use serde_json::Value;

use crate::corpus;
use crate::cpython::{CPython, Work};
use crate::measure::{Pairs, calls_of};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 21;

pub(crate) fn run() -> anyhow::Result<Bench> {
    let texts: Vec<&str> = corpus::events()?.iter().map(|event| event.text).collect();
    let read: usize = texts.iter().map(|text| text.len()).sum();
    let written = ours(&texts)?;
    let mut bench = Bench::new(
        "canonical",
        format!(
            "JSON text to canonical bytes, {} recorded events, {read} bytes to {written}",
            texts.len()
        ),
    );

    let target = Some(Target::TimeAtMost(1.25));
    let pairs = Pairs::take(
        ROUNDS,
        calls_of(|| ours(&texts)),
        calls_of(|| theirs(&texts, |text| serde_json::from_slice(text.as_bytes()))),
    )?;
    bench.compare(
        "serde_json: from_slice to Value, to_vec",
        &pairs,
        Unit::Milliseconds,
        target,
    );
    let pairs = Pairs::take(
        ROUNDS,
        calls_of(|| ours(&texts)),
        calls_of(|| theirs(&texts, |text| serde_json::from_str(text))),
    )?;
    bench.compare(
        "the same, from_str: UTF-8 known to be good",
        &pairs,
        Unit::Milliseconds,
        target,
    );

    match CPython::start(Work::Parse, &texts, written) {
        Ok(mut python) => {
            let what = format!("{}: json.loads, json.dumps", python.version);
            let pairs = Pairs::take(ROUNDS, calls_of(|| ours(&texts)), || python.sample())?;
            bench.compare(what, &pairs, Unit::Milliseconds, Some(Target::SpeedAtLeast(4.0)));
        }
        Err(error) => bench.skip(format!("CPython: {error:#}")),
    }
    Ok(bench)
}

/// How many bytes came out.
fn ours(texts: &[&str]) -> anyhow::Result<usize> {
    let mut written = 0;
    for text in texts {
        written += canonical::from_json(text.as_bytes())?.len();
    }
    Ok(written)
}

fn theirs(texts: &[&str], parse: impl Fn(&str) -> serde_json::Result<Value>) -> anyhow::Result<usize> {
    let mut written = 0;
    for text in texts {
        written += serde_json::to_vec(&parse(text)?)?.len();
    }
    Ok(written)
}
