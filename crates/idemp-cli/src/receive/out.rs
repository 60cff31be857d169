//! Appends processed events, one JSON line each, in whole lines.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use idemp_receiver::Event;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, complain};

/// How many lines wait to be written.
const QUEUE: usize = 1_024;

/// How many lines are remembered that were written and whose asker has not heard so.
const UNHEARD: usize = 1_024;

/// Where events are written: one thread writes them, one after the other.
#[derive(Clone)]
pub(super) struct Out {
    lines: mpsc::Sender<Job>,
    unheard: Unheard,
    reader_gone: CancellationToken,
}

struct Job {
    line: Vec<u8>,
    print: Print,
    written: oneshot::Sender<io::Result<()>>,
}

impl Out {
    /// Appends to a file, which is made for its owner alone if it is not there. A last line that a crash cut short is ended, so that the
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
            // It is full of payloads.
            .mode(0o600)
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
        let (unheard, reader_gone) = (Unheard::default(), CancellationToken::new());
        let writer = Writer {
            file,
            can_cut,
            torn: false,
            unheard: unheard.clone(),
            reader_gone: reader_gone.clone(),
        };
        match thread::Builder::new()
            .name("idemp-out".to_owned())
            .spawn(move || writer.run(jobs))
        {
            Ok(_detached) => Ok(Self {
                lines,
                unheard,
                reader_gone,
            }),
            Err(error) => Err(Failure::failed("cannot start to write").because(&error)),
        }
    }

    /// Cancelled once it is known that nobody reads the pipe to which we write, and nobody will.
    pub(super) const fn reader_gone(&self) -> &CancellationToken {
        &self.reader_gone
    }

    /// Writes an event and returns when the operating system has it.
    ///
    /// # Errors
    /// If that failed. Then nothing of it stays in a file.
    ///
    /// # Cancel safety
    /// If the future is dropped before its turn comes, nothing is written. If it is dropped later, the line may be
    /// finished all the same: then the next call for the same event waits for that and writes nothing.
    pub(super) async fn write(&self, event: &Event) -> io::Result<()> {
        self.write_line(line(event)?).await
    }

    async fn write_line(&self, line: Vec<u8>) -> io::Result<()> {
        let (written, done) = oneshot::channel();
        let print: Print = Sha256::digest(&line).into();
        let gone = || io::Error::other("the writer is gone");
        self.lines
            .send(Job { line, print, written })
            .await
            .map_err(|_| gone())?;
        done.await.map_err(|_| gone())??;
        self.unheard.remove(&print);
        Ok(())
    }
}

/// The SHA-256 of a line: of key, event type and data.
type Print = [u8; 32];

/// Lines that were written and whose askers have not heard so, oldest first.
///
/// A receiver cuts a handler that takes too long and releases its claim, while the thread may be in the middle of its
/// line. What the thread finishes then must not be lost: the sender comes with a copy. Jobs are done in order, so the
/// copy's turn comes when the line before it is finished.
#[derive(Clone, Default)]
struct Unheard(Arc<Mutex<VecDeque<Print>>>);

impl Unheard {
    /// Besides those who are just about to hear, a write that was blocked leaves one line here: the copies that wait
    /// behind it are not written. So the oldest is forgotten only after [`UNHEARD`] such writes without a copy.
    fn add(&self, print: Print) {
        let mut prints = self.lock();
        if prints.len() >= UNHEARD {
            prints.pop_front();
        }
        prints.push_back(print);
    }

    fn contains(&self, print: &Print) -> bool {
        self.lock().contains(print)
    }

    fn remove(&self, print: &Print) {
        let mut prints = self.lock();
        if let Some(at) = prints.iter().position(|known| known == print) {
            prints.remove(at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Print>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Whether the next line would begin in the middle of one.
pub(super) fn ends_in_mid_line(file: &mut File) -> io::Result<bool> {
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
    unheard: Unheard,
    reader_gone: CancellationToken,
}

impl Writer {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(Job { line, print, written }) = jobs.blocking_recv() {
            // A handler that was cut will be run again: its line must not stand there twice.
            if written.is_closed() {
                continue;
            }
            let result = if self.unheard.contains(&print) {
                Ok(())
            } else {
                // Before the asker is told: who can tell whether it hears?
                self.write(line).inspect(|()| self.unheard.add(print))
            };
            let _ = written.send(result);
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
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            self.reader_gone.cancel();
        }
        self.torn = match (&result, before) {
            (Ok(()), _) => false,
            (Err(_), Some(before)) => self.torn || self.file.set_len(before).is_err(),
            (Err(_), None) => true,
        };
        result
    }
}

#[cfg(test)]
mod tests {
    use std::io::PipeReader;
    use std::os::fd::OwnedFd;
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    fn to_pipe() -> (Out, PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        (Out::start(OwnedFd::from(writer).into(), false).unwrap(), reader)
    }

    /// All that was written, read until the writer's thread has ended.
    fn drain(mut reader: PipeReader) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        })
    }

    #[tokio::test]
    async fn a_line_that_is_finished_after_its_asker_has_gone_is_not_written_again() {
        let (out, mut reader) = to_pipe();
        // Longer than a pipe holds.
        let line = format!("{}\n", "x".repeat(300_000));
        let mut first = [0];
        {
            let mut cut = pin!(out.write_line(line.clone().into()));
            assert!(poll!(&mut cut).is_pending());
            reader.read_exact(&mut first).unwrap();
        }
        {
            // A copy that waits for it, and is cut as well.
            let mut cut = pin!(out.write_line(line.clone().into()));
            assert!(poll!(&mut cut).is_pending());
        }
        let rest = {
            let mut copy = pin!(out.write_line(line.clone().into()));
            assert!(poll!(&mut copy).is_pending(), "the line is not finished yet");
            let rest = drain(reader);
            copy.await.unwrap();
            rest
        };
        assert!(out.unheard.lock().is_empty());
        out.write_line(b"other data\n".into()).await.unwrap();
        drop(out);
        let text = format!("x{}", rest.join().unwrap());
        assert!(text == format!("{line}other data\n"), "{} bytes", text.len());
    }

    #[tokio::test]
    async fn an_answer_that_came_and_was_not_heard_is_not_lost() {
        let (out, reader) = to_pipe();
        {
            let mut cut = pin!(out.write_line(b"1\n".into()));
            assert!(poll!(&mut cut).is_pending());
            // Its turn comes later, so the first has its answer by now, and does not look.
            out.write_line(b"2\n".into()).await.unwrap();
        }
        out.write_line(b"1\n".into()).await.unwrap();
        // That was heard: what comes now is not a copy of it.
        out.write_line(b"1\n".into()).await.unwrap();
        drop(out);
        assert_eq!(drain(reader).join().unwrap(), "1\n2\n1\n");
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let unheard = Unheard::default();
        let print = |number: usize| Sha256::digest(number.to_be_bytes()).into();
        (0..=UNHEARD).for_each(|number| unheard.add(print(number)));
        assert!(!unheard.contains(&print(0)));
        assert!(unheard.contains(&print(1)) && unheard.contains(&print(UNHEARD)));
    }
}
