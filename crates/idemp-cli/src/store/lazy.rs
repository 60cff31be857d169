//! A dead-letter store that is made when the first letter comes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idemp_dlq::{
    Claim, DeadLetter, DeadLetterStore, EntryId, Filter, LeaseToken, Loaded, Put, ReplayFailure, Selection, Settled,
    Stats, StoreError,
};
use tokio::sync::OnceCell;

use super::Missing;
use crate::exit::complain;

pub(super) struct LazyStore {
    path: PathBuf,
    store: OnceCell<Arc<dyn DeadLetterStore>>,
}

impl LazyStore {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            store: OnceCell::new(),
        }
    }

    async fn store(&self) -> Result<&dyn DeadLetterStore, StoreError> {
        let open = || async {
            let store = super::open(&self.path, Missing::Make)?;
            complain(format_args!("warning: dead letters go to {} now", self.path.display()));
            Ok(store)
        };
        self.store.get_or_try_init(open).await.map(|store| &**store)
    }
}

#[async_trait]
impl DeadLetterStore for LazyStore {
    async fn put(&self, letter: DeadLetter) -> Result<Put, StoreError> {
        self.store().await?.put(letter).await
    }

    async fn select(&self, filter: &Filter) -> Result<Box<dyn Selection>, StoreError> {
        self.store().await?.select(filter).await
    }

    async fn load(&self, id: &EntryId) -> Result<Option<Loaded>, StoreError> {
        self.store().await?.load(id).await
    }

    async fn claim(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        lease: Duration,
        now: SystemTime,
    ) -> Result<Claim, StoreError> {
        self.store().await?.claim(id, token, lease, now).await
    }

    async fn mark_replayed(&self, id: &EntryId, token: &LeaseToken, now: SystemTime) -> Result<Settled, StoreError> {
        self.store().await?.mark_replayed(id, token, now).await
    }

    async fn record_failure(
        &self,
        id: &EntryId,
        token: &LeaseToken,
        failure: ReplayFailure,
    ) -> Result<Settled, StoreError> {
        self.store().await?.record_failure(id, token, failure).await
    }

    async fn release(&self, id: &EntryId, token: &LeaseToken) -> Result<Settled, StoreError> {
        self.store().await?.release(id, token).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.store().await?.purge(filter).await
    }

    async fn stats(&self, filter: &Filter) -> Result<Stats, StoreError> {
        self.store().await?.stats(filter).await
    }

    async fn close(&self) {
        if let Some(store) = self.store.get() {
            store.close().await;
        }
    }
}
