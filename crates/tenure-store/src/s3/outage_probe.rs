//! Trust in conditional writes: a service that was away is probed again before anything is written.
//!
//! A service that has just started may let two racing writers win. So an outage that a running store notices takes back the trust
//! that the probe at its start has earned. An outage is a connection that was not made, or a second in which calls failed and
//! none was answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::S3Store;
use super::http::BucketEndpoint;
use crate::error::StoreError;

/// Time without any answer, from one failed call on, after which the service counts as having been away.
const OUTAGE: Duration = Duration::from_secs(1);
/// Pause between two probes.
const PAUSE: Duration = Duration::from_secs(1);

/// Failures and answers of the service since the last probe. Shared by all connections to one bucket.
#[derive(Debug, Default)]
pub(super) struct ConditionalWriteTrust(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The first failure since the last answer.
    failing: Option<Instant>,
    /// The service was away and has not passed a probe since.
    away: bool,
    /// Number of failures during outages. A change shows that one happened in between.
    failures: u64,
    probing: bool,
    not_before: Option<Instant>,
    /// Error of the last probe.
    problem: Option<String>,
}

/// Next step of a write.
enum Next {
    /// Send the write. The number changes with the next outage.
    Write(u64),
    Probe(u64),
    /// Fail, for this reason.
    Fail(Option<String>),
}

impl State {
    fn is_long(&self) -> bool {
        self.failing.is_some_and(|since| since.elapsed() >= OUTAGE)
    }

    fn went_away(&mut self) {
        self.away = true;
        self.failures += 1;
    }
}

impl ConditionalWriteTrust {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call that failed; `refused`: no connection was made.
    pub(super) fn failed(&self, refused: bool) {
        let mut state = self.lock();
        state.failing.get_or_insert_with(Instant::now);
        if refused || state.is_long() {
            state.went_away();
        }
    }

    /// Notes a call that was answered.
    pub(super) fn answered(&self) {
        let mut state = self.lock();
        if state.is_long() && !state.away {
            state.went_away();
        }
        state.failing = None;
    }

    /// Returns `false` if a probe is due.
    pub(super) fn holds(&self) -> bool {
        !self.lock().away
    }

    fn next(&self) -> Next {
        let mut state = self.lock();
        if state.is_long() && !state.away {
            state.went_away();
        }
        let early = state.not_before.is_some_and(|then| Instant::now() < then);
        match state.away {
            false => Next::Write(state.failures),
            true if state.probing || early => Next::Fail(state.problem.clone()),
            true => {
                state.probing = true;
                Next::Probe(state.failures)
            }
        }
    }

    /// Notes how a probe ended that began after `failures`.
    fn probed(&self, failures: u64, result: &Result<(), StoreError>) {
        let mut state = self.lock();
        state.problem = result.as_ref().err().map(ToString::to_string);
        match result {
            Ok(()) if state.failures == failures => state.away = false,
            Ok(()) => {}
            Err(_) => state.not_before = Some(Instant::now() + PAUSE),
        }
    }
}

/// The one probe of a site. Also ends if its runtime does.
struct Probing(Arc<BucketEndpoint>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.trust.lock().probing = false;
    }
}

impl S3Store {
    /// Returns when a conditional write may be sent; after an outage, when the service has passed the probe. The first write after
    /// an outage waits for the probe, all others fail meanwhile. Give the number to [`S3Store::still_trusted`].
    pub(super) async fn trusted(&self) -> Result<u64, StoreError> {
        let site = &self.client.site;
        // Those who only look have never raced writers.
        if !site.manners.was_raced() {
            return Ok(0);
        }
        let failures = match site.trust.next() {
            Next::Write(failures) => return Ok(failures),
            Next::Fail(problem) => return Err(self.distrusted(problem)),
            Next::Probe(failures) => failures,
        };
        let probing = Probing(site.clone());
        // While the service is away, this error names the cause.
        self.client.read(&self.names.own("identity")).await?;
        let store = self.clone();
        let probe = tokio::spawn(async move {
            let result = store.probe().await;
            let host = &store.client.site.settings.host;
            match &result {
                Ok(()) => tracing::info!(
                    host,
                    "conditional writes of the S3 service tested after an outage, writing again"
                ),
                Err(error) => {
                    tracing::warn!(host, %error, "test of the S3 service's conditional writes after an outage failed, not writing");
                }
            }
            store.client.site.trust.probed(failures, &result);
            drop(probing);
        });
        // The probe goes on if this write is given up.
        let _ = probe.await;
        let state = site.trust.lock();
        match state.away {
            false => Ok(state.failures),
            true => Err(self.distrusted(state.problem.clone())),
        }
    }

    /// Fails if an outage has happened since [`S3Store::trusted`] returned this number: a write that was confirmed may then
    /// have been confirmed to another writer, too.
    pub(super) fn still_trusted(&self, failures: u64) -> Result<(), StoreError> {
        let site = &self.client.site;
        if !site.manners.was_raced() || site.trust.lock().failures == failures {
            return Ok(());
        }
        Err(StoreError::unknown(format!(
            "S3 service {} had an outage while it confirmed a write",
            site.settings.host
        )))
    }

    fn distrusted(&self, problem: Option<String>) -> StoreError {
        let host = &self.client.site.settings.host;
        StoreError::unavailable(match problem {
            None => format!(
                "S3 service {host} had an outage: writes fail until a test shows that its conditional writes are reliable again"
            ),
            Some(problem) => format!(
                "S3 service {host} had an outage, and the test of its conditional writes has failed since; the test is \
                 repeated: {problem}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_call_is_no_outage_and_a_refused_connection_is() {
        let trust = ConditionalWriteTrust::default();
        trust.failed(false);
        trust.answered();
        assert!(matches!(trust.next(), Next::Write(0)));
        trust.failed(true);
        trust.answered();
        assert!(!trust.holds(), "an answer alone does not bring trust back");
        assert!(matches!(trust.next(), Next::Probe(1)));
        assert!(matches!(trust.next(), Next::Fail(None)), "one at a time");
    }

    #[test]
    fn a_second_without_an_answer_is_an_outage_whoever_is_answered_first() {
        let trust = ConditionalWriteTrust::default();
        trust.lock().failing = Instant::now().checked_sub(OUTAGE);
        trust.answered();
        assert!(!trust.holds());
        let trust = ConditionalWriteTrust::default();
        trust.lock().failing = Instant::now().checked_sub(OUTAGE);
        assert!(matches!(trust.next(), Next::Probe(1)));
    }

    #[test]
    fn a_probe_during_which_the_service_was_away_again_does_not_count() {
        let trust = ConditionalWriteTrust::default();
        trust.failed(true);
        trust.failed(true);
        trust.probed(1, &Ok(()));
        assert!(!trust.holds());
        trust.probed(2, &Ok(()));
        assert!(trust.holds());
    }
}
