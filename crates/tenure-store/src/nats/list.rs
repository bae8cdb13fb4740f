//! Lists: one pass over the last message of every key, up to an instant that is not before the call.
//!
//! The pass is read from a consumer, which the server may keep beside any replica. So the leader is asked first how far the
//! bucket has got, and the pass goes on until it has got there and there is nothing more: then nothing that was confirmed
//! before the call is missing, and what was overwritten during the pass has been seen anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::ids::{Revision, Version};

use super::NatsStore;
use super::jetstream::StreamState;
use super::stream_reader::{ReadEvent, ReadStart, StreamReader};
use crate::error::StoreError;
use crate::store::{Entry, Listing};

/// How soon the server says that there is nothing more, where the last message is gone and cannot say it itself.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long a pass may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// What a pass has found.
#[derive(Default)]
struct Pass {
    /// By subject: what is there, if it is to be listed.
    found: BTreeMap<String, Option<Entry>>,
    /// By subject: what has been deleted, and when.
    deleted: BTreeMap<String, u64>,
    /// Subjects that came after the pass had begun.
    new: BTreeSet<String>,
    last: u64,
}

impl Pass {
    /// How many subjects have been seen of those that were there at the beginning.
    ///
    /// A key that is overwritten before the pass has come to it is sent at its new place, of which the server may not know
    /// yet when it says that there is nothing more: it has to be among those seen before the pass is over.
    fn old(&self) -> u64 {
        let all = self.found.keys().chain(self.deleted.keys());
        all.filter(|subject| !self.new.contains(*subject)).count() as u64
    }
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
        let mut follower =
            StreamReader::open(self, filters, ReadStart::LastOfEach, HEARTBEAT).await?;
        let reading = self.read_pass(&mut follower, prefix, &info.state);
        let pass = tokio::time::timeout(CALL_TIMEOUT, reading).await;
        follower.close().await;
        let late = |_| {
            StoreError::unavailable(format!(
                "listing {prefix:?}: NATS did not finish within {CALL_TIMEOUT:?}"
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
        follower: &mut StreamReader,
        prefix: &str,
        at: &StreamState,
    ) -> Result<Pass, StoreError> {
        let goal = at.last_seq;
        let mut pass = Pass::default();
        loop {
            let next = follower.next().await;
            let failed = |reason| StoreError::unavailable(format!("listing {prefix:?}: {reason}"));
            let seen = match next.map_err(failed)? {
                ReadEvent::Message(seen) => seen,
                ReadEvent::Idle(position) if position >= goal => return Ok(pass),
                ReadEvent::Idle(_) => continue,
            };
            pass.last = seen.sequence;
            let done = seen.pending == 0 && seen.sequence >= goal;
            if seen.begins && seen.sequence > goal {
                pass.new.insert(seen.subject.clone());
            }
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
            if done && pass.old() >= at.num_subjects {
                return Ok(pass);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_came_after_the_pass_had_begun_do_not_stand_for_those_that_were_there() {
        let mut pass = Pass::default();
        assert_eq!(pass.old(), 0);
        pass.found.insert("there".to_owned(), None);
        pass.deleted.insert("gone".to_owned(), 7);
        pass.found.insert("came".to_owned(), None);
        pass.deleted.insert("came and went".to_owned(), 9);
        pass.new = ["came", "came and went"].map(str::to_owned).into();
        assert_eq!(pass.old(), 2);
    }
}
