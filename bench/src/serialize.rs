//! `impl Serialize` to canonical bytes.

use idemp_core::canonical;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::corpus;
use crate::cpython::{CPython, Work};
use crate::measure::{Pairs, calls_of};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 21;

/// The payload of an `llm_end` as an application holds it: LangChain's `LLMResult`, its fields in LangChain's order,
/// which is not the canonical one.
#[derive(Serialize, Deserialize)]
struct LlmEnd {
    response: LlmResult,
}

#[derive(Serialize, Deserialize)]
struct LlmResult {
    generations: Vec<Vec<Generation>>,
    llm_output: Option<Map<String, Value>>,
    run: Option<Vec<Value>>,
    r#type: String,
}

#[derive(Serialize, Deserialize)]
struct Generation {
    text: String,
    generation_info: Option<Map<String, Value>>,
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<ChatMessage>,
}

#[derive(Serialize, Deserialize)]
struct ChatMessage {
    content: Value,
    additional_kwargs: Map<String, Value>,
    response_metadata: ResponseMetadata,
    r#type: String,
    name: Option<String>,
    id: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ResponseMetadata {
    #[serde(skip_serializing_if = "Option::is_none")]
    model_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Logprobs>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct Logprobs {
    content: Vec<TokenLogprob>,
}

#[derive(Serialize, Deserialize)]
struct TokenLogprob {
    token: String,
    logprob: f64,
}

pub(crate) fn run() -> anyhow::Result<Bench> {
    let values: Vec<Value> = corpus::events()?.into_iter().map(|event| event.data).collect();
    let results: Vec<LlmEnd> = values
        .iter()
        .filter_map(|data| LlmEnd::deserialize(data).ok())
        .collect();
    let mut bench = Bench::new("serialize", "impl Serialize to canonical bytes");
    compare(&mut bench, &format!("Value, {} events", values.len()), &values)?;
    compare(
        &mut bench,
        &format!("derived LLMResult, {} events", results.len()),
        &results,
    )?;
    Ok(bench)
}

fn compare<T: Serialize>(bench: &mut Bench, what: &str, values: &[T]) -> anyhow::Result<()> {
    let pairs = Pairs::take(ROUNDS, calls_of(|| ours(values)), calls_of(|| theirs(values)))?;
    let target = Some(Target::TimeAtMost(1.25));
    bench.compare(
        format!("{what}: serde_json::to_vec"),
        &pairs,
        Unit::Milliseconds,
        target,
    );

    let texts = values
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<Vec<_>, _>>()?;
    match CPython::start(Work::Dump, &texts, ours(values)?) {
        Ok(mut python) => {
            let pairs = Pairs::take(ROUNDS, calls_of(|| ours(values)), || python.sample())?;
            let what = format!("{what}: {}", python.version);
            bench.compare(what, &pairs, Unit::Milliseconds, Some(Target::SpeedAtLeast(4.0)));
        }
        Err(error) => bench.skip(format!("{what}: CPython: {error:#}")),
    }
    Ok(())
}

/// How many bytes came out.
fn ours<T: Serialize>(values: &[T]) -> anyhow::Result<usize> {
    let mut written = 0;
    for value in values {
        written += canonical::to_vec(value)?.len();
    }
    Ok(written)
}

fn theirs<T: Serialize>(values: &[T]) -> anyhow::Result<usize> {
    let mut written = 0;
    for value in values {
        written += serde_json::to_vec(value)?.len();
    }
    Ok(written)
}
