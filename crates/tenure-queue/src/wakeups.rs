//! Word within a process that a shard has something new, so that nobody has to wait for the next look.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::store_time::StoreTime;

/// How many wake-ups a worker remembers. More than that, and polling finds the rest.
const WAKES_MAX: usize = 10_000;

/// What one worker has been told and has not looked at yet.
#[derive(Debug, Default)]
pub(crate) struct PendingWakeups {
    shards: Mutex<BTreeSet<(u32, StoreTime)>>,
    pub(crate) notify: Notify,
}

impl PendingWakeups {
    /// Something in this shard is due then.
    pub(crate) fn wake(&self, shard: u32, due: StoreTime) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if shards.len() < WAKES_MAX {
            shards.insert((shard, due));
        }
        drop(shards);
        self.notify.notify_one();
    }

    /// Takes what was noted.
    pub(crate) fn take(&self) -> BTreeSet<(u32, StoreTime)> {
        std::mem::take(&mut *self.shards.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The workers of this process on one queue. Each is told everything: who owns the shard is for them to know.
#[derive(Debug, Default)]
pub(crate) struct WakeupListeners(Mutex<Vec<Weak<PendingWakeups>>>);

impl WakeupListeners {
    /// One more that is told, for as long as it is held.
    pub(crate) fn join(&self) -> Arc<PendingWakeups> {
        let wakes = Arc::new(PendingWakeups::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&wakes));
        wakes
    }

    /// Something in this shard is due then.
    pub(crate) fn wake(&self, shard: u32, due: StoreTime) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for one in all.iter().filter_map(Weak::upgrade) {
            one.wake(shard, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_told_and_who_has_gone_is_forgotten() {
        let all = WakeupListeners::default();
        let (one, two) = (all.join(), all.join());
        all.wake(3, StoreTime::default());
        for listener in [&one, &two] {
            assert_eq!(listener.take(), [(3, StoreTime::default())].into());
            assert_eq!(listener.take(), BTreeSet::new());
        }
        drop(two);
        let _three = all.join();
        assert_eq!(all.0.lock().unwrap().len(), 2);
    }
}
