//! Lists: one pass over the last message of every key, up to an instant that is not before the call.
//!
//! The pass is read from a consumer, which the server may keep beside any replica. So the leader is asked first how far the
//! bucket has got, and the pass goes on until it has got there and there is nothing more: then nothing that was confirmed
//! before the call is missing, and what was overwritten during the pass has been seen anew.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::ids::{Revision, Version};

use super::NatsStore;
use super::follow::{Follower, From, Next};
use crate::error::StoreError;
use crate::store::{Entry, Listing};

/// How soon the server says that there is nothing more, where the last message is gone and cannot say it itself.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long a pass may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a pass has found.
#[derive(Default)]
struct Pass {
    /// By subject: what is there, if it is to be listed.
    found: BTreeMap<String, Option<Entry>>,
    /// By subject: what has been deleted, and when.
    deleted: BTreeMap<String, u64>,
    last: u64,
}

impl NatsStore {
    pub(super) async fn list_all(&self, prefix: &str) -> Result<Listing, StoreError> {
        let info = self.stream_info().await?;
        let goal = info.state.last_seq;
        if info.state.messages == 0 {
            return Ok(Listing {
                entries: Vec::new(),
                revision: Revision(goal),
            });
        }
        // All of them, so that the last message of the bucket is among them and tells when it is over.
        let filters = vec![self.keys.all()];
        let (mut follower, count) =
            Follower::open(self, filters, From::LastOfEach, HEARTBEAT).await?;
        let reading = self.read_pass(&mut follower, prefix, goal, count);
        let pass = tokio::time::timeout(PATIENCE, reading).await;
        follower.close().await;
        let late = |_| {
            StoreError::unavailable(format!(
                "listing {prefix:?}: NATS did not come to an end within {PATIENCE:?}"
            ))
        };
        let pass = pass.map_err(late)??;
        self.collect_if_many(pass.deleted);
        let mut entries: Vec<Entry> = pass.found.into_values().flatten().collect();
        // The order of subjects is not the order of keys.
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Listing {
            entries,
            revision: Revision(pass.last.max(goal)),
        })
    }

    async fn read_pass(
        &self,
        follower: &mut Follower,
        prefix: &str,
        goal: u64,
        count: u64,
    ) -> Result<Pass, StoreError> {
        let mut pass = Pass::default();
        loop {
            let next = follower.next().await;
            let failed = |why| StoreError::unavailable(format!("listing {prefix:?}: {why}"));
            let seen = match next.map_err(failed)? {
                Next::Message(seen) => seen,
                Next::Idle(position) if position >= goal => return Ok(pass),
                Next::Idle(_) => continue,
            };
            pass.last = seen.sequence;
            let done = seen.pending == 0 && seen.sequence >= goal;
            if seen.deletes {
                pass.found.remove(&seen.subject);
                pass.deleted.insert(seen.subject, seen.sequence);
            } else {
                pass.deleted.remove(&seen.subject);
                let key = self.keys.key(&seen.subject);
                let key = key.filter(|key| key.starts_with(prefix));
                let entry = key.map(|key| Entry {
                    key,
                    value: seen.payload.into(),
                    version: Version::Number(seen.sequence),
                });
                pass.found.insert(seen.subject, entry);
            }
            // What the server counts at the end is not all: no key that was there at the beginning may be missing.
            let subjects = pass.found.len() + pass.deleted.len();
            if done && subjects as u64 >= count {
                return Ok(pass);
            }
        }
    }
}
