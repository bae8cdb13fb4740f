//! Forgetting deletions: a deleted key leaves a mark behind, and marks would add up.
//!
//! Whoever lists has read them all. If there are too many, the oldest are removed, after it was written down up to where:
//! a watch that has not got there ends with a gap instead of missing a deletion.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_core::ids::Version;

use super::NatsStore;
use super::call::NatsRequest;
use super::jetstream;
use super::kv::LastKnown;
use crate::error::StoreError;
use crate::watch::TOMBSTONES_KEPT;

/// So many marks begin to be too many.
const TOO_MANY: usize = 2 * TOMBSTONES_KEPT;
/// How many are removed at once.
const AT_ONCE: usize = 64;

impl NatsStore {
    /// Removes the oldest of the marks that a list has found, in the background, if there are too many.
    pub(super) fn collect_if_many(&self, deleted: BTreeMap<String, u64>) {
        if deleted.len() < TOO_MANY || self.shared.collecting.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = self.clone();
        tokio::spawn(async move {
            let collected = store.collect(deleted).await;
            store.shared.collecting.store(false, Ordering::Relaxed);
            match collected {
                Ok(count) => tracing::debug!(count, "old tombstones purged"),
                Err(e) => tracing::debug!(error = %e, "purging old tombstones failed"),
            }
        });
    }

    async fn collect(&self, deleted: BTreeMap<String, u64>) -> Result<usize, StoreError> {
        let mut marks: Vec<(u64, String)> = deleted.into_iter().map(|(s, n)| (n, s)).collect();
        marks.sort_unstable();
        marks.truncate(marks.len().saturating_sub(TOMBSTONES_KEPT));
        let Some((floor, _)) = marks.last() else {
            return Ok(0);
        };
        if !self.raise_floor(*floor).await? {
            // Somebody else is at it.
            return Ok(0);
        }
        let count = marks.len();
        for part in marks.chunks(AT_ONCE) {
            let removed = join_all(part.iter().map(|(at, subject)| self.forget(subject, *at)));
            for answer in removed.await {
                answer?;
            }
        }
        Ok(count)
    }

    /// Writes down that deletions up to here may be forgotten. False if somebody else was quicker.
    async fn raise_floor(&self, floor: u64) -> Result<bool, StoreError> {
        let subject = self.keys.floor();
        let (expected, present) = match self.last_of_subject(&subject, subject.clone()).await? {
            LastKnown::Value(entry) => {
                let Version::Number(at) = entry.version else {
                    return Ok(false);
                };
                (
                    at,
                    String::from_utf8_lossy(&entry.value).parse().unwrap_or(0),
                )
            }
            LastKnown::Deleted(at) => (at, 0),
            LastKnown::Nothing => (0, 0),
        };
        if present >= floor {
            return Ok(true);
        }
        let text = floor.to_string();
        let stored = self.publish_to(subject, text.as_bytes(), expected, None);
        Ok(stored.await?.is_some())
    }

    /// Removes the messages of a subject up to this one. What was written after it stays.
    async fn forget(&self, subject: &str, at: u64) -> Result<(), StoreError> {
        let purge = json!({ "filter": subject, "seq": at + 1 });
        let asked = jetstream::about("STREAM.PURGE", &self.keys.stream);
        let answer: Value = self
            .client
            .demand(NatsRequest::writes(asked, &purge))
            .await?;
        drop(answer);
        Ok(())
    }
}
