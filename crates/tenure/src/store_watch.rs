//! The task that follows the store's changes, for ever.
//!
//! A watch begins at a point up to which the machine knows everything: the revision of its last list. When a watch ends,
//! whatever the reason, the machine hears of a gap and lists; the next watch begins at that list.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::hash::mix;
use tenure_core::ids::Revision;
use tenure_core::keys::prefix;
use tenure_core::machine::{Event, Reply};
use tenure_store::{ChangeBatch, Store};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use crate::clock::Clock;
use crate::codec;
use crate::store_io::StoreCalls;

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How many changes are handed on at a time.
const PORTION: usize = 256;
/// What a watch is called among the requests.
const WATCH: &str = "watch";

/// Tells the watching task from where on it may watch.
#[derive(Clone)]
pub(crate) struct WatchStarter(Arc<watch::Sender<Revision>>);

impl WatchStarter {
    pub(crate) fn spawn(
        tasks: &mut JoinSet<()>,
        calls: StoreCalls,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Self {
        let (known, from) = watch::channel(Revision::default());
        tasks.spawn(follow(calls, store, clock, from));
        Self(Arc::new(known))
    }

    /// Takes note of how far the machine's knowledge reaches. After a mere revision the machine either knows everything
    /// up to it, or lists next.
    pub(crate) fn heard(&self, reply: &Reply) {
        match reply {
            Reply::Listed(listed) => self.0.send_replace(listed.revision),
            Reply::Revision(revision) => self.0.send_replace(*revision),
            _ => return,
        };
    }
}

async fn follow(
    calls: StoreCalls,
    store: Arc<dyn Store>,
    clock: Clock,
    mut known: watch::Receiver<Revision>,
) {
    let mut failures = 0u32;
    loop {
        if known.changed().await.is_err() {
            return;
        }
        let from = *known.borrow_and_update();
        let end = match timeout(calls.timeout, store.watch(&prefix(&calls.cluster), from)).await {
            Err(_) => refused(&calls, calls.late()),
            Ok(Err(error)) => refused(&calls, error.to_string()),
            Ok(Ok(mut watch)) => {
                calls.trouble.answered(WATCH);
                loop {
                    match watch.next().await {
                        Ok(batch) => {
                            failures = 0;
                            pass_on(&calls, &batch).await;
                        }
                        Err(end) => break end.to_string(),
                    }
                }
            }
        };
        debug!(
            reason = end,
            consecutive_failures = failures,
            "store watch ended, watching again"
        );
        known.mark_unchanged();
        calls.metrics.watch_gap();
        calls.inputs.event(Event::WatchGap);
        failures = failures.saturating_add(1);
        clock.sleep(backoff(failures, clock.now().0)).await;
    }
}

/// A watch that does not begin is trouble; one that ends is not, for the next one takes its place.
fn refused(calls: &StoreCalls, reason: String) -> String {
    calls.trouble.failed(WATCH, &reason);
    reason
}

/// Decodes what has changed and hands it on, in portions: the driver renews its session between two of them.
async fn pass_on(calls: &StoreCalls, batch: &ChangeBatch) {
    let changed = |change| codec::changed(&calls.cluster, change);
    let mut rest = &batch.changes[..];
    while rest.len() > PORTION {
        let (portion, left) = rest.split_at(PORTION);
        rest = left;
        calls.inputs.event(Event::Changed {
            changes: portion.iter().filter_map(changed).collect(),
            // Known only up to there once the last portion is.
            upto: Revision::default(),
        });
        tokio::task::yield_now().await;
    }
    calls.inputs.event(Event::Changed {
        changes: rest.iter().filter_map(changed).collect(),
        upto: batch.upto,
    });
}

/// Doubles with each failure up to a limit; the upper half is left to chance, so that nodes do not come all at once.
pub(crate) fn backoff(failures: u32, chance: u64) -> Duration {
    let most = (BACKOFF_MIN * 2u32.saturating_pow(failures.min(16))).min(BACKOFF_MAX);
    let half = most / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_nanos(mix(chance) % nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_to_a_limit_and_is_spread() {
        for failures in 0..40 {
            for chance in 0..100 {
                let wait = backoff(failures, chance);
                assert!(wait >= BACKOFF_MIN / 2 && wait <= BACKOFF_MAX, "{wait:?}");
            }
        }
        assert!(backoff(20, 1) > backoff(1, 1));
        assert_ne!(backoff(20, 1), backoff(20, 2));
    }
}
