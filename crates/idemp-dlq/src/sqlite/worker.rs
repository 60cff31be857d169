//! A thread that does one job after another.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::fault;
use crate::{StoreError, StoreErrorKind};

/// Jobs that wait before senders wait.
const WAITING: usize = 1024;

pub(super) struct Worker<J> {
    jobs: Mutex<Option<mpsc::Sender<J>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: CancellationToken,
}

impl<J: Send + 'static> Worker<J> {
    /// Starts a thread, which ends when it has done every job after [`stop`](Self::stop).
    pub(super) fn start(name: &str, run: impl FnOnce(mpsc::Receiver<J>) + Send + 'static) -> Result<Self, StoreError> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let body = move || {
            let _guard = guard;
            run(receiver);
        };
        let thread = Builder::new().name(name.to_owned()).spawn(body).map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "no thread for the dead-letter file").with_source(error)
        })?;
        Ok(Self {
            jobs: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
            ended,
        })
    }

    /// Hands a job over. Dropping the future before it is done means that the job is not; after that the job is done
    /// whatever happens.
    pub(super) async fn send(&self, job: J) -> Result<(), StoreError> {
        let sender = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sender = sender.ok_or_else(fault::closed)?;
        sender.send(job).await.map_err(|_| fault::closed())
    }

    /// Takes no further jobs.
    pub(super) fn stop(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until the last job is done and the thread has let go of its connection.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The same, blocking.
    pub(super) fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has been reported by its hook.
            let _ = thread.join();
        }
    }
}

impl<J> fmt::Debug for Worker<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("ended", &self.ended.is_cancelled())
            .finish_non_exhaustive()
    }
}
