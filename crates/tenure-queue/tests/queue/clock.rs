//! Store time decides, whatever the clocks of processes say.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_queue::{Queue, TaskStatus};
use tenure_store::memory::MemoryStore;
use tenure_store::{
    Delete, DeleteIf, Entry, Listing, Put, PutIf, Revision, Store, StoreError, StoreInfo, Watch,
};

use crate::test_cluster::*;

/// A store whose clock is off by so many seconds from that of every process.
struct Shifted(MemoryStore, Arc<AtomicI64>);

impl fmt::Debug for Shifted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shifted")
    }
}

#[async_trait]
impl Store for Shifted {
    fn info(&self) -> &StoreInfo {
        self.0.info()
    }
    async fn identity(&self) -> Result<String, StoreError> {
        self.0.identity().await
    }
    async fn revision(&self) -> Result<Revision, StoreError> {
        self.0.revision().await
    }
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.0.get(key).await
    }
    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        self.0.get_many(keys).await
    }
    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        self.0.put_if(put).await
    }
    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.0.put_many(puts).await
    }
    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        self.0.delete_if(delete).await
    }
    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        self.0.delete_many(deletes).await
    }
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.0.list(prefix).await
    }
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.0.watch(prefix, from).await
    }
    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let shift = self.1.load(Ordering::Relaxed);
        let by = Duration::from_secs(shift.unsigned_abs());
        let now = self.0.now().await?;
        Ok(now.map(|now| if shift < 0 { now - by } else { now + by }))
    }
    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self(self.0.clone(), self.1.clone())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_clock_is_hours_off_changes_nothing() {
    // Seen from the store, every process here is six hours ahead, or behind.
    for hours in [-6i64, 6] {
        let shift = Arc::new(AtomicI64::new(hours * 3600));
        let world = TestCluster::over(Arc::new(Shifted(MemoryStore::new(), shift)));
        let (queue, producer) = (
            world.queue(settings(4)).await,
            world.queue(settings(4)).await,
        );
        let worker = world
            .worker(&queue, "w")
            .start(Hand::default())
            .await
            .unwrap();
        let store_now = world.store.now().await.unwrap().unwrap();
        let now = producer.now().await.unwrap();
        assert!(now.since(store_now.into()) < secs(1), "{now}");
        let at_once = submitted(&producer, text("now")).await;
        let later = submitted(&producer, text("later").at(now.plus(secs(30)))).await;
        let long = submitted(&producer, text("sleep:20000")).await;
        let task = ended(&producer, &at_once).await;
        assert!(task.ended().unwrap().since(task.created) < secs(2));
        let task = ended(&producer, &later).await;
        let waited = task.ended().unwrap().since(task.created);
        assert!(waited >= secs(30) && waited < secs(33), "{waited:?}");
        assert_eq!(ended(&producer, &long).await.attempts, 1);
        worker.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_stores_clock_ends_no_owner_and_finishes_nothing_twice() {
    let shift = Arc::new(AtomicI64::new(0));
    let world = TestCluster::over(Arc::new(Shifted(MemoryStore::new(), shift.clone())));
    let queue = world.queue(settings(4)).await;
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    let id = submitted(&queue, text("sleep:100000")).await;
    until("it is running", async || worker.running() == 1).await;
    let shards = worker.shards();
    for hours in [5, -5, 0] {
        shift.store(hours * 3600, Ordering::Relaxed);
        tokio::time::sleep(secs(40)).await;
        assert_eq!(worker.shards(), shards);
    }
    let task = ended(&queue, &id).await;
    assert_eq!(task.status(), TaskStatus::Done);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_store_does_by_default_is_enough_for_a_queue() {
    // This one overrides neither pages of keys nor discarding.
    let world = TestCluster::over(Arc::new(Shifted(MemoryStore::new(), Arc::default())));
    let queue = world.queue(settings(2)).await;
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    let answers = queue
        .submit_many((0..50).map(|n| text(format!("{n}"))).collect())
        .await;
    for answer in answers {
        ended(&queue, &answer.unwrap().id).await;
    }
    worker.stop().await.unwrap();
    let stats = Queue::open(world.store.clone(), "shop", "jobs")
        .await
        .unwrap()
        .stats()
        .await;
    assert_eq!(stats.unwrap().done, 50);
}
