//! One who follows a store, and many who watch: each is told what it asked for.
//!
//! For stores whose changes are read by one task or thread for the whole process. A reader that is too slow ends with a gap
//! instead of holding up the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tenure_core::ids::Revision;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::watch::{Change, ChangeBatch, Watch, WatchEnd, WatchSource};

/// How many batches a slow reader may leave lying before its watch ends with a gap.
const UNREAD_BATCHES: usize = 256;

/// A wish to watch, on its way to who follows the store.
pub(crate) struct Subscription {
    pub(crate) prefix: String,
    pub(crate) from: Revision,
    reply: oneshot::Sender<Result<Watch, StoreError>>,
}

impl Subscription {
    /// The wish, and the answer to it. If the wish is dropped, the answer is that the store is unavailable.
    pub(crate) fn new(
        prefix: &str,
        from: Revision,
    ) -> (
        Self,
        impl Future<Output = Result<Watch, StoreError>> + Send + use<>,
    ) {
        let (reply, answer) = oneshot::channel();
        let subscription = Self {
            prefix: prefix.to_owned(),
            from,
            reply,
        };
        let ended = |_| {
            StoreError::unavailable(
                "the background task that watches the store has ended; open the store again",
            )
        };
        (subscription, async move { answer.await.map_err(ended)? })
    }

    /// Both ends of the watch that is wished for.
    pub(crate) fn open(&self) -> (Watcher, Watch) {
        let (batches, receiver) = mpsc::channel(UNREAD_BATCHES);
        let lagged = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            prefix: self.prefix.clone(),
            batches,
            lagged: lagged.clone(),
        };
        (watcher, Watch::new(Reader { receiver, lagged }))
    }

    /// Answers. Whoever asked may have given up; then the watcher finds its channel closed.
    pub(crate) fn answer(self, answer: Result<Watch, StoreError>) {
        let _ = self.reply.send(answer);
    }
}

/// One watch, as who follows the store sees it.
pub(crate) struct Watcher {
    prefix: String,
    batches: mpsc::Sender<Result<ChangeBatch, WatchEnd>>,
    lagged: Arc<AtomicBool>,
}

impl Watcher {
    /// Passes on what concerns it. False if it has ended.
    pub(crate) fn tell(&self, batch: &ChangeBatch) -> bool {
        let concerns = |change: &&Change| change.key().starts_with(&self.prefix);
        let changes: Vec<Change> = batch.changes.iter().filter(concerns).cloned().collect();
        if changes.is_empty() {
            return !self.batches.is_closed();
        }
        self.send(Ok(ChangeBatch {
            changes,
            upto: batch.upto,
        }))
    }

    /// Ends it: nobody knows what it missed.
    pub(crate) fn gap(&self) {
        self.send(Err(WatchEnd::Gap));
    }

    fn send(&self, message: Result<ChangeBatch, WatchEnd>) -> bool {
        match self.batches.try_send(message) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lagged.store(true, Ordering::Release);
                false
            }
        }
    }
}

/// All watches of one store.
#[derive(Default)]
pub(crate) struct Watchers(Vec<Watcher>);

impl Watchers {
    pub(crate) fn add(&mut self, watcher: Watcher) {
        self.0.push(watcher);
    }

    /// Whether nobody watches any more.
    pub(crate) fn are_gone(&mut self) -> bool {
        self.0.retain(|watcher| !watcher.batches.is_closed());
        self.0.is_empty()
    }

    /// Tells everyone what concerns them.
    pub(crate) fn tell(&mut self, batch: &ChangeBatch) {
        self.0.retain(|watcher| watcher.tell(batch));
    }

    /// Ends all of them: nobody knows what they missed.
    pub(crate) fn gap(&mut self) {
        self.0.drain(..).for_each(|watcher| watcher.gap());
    }

    /// Ends all of them with a reason.
    pub(crate) fn close(&mut self, e: &StoreError) {
        tracing::warn!(error = %e, watches = self.0.len(), "all watches of the store ended");
        for watcher in self.0.drain(..) {
            watcher.send(Err(WatchEnd::Closed {
                reason: e.to_string(),
            }));
        }
    }
}

/// The reader's end of one watch.
#[derive(Debug)]
struct Reader {
    receiver: mpsc::Receiver<Result<ChangeBatch, WatchEnd>>,
    lagged: Arc<AtomicBool>,
}

#[async_trait]
impl WatchSource for Reader {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        match self.receiver.recv().await {
            Some(message) => message,
            None if self.lagged.load(Ordering::Acquire) => Err(WatchEnd::Gap),
            None => Err(WatchEnd::Closed {
                reason: "the store was closed".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(key: &str) -> ChangeBatch {
        ChangeBatch {
            changes: vec![Change::Deleted {
                key: key.to_owned(),
            }],
            upto: Revision(7),
        }
    }

    fn watching(prefix: &str) -> (Watchers, Watch) {
        let (watcher, watch) = Subscription::new(prefix, Revision(1)).0.open();
        let mut watchers = Watchers::default();
        watchers.add(watcher);
        (watchers, watch)
    }

    #[tokio::test]
    async fn a_watch_is_told_what_concerns_it_and_why_it_ends() {
        let (mut watchers, mut watch) = watching("a/");
        watchers.tell(&batch("b/1"));
        watchers.tell(&batch("a/1"));
        assert_eq!(watch.next().await, Ok(batch("a/1")));
        watchers.close(&StoreError::unavailable("away"));
        let end = watch.next().await.unwrap_err();
        assert!(end.to_string().contains("away"), "{end}");
        assert!(watchers.are_gone());
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_ends_with_a_gap_and_holds_up_nobody() {
        let (mut watchers, mut watch) = watching("");
        for _ in 0..=UNREAD_BATCHES {
            watchers.tell(&batch("k"));
        }
        assert!(watchers.are_gone());
        for _ in 0..UNREAD_BATCHES {
            watch.next().await.unwrap();
        }
        assert_eq!(watch.next().await, Err(WatchEnd::Gap));
    }

    #[tokio::test]
    async fn a_wish_that_nobody_answers_is_told() {
        let (subscription, answer) = Subscription::new("", Revision(1));
        drop(subscription);
        assert!(matches!(answer.await, Err(StoreError::Unavailable { .. })));
    }
}
