//! Watches: the messages after a sequence, as the server sends them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::ids::{Revision, Version};

use super::NatsStore;
use super::stream_reader::{ReadEvent, ReadStart, SeenMessage, StreamReader};
use super::subjects::SubjectNames;
use crate::error::StoreError;
use crate::store::Entry;
use crate::watch::{Change, ChangeBatch, Watch, WatchEnd, WatchSource};

const HEARTBEAT: Duration = Duration::from_secs(1);

impl NatsStore {
    pub(super) async fn watch_from(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<Watch, StoreError> {
        let info = self.stream_info().await?;
        if info.state.last_seq < from.0 {
            // The history that the caller knows is not the one of this bucket.
            return Ok(Watch::new(Ended));
        }
        let filters = self.keys.filters(prefix);
        let follower =
            StreamReader::open(self, filters, ReadStart::After(from.0), HEARTBEAT).await?;
        Ok(Watch::new(NatsWatch {
            follower,
            keys: self.keys.clone(),
            prefix: prefix.to_owned(),
            upto: from,
            caught_up: from,
        }))
    }
}

/// Reads from the wire when asked, so that a slow reader makes the server wait and nobody else.
struct NatsWatch {
    follower: StreamReader,
    keys: SubjectNames,
    prefix: String,
    upto: Revision,
    /// Up to here everything had been shown at a moment at which there was nothing more: no deletion can have been forgotten
    /// before it was shown.
    caught_up: Revision,
}

impl fmt::Debug for NatsWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.follower.link;
        write!(f, "NatsWatch({:?}, {link:?})", self.prefix)
    }
}

impl NatsWatch {
    /// What a message shows, if anything.
    fn shown(&mut self, seen: SeenMessage) -> Result<Option<ChangeBatch>, WatchEnd> {
        if seen.subject == self.keys.floor() {
            // Deletions up to there have been forgotten: whoever had not got there may have missed some.
            let floor = String::from_utf8_lossy(&seen.payload)
                .parse()
                .unwrap_or(u64::MAX);
            if self.caught_up.0 < floor {
                return Err(WatchEnd::Gap);
            }
        }
        self.upto = self.upto.max(Revision(seen.sequence));
        if seen.pending == 0 {
            self.caught_up = self.upto;
        }
        let key = self.keys.key(&seen.subject);
        let Some(key) = key.filter(|key| key.starts_with(&self.prefix)) else {
            return Ok(None);
        };
        let change = if seen.deletes {
            Change::Deleted { key }
        } else {
            Change::Put(Entry {
                key,
                value: seen.payload.into(),
                version: Version::Number(seen.sequence),
            })
        };
        Ok(Some(ChangeBatch {
            changes: vec![change],
            upto: self.upto,
        }))
    }
}

#[async_trait]
impl WatchSource for NatsWatch {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        loop {
            let next = self.follower.next().await;
            let seen = match next.map_err(|reason| WatchEnd::Closed { reason })? {
                ReadEvent::Message(seen) => seen,
                ReadEvent::Idle(position) => {
                    self.caught_up = self.caught_up.max(Revision(position));
                    continue;
                }
            };
            if let Some(batch) = self.shown(seen)? {
                return Ok(batch);
            }
        }
    }
}

/// A watch that was over before it began.
#[derive(Debug)]
struct Ended;

#[async_trait]
impl WatchSource for Ended {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        Err(WatchEnd::Gap)
    }
}
