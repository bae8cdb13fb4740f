//! What the store fails with: a warning per cause when it begins, and a line when it is over.
//!
//! Every failed request names its cause and, where there is one, the way out; but a node tries again many times a second, so
//! each cause is told once for as long as it lasts. A store that goes on answering renewals and refuses everything else
//! (no space, a right that was taken away) shows in no lease: only this tells of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::telemetry::NodeEvent;
use tenure_core::time::Time;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::logging::log;

/// How many different causes of one run of failing renewals are told.
const REASONS: usize = 8;
/// How many different causes of other failures are told at a time: some name the key, and there are many keys.
const CAUSES: usize = 3;
/// A cause that was not met for so long is news when it comes back, whether anything of its kind succeeded meanwhile or not.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What was told of the store, and is not over.
pub(crate) struct StoreErrorLog {
    clock: Clock,
    /// How long nothing may fail before a success ends it: a store that fails every other time is one trouble.
    quiet: Duration,
    told: Mutex<LoggedError>,
}

#[derive(Default)]
struct LoggedError {
    renewals: BTreeSet<String>,
    calls: BTreeMap<String, Cause>,
}

/// Which kinds of requests failed with it, and when the last one did.
struct Cause {
    kinds: BTreeSet<&'static str>,
    last: Time,
}

impl StoreErrorLog {
    pub(crate) fn new(clock: Clock, quiet: Duration) -> Self {
        Self {
            clock,
            quiet,
            told: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LoggedError> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a note, and the cause of a failed renewal if it is a new one.
    pub(crate) fn log(&self, note: &NodeEvent) {
        match note {
            NodeEvent::Renewed { .. } => self.lock().renewals.clear(),
            NodeEvent::RenewalFailed { streak, error } => {
                let renewals = &mut self.lock().renewals;
                if renewals.len() < REASONS && renewals.insert(error.clone()) {
                    warn!(consecutive_failures = streak, error, "lease renewal failed");
                    return;
                }
            }
            _ => {}
        }
        log(note);
    }

    /// A request that is no renewal has failed.
    pub(crate) fn failed(&self, kind: &'static str, error: &str) {
        let now = self.clock.now();
        let mut told = self.lock();
        let LoggedError { renewals, calls } = &mut *told;
        calls.retain(|_, cause| now.since(cause.last) < FORGOTTEN);
        if let Some(cause) = calls.get_mut(error) {
            cause.kinds.insert(kind);
            cause.last = now;
        } else if calls.len() < CAUSES {
            let cause = Cause {
                kinds: BTreeSet::from([kind]),
                last: now,
            };
            calls.insert(error.to_owned(), cause);
            if !renewals.contains(error) {
                warn!(request = kind, error, "store request failed");
            }
        }
    }

    /// A request that is no renewal was answered.
    pub(crate) fn answered(&self, kind: &'static str) {
        let mut told = self.lock();
        if told.calls.is_empty() {
            return;
        }
        let now = self.clock.now();
        told.calls.retain(|_, cause| {
            if now.since(cause.last) >= self.quiet {
                cause.kinds.remove(kind);
            }
            !cause.kinds.is_empty()
        });
        if told.calls.is_empty() {
            info!("store requests succeed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::tests::page;

    const QUIET: Duration = Duration::from_secs(2);

    fn trouble() -> StoreErrorLog {
        StoreErrorLog::new(Clock::runtime(), QUIET)
    }

    fn renewal_failed(trouble: &StoreErrorLog, streak: u32, error: &str) -> String {
        let error = error.to_owned();
        page(|| trouble.log(&NodeEvent::RenewalFailed { streak, error }))
    }

    #[tokio::test(start_paused = true)]
    async fn each_reason_of_failing_renewals_is_told_once_until_one_succeeds() {
        let trouble = trouble();
        let failed = |streak, error: &str| renewal_failed(&trouble, streak, error);
        let told = "WARN lease renewal failed consecutive_failures=1 error=\"away\"";
        assert_eq!(failed(1, "away"), told);
        assert_eq!(failed(2, "away"), "");
        assert!(failed(3, "no connection to spare").contains("to spare"));
        assert_eq!(failed(4, "away"), "");
        let (took, left) = Default::default();
        trouble.log(&NodeEvent::Renewed { took, left });
        assert_eq!(failed(1, "away"), told);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cause_is_told_when_it_begins_and_its_end_when_all_that_failed_is_answered_again() {
        let trouble = trouble();
        let failed = |kind, error: &str| page(|| trouble.failed(kind, error));
        let answered = |kind| page(|| trouble.answered(kind));
        let told = "WARN store request failed request=\"put\" error=\"no space\"";
        assert_eq!(failed("put", "no space"), told);
        assert_eq!(failed("put", "no space"), "");
        assert_eq!(failed("grant", "no space"), "", "the same cause");
        tokio::time::advance(QUIET).await;
        assert_eq!(answered("get"), "", "nothing of its kind had failed");
        assert_eq!(answered("put"), "", "the other kind may still fail");
        assert_eq!(answered("grant"), "INFO store requests succeed again");
        assert_eq!(answered("grant"), "");
        assert_eq!(failed("put", "no space"), told);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_now_and_then_is_one_trouble() {
        let trouble = trouble();
        let failed = |error: &str| page(|| trouble.failed("put", error));
        assert!(!failed("deadlock").is_empty());
        for _ in 0..100 {
            tokio::time::advance(QUIET / 2).await;
            assert_eq!(page(|| trouble.answered("put")), "");
            assert_eq!(failed("deadlock"), "");
        }
        for key in 0..100 {
            failed(&format!("may not write {key}"));
        }
        assert_eq!(trouble.lock().calls.len(), CAUSES);
        tokio::time::advance(FORGOTTEN).await;
        assert!(!failed("deadlock").is_empty(), "news after so long");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_renewal_told_is_not_told_again() {
        let trouble = trouble();
        assert!(!renewal_failed(&trouble, 1, "away").is_empty());
        assert_eq!(page(|| trouble.failed("list", "away")), "");
        assert!(!page(|| trouble.failed("list", "denied")).is_empty());
    }
}
