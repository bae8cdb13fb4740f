//! Store time, without asking the store for it every time.
//!
//! The store is asked now and then; in between, time goes on by this process's monotonic clock. The wall clock of this
//! machine is only read where the store has no clock of its own (etcd): there, machines should agree on the time to well
//! within a task's lease.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tenure_store::{Store, StoreError};
use tokio::time::Instant;

use crate::store_time::StoreTime;

/// How often the store is asked.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long it may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The clock of a store, as this process knows it.
#[derive(Debug)]
pub(crate) struct StoreClock {
    store: Arc<dyn Store>,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// The store said so at that instant.
    At(StoreTime, Instant),
    /// It has no clock.
    Local,
}

impl StoreClock {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            known: Mutex::new(Known::Nothing),
        }
    }

    /// The time now. Fails only if the store has never told the time.
    pub(crate) async fn now(&self) -> Result<StoreTime, StoreError> {
        match self.known() {
            Known::Local => return Ok(SystemTime::now().into()),
            Known::At(moment, at) if at.elapsed() < ASK_EVERY => {
                return Ok(moment.plus(at.elapsed()));
            }
            Known::At(..) | Known::Nothing => {}
        }
        let asked = tokio::time::timeout(CALL_TIMEOUT, self.store.now()).await;
        let answer = asked.unwrap_or_else(|_| {
            let reason = format!("the store did not return its time within {CALL_TIMEOUT:?}");
            Err(StoreError::unavailable(reason))
        });
        match (answer, self.known()) {
            (Ok(Some(time)), _) => {
                let moment = StoreTime::from(time);
                self.know(Known::At(moment, Instant::now()));
                Ok(moment)
            }
            (Ok(None), _) => {
                self.know(Known::Local);
                Ok(SystemTime::now().into())
            }
            // What was known goes on: this clock is good enough for hours.
            (Err(_), Known::At(moment, at)) => Ok(moment.plus(at.elapsed())),
            (Err(e), _) => Err(e),
        }
    }

    fn known(&self) -> Known {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn know(&self, known: Known) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::Op;
    use tenure_store::fault::{FaultConfig, FaultStore};
    use tenure_store::memory::MemoryStore;
    use tenure_store::observed_store::ObservedStore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_goes_on_between_the_questions_and_while_the_store_is_away() {
        let (observed, observer) = ObservedStore::new(Arc::new(MemoryStore::new()));
        let (store, faults) = FaultStore::new(Arc::new(observed), FaultConfig::none(1));
        let clock = StoreClock::new(Arc::new(store));
        faults.outage();
        assert!(
            clock.now().await.is_err(),
            "the store's time is not known yet"
        );
        faults.heal();
        let first = clock.now().await.unwrap();
        for second in 1..=60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = clock.now().await.unwrap();
            assert_eq!(now.since(first), Duration::from_secs(second));
        }
        assert_eq!(observer.snapshot().of(Op::Now).calls, 3);
        faults.hang();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let late = clock.now().await.unwrap();
        assert!(late.since(first) >= Duration::from_secs(3660), "{late}");
    }
}
