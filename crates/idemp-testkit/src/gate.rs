//! Something that waits until the test lets it go.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

/// A gate that is shut until the test opens it. Copies are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    permits: Arc<Semaphore>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Gate {
    /// A gate that nobody passes yet.
    #[must_use]
    pub fn shut() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(0)),
            arrived: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Lets so many through, of those who wait or come later.
    pub fn let_through(&self, count: usize) {
        self.permits.add_permits(count);
    }

    /// Lets everybody through, for good.
    pub fn open(&self) {
        self.permits.close();
    }

    /// Waits until the gate lets it through.
    pub async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        // An error means that the gate is open for good.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
    }

    /// Waits until so many in all have come to the gate, whether they have passed or not.
    pub async fn arrived(&self, count: usize) {
        reached(&self.arrived, count).await;
    }
}

/// Waits until a counter has reached `count`.
pub(crate) async fn reached(counter: &watch::Sender<usize>, count: usize) {
    // It ends only with the sender, which we hold.
    counter
        .subscribe()
        .wait_for(|now| *now >= count)
        .await
        .expect("the counter is alive");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn holds_until_let_through() {
        let gate = Gate::shut();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let gate = gate.clone();
                tokio::spawn(async move { gate.pass().await })
            })
            .collect();
        gate.arrived(3).await;
        assert!(waiting.iter().all(|task| !task.is_finished()));
        gate.let_through(1);
        while !waiting.iter().any(|task| task.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(waiting.iter().filter(|task| task.is_finished()).count(), 1);
        gate.open();
        for task in waiting {
            task.await.unwrap();
        }
        gate.pass().await;
    }
}
