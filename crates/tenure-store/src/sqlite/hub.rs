//! The thread that watches a database and tells every watch what it asked for.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::Connection;
use tenure_core::ids::Revision;
use tokio::sync::{mpsc as async_mpsc, oneshot};

use super::connect::Database;
use super::errors::{self, Stage};
use super::signal::{BLIND_LOOK, Ear, SAFETY_LOOK, Signal, Waker};
use super::sql::{self, Counter};
use crate::error::StoreError;
use crate::watch::{Batch, Change, Watch, WatchEnd, WatchSource};

/// How many changes are read at once.
const READ_AT_ONCE: usize = 1000;

/// How many batches a slow reader may leave lying before its watch ends with a gap.
const UNREAD_BATCHES: usize = 256;

/// How long after a write to the log its commit is looked for closely, and how closely. Matters only for writers that do not
/// announce their commits: those that died in between, and tools of other makers.
const SETTLING: Duration = Duration::from_millis(200);
const SETTLING_LOOK: Duration = Duration::from_millis(10);

/// The caller's end of the thread. The thread ends when this is dropped.
pub(super) struct Hub {
    subscriptions: Option<mpsc::Sender<Subscription>>,
    waker: Waker,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

struct Subscription {
    prefix: String,
    from: Revision,
    reply: oneshot::Sender<Result<Watch, StoreError>>,
}

impl Hub {
    pub(super) fn start(database: &Arc<Database>) -> Result<Self, StoreError> {
        let conn = database.connect()?;
        Self::start_with(database, conn, |database| Ear::open(&database.place.wal()))
    }

    pub(super) fn start_with(
        database: &Arc<Database>,
        conn: Connection,
        ear: impl FnOnce(&Database) -> std::io::Result<(Ear, Waker)>,
    ) -> Result<Self, StoreError> {
        let broken = |e: std::io::Error| StoreError::unavailable(format!("cannot watch: {e}"));
        // Reading once makes SQLite open its log, which is what the ear listens to.
        let path = &database.place.path;
        let counter =
            sql::counter(&conn).map_err(|e| errors::explain(path, "", Stage::BeforeCommit, &e))?;
        let (ear, waker) = ear(database).map_err(broken)?;
        let (subscriptions, incoming) = mpsc::channel();
        let thread = WatchThread {
            database: database.clone(),
            conn,
            ear,
            incoming,
            watchers: Vec::new(),
            seen: counter.revision,
            looked: Instant::now(),
            settling: None,
        };
        thread::Builder::new()
            .name("tenure-sqlite-watch".to_owned())
            .spawn(move || thread.run())
            .map_err(broken)?;
        Ok(Self {
            subscriptions: Some(subscriptions),
            waker,
        })
    }

    pub(super) fn subscribe(
        &self,
        prefix: &str,
        from: Revision,
    ) -> impl Future<Output = Result<Watch, StoreError>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let subscription = Subscription {
            prefix: prefix.to_owned(),
            from,
            reply,
        };
        if let Some(subscriptions) = &self.subscriptions {
            // A thread that has ended drops the reply, and the wait below says so.
            let _ = subscriptions.send(subscription);
        }
        self.waker.wake();
        async move {
            let ended = |_| StoreError::unavailable("the watching thread has ended");
            answer.await.map_err(ended)?
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.subscriptions = None;
        self.waker.wake();
    }
}

/// One watch, as the thread sees it.
struct Watcher {
    prefix: String,
    batches: async_mpsc::Sender<Result<Batch, WatchEnd>>,
    lagged: Arc<AtomicBool>,
}

impl Watcher {
    /// Passes on what concerns it. False if it has ended.
    fn tell(&self, batch: &Batch) -> bool {
        let concerns = |change: &&Change| change.key().starts_with(&self.prefix);
        let changes: Vec<Change> = batch.changes.iter().filter(concerns).cloned().collect();
        if changes.is_empty() {
            return !self.batches.is_closed();
        }
        self.send(Ok(Batch {
            changes,
            upto: batch.upto,
        }))
    }

    fn send(&self, message: Result<Batch, WatchEnd>) -> bool {
        match self.batches.try_send(message) {
            Ok(()) => true,
            Err(async_mpsc::error::TrySendError::Closed(_)) => false,
            Err(async_mpsc::error::TrySendError::Full(_)) => {
                self.lagged.store(true, Ordering::Release);
                false
            }
        }
    }
}

struct WatchThread {
    database: Arc<Database>,
    conn: Connection,
    ear: Ear,
    incoming: mpsc::Receiver<Subscription>,
    watchers: Vec<Watcher>,
    /// Everything up to here has been told.
    seen: Revision,
    /// When it last looked.
    looked: Instant,
    /// Until when a commit is looked for closely.
    settling: Option<Instant>,
}

impl WatchThread {
    fn run(mut self) {
        loop {
            let patience = self.patience();
            let signal = self.ear.wait(patience);
            if signal == Signal::Written {
                self.settling = Some(Instant::now() + SETTLING);
            }
            self.watchers.retain(|w| !w.batches.is_closed());
            // Right after a write there is mostly nothing to see yet; but a log that never rests must not put looking off for ever.
            let early = signal == Signal::Written && self.looked.elapsed() < SETTLING_LOOK;
            if !early
                && !self.watchers.is_empty()
                && let Err(e) = self.look()
            {
                self.end_all(&e);
            }
            loop {
                match self.incoming.try_recv() {
                    Ok(subscription) => self.subscribe(subscription),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    fn patience(&mut self) -> Duration {
        if self.settling.is_some_and(|until| until <= Instant::now()) {
            self.settling = None;
        }
        match (self.watchers.is_empty(), self.settling) {
            (true, _) => SAFETY_LOOK,
            (false, Some(_)) => SETTLING_LOOK,
            (false, None) if self.ear.is_deaf() => BLIND_LOOK,
            (false, None) => SAFETY_LOOK,
        }
    }

    /// Reads what is new and tells it. A database that is busy is looked at again soon.
    fn look(&mut self) -> Result<(), StoreError> {
        self.looked = Instant::now();
        self.database.place.check_unmoved()?;
        match self.read_news() {
            Ok(moved) => {
                if moved {
                    self.settling = None;
                }
                Ok(())
            }
            Err(e) if errors::is_busy(&e) => {
                self.settling = Some(Instant::now() + SETTLING);
                Ok(())
            }
            Err(e) => {
                let path = &self.database.place.path;
                Err(errors::explain(path, "", Stage::BeforeCommit, &e))
            }
        }
    }

    fn read_news(&mut self) -> rusqlite::Result<bool> {
        let _snapshot = self.conn.unchecked_transaction()?;
        let Counter { revision, gap } = sql::counter(&self.conn)?;
        if self.seen < gap || revision < self.seen {
            self.seen = revision;
            for watcher in self.watchers.drain(..) {
                watcher.send(Err(WatchEnd::Gap));
            }
            return Ok(true);
        }
        let before = self.seen;
        while let Some(batch) = sql::changes(&self.conn, self.seen, READ_AT_ONCE)? {
            self.seen = batch.upto;
            self.watchers.retain(|watcher| watcher.tell(&batch));
        }
        Ok(self.seen > before)
    }

    /// Adds a watch: what it missed first, then from where all the others are.
    fn subscribe(&mut self, subscription: Subscription) {
        let Subscription {
            prefix,
            from,
            reply,
        } = subscription;
        let (batches, receiver) = async_mpsc::channel(UNREAD_BATCHES);
        let lagged = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            prefix,
            batches,
            lagged: lagged.clone(),
        };
        let answer = match self.look().and_then(|()| self.replay(watcher, from)) {
            Ok(()) => Ok(Watch::new(HubWatch { receiver, lagged })),
            Err(e) => Err(e),
        };
        // Whoever asked may have given up; then the watcher finds its channel closed.
        let _ = reply.send(answer);
    }

    fn replay(&mut self, watcher: Watcher, from: Revision) -> Result<(), StoreError> {
        let read = || -> rusqlite::Result<bool> {
            let _snapshot = self.conn.unchecked_transaction()?;
            let Counter { revision, gap } = sql::counter(&self.conn)?;
            if from < gap || from > revision {
                watcher.send(Err(WatchEnd::Gap));
                return Ok(false);
            }
            let mut position = from;
            while let Some(batch) = sql::changes(&self.conn, position, READ_AT_ONCE)? {
                position = batch.upto;
                if !watcher.tell(&batch) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        // What was committed between `look` and here is told twice, which a watch may do.
        match read() {
            Ok(lives) => {
                if lives {
                    self.watchers.push(watcher);
                }
                Ok(())
            }
            Err(e) => {
                let path = &self.database.place.path;
                Err(errors::explain(path, "", Stage::BeforeCommit, &e))
            }
        }
    }

    fn end_all(&mut self, e: &StoreError) {
        tracing::warn!(error = %e, watches = self.watchers.len(), "watches ended");
        for watcher in self.watchers.drain(..) {
            watcher.send(Err(WatchEnd::Closed { why: e.to_string() }));
        }
    }
}

/// The reader's end of one watch.
#[derive(Debug)]
struct HubWatch {
    receiver: async_mpsc::Receiver<Result<Batch, WatchEnd>>,
    lagged: Arc<AtomicBool>,
}

#[async_trait]
impl WatchSource for HubWatch {
    async fn next(&mut self) -> Result<Batch, WatchEnd> {
        match self.receiver.recv().await {
            Some(message) => message,
            None if self.lagged.load(Ordering::Acquire) => Err(WatchEnd::Gap),
            None => Err(WatchEnd::Closed {
                why: "the store was closed".to_owned(),
            }),
        }
    }
}
