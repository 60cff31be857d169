//! Appends processed events, one JSON line each, in whole lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use idemp_receiver::Event;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::exit::{Failure, complain};

/// How many lines wait to be written.
const QUEUE: usize = 1_024;

/// Where events are written: one thread writes them, one after the other.
#[derive(Clone)]
pub(super) struct Out {
    lines: mpsc::Sender<Job>,
}

struct Job {
    line: Vec<u8>,
    written: oneshot::Sender<io::Result<()>>,
}

impl Out {
    /// Appends to a file, which is created if it is not there. A last line that a crash cut short is ended, so that the
    /// next one begins on its own.
    ///
    /// # Errors
    /// If the file cannot be opened, read or written.
    pub(super) fn append_to(path: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: io::Error| Failure::usage(format_args!("cannot write to {}", path.display())).because(&error);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(cannot)?;
        if ends_in_mid_line(&mut file).map_err(cannot)? {
            complain(format_args!(
                "warning: the last line of {} is not complete; it is ended",
                path.display()
            ));
            file.write_all(b"\n").map_err(cannot)?;
        }
        let can_cut = file.metadata().map_err(cannot)?.is_file();
        Self::start(file, can_cut)
    }

    /// Writes to standard output, past the buffer that the standard library has there.
    ///
    /// # Errors
    /// If it is closed.
    pub(super) fn stdout() -> Result<Self, Failure> {
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => Self::start(stdout.into(), false),
            Err(error) => Err(Failure::usage("cannot write to standard output").because(&error)),
        }
    }

    fn start(file: File, can_cut: bool) -> Result<Self, Failure> {
        let (lines, jobs) = mpsc::channel(QUEUE);
        let writer = Writer {
            file,
            can_cut,
            torn: false,
        };
        match thread::Builder::new()
            .name("idemp-out".to_owned())
            .spawn(move || writer.run(jobs))
        {
            Ok(_detached) => Ok(Self { lines }),
            Err(error) => Err(Failure::failed("cannot start to write").because(&error)),
        }
    }

    /// Writes an event and returns when the operating system has it.
    ///
    /// # Errors
    /// If that failed. Then nothing of it stays in a file.
    ///
    /// # Cancel safety
    /// If the future is dropped before its turn comes, nothing is written.
    pub(super) async fn write(&self, event: &Event) -> io::Result<()> {
        let (written, done) = oneshot::channel();
        let job = Job {
            line: line(event)?,
            written,
        };
        let gone = || io::Error::other("the writer is gone");
        self.lines.send(job).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }
}

/// `{"key","event","data"}`, where the data is the text that was signed.
fn line(event: &Event) -> io::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Head<'e> {
        key: &'e str,
        event: &'e str,
    }
    let data = event.data_bytes();
    let mut line = Vec::with_capacity(data.len() + 256);
    serde_json::to_writer(
        &mut line,
        &Head {
            key: event.key(),
            event: event.event_type(),
        },
    )?;
    line.pop();
    line.extend_from_slice(br#","data":"#);
    // Within JSON a line end can only stand between tokens, where a blank means the same.
    line.extend(
        data.iter()
            .map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }),
    );
    line.extend_from_slice(b"}\n");
    Ok(line)
}

fn ends_in_mid_line(file: &mut File) -> io::Result<bool> {
    // Pipes and devices have neither a length nor an end.
    if !file.metadata()?.is_file() || file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

struct Writer {
    file: File,
    /// Whether what was written in part can be cut off again: in a regular file, to which we append.
    can_cut: bool,
    /// Whether a part of a line was written and could not be cut off.
    torn: bool,
}

impl Writer {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { line, written }) = jobs.blocking_recv() {
            // A handler that was cut will be run again: its line must not stand there twice.
            if !written.is_closed() {
                let result = self.write(line);
                let _ = written.send(result);
            }
        }
    }

    fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        if self.torn {
            line.insert(0, b'\n');
        }
        let before = if self.can_cut {
            Some(self.file.metadata()?.len())
        } else {
            None
        };
        let result = self.file.write_all(&line);
        self.torn = match (&result, before) {
            (Ok(()), _) => false,
            (Err(_), Some(before)) => self.torn || self.file.set_len(before).is_err(),
            (Err(_), None) => true,
        };
        result
    }
}
