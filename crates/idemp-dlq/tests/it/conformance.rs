//! Every store of this crate keeps the contract.

use std::sync::Arc;

use idemp_dlq::{MemoryStore, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    conformance::all(async || Arc::new(MemoryStore::new()) as _).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicU32::new(0);
    conformance::all(async || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(idemp_dlq::SqliteStore::open(folder.path().join(format!("{number}.db"))).unwrap()) as _
    })
    .await;
}

#[cfg(feature = "object")]
#[tokio::test(flavor = "multi_thread")]
async fn object() {
    conformance::all(async || {
        let objects = Arc::new(object_store::memory::InMemory::new());
        Arc::new(idemp_dlq::ObjectStoreDlq::new(objects, "team/a")) as _
    })
    .await;
}
