//! Every key of a queue, in one place.
//!
//! | key, below `=queues/CLUSTER/QUEUE/` | value |
//! |---|---|
//! | `queue.json` | [`QueueRecord`](crate::QueueRecord) |
//! | `tasks/SHARD/ID.json` | [`Task`], for its whole life |
//! | `ready/SHARD/RANK/TIME/ID.N` | none: this task may be claimed from then on. RANK is 9 minus its priority |
//! | `lease/SHARD/TIME/ID.N` | none: the claim on this task may have run out then |
//! | `done/SHARD/TIME/ID.N` | none: this task was finished or cancelled then |
//! | `dead/SHARD/TIME/ID.N` | none: this task became a dead letter then |
//! | `schedules/NAME.json` | [`Schedule`](crate::Schedule) |
//!
//! N is the `rev` at which the task came into the state, so that no entry is ever right twice: one that is found wrong can
//! be removed without looking back. Names are escaped as all of Tenure's are; `=queues` is no escaped name, so that no
//! cluster lists or watches tasks among its own records.

use tenure_core::hash::shard_index;
use tenure_core::keys::{escape, unescape};

use crate::ids::{QueueName, ScheduleName, TaskId};
use crate::store_time::StoreTime;
use crate::task::{Task, TaskState, TaskStatus};

/// What all keys of all queues begin with.
pub const ROOT: &str = "=queues/";

/// The index that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexKind {
    /// What may be claimed.
    Ready,
    /// What is claimed.
    Lease,
    /// What ended as wanted.
    Done,
    /// What did not.
    Dead,
}

impl IndexKind {
    /// All of them.
    pub const ALL: [IndexKind; 4] = [
        IndexKind::Ready,
        IndexKind::Lease,
        IndexKind::Done,
        IndexKind::Dead,
    ];

    /// Its part of a key.
    pub fn as_str(self) -> &'static str {
        match self {
            IndexKind::Ready => "ready",
            IndexKind::Lease => "lease",
            IndexKind::Done => "done",
            IndexKind::Dead => "dead",
        }
    }

    /// Whether nobody comes by its entries by themselves.
    pub fn is_final(self) -> bool {
        matches!(self, IndexKind::Done | IndexKind::Dead)
    }

    /// Where tasks in this state stand.
    pub fn of(is: TaskStatus) -> Self {
        match is {
            TaskStatus::Ready => IndexKind::Ready,
            TaskStatus::Running => IndexKind::Lease,
            TaskStatus::Done | TaskStatus::Cancelled => IndexKind::Done,
            TaskStatus::Dead => IndexKind::Dead,
        }
    }
}

/// An entry of an index: leads to a task, at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexEntry {
    /// Which index.
    pub index: IndexKind,
    /// Nine minus the priority; zero outside the ready index.
    pub rank: u8,
    /// When the task wants to be looked at, or when it ended.
    pub at: StoreTime,
    /// The task.
    pub id: TaskId,
    /// The `rev` at which the task came into the state that the entry is for.
    pub entered: u64,
}

impl IndexEntry {
    /// The entry that leads to a task as it is.
    pub fn of(task: &Task) -> Self {
        let index = IndexKind::of(task.status());
        let (rank, at) = match &task.state {
            TaskState::Ready { due } => (9 - task.priority.min(9), *due),
            TaskState::Running(running) => (0, running.expires),
            TaskState::Done { at, .. }
            | TaskState::Dead { at, .. }
            | TaskState::Cancelled { at } => (0, *at),
        };
        Self {
            index,
            rank,
            at,
            id: task.id.clone(),
            entered: task.entered,
        }
    }

    /// Whether it was made for the state that the task is in. Its time may be an older one: claims are extended.
    pub fn fits(&self, task: &Task) -> bool {
        let right = Self::of(task);
        self.index == right.index && self.entered == right.entered && self.id == right.id
    }
}

/// The keys of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    root: String,
    shards: u32,
}

impl QueueKeys {
    /// The keys of a queue with so many shards.
    pub fn new(cluster: &str, queue: &QueueName, shards: u32) -> Self {
        let (cluster, queue) = (escape(cluster), escape(queue.as_str()));
        Self {
            root: format!("{ROOT}{cluster}/{queue}/"),
            shards: shards.max(1),
        }
    }

    /// What the keys of all queues of a cluster begin with.
    pub fn queues(cluster: &str) -> String {
        format!("{ROOT}{}/", escape(cluster))
    }

    /// The queue that a `queue.json` belongs to.
    pub fn queue_of(cluster: &str, key: &str) -> Option<QueueName> {
        let rest = key.strip_prefix(&Self::queues(cluster))?;
        let name = unescape(rest.strip_suffix("/queue.json")?)?;
        QueueName::new(name).ok()
    }

    /// What every key of the queue begins with.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Name of the queue.
    pub(crate) fn queue_name(&self) -> String {
        let part = self.root.trim_end_matches('/').rsplit('/').next();
        part.and_then(unescape).unwrap_or_default()
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The shard of a task.
    pub fn shard_of(&self, id: &TaskId) -> u32 {
        shard_index(id.as_str().as_bytes(), self.shards)
    }

    /// The queue's own record.
    pub fn record(&self) -> String {
        format!("{}queue.json", self.root)
    }

    /// A task.
    pub fn task(&self, id: &TaskId) -> String {
        let shard = self.shard_of(id);
        format!("{}{}.json", self.tasks(shard), escape(id.as_str()))
    }

    /// What the tasks of a shard begin with.
    pub fn tasks(&self, shard: u32) -> String {
        format!("{}tasks/{shard}/", self.root)
    }

    /// The task that a key is for; `None` for what is no task's key.
    pub fn task_of(&self, key: &str) -> Option<TaskId> {
        let rest = key.strip_prefix(&self.root)?.strip_prefix("tasks/")?;
        let (_, name) = rest.split_once('/')?;
        let id = TaskId::new(unescape(name.strip_suffix(".json")?)?).ok()?;
        (self.task(&id) == key).then_some(id)
    }

    /// What the entries of an index of a shard begin with.
    pub fn index(&self, index: IndexKind, shard: u32) -> String {
        format!("{}{}/{shard}/", self.root, index.as_str())
    }

    /// What the entries of an index begin with, of all shards.
    pub fn whole_index(&self, index: IndexKind) -> String {
        format!("{}{}/", self.root, index.as_str())
    }

    /// An entry of an index.
    pub fn entry(&self, entry: &IndexEntry) -> String {
        let IndexEntry {
            index,
            rank,
            at,
            id,
            entered,
        } = entry;
        let prefix = self.index(*index, self.shard_of(id));
        let rank = match index {
            IndexKind::Ready => format!("{rank}/"),
            _ => String::new(),
        };
        let (at, id) = (at.stamp(), escape(id.as_str()));
        format!("{prefix}{rank}{at}/{id}.{entered}")
    }

    /// The key after which there are only entries of lower priority than this one.
    pub fn end_of_rank(&self, shard: u32, rank: u8) -> String {
        // `:` comes after every digit, and no stamp begins with it.
        format!("{}{rank}/:", self.index(IndexKind::Ready, shard))
    }

    /// Reads the key of an entry; `None` for what is none.
    pub fn entry_of(&self, key: &str) -> Option<IndexEntry> {
        let (index, rest) = key.strip_prefix(&self.root)?.split_once('/')?;
        let index = IndexKind::ALL.into_iter().find(|i| i.as_str() == index)?;
        let (_, mut rest) = rest.split_once('/')?;
        let mut rank = 0;
        if index == IndexKind::Ready {
            let (digit, tail) = rest.split_once('/')?;
            (rank, rest) = (digit.parse().ok()?, tail);
        }
        let (at, name) = rest.split_once('/')?;
        let (id, entered) = name.rsplit_once('.')?;
        let entry = IndexEntry {
            index,
            rank,
            at: StoreTime::from_stamp(at)?,
            id: TaskId::new(unescape(id)?).ok()?,
            entered: entered.parse().ok()?,
        };
        // One spelling each, and in the right shard.
        (self.entry(&entry) == key).then_some(entry)
    }

    /// The shard that a key of an index or of a task stands in.
    pub fn shard_in(&self, key: &str) -> Option<u32> {
        let (_, rest) = key.strip_prefix(&self.root)?.split_once('/')?;
        rest.split_once('/')?.0.parse().ok()
    }

    /// A schedule.
    pub fn schedule(&self, name: &ScheduleName) -> String {
        format!("{}{}.json", self.schedules(), escape(name.as_str()))
    }

    /// What the schedules begin with.
    pub fn schedules(&self) -> String {
        format!("{}schedules/", self.root)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::keys::cluster_of;

    use super::*;

    fn layout() -> QueueKeys {
        QueueKeys::new("shop", &QueueName::new("jobs").unwrap(), 16)
    }

    #[test]
    fn keys_read_as_what_they_are_and_belong_to_no_cluster() {
        let layout = layout();
        let id = TaskId::new("t1").unwrap();
        let shard = layout.shard_of(&id);
        let task = layout.task(&id);
        assert_eq!(task, format!("=queues/shop/jobs/tasks/{shard}/t1.json"));
        let entry = IndexEntry {
            index: IndexKind::Ready,
            rank: 4,
            at: StoreTime::default(),
            id,
            entered: 7,
        };
        let key = layout.entry(&entry);
        let wanted = format!("=queues/shop/jobs/ready/{shard}/4/19700101T000000.000Z/t1.7");
        assert_eq!(key, wanted);
        assert_eq!(cluster_of(&key), None);
        assert_eq!(layout.shard_in(&key), Some(shard));
        let record = layout.record();
        assert_eq!(
            QueueKeys::queue_of("shop", &record).unwrap().as_str(),
            "jobs"
        );
        assert_eq!(QueueKeys::queue_of("shop", &task), None);
    }

    #[test]
    fn what_we_did_not_write_is_no_entry_and_no_task() {
        let layout = layout();
        let id = TaskId::new("t1").unwrap();
        let (right, other) = (layout.shard_of(&id), (layout.shard_of(&id) + 1) % 16);
        for key in [
            format!("=queues/shop/jobs/ready/{right}/4/soon/t1.7"),
            format!("=queues/shop/jobs/ready/{right}/19700101T000000.000Z/t1.7"),
            format!("=queues/shop/jobs/ready/{other}/4/19700101T000000.000Z/t1.7"),
            format!("=queues/shop/jobs/tasks/{other}/t1.json"),
            format!("=queues/shop/jobs/tasks/{right}/t1"),
        ] {
            assert_eq!(layout.entry_of(&key), None, "{key}");
            assert_eq!(layout.task_of(&key), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn every_entry_and_every_task_reads_back(
            id in "[^\\p{Cc}]{1,30}", at in 0u64..1 << 46, rank in 0u8..10, entered: u64, index in 0usize..4
        ) {
            let (layout, id) = (layout(), TaskId::new(id).unwrap());
            prop_assert_eq!(layout.task_of(&layout.task(&id)), Some(id.clone()));
            let index = IndexKind::ALL[index];
            let rank = if index == IndexKind::Ready { rank } else { 0 };
            let entry = IndexEntry { index, rank, at: StoreTime::from_millis(at), id, entered };
            let key = layout.entry(&entry);
            if index == IndexKind::Ready {
                prop_assert!(key < layout.end_of_rank(layout.shard_of(&entry.id), rank));
            }
            prop_assert_eq!(layout.entry_of(&key), Some(entry));
        }
    }
}
