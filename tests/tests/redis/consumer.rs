//! A consumer with redis-py, and CPython to compare.

use std::path::Path;
use std::process::Command;

use idemp_tests::{EVENTS, data, json_of, temp_dir};
use serde_json::{Value, json};

use crate::support::{SECRET, STREAM};

pub(crate) const SECRET_ENV: &str = "IDEMP_TEST_SECRET";

/// What the consumer of `python/redis_consumer.py` found in the stream.
pub(crate) struct Consumed {
    counts: Value,
    compared: Value,
}

pub(crate) fn consumer(url: &str, options: &[&str]) -> Consumed {
    let dir = temp_dir();
    let (out, events) = (dir.path().join("out.jsonl"), data("langchain-events.jsonl"));
    let script = |name: &str| {
        let mut command = Command::new(std::env::var_os("IDEMP_E2E_PYTHON").expect("IDEMP_E2E_PYTHON is set"));
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name))
            .env(SECRET_ENV, SECRET);
        command
    };
    let mut consume = script("redis_consumer.py");
    consume.args(["--url", url, "--stream", STREAM, "--secret-env", SECRET_ENV, "--out"]);
    let counts = json_of(consume.arg(&out).args(options));
    let compared = json_of(script("compare.py").arg(&events).arg(&out));
    Consumed { counts, compared }
}

impl Consumed {
    /// Every event of the corpus is there, in so many entries, all of them signed, read and acknowledged.
    pub(crate) fn has_all(&self, entries: u64) {
        assert_eq!(
            self.counts,
            json!({
                "entries": entries, "verified": entries, "signed otherwise": 0, "canonical": entries, "pending": 0,
            })
        );
        let of = |name: &str| self.compared[name].as_u64().unwrap();
        assert_eq!((of("sent"), of("processed")), (EVENTS, entries), "{}", self.compared);
        assert_eq!(
            (of("missing"), of("unknown"), of("changed")),
            (0, 0, 0),
            "{}",
            self.compared
        );
    }
}
