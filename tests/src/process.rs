//! Child processes that are killed and reaped when the test is done with them, however it ends.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::temp_dir;

/// Between two looks at a child or a probe.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A running child. What it prints goes to files, so that it never blocks on a full pipe; a test that panics shows them.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: TempDir,
}

/// How a child ended and what it had printed.
#[derive(Debug)]
pub struct Finished {
    /// The exit status; [`ExitStatus::code`] is `None` after a signal.
    pub status: ExitStatus,
    /// Standard output, with replacement characters where it is not UTF-8.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

impl Process {
    /// Starts `command`; `name` stands for it in messages.
    ///
    /// # Panics
    ///
    /// When the program cannot be started.
    #[must_use]
    pub fn start(name: &str, command: &mut Command) -> Self {
        let output = temp_dir();
        let file = |name| File::create(output.path().join(name)).expect("a file in a fresh folder");
        command.stdout(file("stdout")).stderr(file("stderr"));
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self {
            name: name.to_owned(),
            child,
            output,
        }
    }

    /// Runs `command` to its end.
    ///
    /// # Panics
    ///
    /// When it cannot be started or is not done within `limit`.
    #[must_use]
    pub fn run(name: &str, command: &mut Command, limit: Duration) -> Finished {
        Self::start(name, command).finish(limit)
    }

    /// Asks `probe` until it answers.
    ///
    /// # Panics
    ///
    /// When there is no answer within `limit`, or the child ends before.
    pub fn wait_until<T>(&mut self, what: &str, limit: Duration, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        let end = Instant::now() + limit;
        loop {
            if let Some(answer) = probe(self) {
                return answer;
            }
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                panic!("{} ended ({status}) before: {what}", self.name);
            }
            assert!(Instant::now() < end, "{}: not within {limit:?}: {what}", self.name);
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends SIGTERM; does not wait.
    ///
    /// # Panics
    ///
    /// When the signal cannot be sent.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGINT, as Ctrl-C does; does not wait.
    ///
    /// # Panics
    ///
    /// When the signal cannot be sent.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Kills the child with SIGKILL and reaps it.
    ///
    /// # Panics
    ///
    /// When the child cannot be waited for.
    pub fn kill(&mut self) {
        // An error here means that it has ended, which is what was wanted.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits for the end of the child.
    ///
    /// # Panics
    ///
    /// When it has not ended within `limit`.
    #[must_use]
    pub fn finish(mut self, limit: Duration) -> Finished {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(Instant::now() < end, "{} is still running after {limit:?}", self.name);
            thread::sleep(LOOK_EVERY);
        };
        Finished {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// What the child has printed to standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.printed("stdout")
    }

    /// What the child has printed to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.printed("stderr")
    }

    /// The process id, for a signal or a look from outside.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn printed(&self, name: &str) -> String {
        let path: PathBuf = self.output.path().join(name);
        String::from_utf8_lossy(&fs::read(path).expect("the file was made at the start")).into_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("an unreaped child can be signalled");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a child that has been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            for (stream, text) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
                show(&format!("---- {stream} of {} ----\n{text}", self.name));
            }
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a failed test shows what its children printed; the test harness captures it"
)]
fn show(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_finished_child_tells_all() {
        let finished = Process::run("sh", &mut shell("echo out; echo err >&2; exit 3"), LIMIT);
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
    }

    #[test]
    #[should_panic(expected = "sh ended (exit status: 0) before: it is ready")]
    fn waiting_for_a_child_that_has_ended_stops_at_once() {
        Process::start("sh", &mut shell("exit 0")).wait_until("it is ready", LIMIT, |_| None::<()>);
    }

    #[test]
    fn a_child_can_end_itself_on_sigterm() {
        let mut child = Process::start(
            "sh",
            &mut shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"),
        );
        child.wait_until("it prints", LIMIT, |child| (child.stdout() == "up\n").then_some(()));
        child.terminate();
        let finished = child.finish(LIMIT);
        assert_eq!(
            (finished.status.code(), finished.stdout.as_str()),
            (Some(7), "up\nbye\n")
        );
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = Process::start("sleep", Command::new("sleep").arg("600"));
        let pid = Pid::from_child(&child.child);
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
