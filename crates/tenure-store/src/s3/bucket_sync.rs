//! Comparing the bucket with what is known of it: lists, and reads of what has changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use tenure_core::ids::Revision;

use super::S3Store;
use super::bucket_state::{BucketState, SeenObject};
use super::kv::AT_ONCE;
use super::object_format::{DELETED_LENGTH, ObjectBody};
use super::requests::PageStart;
use crate::concurrent_batch::in_waves;
use crate::error::StoreError;
use crate::store::Listing;

/// Which values are wanted of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    All,
    /// Only of keys that somebody watches.
    Watched,
}

impl S3Store {
    /// Everything under a prefix.
    pub(super) async fn list_all(&self, prefix: &str) -> Result<Listing, StoreError> {
        let _alone = self.hub.walking.lock().await;
        self.learn(prefix).await?;
        let state = self.hub.lock();
        Ok(Listing {
            entries: state.entries(prefix),
            revision: state.revision(),
        })
    }

    /// Looks at all that was ever asked for by its prefix, or at everything if nothing was.
    pub(super) async fn compare(&self) -> Result<Revision, StoreError> {
        let _alone = self.hub.walking.lock().await;
        let prefixes = self.hub.lock().to_compare();
        if prefixes.is_empty() {
            let date = self.walk("", Want::Watched).await?;
            self.hub.lock().learned_whole(date);
        }
        for prefix in prefixes {
            self.walk(&prefix, Want::Watched).await?;
        }
        Ok(self.hub.lock().revision())
    }

    /// Looks at all that is watched.
    pub(super) async fn poll(&self) -> Result<(), StoreError> {
        let _alone = self.hub.walking.lock().await;
        let prefixes = self.hub.lock().to_poll();
        for prefix in prefixes {
            self.learn(&prefix).await?;
        }
        Ok(())
    }

    /// Looks at a prefix, and keeps an eye on it from now on. The caller walks alone.
    pub(super) async fn learn(&self, prefix: &str) -> Result<(), StoreError> {
        let date = self.walk(prefix, Want::All).await?;
        self.hub.lock().learned(prefix, date);
        Ok(())
    }

    async fn walk(&self, prefix: &str, want: Want) -> Result<Option<SystemTime>, StoreError> {
        let objects = self.names.prefix(prefix);
        let (mut from, mut there, mut old) = (PageStart::Start, BTreeSet::new(), Vec::new());
        let date = loop {
            let page = self.client.page(&objects, &from, usize::MAX).await?;
            let mut seen = Vec::with_capacity(page.objects.len());
            for object in page.objects {
                let Some(key) = self.names.key(&object.key) else {
                    continue;
                };
                if !key.starts_with(prefix) {
                    continue;
                }
                let deleted = object.size == DELETED_LENGTH;
                if deleted && self.is_old(&object.last_modified, page.date) {
                    old.push((object.key, Arc::from(&*object.etag)));
                }
                let etag = Arc::from(&*object.etag);
                seen.push((key.clone(), self.hub.lock().complete(&key, etag, deleted)));
            }
            let mut seen = self.filled(seen, want).await?;
            // Nobody knows what came first; the order of the keys is at least always the same.
            seen.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            self.change(|state| {
                for (key, seen) in seen {
                    state.apply(&key, seen, page.date);
                    there.insert(key);
                }
            });
            match page.next {
                Some(token) => from = PageStart::Token(token),
                None => break page.date,
            }
        };
        self.change(|state| state.retain(prefix, &there, date));
        self.collect(old);
        Ok(date)
    }

    /// Changes what is known, and tells those who watch.
    fn change(&self, change: impl FnOnce(&mut BucketState)) {
        let moved = {
            let mut state = self.hub.lock();
            let before = state.revision();
            change(&mut state);
            state.revision() != before
        };
        if moved {
            self.hub.moved.send_modify(|_| ());
        }
    }

    /// Reads what is wanted and not known. What is gone by now is left out.
    async fn filled(
        &self,
        seen: Vec<(String, SeenObject)>,
        want: Want,
    ) -> Result<Vec<(String, SeenObject)>, StoreError> {
        let (missing, mut known): (Vec<_>, Vec<_>) = {
            let state = self.hub.lock();
            let is_wanted = |key: &str| want == Want::All || state.is_watched(key);
            seen.into_iter()
                .partition(|(key, seen)| !seen.deleted && seen.value.is_none() && is_wanted(key))
        };
        let ask = |(key, _): (String, SeenObject)| async move {
            let read = self.client.read(&self.names.object(&key)?).await?;
            let seen = read.map(|read| match read.body {
                ObjectBody::Deleted => SeenObject {
                    etag: read.etag,
                    value: None,
                    deleted: true,
                },
                ObjectBody::Value(value) => SeenObject {
                    etag: read.etag,
                    value: Some(value),
                    deleted: false,
                },
            });
            Ok::<_, StoreError>(seen.map(|seen| (key, seen)))
        };
        for read in in_waves(AT_ONCE, missing, |(key, _)| key, ask).await {
            known.extend(read?);
        }
        Ok(known)
    }
}
