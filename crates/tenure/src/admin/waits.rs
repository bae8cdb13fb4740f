//! Waits: until the cluster is in a state, and whether a key stays unchanged for a ttl.

use std::time::Duration;

use tenure_core::ids::Version;
use tenure_core::keys::Key;
use tenure_store::StoreError;

use super::client::within;
use super::{AdminClient, AdminError, Snapshot};

/// Interval of the checks whether the store has changed, while waiting.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of the checks of a key that is watched for a ttl.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl AdminClient {
    /// Waits until `look` has an answer, at most for `limit`. `look` is called after every change of the cluster.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut(&Snapshot) -> Result<Option<T>, AdminError>,
    ) -> Result<Option<T>, AdminError> {
        let waited = tokio::time::timeout(limit, async {
            let mut last = None;
            loop {
                // A short outage of the store must not end a long wait. Before the first look nothing can be compared.
                let now = match last {
                    Some(_) => within("reading its revision", self.store.revision())
                        .await
                        .ok(),
                    None => None,
                };
                if now.is_none() || now != last {
                    match self.snapshot().await {
                        Ok(snapshot) => {
                            last = Some(snapshot.view.revision);
                            if let Some(answer) = look(&snapshot)? {
                                return Ok(answer);
                            }
                        }
                        Err(AdminError::Store(StoreError::Denied { reason })) => {
                            return Err(StoreError::Denied { reason }.into());
                        }
                        Err(_) => last = None,
                    }
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        });
        match waited.await {
            Ok(answer) => answer.map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Watches a key for `time`. Returns `false` as soon as its version is another one.
    pub(super) async fn stays(
        &self,
        key: &Key,
        version: Option<&Version>,
        time: Duration,
    ) -> Result<bool, AdminError> {
        let until = self.clock.now() + time;
        loop {
            if self.version(key).await?.as_ref() != version {
                return Ok(false);
            }
            let now = self.clock.now();
            if now >= until {
                return Ok(true);
            }
            self.clock
                .sleep_until(until.min(now + KEY_POLL_INTERVAL))
                .await;
        }
    }
}
