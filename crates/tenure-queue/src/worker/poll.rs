//! The loop that looks for tasks, and how often it looks.
//!
//! A shard in which something was due is looked into again soon; one in which nothing was, later and later. A submission in
//! this process, or one that the store's changes show, brings the next look forward.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_store::Change;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::claim;
use super::context::WorkerContext;
use crate::error::QueueError;
use crate::handler::TaskHandler;
use crate::ids::TaskId;
use crate::keys::{IndexEntry, IndexKind};
use crate::store_time::StoreTime;

/// How many keys a look reads at once. Object stores give as many for the price of one.
const PAGE: usize = 1000;
/// How many tasks of a shard are remembered from one look.
const STOCK: usize = 256;
/// How soon a shard of which there are tasks in stock is looked into again: something more urgent may have come.
const RESTOCK: Duration = Duration::from_secs(1);
/// How soon, after one look was not enough for all shards, that is tried again.
const GLANCE_AGAIN: Duration = Duration::from_secs(10);
/// From among how many tasks a worker that sweeps chooses each by chance.
const CHOICE: usize = 8;
/// How soon the store is asked again after it failed.
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

/// When a shard is looked into next.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// How long to wait if nothing is found.
    pause: Duration,
}

/// What a look into a shard found.
#[derive(Debug, Default)]
struct Found {
    due: Vec<IndexEntry>,
    /// When the next task is due.
    next: Option<StoreTime>,
}

impl Found {
    /// Takes note of an entry.
    fn note(&mut self, engine: &WorkerContext, entry: IndexEntry, now: StoreTime) {
        if entry.at > now {
            let next = self.next.unwrap_or(entry.at);
            self.next = Some(next.min(entry.at));
        } else if !engine.passes(&entry.id) {
            self.due.push(entry);
        }
    }
}

/// Looks, claims and starts attempts until the worker stops.
pub(super) async fn run<H: TaskHandler>(engine: Arc<WorkerContext>, handler: Arc<H>) {
    let mut looks: BTreeMap<u32, Look> = BTreeMap::new();
    let mut stock = Stock::default();
    let mut changed = engine.changed.subscribe();
    while !engine.stop.is_cancelled() && !engine.queue.is_deleted() {
        let free = engine.permits.available_permits();
        if free == 0 {
            tokio::select! {
                // Only to wait: it is given back at once.
                _ = engine.permits.acquire() => {}
                () = engine.queue.deleted() => {}
                () = engine.stop.cancelled() => {}
            }
            continue;
        }
        sync(&engine, &mut looks);
        bring_forward(&engine, &mut looks, &stock).await;
        let shards = due(&engine, &looks);
        let looked = !shards.is_empty();
        if looked {
            round(&engine, shards, free, &mut looks, &mut stock).await;
        }
        let picked = stock.take(&engine, free);
        for shard in picked.emptied {
            // There may be more, and there will be room for it when an attempt ends.
            if let Some(look) = looks.get_mut(&shard) {
                look.at = Instant::now();
            }
        }
        if !picked.entries.is_empty() {
            claim::claim(&engine, &handler, picked.entries).await;
        } else if !looked {
            wait(&engine, &looks, &mut changed).await;
        }
    }
}

/// The shards whose look is due: those that have waited longest, if there are more than one round takes.
fn due(engine: &WorkerContext, looks: &BTreeMap<u32, Look>) -> Vec<u32> {
    let now = Instant::now();
    let mut due: Vec<(Instant, u32)> = looks
        .iter()
        .filter(|(_, look)| look.at <= now && !engine.queue.is_paused())
        .map(|(shard, look)| (look.at, *shard))
        .collect();
    due.sort_unstable();
    due.truncate(engine.leasing.per_round);
    due.into_iter().map(|(_, shard)| shard).collect()
}

/// Brings the looks in line with the shards that the worker has; without leasing, that is a random one at a time.
fn sync(engine: &WorkerContext, looks: &mut BTreeMap<u32, Look>) {
    let fresh = |wait: Duration| Look {
        at: Instant::now() + wait,
        pause: engine.settings.poll_first,
    };
    if engine.leasing.enabled {
        let owned = engine.owned_shards();
        looks.retain(|shard, _| owned.contains(shard));
        for shard in owned {
            looks.entry(shard).or_insert_with(|| fresh(Duration::ZERO));
        }
    } else if !sweeps(engine, looks) {
        looks.insert(engine.swept_next(), fresh(Duration::ZERO));
    }
}

/// Whether a look comes soon enough without leasing. Looks at what is due much later are no sweeping.
fn sweeps(engine: &WorkerContext, looks: &BTreeMap<u32, Look>) -> bool {
    let latest = Instant::now() + engine.settings.poll_latest * 2;
    looks.values().any(|look| look.at <= latest)
}

/// Looks earlier where something is known to be due.
async fn bring_forward(engine: &WorkerContext, looks: &mut BTreeMap<u32, Look>, stock: &Stock) {
    let wakes = engine.wakes.take();
    if wakes.is_empty() {
        return;
    }
    let Ok(now) = engine.shelf.now().await else {
        return;
    };
    for (shard, due) in wakes {
        if stock.has(shard) {
            // There is enough to do; the next look is not far.
            continue;
        }
        let at = Instant::now() + due.since(now);
        if let Some(look) = looks.get_mut(&shard) {
            look.at = look.at.min(at);
        } else if !engine.leasing.enabled {
            let pause = engine.settings.poll_first;
            looks.insert(shard, Look { at, pause });
        }
    }
}

/// Waits until a look is due or something happens.
async fn wait(
    engine: &WorkerContext,
    looks: &BTreeMap<u32, Look>,
    changed: &mut watch::Receiver<()>,
) {
    let paused = engine.queue.is_paused();
    let next = looks.values().map(|look| look.at).min();
    let latest = Instant::now() + engine.settings.poll_latest;
    let until = match next {
        Some(next) if !paused => next,
        _ => latest,
    };
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = engine.wakes.notify.notified(), if !paused => {}
        () = engine.queue.deleted() => {}
        _ = changed.changed() => {}
        () = engine.stop.cancelled() => {}
    }
}

/// Looks for what is due in all of the worker's shards at once; false if there is too much to see for one look.
///
/// While there is little to do this is all that is asked of the store, however many shards there are.
async fn glance(
    engine: &WorkerContext,
    looks: &mut BTreeMap<u32, Look>,
    stock: &mut Stock,
) -> Result<bool, QueueError> {
    let (shelf, layout) = (&engine.shelf, &engine.shelf.layout);
    let prefix = layout.whole_index(IndexKind::Ready);
    let page = shelf.keys(&prefix, None, PAGE).await?;
    let now = shelf.now().await?;
    engine.shelf.metrics.polls.one();
    if page.more {
        return Ok(false);
    }
    let mut found: BTreeMap<u32, Found> = BTreeMap::new();
    for entry in page.keys.iter().filter_map(|key| layout.entry_of(key)) {
        let shard = layout.shard_of(&entry.id);
        found.entry(shard).or_default().note(engine, entry, now);
    }
    if found.values().all(|found| found.due.is_empty()) {
        shelf.metrics.idle_polls.one();
    }
    for (shard, look) in looks.iter_mut() {
        let found = found.remove(shard).unwrap_or_default();
        look.at = Instant::now() + next_look(engine, Some(&mut *look), &found).await;
        stock.fill(engine, *shard, found.due);
    }
    Ok(true)
}

/// Looks into some shards, and puts what is due into the stock.
async fn round(
    engine: &Arc<WorkerContext>,
    shards: Vec<u32>,
    free: usize,
    looks: &mut BTreeMap<u32, Look>,
    stock: &mut Stock,
) {
    if engine.leasing.enabled && looks.len() > 1 && stock.glances() {
        match glance(engine, looks, stock).await {
            Ok(true) => return,
            Ok(false) => stock.crowded = Some(Instant::now()),
            Err(error) => {
                tracing::debug!(%error, "polling for tasks failed");
                let later = Instant::now() + AFTER_TROUBLE;
                looks
                    .values_mut()
                    .for_each(|look| look.at = look.at.max(later));
                return;
            }
        }
    }
    let mut asked = JoinSet::new();
    let want = match engine.leasing.enabled {
        true => free.max(STOCK),
        false => free.saturating_mul(CHOICE),
    };
    for shard in shards {
        let engine = engine.clone();
        asked.spawn(async move { (shard, look(&engine, shard, want).await) });
    }
    while let Some(done) = asked.join_next().await {
        let Ok((shard, found)) = done else { continue };
        engine.shelf.metrics.polls.one();
        engine.heard(found.is_ok());
        let wait = match found {
            Ok(found) => {
                if found.due.is_empty() {
                    engine.shelf.metrics.idle_polls.one();
                }
                let wait = next_look(engine, looks.get_mut(&shard), &found).await;
                stock.fill(engine, shard, found.due);
                wait
            }
            Err(error) => {
                tracing::debug!(shard, %error, "polling for tasks failed");
                AFTER_TROUBLE
            }
        };
        if let Some(look) = looks.get_mut(&shard) {
            look.at = Instant::now() + wait;
        }
        if !engine.leasing.enabled {
            sweep_on(engine, shard, looks);
        }
    }
}

/// How long to wait before the next look into a shard.
async fn next_look(engine: &WorkerContext, look: Option<&mut Look>, found: &Found) -> Duration {
    let settings = &engine.settings;
    let Some(look) = look else {
        return settings.poll_latest;
    };
    if !found.due.is_empty() {
        look.pause = settings.poll_first;
        // Brought forward when what was found is used up.
        return RESTOCK.min(settings.poll_latest);
    }
    let wait = engine.shelf.chance.around(look.pause);
    look.pause = (look.pause * 2).min(settings.poll_latest);
    match (found.next, engine.shelf.now().await) {
        (Some(next), Ok(now)) => wait.min(next.since(now)),
        _ => wait,
    }
}

/// What was found and not claimed yet, the most urgent first. Saves looks while there is more to do than can be done.
#[derive(Debug, Default)]
struct Stock {
    entries: BTreeMap<(u8, u64, TaskId), (u32, IndexEntry)>,
    /// When the whole index was last found too large for one look.
    crowded: Option<Instant>,
}

/// What was taken out of the stock.
#[derive(Debug, Default)]
struct Picked {
    entries: Vec<IndexEntry>,
    /// Shards of which there is nothing left.
    emptied: BTreeSet<u32>,
}

impl Stock {
    /// Replaces what is known of a shard.
    fn fill(&mut self, engine: &WorkerContext, shard: u32, due: Vec<IndexEntry>) {
        self.entries.retain(|_, (of, _)| *of != shard);
        for entry in due {
            // Others may be after the same tasks: whoever goes by chance gets in nobody's way.
            let order = match engine.leasing.enabled {
                true => entry.at.as_millis(),
                false => engine.shelf.chance.draw(),
            };
            let key = (entry.rank, order, entry.id.clone());
            self.entries.insert(key, (shard, entry));
        }
    }

    /// Whether one look may show everything.
    fn glances(&self) -> bool {
        self.crowded
            .is_none_or(|then| then.elapsed() >= GLANCE_AGAIN)
    }

    fn has(&self, shard: u32) -> bool {
        self.entries.values().any(|(of, _)| *of == shard)
    }

    /// Takes the first so many that may still be claimed. What others may have claimed meanwhile is not kept.
    fn take(&mut self, engine: &WorkerContext, count: usize) -> Picked {
        let mut picked = Picked::default();
        while picked.entries.len() < count
            && let Some((_, (shard, entry))) = self.entries.pop_first()
        {
            picked.emptied.insert(shard);
            if engine.may_claim(shard) && !engine.passes(&entry.id) {
                picked.entries.push(entry);
            }
        }
        if engine.leasing.enabled {
            picked.emptied.retain(|shard| !self.has(*shard));
        } else {
            self.entries.clear();
            picked.emptied.clear();
        }
        picked
    }
}

/// Without leasing: after a look into one shard, the next is into another one by chance, and none twice before all had one.
fn sweep_on(engine: &WorkerContext, shard: u32, looks: &mut BTreeMap<u32, Look>) {
    if let Some(look) = looks.remove(&shard)
        && !sweeps(engine, looks)
    {
        looks.insert(engine.swept_next(), look);
    }
}

/// Looks into a shard for up to `want` tasks that are due, by priority and then by time.
async fn look(engine: &WorkerContext, shard: u32, want: usize) -> Result<Found, QueueError> {
    let shelf = &engine.shelf;
    let (prefix, layout) = (shelf.prefix(IndexKind::Ready, shard), &shelf.layout);
    let now = shelf.now().await?;
    let mut found = Found::default();
    let mut after = None::<String>;
    loop {
        let page = shelf.keys(&prefix, after.as_deref(), PAGE).await?;
        let mut last = None;
        for key in &page.keys {
            let Some(entry) = layout.entry_of(key) else {
                // Named and removed by the owner's slow look at everything.
                continue;
            };
            last = Some((entry.rank, entry.at));
            if found.due.len() < want || entry.at > now {
                found.note(engine, entry, now);
            }
        }
        if !page.more || found.due.len() >= want {
            return Ok(found);
        }
        after = match last {
            // The rest of this priority comes later still.
            Some((rank, at)) if at > now => Some(layout.end_of_rank(shard, rank)),
            _ => page.keys.last().cloned(),
        };
    }
}

/// Follows the store's changes, where that is cheap, and wakes the loop where something was submitted.
pub(super) async fn listen(engine: Arc<WorkerContext>) {
    if !engine.settings.follow {
        return;
    }
    let prefix = engine.shelf.layout.whole_index(IndexKind::Ready);
    let mut trouble = engine.settings.poll_latest;
    while !engine.stop.is_cancelled() {
        let store = &engine.shelf.store;
        let watch = async { store.watch(&prefix, store.revision().await?).await };
        if let Ok(mut watch) = watch.await {
            trouble = engine.settings.poll_latest;
            // What was submitted before the watch began is found by the next look.
            while let Ok(batch) = watch.next().await {
                for change in batch.changes {
                    if let Change::Put(put) = change
                        && let Some(entry) = engine.shelf.layout.entry_of(&put.key)
                    {
                        let shard = engine.shelf.layout.shard_of(&entry.id);
                        engine.wakes.wake(shard, entry.at);
                    }
                }
            }
        }
        tokio::time::sleep(engine.shelf.chance.around(trouble)).await;
        trouble = (trouble * 2).min(Duration::from_secs(60));
    }
}
