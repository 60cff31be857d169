//! Commands that wait go out together.
//!
//! The client has a message, a buffer and an answer for each command that it is given. A pipeline has one of them for all
//! that is in it.

use std::io;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot};

/// Commands that wait; whoever comes then waits for a place.
const QUEUE: usize = 1024;

/// Most commands of one pipeline: enough to share its cost, and few enough for the server to be at work on one while the
/// next is made. When a connection breaks, all of a pipeline that was not answered to its end may have arrived.
const TOGETHER: usize = 16;

/// With so many pipelines on their way, what comes waits for an answer to one of them, or for a full pipeline.
const ON_THE_WAY: usize = 8;

/// The way in. What it is given is sent by the future that comes with it.
pub(super) struct Batches {
    queue: mpsc::Sender<Waiting>,
}

struct Waiting {
    command: Cmd,
    answer: oneshot::Sender<RedisResult<Value>>,
}

impl Batches {
    /// The future ends when the way in is dropped and everything is answered.
    pub(super) fn over(connection: MultiplexedConnection) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, send(waiting, connection))
    }

    /// The answer to this command, which is not sent if nobody waits for that any more when its turn comes.
    pub(super) async fn send(&self, command: Cmd) -> RedisResult<Value> {
        let (answer, answered) = oneshot::channel();
        self.queue
            .send(Waiting { command, answer })
            .await
            .map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

async fn send(mut queue: mpsc::Receiver<Waiting>, connection: MultiplexedConnection) {
    let mut on_the_way = FuturesUnordered::new();
    let mut batch = Vec::with_capacity(TOGETHER);
    loop {
        let room = TOGETHER - batch.len();
        tokio::select! {
            Some(()) = on_the_way.next() => {}
            count = queue.recv_many(&mut batch, room) => {
                if count == 0 {
                    break;
                }
            }
        }
        if !batch.is_empty() && (on_the_way.len() < ON_THE_WAY || batch.len() == TOGETHER) {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(TOGETHER));
            on_the_way.push(round_trip(connection.clone(), full));
        }
    }
    if !batch.is_empty() {
        on_the_way.push(round_trip(connection, batch));
    }
    while on_the_way.next().await.is_some() {}
}

async fn round_trip(mut connection: MultiplexedConnection, batch: Vec<Waiting>) {
    let mut pipeline = Pipeline::with_capacity(batch.len());
    let mut askers = Vec::with_capacity(batch.len());
    for Waiting { command, answer } in batch {
        if !answer.is_closed() {
            pipeline.add_command(command);
            askers.push(answer);
        }
    }
    if askers.is_empty() {
        return;
    }
    // Whoever has gone meanwhile does not take the answer.
    match connection.send_packed_commands(&pipeline, 0, askers.len()).await {
        Ok(answers) => {
            for (asker, answer) in askers.into_iter().zip(answers) {
                let _ = asker.send(answer.extract_error());
            }
        }
        Err(error) => {
            for asker in askers {
                let _ = asker.send(Err(error.clone()));
            }
        }
    }
}

/// As the client says it.
fn ended() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}
