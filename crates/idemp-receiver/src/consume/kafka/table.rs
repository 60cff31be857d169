//! The partitions that are ours: what of each is in memory, what is settled, what is committed, whether it is paused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::consume::message::Arrived;

/// Most bytes of a partition in memory; a single larger message is taken all the same.
const MOST_BYTES: usize = 16 << 20;

/// A topic and one of its partitions.
pub(super) type Place = (Arc<str>, i32);

/// The consumer changes it as it reads, its workers as they settle, librdkafka as it rebalances.
pub(super) struct Table {
    state: Mutex<State>,
    /// Something may have to be paused or resumed.
    pub(super) changed: Notify,
    buffer: usize,
}

#[derive(Default)]
struct State {
    partitions: HashMap<Place, Partition>,
    numbers: u64,
}

struct Partition {
    /// Tells a partition from the same one before it was revoked.
    number: u64,
    worker: UnboundedSender<(i64, Arrived)>,
    stop: CancellationToken,
    /// Messages in memory, the one at work among them.
    queued: usize,
    /// Their bytes.
    bytes: usize,
    /// The one at work has to wait.
    held: bool,
    paused: bool,
    /// The offset after the last settled message.
    next: Option<i64>,
    /// What of that was sent in a commit.
    sent: Option<i64>,
}

/// What a new worker gets.
pub(super) struct Hiring {
    pub(super) place: Place,
    pub(super) number: u64,
    pub(super) stop: CancellationToken,
}

impl Table {
    pub(super) fn new(buffer: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            buffer,
        }
    }

    /// Hands a message to the worker of its partition, which `hire` makes if there is none.
    pub(super) fn push(
        &self,
        place: Place,
        offset: i64,
        message: Arrived,
        halt: &CancellationToken,
        hire: impl FnOnce(Hiring) -> UnboundedSender<(i64, Arrived)>,
    ) {
        let mut state = self.lock();
        let State {
            partitions, numbers, ..
        } = &mut *state;
        let partition = partitions.entry(place).or_insert_with_key(|place| {
            *numbers += 1;
            let stop = halt.child_token();
            let worker = hire(Hiring {
                place: place.clone(),
                number: *numbers,
                stop: stop.clone(),
            });
            Partition {
                number: *numbers,
                worker,
                stop,
                queued: 0,
                bytes: 0,
                held: false,
                paused: false,
                next: None,
                sent: None,
            }
        });
        partition.queued += 1;
        partition.bytes += message.len();
        // It fails if the worker has stopped: then nothing more of the partition is settled.
        let _ = partition.worker.send((offset, message));
        if partition.is_full(self.buffer) {
            self.changed.notify_one();
        }
    }

    /// The message at work has to wait.
    pub(super) fn hold(&self, place: &Place, number: u64) {
        self.with(place, number, |partition| partition.held = true);
        self.changed.notify_one();
    }

    /// The message at work is settled.
    pub(super) fn settled(&self, place: &Place, number: u64, offset: i64, bytes: usize) {
        self.with(place, number, |partition| {
            partition.held = false;
            partition.queued = partition.queued.saturating_sub(1);
            partition.bytes = partition.bytes.saturating_sub(bytes);
            partition.next = Some(offset + 1);
            if partition.paused {
                self.changed.notify_one();
            }
        });
    }

    /// What is to be paused and what is to be resumed, which then counts as done.
    pub(super) fn balance(&self) -> (TopicPartitionList, TopicPartitionList) {
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for ((topic, number), partition) in &mut self.lock().partitions {
            // Between the two marks it stays as it is.
            let wanted = partition.held
                || partition.is_full(self.buffer)
                || (partition.paused && partition.is_half_full(self.buffer));
            if wanted != partition.paused {
                partition.paused = wanted;
                let list = if wanted { &mut pause } else { &mut resume };
                list.add_partition(topic, *number);
            }
        }
        (pause, resume)
    }

    /// What is settled and was not sent yet, which then counts as sent.
    pub(super) fn commit(&self) -> Option<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for (place, partition) in &mut self.lock().partitions {
            add_unsent(&mut list, place, partition);
        }
        (list.count() > 0).then_some(list)
    }

    /// The commit could not be sent or was refused: its offsets are sent again, unless later ones were sent since.
    pub(super) fn unsent(&self, list: &TopicPartitionList) {
        let mut state = self.lock();
        for element in list.elements() {
            let place = (Arc::from(element.topic()), element.partition());
            if let Some(partition) = state.partitions.get_mut(&place)
                && element.offset().to_raw() == partition.sent
            {
                partition.sent = None;
            }
        }
    }

    /// Whether nothing is settled that was not sent.
    pub(super) fn is_sent(&self) -> bool {
        let state = self.lock();
        state
            .partitions
            .values()
            .all(|partition| partition.next == partition.sent)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().partitions.is_empty()
    }

    /// These are not ours any more: stops their workers, and tells what of them is still to be committed.
    pub(super) fn revoke(&self, list: &TopicPartitionList) -> Option<TopicPartitionList> {
        let mut state = self.lock();
        let mut rest = TopicPartitionList::new();
        for element in list.elements() {
            let place = (Arc::from(element.topic()), element.partition());
            if let Some(mut partition) = state.partitions.remove(&place) {
                partition.stop.cancel();
                add_unsent(&mut rest, &place, &mut partition);
            }
        }
        (rest.count() > 0).then_some(rest)
    }

    fn with(&self, (topic, partition): &Place, number: u64, change: impl FnOnce(&mut Partition)) {
        let place = (Arc::clone(topic), *partition);
        if let Some(partition) = self.lock().partitions.get_mut(&place)
            && partition.number == number
        {
            change(partition);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partition {
    fn is_full(&self, buffer: usize) -> bool {
        self.queued >= buffer || self.bytes >= MOST_BYTES
    }

    fn is_half_full(&self, buffer: usize) -> bool {
        self.queued > buffer / 2 || self.bytes > MOST_BYTES / 2
    }
}

fn add_unsent(list: &mut TopicPartitionList, (topic, number): &Place, partition: &mut Partition) {
    if let Some(next) = partition.next
        && partition.sent != Some(next)
        // It fails for offsets below zero, of which there are none.
        && list.add_partition_offset(topic, *number, Offset::Offset(next)).is_ok()
    {
        partition.sent = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consume::message::Position;

    fn place(partition: i32) -> Place {
        (Arc::from("events"), partition)
    }

    fn message() -> Arrived {
        Arrived {
            position: Position::Other {
                transport: "test",
                id: String::new(),
            },
            record_key: None,
            fields: Vec::new(),
            body: None,
            key_field: "",
            signature_field: "",
        }
    }

    /// Puts `count` messages in and gives the number and the stop of the partition's first worker.
    fn fill(table: &Table, partition: i32, count: usize) -> (u64, CancellationToken) {
        let mut hired = None;
        for offset in 0..count {
            table.push(
                place(partition),
                offset as i64,
                message(),
                &CancellationToken::new(),
                |hiring| {
                    hired = Some((hiring.number, hiring.stop));
                    tokio::sync::mpsc::unbounded_channel().0
                },
            );
        }
        hired.unwrap()
    }

    fn partitions(list: &TopicPartitionList) -> Vec<(i32, Option<i64>)> {
        let mut all: Vec<_> = list
            .elements()
            .iter()
            .map(|element| (element.partition(), element.offset().to_raw()))
            .collect();
        all.sort_unstable();
        all
    }

    fn of(partition: i32) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        list.add_partition("events", partition);
        list
    }

    #[tokio::test]
    async fn pauses_what_is_full_or_waits_and_resumes_what_is_half_empty() {
        let table = Table::new(4);
        let (one, _) = fill(&table, 1, 4);
        let (two, _) = fill(&table, 2, 1);
        table.hold(&place(2), two);
        let counts = |(pause, resume): (TopicPartitionList, TopicPartitionList)| {
            let numbers = |list| {
                partitions(&list)
                    .into_iter()
                    .map(|(number, _)| number)
                    .collect::<Vec<_>>()
            };
            (numbers(pause), numbers(resume))
        };
        assert_eq!(counts(table.balance()), (vec![1, 2], vec![]));
        assert_eq!(counts(table.balance()), (vec![], vec![]));
        table.settled(&place(1), one, 0, 0);
        table.settled(&place(2), two, 0, 0);
        assert_eq!(counts(table.balance()), (vec![], vec![2]));
        table.settled(&place(1), one, 1, 0);
        assert_eq!(counts(table.balance()), (vec![], vec![1]));
    }

    #[tokio::test]
    async fn commits_what_is_settled_once_and_again_if_it_was_refused() {
        let table = Table::new(4);
        let (one, _) = fill(&table, 1, 3);
        assert!(table.commit().is_none());
        assert!(table.is_sent());
        table.settled(&place(1), one, 0, 0);
        assert!(!table.is_sent());
        let first = table.commit().unwrap();
        assert_eq!(partitions(&first), [(1, Some(1))]);
        assert!(table.is_sent() && table.commit().is_none());
        table.unsent(&first);
        let again = table.commit().unwrap();
        assert_eq!(partitions(&again), [(1, Some(1))]);
        table.settled(&place(1), one, 1, 0);
        assert_eq!(partitions(&table.commit().unwrap()), [(1, Some(2))]);
        // The later one covers it.
        table.unsent(&again);
        assert!(table.is_sent());
    }

    #[tokio::test]
    async fn nothing_of_a_revoked_partition_is_committed_later() {
        let table = Table::new(4);
        let (old, stop) = fill(&table, 1, 3);
        table.settled(&place(1), old, 0, 0);
        let rest = table.revoke(&of(1)).unwrap();
        assert_eq!(partitions(&rest), [(1, Some(1))]);
        assert!(stop.is_cancelled());
        // The old worker goes on to the end of what it has begun.
        table.settled(&place(1), old, 1, 0);
        assert!(table.commit().is_none());
        // It has come back, and the old worker is still not heard.
        let (new, _) = fill(&table, 1, 1);
        assert_ne!(new, old);
        table.settled(&place(1), old, 2, 0);
        assert!(table.commit().is_none());
    }
}
