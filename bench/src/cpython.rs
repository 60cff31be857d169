//! A Python process that measures itself, sample by sample, so that it can take turns with us.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};

const PROGRAM: &str = include_str!("cpython.py");

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// `json.dumps(json.loads(text), sort_keys=True).encode()`.
    Parse,
    /// `json.dumps(value, sort_keys=True).encode()` of values that are loaded already.
    Dump,
}

/// The process; it ends when this is dropped.
pub(crate) struct CPython {
    /// Implementation and version.
    pub(crate) version: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    bytes: usize,
}

impl CPython {
    /// Starts one on these texts, none of which has a line end in it. Its samples must write `bytes` bytes.
    pub(crate) fn start<T: AsRef<str>>(work: Work, texts: &[T], bytes: usize) -> anyhow::Result<Self> {
        let mode = match work {
            Work::Parse => "parse",
            Work::Dump => "dump",
        };
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("python3 cannot be started")?;
        let input = child.stdin.take().context("its input is piped")?;
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        let mut python = Self {
            version: String::new(),
            child,
            input,
            output,
            bytes,
        };
        writeln!(python.input, "{}", texts.len())?;
        for text in texts {
            writeln!(python.input, "{}", text.as_ref())?;
        }
        python.input.flush()?;
        python.version = python.line()?;
        Ok(python)
    }

    /// Seconds for one pass over all texts.
    pub(crate) fn sample(&mut self) -> anyhow::Result<f64> {
        writeln!(self.input, "go")?;
        self.input.flush()?;
        let (seconds, bytes): (f64, usize) = serde_json::from_str(&self.line()?)?;
        ensure!(
            bytes == self.bytes,
            "python wrote {bytes} bytes where we wrote {}",
            self.bytes
        );
        Ok(seconds)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "python3 has ended early");
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

impl Drop for CPython {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
