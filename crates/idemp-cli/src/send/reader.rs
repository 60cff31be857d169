//! Reads and checks lines on a thread of its own, a bounded number ahead.

use std::io::{self, Read};
use std::thread;

use idemp_core::Message;
use tokio::sync::mpsc;

use super::seen::{Seen, Sight};
use crate::exit::Failure;
use crate::jsonl::{self, Line, LineError, Lines};

/// How many batches wait to be taken.
const AHEAD: usize = 2;

/// A batch is full with so many bytes, or
const BATCH_BYTES: usize = 1 << 20;
/// with so many lines.
const BATCH_LINES: usize = 256;

/// Some lines, in order, without blank ones.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    /// Bytes of the input that these lines took, with the blank ones before them.
    pub(super) taken: u64,
    /// How many lines the input has, in the last batch.
    pub(super) lines: Option<u64>,
    size: usize,
}

/// A line that is not blank.
pub(super) struct Item {
    /// Its number, from 1.
    pub(super) line: u64,
    pub(super) what: What,
}

pub(super) enum What {
    /// A new event.
    Event(Message),
    /// An event that was in the input before, with the same key and bytes.
    Duplicate,
    /// No event.
    Invalid(LineError),
}

/// Starts to read. Lines before `from_line` are read for their keys and left out.
///
/// The thread ends when the receiver is dropped, unless it is waiting for input: then it ends with the process.
///
/// # Errors
/// If there is no thread to be had.
pub(super) fn start(input: Box<dyn Read + Send>, from_line: u64) -> Result<mpsc::Receiver<io::Result<Batch>>, Failure> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let read = move || {
        if let Err(error) = read(Lines::new(input), from_line, &sender) {
            // Nobody listens any more: then nobody wants to know.
            let _ = sender.blocking_send(Err(error));
        }
    };
    match thread::Builder::new().name("idemp-reader".to_owned()).spawn(read) {
        Ok(_detached) => Ok(receiver),
        Err(error) => Err(Failure::failed("cannot start to read").because(&error)),
    }
}

fn read<R: Read>(mut lines: Lines<R>, from_line: u64, sender: &mpsc::Sender<io::Result<Batch>>) -> io::Result<()> {
    let (mut batch, mut seen, mut text) = (Batch::default(), Seen::new(), Vec::new());
    for line in 1.. {
        let next = lines.next(&mut text);
        if next.is_err() {
            // What was read before the error is still good.
            let _ = sender.blocking_send(Ok(std::mem::take(&mut batch)));
        }
        let (kind, taken) = next?;
        batch.taken += taken;
        let what = match kind {
            Line::End => {
                batch.lines = Some(line - 1);
                break;
            }
            Line::TooLong => Some(What::Invalid(LineError::too_long())),
            Line::Whole => examine(&text, &mut seen),
        };
        if let Some(what) = what.filter(|_| line >= from_line) {
            if let What::Event(message) = &what {
                batch.size += message.body().len();
            }
            batch.items.push(Item { line, what });
        }
        // A line is not kept waiting for the next one.
        let is_full = batch.size >= BATCH_BYTES || batch.items.len() >= BATCH_LINES;
        if (is_full || !lines.has_line_ready()) && sender.blocking_send(Ok(std::mem::take(&mut batch))).is_err() {
            return Ok(());
        }
    }
    let _ = sender.blocking_send(Ok(batch));
    Ok(())
}

/// `None` for a blank line.
fn examine(text: &[u8], seen: &mut Seen) -> Option<What> {
    let message = match jsonl::message(text) {
        Ok(message) => message?,
        Err(error) => return Some(What::Invalid(error)),
    };
    Some(match seen.see(message.key().as_str(), message.body()) {
        Sight::New => What::Event(message),
        Sight::Same => What::Duplicate,
        Sight::Other => What::Invalid(LineError::of(format_args!(
            "key {} stood in the input before, with other data",
            message.key()
        ))),
    })
}
