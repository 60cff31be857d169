//! What the benchmarks over HTTP share: the runtime, a server in this process, and samples of many events.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context;
use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use crate::measure::{self, Both};

/// Client and server share it, with a thread for each core.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")
}

/// A server on a free port; it ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // It serves until it is dropped.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Seconds that a piece of work takes, by the clock and in processor time of the whole process.
pub(crate) fn timed(runtime: &Runtime, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Both> {
    let (start, before) = (Instant::now(), measure::process_time());
    runtime.block_on(work)?;
    Ok(Both {
        clock: start.elapsed().as_secs_f64(),
        processor: (measure::process_time() - before).as_secs_f64(),
    })
}

/// Runs one task for each of `workers` and waits for all; the first error ends it.
pub(crate) async fn all<F>(workers: impl IntoIterator<Item = F>) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut tasks: JoinSet<anyhow::Result<()>> = workers.into_iter().collect();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Hands every item to `one`, with so many at work.
pub(crate) async fn in_flight<T, F, A>(workers: usize, items: Arc<Vec<T>>, one: F) -> anyhow::Result<()>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(T) -> A + Clone + Send + 'static,
    A: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let worker = |_| {
        let (items, next, one) = (Arc::clone(&items), Arc::clone(&next), one.clone());
        async move {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                one(item.clone()).await?;
            }
            Ok(())
        }
    };
    all((0..workers).map(worker)).await
}
