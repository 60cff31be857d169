//! A folder per test, commands in it, and processes that do not outlive the test.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use idemp_testkit::peer::{Answer, Peer};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What no command of a test takes unless something is broken.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A folder in which the commands of one test run.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// `idemp` with these words, split at blanks.
    pub(crate) fn idemp(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_idemp"));
        command
            .args(words.split_whitespace())
            .current_dir(self.0.path())
            .env("SECRET", SECRET)
            .kill_on_drop(true);
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(variable).env_remove(variable.to_lowercase());
        }
        command
    }

    /// Runs `idemp` with these words and nothing on standard input.
    pub(crate) async fn run(&self, words: &str) -> Finished {
        self.run_with(words, b"").await
    }

    /// Runs `idemp` with these words and this on standard input.
    pub(crate) async fn run_with(&self, words: &str, stdin: &[u8]) -> Finished {
        let mut running = Running::start(self.idemp(words));
        // A command that has failed already does not read.
        let _ = running.stdin().write_all(stdin).await;
        running.finish().await
    }

    /// `idemp send` with these words, to this peer.
    pub(crate) async fn send(&self, peer: &Peer, words: &str) -> Finished {
        let to = peer.url("/hook");
        self.run(&format!("send --to {to} --secret-env SECRET {words}")).await
    }

    /// Starts `idemp receive` with these words, on a free port unless they name one.
    pub(crate) async fn receive(&self, words: &str) -> (Running, String) {
        let listen = if words.contains("--listen") {
            ""
        } else {
            "--listen 127.0.0.1:0"
        };
        let mut running = Running::start(self.idemp(&format!("receive {listen} --secret-env SECRET {words}")));
        let url = running.stderr_line("listening on ").await;
        (running, url)
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// The summary that `--json` prints.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// One JSON value per line.
    #[track_caller]
    pub(crate) fn jsonl(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The only line of standard error.
    #[track_caller]
    pub(crate) fn complaint(&self) -> &str {
        let lines: Vec<_> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{self:#?}");
        lines[0]
    }
}

/// A running command. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: JoinHandle<String>,
    stderr: tokio::sync::mpsc::UnboundedReceiver<String>,
    stderr_text: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, stderr) = tokio::sync::mpsc::unbounded_channel();
        let mut reader = BufReader::new(child.stderr.take().unwrap());
        tokio::spawn(async move {
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).await.unwrap() > 0 {
                let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
        let stdout: ChildStdout = child.stdout.take().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: tokio::spawn(read_all(stdout)),
            stderr,
            stderr_text: String::new(),
            child,
        }
    }

    pub(crate) fn stdin(&mut self) -> &mut ChildStdin {
        self.stdin.as_mut().unwrap()
    }

    /// Waits for a line of standard error that begins so, and gives the rest of it.
    pub(crate) async fn stderr_line(&mut self, start: &str) -> String {
        let found = async {
            while let Some(line) = self.stderr.recv().await {
                self.stderr_text.push_str(&line);
                if let Some(rest) = line.strip_prefix(start) {
                    return rest.trim_end().to_owned();
                }
            }
            panic!("no line `{start}` in: {}", self.stderr_text);
        };
        timeout(LIMIT, found).await.unwrap()
    }

    /// Waits for a line of standard error with this in it.
    pub(crate) async fn stderr_line_with(&mut self, part: &str) {
        let found = async {
            while let Some(line) = self.stderr.recv().await {
                self.stderr_text.push_str(&line);
                if line.contains(part) {
                    return;
                }
            }
            panic!("no line with `{part}` in: {}", self.stderr_text);
        };
        timeout(LIMIT, found).await.unwrap()
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it has not been waited for")
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Closes standard input and waits for the end.
    pub(crate) async fn finish(mut self) -> Finished {
        drop(self.stdin.take());
        self.wait().await
    }

    /// Waits for the end, with standard input left open.
    pub(crate) async fn wait(mut self) -> Finished {
        let status = timeout(LIMIT, self.child.wait())
            .await
            .expect("it ends in time")
            .unwrap();
        while let Some(line) = self.stderr.recv().await {
            self.stderr_text.push_str(&line);
        }
        Finished {
            status,
            stdout: self.stdout.await.unwrap(),
            stderr: self.stderr_text,
        }
    }
}

async fn read_all(mut stdout: ChildStdout) -> String {
    let mut bytes = Vec::new();
    stdout.read_to_end(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A peer that answers every request with this status.
pub(crate) async fn answering(status: u16) -> Peer {
    Peer::always(Answer::status(status)).await
}

/// A line for `idemp send`.
pub(crate) fn line(run_id: &str, step: u32, data: &str) -> String {
    format!("{{\"run_id\":\"{run_id}\",\"event\":\"tool_end\",\"step_index\":{step},\"data\":{data}}}\n")
}

/// Lines of run `r`, from step 1.
pub(crate) fn lines(count: u32) -> String {
    (1..=count).map(|step| line("r", step, r#"{"x":1}"#)).collect()
}

/// The keys of run `r` that have come, sorted, with copies.
pub(crate) fn keys(peer: &Peer) -> Vec<String> {
    let mut keys: Vec<_> = peer
        .requests()
        .iter()
        .map(|request| request.header("Idempotency-Key").to_owned())
        .collect();
    keys.sort_by_key(|key| key.rsplit(':').next().unwrap().parse::<u32>().unwrap());
    keys
}

/// `r:tool_end:1` and so on.
pub(crate) fn keys_of(steps: impl IntoIterator<Item = u32>) -> Vec<String> {
    steps.into_iter().map(|step| format!("r:tool_end:{step}")).collect()
}
