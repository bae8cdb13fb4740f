//! Deletion of whole queues.
//!
//! Nothing but single keys can be written under a condition, so a queue is deleted in steps:
//!
//! 1. The record is marked as `deleting`. From now on nobody can open the queue, and every process that has it open
//!    rejects submissions at the latest when [`RECORD_VALID`] has passed. Its workers end.
//! 2. Schedules, tasks and index entries are deleted in pages until a scan finds none, and at least for
//!    [`SETTLE`]: a submission that read the record before the mark has been written by then, and is deleted too.
//! 3. The keyspace by which workers share the shards is marked as removed, as by `tenure keyspace delete`. A worker of a new
//!    queue of this name creates it again.
//! 4. The record is deleted under the condition that it is still the marked one.
//!
//! A deletion that was interrupted leaves the mark. Running it again continues it. Several may run at the same time: before
//! each page is deleted, the record must still be the marked one, so that a queue that was created under the same name
//! meanwhile loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{ClusterName, KeyspaceName, SessionId};
use tenure_core::keys::Key;
use tenure_core::record::Record;
use tenure_store::{Delete, DeleteIf, Put, PutIf, Store, StoreError, Version};
use tokio::time::Instant;

use crate::error::QueueError;
use crate::ids::{Nonce, QueueName};
use crate::keys::QueueKeys;
use crate::queue::{KEYSPACE, Queue, RECORD_VALID};
use crate::queue_record::{QueueRecord, QueueSettings, decode, encode};
use crate::rng::RandomNumbers;
use crate::task_store::{in_time, read_in_time};

/// Time between the mark and the deletion of the record, at least.
const SETTLE: Duration = Duration::from_secs(5);
/// Time between two scans that find nothing.
const SCAN_EVERY: Duration = Duration::from_millis(500);
/// Number of keys deleted at once. Task records are read for their versions, so a page must fit into memory.
const PAGE: usize = 200;
/// Number of scans after which a queue that is still written to is reported.
const SCANS_MAX: usize = 1000;

const _: () = assert!(SETTLE.as_secs() > RECORD_VALID.as_secs());

/// Result of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeletionResult {
    /// Number of tasks deleted.
    pub tasks: u64,
    /// Number of schedules deleted.
    pub schedules: u64,
}

/// Deletes a queue with its tasks and schedules.
///
/// Running attempts are cancelled when they extend their claim next. Takes at least five seconds. Safe beside
/// producers, workers and other deletions of the same queue; continues a deletion that was interrupted.
///
/// The keyspace `queue.NAME`, by which workers share the shards, is removed from the cluster too.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tenure_queue::QueueError> {
/// use tenure_queue::{Queue, QueueError, QueueSettings, NewTask};
///
/// let store = tenure_store::open("memory:").await?;
/// let queue = Queue::create(store.clone(), "shop", "mails", QueueSettings::default()).await?;
/// queue.submit(NewTask::json(&"user-42")?).await?;
/// let deleted = tenure_queue::delete(store.clone(), "shop", "mails").await?;
/// assert_eq!(deleted.tasks, 1);
/// let error = Queue::open(store, "shop", "mails").await.unwrap_err();
/// assert!(matches!(error, QueueError::NoQueue { .. }));
/// # Ok(())
/// # }
/// ```
pub async fn delete(
    store: Arc<dyn Store>,
    cluster: &str,
    name: &str,
) -> Result<DeletionResult, QueueError> {
    let name = QueueName::new(name)?;
    let deletion = Deletion::new(store, cluster, name);
    match deletion.mark().await? {
        Some(marked) => deletion.finish(marked).await,
        None => Err(deletion.no_queue()),
    }
}

/// Deletes all queues of a cluster, and what interrupted deletions left of others. Returns the number of queues.
///
/// All queues are marked before the first is deleted, so that the time to settle is spent once.
pub async fn delete_all(store: Arc<dyn Store>, cluster: &str) -> Result<usize, QueueError> {
    let mut marked = Vec::new();
    for name in Queue::all_names(&*store, cluster).await? {
        let deletion = Deletion::new(store.clone(), cluster, name);
        if let Some(mark) = deletion.mark().await? {
            marked.push((deletion, mark));
        }
    }
    let count = marked.len();
    for (deletion, mark) in marked {
        deletion.finish(mark).await?;
    }
    Ok(count)
}

/// Version of the marked record, and the time of the mark.
#[derive(Clone, Debug)]
struct Mark {
    version: Version,
    at: Instant,
}

/// A page of keys, by the way in which they are deleted.
#[derive(Debug, Default)]
struct Doomed {
    /// Tasks and schedules, under the condition of their version.
    records: Vec<DeleteIf>,
    /// Index entries, whose keys never repeat.
    entries: Vec<String>,
}

struct Deletion {
    store: Arc<dyn Store>,
    cluster: String,
    name: QueueName,
    layout: QueueKeys,
    random: RandomNumbers,
}

impl Deletion {
    fn new(store: Arc<dyn Store>, cluster: &str, name: QueueName) -> Self {
        Self {
            // No key that is used here depends on the number of shards.
            layout: QueueKeys::new(cluster, &name, 1),
            cluster: cluster.to_owned(),
            random: RandomNumbers::new(),
            store,
            name,
        }
    }

    fn no_queue(&self) -> QueueError {
        QueueError::NoQueue {
            queue: self.name.to_string(),
            cluster: self.cluster.clone(),
            url: self.store.info().url.clone(),
        }
    }

    /// Marks the record as deleting. Where there is no record but other keys of the queue, writes a marked one.
    /// Returns `None` if there is nothing to delete.
    async fn mark(&self) -> Result<Option<Mark>, QueueError> {
        let key = self.layout.record();
        loop {
            let entry = read_in_time(self.store.get(&key)).await?;
            let put = match &entry {
                Some(entry) => {
                    // A record that cannot be read must not make the queue immortal. A newer format is left alone.
                    let mut record = match decode::<QueueRecord>(&key, &entry.value) {
                        Ok(record) => record,
                        Err(QueueError::Corrupt { .. }) => self.blank(),
                        Err(e) => return Err(e),
                    };
                    if record.deleting {
                        return Ok(Some(Mark {
                            version: entry.version.clone(),
                            at: Instant::now(),
                        }));
                    }
                    record.deleting = true;
                    record.rev += 1;
                    record.nonce = Nonce(self.random.draw());
                    PutIf::update(&key, encode(&record), entry.version.clone())
                }
                None => {
                    let page = read_in_time(self.store.keys(self.layout.root(), None, 1)).await?;
                    if page.keys.is_empty() {
                        return Ok(None);
                    }
                    let record = QueueRecord {
                        deleting: true,
                        ..self.blank()
                    };
                    PutIf::create(&key, encode(&record))
                }
            };
            match in_time(self.store.put_if(put)).await {
                Ok(Put::Won(version)) => {
                    let at = Instant::now();
                    return Ok(Some(Mark { version, at }));
                }
                // If it was written after all, the next read finds the mark.
                Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn blank(&self) -> QueueRecord {
        QueueRecord::new(QueueSettings::default(), Nonce(self.random.draw()))
    }

    /// Deletes everything, the marked record last.
    async fn finish(&self, mark: Mark) -> Result<DeletionResult, QueueError> {
        let mut deleted = DeletionResult::default();
        for _ in 0..SCANS_MAX {
            let Some(found) = self.delete_keys(&mark, &mut deleted).await? else {
                // Another deletion has finished this one.
                return Ok(deleted);
            };
            if found > 0 {
                continue;
            }
            let left = SETTLE.saturating_sub(mark.at.elapsed());
            if left.is_zero() {
                self.remove_keyspace().await?;
                return self.delete_record(&mark).await.map(|()| deleted);
            }
            tokio::time::sleep(left.min(SCAN_EVERY)).await;
        }
        let reason = format!(
            "queue {:?} is still being written to; stop its producers and workers, then delete it again",
            self.name.as_str()
        );
        Err(StoreError::unavailable(reason).into())
    }

    /// Deletes all keys but the record. Returns the number of keys found, or `None` if the record is not the marked one.
    async fn delete_keys(
        &self,
        mark: &Mark,
        deleted: &mut DeletionResult,
    ) -> Result<Option<usize>, QueueError> {
        let (root, record) = (self.layout.root(), self.layout.record());
        let (mut found, mut after) = (0, None::<String>);
        loop {
            let page = read_in_time(self.store.keys(root, after.as_deref(), PAGE)).await?;
            after = page.keys.last().cloned();
            let keys: Vec<String> = page.keys.into_iter().filter(|k| *k != record).collect();
            found += keys.len();
            let doomed = self.versions(keys).await?;
            // Checked after the page was read: what was there before belongs to the marked queue.
            if !self.is_marked(mark).await? {
                return Ok(None);
            }
            self.delete_page(doomed, deleted).await?;
            if !page.more {
                return Ok(Some(found));
            }
        }
    }

    /// Reads the versions of tasks and schedules.
    async fn versions(&self, keys: Vec<String>) -> Result<Doomed, QueueError> {
        let is_record = |key: &String| self.is_task(key) || self.is_schedule(key);
        let (records, entries): (Vec<String>, Vec<String>) = keys.into_iter().partition(is_record);
        let mut doomed = Doomed {
            entries,
            ..Doomed::default()
        };
        if records.is_empty() {
            return Ok(doomed);
        }
        let read = read_in_time(async { Ok(self.store.get_many(records).await) }).await?;
        for entry in read {
            // One that is gone meanwhile is none to delete.
            if let Some(entry) = entry? {
                doomed.records.push(DeleteIf::new(entry.key, entry.version));
            }
        }
        Ok(doomed)
    }

    /// Deletes a page. Records that have changed since they were read are found by the next scan.
    async fn delete_page(
        &self,
        doomed: Doomed,
        deleted: &mut DeletionResult,
    ) -> Result<(), QueueError> {
        let keys: Vec<String> = doomed.records.iter().map(|d| d.key.clone()).collect();
        let answers = match doomed.records.is_empty() {
            true => Vec::new(),
            false => in_time(async { Ok(self.store.delete_many(doomed.records).await) }).await?,
        };
        for (key, answer) in keys.iter().zip(answers) {
            match answer {
                Ok(Delete::Won) if self.is_task(key) => deleted.tasks += 1,
                Ok(Delete::Won) => deleted.schedules += 1,
                Ok(Delete::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if doomed.entries.is_empty() {
            return Ok(());
        }
        let answers = in_time(async { Ok(self.store.discard(doomed.entries).await) }).await?;
        for answer in answers {
            match answer {
                Ok(()) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    async fn is_marked(&self, mark: &Mark) -> Result<bool, QueueError> {
        let entry = read_in_time(self.store.get(&self.layout.record())).await?;
        Ok(entry.is_some_and(|entry| entry.version == mark.version))
    }

    /// Marks the keyspace of the queue's workers as removed, if there is one.
    async fn remove_keyspace(&self) -> Result<(), QueueError> {
        let cluster = ClusterName::new(&self.cluster);
        let name = KeyspaceName::new(format!("{KEYSPACE}{}", self.name));
        let (Ok(cluster), Ok(name)) = (cluster, name) else {
            return Ok(());
        };
        let key = Key::Keyspace(name);
        let path = key.path(&cluster);
        let writer = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
        let writer = SessionId(writer);
        loop {
            let Some(entry) = read_in_time(self.store.get(&path)).await? else {
                return Ok(());
            };
            let Ok(Record::Keyspace(record)) = Record::decode(&key, &entry.value) else {
                // Nodes report and restore records that cannot be read.
                return Ok(());
            };
            if record.deleted {
                return Ok(());
            }
            let mut record = (*record).clone();
            record.head = record.head.next(tenure_core::ids::Nonce {
                writer,
                n: record.head.rev + 1,
            });
            record.deleted = true;
            let value = Record::Keyspace(Arc::new(record)).encode();
            match in_time(
                self.store
                    .put_if(PutIf::update(&path, value, entry.version)),
            )
            .await
            {
                Ok(Put::Won(_)) => return Ok(()),
                Ok(Put::Lost) | Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    async fn delete_record(&self, mark: &Mark) -> Result<(), QueueError> {
        loop {
            let delete = DeleteIf::new(self.layout.record(), mark.version.clone());
            match in_time(self.store.delete_if(delete)).await {
                // Lost: another deletion was faster.
                Ok(Delete::Won | Delete::Lost) => return Ok(()),
                Err(StoreError::Unknown { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn is_task(&self, key: &str) -> bool {
        let rest = key.strip_prefix(self.layout.root());
        rest.is_some_and(|rest| rest.starts_with("tasks/"))
    }

    fn is_schedule(&self, key: &str) -> bool {
        key.starts_with(&self.layout.schedules())
    }
}
