//! Child processes. Each leads a process group of its own, so that it can be stopped with all that it started: when its
//! handle is dropped (also by a panic), and on Ctrl-C or SIGTERM.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// Between two looks at a child.
const LOOK_EVERY: Duration = Duration::from_millis(20);

type Shared = Arc<Mutex<Child>>;

static RUNNING: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// A child process and its group.
pub(crate) struct Running(Shared);

impl Running {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // Held over the start, so that a signal meets no child that is not listed yet, and none starts after it.
        let mut running = lock(&RUNNING);
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = Arc::new(Mutex::new(
            child.with_context(|| format!("cannot start {}", spelled(command)))?,
        ));
        running.push(Arc::clone(&child));
        Ok(Self(child))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(lock(&self.0).try_wait()?)
    }

    fn wait(&self) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill_and_reap(&self.0);
        lock(&RUNNING).retain(|child| !Arc::ptr_eq(child, &self.0));
    }
}

/// Makes Ctrl-C, SIGTERM and SIGHUP stop every running child before xtask ends.
pub(crate) fn stop_children_on_signals() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        let running = lock(&RUNNING);
        running.iter().for_each(kill_and_reap);
        std::process::exit(130);
    })
    .context("cannot listen for signals")
}

/// Runs a command on this terminal to its end; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    announce(command);
    let status = Running::start(command)?.wait()?;
    if !status.success() {
        bail!("{status}: {}", spelled(command));
    }
    Ok(())
}

/// Runs a command on this terminal and also hands back what it wrote to standard output.
pub(crate) fn run_and_read(command: &mut Command) -> anyhow::Result<(ExitStatus, String)> {
    announce(command);
    let running = Running::start(command.stdout(Stdio::piped()))?;
    let stdout = lock(&running.0).stdout.take().context("standard output is piped")?;
    let mut text = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        text.push_str(&line);
        text.push('\n');
    }
    Ok((running.wait()?, text))
}

/// Runs a short command silently and hands back its standard output.
pub(crate) fn read(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", spelled(command)))?;
    if !output.status.success() {
        bail!(
            "{}: {}: {}",
            output.status,
            spelled(command),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("not UTF-8: the output of {}", spelled(command)))
}

fn announce(command: &Command) {
    eprintln!("$ {}", spelled(command));
}

/// The command as a person would type it; never its environment, which may hold secrets.
fn spelled(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn kill_and_reap(child: &Shared) {
    let mut child = lock(child);
    // A reaped child's id may belong to someone else by now.
    if matches!(child.try_wait(), Ok(None)) {
        // An error means that the group has just ended.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
}

/// A panic elsewhere leaves nothing half-done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_ends_with_all_that_it_started() {
        // The grandchild holds the pipe open; its end shows that it is gone.
        let running = Running::start(
            Command::new("sh")
                .args(["-c", "sleep 600 & echo started; wait"])
                .stdout(Stdio::piped()),
        )
        .unwrap();
        let mut stdout = BufReader::new(lock(&running.0).stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");

        drop(running);
        line.clear();
        assert_eq!(stdout.read_line(&mut line).unwrap(), 0);
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "exit status: 3: sh -c exit 3");
    }
}
