//! The thread that watches a database and tells every watch what it asked for.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tenure_core::ids::Revision;

use super::change_signal::{BLIND_LOOK, ChangeListener, SAFETY_LOOK, WaitEnd, Waker};
use super::connect::Database;
use super::errors::{self, WriteStage};
use super::sql::{self, HistoryPosition};
use crate::error::StoreError;
use crate::fanout::{Subscription, Watcher, Watchers};
use crate::watch::Watch;

/// How many changes are read at once.
const READ_AT_ONCE: usize = 1000;

/// How long after a write to the log its commit is looked for closely, and how closely. Matters only for writers that do not
/// announce their commits: those that died in between, and tools of other makers.
const SETTLING: Duration = Duration::from_millis(200);
const SETTLING_LOOK: Duration = Duration::from_millis(10);

/// The caller's end of the thread. The thread ends when this is dropped.
pub(super) struct WatcherHandle {
    subscriptions: Option<mpsc::Sender<Subscription>>,
    waker: Waker,
}

impl fmt::Debug for WatcherHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

impl WatcherHandle {
    pub(super) fn start(database: &Arc<Database>) -> Result<Self, StoreError> {
        let conn = database.connect()?;
        Self::start_with(database, conn, |database| {
            ChangeListener::open(&database.place.wal())
        })
    }

    pub(super) fn start_with(
        database: &Arc<Database>,
        conn: Connection,
        ear: impl FnOnce(&Database) -> std::io::Result<(ChangeListener, Waker)>,
    ) -> Result<Self, StoreError> {
        let broken = |e: std::io::Error| {
            StoreError::unavailable(format!(
                "watching the database file for changes failed: {e}"
            ))
        };
        // Reading once makes SQLite open its log, which is what the ear listens to.
        let path = &database.place.path;
        let counter = sql::counter(&conn)
            .map_err(|e| errors::explain(path, "", WriteStage::BeforeCommit, &e))?;
        let (ear, waker) = ear(database).map_err(broken)?;
        let (subscriptions, incoming) = mpsc::channel();
        let thread = WatchThread {
            database: database.clone(),
            conn,
            ear,
            incoming,
            watchers: Watchers::default(),
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
        let (subscription, answer) = Subscription::new(prefix, from);
        if let Some(subscriptions) = &self.subscriptions {
            // A thread that has ended drops it, and the answer says so.
            let _ = subscriptions.send(subscription);
        }
        self.waker.wake();
        answer
    }
}

impl Drop for WatcherHandle {
    fn drop(&mut self) {
        self.subscriptions = None;
        self.waker.wake();
    }
}

struct WatchThread {
    database: Arc<Database>,
    conn: Connection,
    ear: ChangeListener,
    incoming: mpsc::Receiver<Subscription>,
    watchers: Watchers,
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
            if signal == WaitEnd::Written {
                self.settling = Some(Instant::now() + SETTLING);
            }
            // Right after a write there is mostly nothing to see yet; but a log that never rests must not put looking off for ever.
            let early = signal == WaitEnd::Written && self.looked.elapsed() < SETTLING_LOOK;
            if !early
                && !self.watchers.are_gone()
                && let Err(e) = self.look()
            {
                self.watchers.close(&e);
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
        match (self.watchers.are_gone(), self.settling) {
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
                Err(errors::explain(path, "", WriteStage::BeforeCommit, &e))
            }
        }
    }

    fn read_news(&mut self) -> rusqlite::Result<bool> {
        let _snapshot = self.conn.unchecked_transaction()?;
        let HistoryPosition { revision, gap } = sql::counter(&self.conn)?;
        if self.seen < gap || revision < self.seen {
            self.seen = revision;
            self.watchers.gap();
            return Ok(true);
        }
        let before = self.seen;
        while let Some(batch) = sql::changes(&self.conn, self.seen, READ_AT_ONCE)? {
            self.seen = batch.upto;
            self.watchers.tell(&batch);
        }
        Ok(self.seen > before)
    }

    /// Adds a watch: what it missed first, then from where all the others are.
    fn subscribe(&mut self, subscription: Subscription) {
        let (watcher, watch) = subscription.open();
        let from = subscription.from;
        let answer = self.look().and_then(|()| self.replay(watcher, from));
        subscription.answer(answer.map(|()| watch));
    }

    fn replay(&mut self, watcher: Watcher, from: Revision) -> Result<(), StoreError> {
        let read = || -> rusqlite::Result<bool> {
            let _snapshot = self.conn.unchecked_transaction()?;
            let HistoryPosition { revision, gap } = sql::counter(&self.conn)?;
            if from < gap || from > revision {
                watcher.gap();
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
                    self.watchers.add(watcher);
                }
                Ok(())
            }
            Err(e) => {
                let path = &self.database.place.path;
                Err(errors::explain(path, "", WriteStage::BeforeCommit, &e))
            }
        }
    }
}
