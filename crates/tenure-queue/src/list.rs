//! Looking at many tasks: lists with filters, in pages, and counts.

use std::collections::BTreeMap;

use crate::error::QueueError;
use crate::ids::TaskId;
use crate::keys::{IndexKind, QueueKeys};
use crate::queue::Queue;
use crate::store_time::StoreTime;
use crate::task::{Task, TaskStatus};

/// How many keys are read at once.
const PAGE: usize = 200;
/// How many keys are counted at once.
const COUNT_PAGE: usize = 1000;

/// Which tasks are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; none means any.
    pub states: Vec<TaskStatus>,
    /// With these metadata, all of them.
    pub metadata: BTreeMap<String, String>,
    /// Created at this time or later.
    pub created_from: Option<StoreTime>,
    /// Created before this time.
    pub created_before: Option<StoreTime>,
}

impl Filter {
    /// Tasks in this state.
    pub fn state(is: TaskStatus) -> Self {
        Self {
            states: vec![is],
            ..Self::default()
        }
    }

    fn fits(&self, task: &Task) -> bool {
        (self.states.is_empty() || self.states.contains(&task.status()))
            && self
                .metadata
                .iter()
                .all(|(name, value)| task.metadata.get(name) == Some(value))
            && self.created_from.is_none_or(|from| task.created >= from)
            && self.created_before.is_none_or(|to| task.created < to)
    }

    /// The indexes that lead to such tasks; none if every task has to be looked at. A task that was claimed a moment ago
    /// still stands in the ready index.
    fn indexes(&self) -> Vec<IndexKind> {
        let mut indexes: Vec<IndexKind> = self.states.iter().map(|is| IndexKind::of(*is)).collect();
        if self.states.contains(&TaskStatus::Running) {
            indexes.push(IndexKind::Ready);
        }
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }
}

/// Some of the tasks that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskPage {
    /// The tasks. By shard; within a shard by time where a state was asked for, otherwise by id.
    pub tasks: Vec<Task>,
    /// What cannot be read, by key, and why.
    pub corrupt: Vec<(String, String)>,
    /// Where to go on; none at the end.
    pub next: Option<String>,
}

/// How many tasks there are in each state, by the indexes: a task on its way between two states may be counted in either.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Due, and not claimed.
    pub ready: u64,
    /// Waiting for their time.
    pub delayed: u64,
    /// Claimed.
    pub running: u64,
    /// Finished or cancelled, and not yet purged.
    pub done: u64,
    /// Dead letters.
    pub dead: u64,
    /// Since when the task that has been due for longest has been.
    pub oldest_due: Option<StoreTime>,
    /// Keys in the indexes that are none of ours.
    pub odd: u64,
    /// Whether the queue is paused.
    pub paused: bool,
    /// How many shards there are.
    pub shards: u32,
}

impl Queue {
    /// Lists tasks, at least one if there are any more and about `limit` at most, from where the last page ended.
    pub async fn list(
        &self,
        filter: &Filter,
        limit: usize,
        from: Option<&str>,
    ) -> Result<TaskPage, QueueError> {
        let (prefixes, limit) = (prefixes(self.layout(), filter), limit.max(1));
        let mut page = TaskPage::default();
        let mut after = from.map(ToOwned::to_owned);
        let first = match from {
            None => 0,
            Some(from) => {
                let found = prefixes.iter().position(|prefix| from.starts_with(prefix));
                found.ok_or_else(|| {
                    QueueError::invalid(format!(
                        "{from:?} is not a continuation of this list; pass the `next` of the previous page"
                    ))
                })?
            }
        };
        for (n, prefix) in prefixes.iter().enumerate().skip(first) {
            loop {
                let keys = self.shelf().keys(prefix, after.as_deref(), PAGE).await?;
                self.take(filter, limit, &keys.keys, &mut page).await?;
                if page.next.is_some() {
                    return Ok(page);
                }
                after = keys.keys.last().cloned();
                if !keys.more {
                    break;
                }
            }
            after = None;
            if page.tasks.len() >= limit && n + 1 < prefixes.len() {
                // Nothing stands right at a prefix: from there on is all of it.
                page.next = Some(prefixes[n + 1].clone());
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// Adds the tasks of these keys to a page until it is full, and notes where it ended.
    async fn take(
        &self,
        filter: &Filter,
        limit: usize,
        keys: &[String],
        page: &mut TaskPage,
    ) -> Result<(), QueueError> {
        let layout = self.layout();
        let id_of = |key: &String| {
            let of_entry = || layout.entry_of(key).map(|entry| entry.id);
            layout.task_of(key).or_else(of_entry)
        };
        let named: Vec<(&String, TaskId)> = keys
            .iter()
            .filter_map(|key| Some((key, id_of(key)?)))
            .collect();
        let ids: Vec<TaskId> = named.iter().map(|(_, id)| id.clone()).collect();
        let read = self.shelf().read_many(&ids).await;
        let wanted = filter.indexes();
        for ((key, id), held) in named.into_iter().zip(read) {
            if page.tasks.len() >= limit {
                return Ok(());
            }
            match held {
                Ok(Some(held)) if filter.fits(&held.task) => {
                    // Led to by an entry of another state as well, it would come twice.
                    let twice = page.tasks.iter().any(|task| task.id == held.task.id);
                    if !twice || wanted.is_empty() {
                        page.tasks.push(held.task);
                    }
                }
                Ok(_) => {}
                Err(e) if e.is_unreadable() => {
                    page.corrupt.push((layout.task(&id), e.to_string()));
                }
                Err(e) => return Err(e),
            }
            if page.tasks.len() >= limit {
                page.next = Some(key.clone());
            }
        }
        Ok(())
    }

    /// Counts tasks by the indexes, without reading any.
    pub async fn stats(&self) -> Result<Stats, QueueError> {
        self.refresh().await?;
        let now = self.now().await?;
        let mut stats = Stats {
            paused: self.is_paused(),
            shards: self.layout().shards(),
            ..Stats::default()
        };
        for index in IndexKind::ALL {
            let (prefix, mut after) = (self.layout().whole_index(index), None::<String>);
            loop {
                let keys = self.shelf().keys(&prefix, after.as_deref(), COUNT_PAGE);
                let keys = keys.await?;
                for key in &keys.keys {
                    stats.count(self.layout(), key, now);
                }
                after = keys.keys.last().cloned();
                if !keys.more {
                    break;
                }
            }
        }
        Ok(stats)
    }
}

impl Stats {
    fn count(&mut self, layout: &QueueKeys, key: &str, now: StoreTime) {
        let Some(entry) = layout.entry_of(key) else {
            self.odd += 1;
            return;
        };
        match entry.index {
            IndexKind::Ready if entry.at <= now => {
                self.ready += 1;
                let oldest = self.oldest_due.unwrap_or(entry.at);
                self.oldest_due = Some(oldest.min(entry.at));
            }
            IndexKind::Ready => self.delayed += 1,
            IndexKind::Lease => self.running += 1,
            IndexKind::Done => self.done += 1,
            IndexKind::Dead => self.dead += 1,
        }
    }
}

/// What is to be read for a filter, one after the other.
fn prefixes(layout: &QueueKeys, filter: &Filter) -> Vec<String> {
    let indexes = filter.indexes();
    let of_shard = |shard: u32| -> Vec<String> {
        match indexes.is_empty() {
            true => vec![layout.tasks(shard)],
            false => indexes.iter().map(|i| layout.index(*i, shard)).collect(),
        }
    };
    (0..layout.shards()).flat_map(of_shard).collect()
}
