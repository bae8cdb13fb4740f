//! Removing what deletions leave behind.
//!
//! A removal names the mark that it means, so that a key which was created over it meanwhile is safe. Where the service does not look
//! at that, only marks are removed that are a day old: whoever creates such a key in the very moment of its removal finds it
//! missing, as if somebody had deleted it by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::S3Store;
use super::bucket_state::SharedBucket;
use super::requests::WriteCondition;

/// Until then nobody who reads the mark need come too late.
const SOON: Duration = Duration::from_secs(60);
const LATE: Duration = Duration::from_secs(24 * 3600);
/// How many are removed after one walk.
const AT_A_TIME: usize = 200;

impl S3Store {
    /// Whether a mark from then may be removed now, both by the store's clock. Who has not raced writers removes nothing.
    pub(super) fn is_old(&self, made: &str, now: Option<SystemTime>) -> bool {
        let manners = &self.client.site.manners;
        let wait = match manners.removes_on_condition() {
            true => SOON,
            false => LATE,
        };
        let age = now
            .zip(crate::timestamps::parse(made))
            .and_then(|(now, made)| now.duration_since(made).ok());
        manners.was_raced() && age.is_some_and(|age| age > wait)
    }

    /// The same, if nothing but the mark can go with it. Keys are asked for where there are many and each of them counts, such as
    /// tasks: none of them may be taken for one that was deleted by hand.
    pub(super) fn is_old_and_alone(&self, made: &str, now: Option<SystemTime>) -> bool {
        self.client.site.manners.removes_on_condition() && self.is_old(made, now)
    }

    /// Removes these marks in the background, unless that is being done already.
    pub(super) fn collect(&self, mut old: Vec<(String, Arc<str>)>) {
        let trusted = self.client.site.trust.holds();
        if old.is_empty() || !trusted || self.hub.collecting.swap(true, Ordering::AcqRel) {
            return;
        }
        old.truncate(AT_A_TIME);
        let (client, collecting) = (self.client.clone(), Collecting(self.hub.clone()));
        tokio::spawn(async move {
            let _collecting = collecting;
            for (object, etag) in old {
                if let Err(e) = client
                    .remove(&object, Some(&WriteCondition::Etag(etag)))
                    .await
                {
                    // The next walk finds them again.
                    tracing::debug!(object, error = %e, "removing the tombstone of a deleted key failed");
                    break;
                }
            }
        });
    }
}

/// Says that nobody collects any more, also if that is because the runtime has ended.
struct Collecting(Arc<SharedBucket>);

impl Drop for Collecting {
    fn drop(&mut self) {
        self.0.collecting.store(false, Ordering::Release);
    }
}
