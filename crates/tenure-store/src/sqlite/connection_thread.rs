//! One thread with one connection, which does one thing after another.
//!
//! Calls are handed over through a channel. A caller that gives up leaves the thread to finish what it has begun; what it has
//! not begun is skipped.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW};
use tokio::sync::oneshot;

use super::connect::Database;
use super::errors::{self, WriteStage};
use crate::error::StoreError;
use crate::machine_identity::random_bytes;
use crate::rng::SplitMix;

/// How long a call waits for a lock that another process holds before it says so. Callers with less patience give up earlier.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

type Job = Box<dyn FnOnce(&mut ConnectionThread) + Send>;

/// What the thread works with.
struct ConnectionThread {
    conn: Connection,
    database: Arc<Database>,
    rng: SplitMix,
    deleted: usize,
}

/// A write under way.
pub(super) struct WriteSession<'a> {
    pub(super) conn: &'a Connection,
    database: &'a Database,
    rng: &'a mut SplitMix,
    given_up: &'a dyn Fn() -> bool,
    /// Deletions by this thread since it last purged.
    pub(super) deleted: &'a mut usize,
}

impl WriteSession<'_> {
    /// Tries until no other process is in the way, the caller gives up or patience ends.
    pub(super) fn patiently<T>(
        &mut self,
        stage: WriteStage,
        key: &str,
        attempt: impl FnMut() -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        patiently(self.rng, self.given_up, attempt).map_err(|e| self.explain(stage, key, &e))
    }

    pub(super) fn explain(&self, stage: WriteStage, key: &str, e: &rusqlite::Error) -> StoreError {
        errors::explain(&self.database.place.path, key, stage, e)
    }

    /// Tells watchers, in this and other processes, that a commit has become visible.
    ///
    /// The log itself changes *before* the commit is visible; a touch afterwards is what they wait for. If it fails they still
    /// notice, somewhat later, because the log changed.
    pub(super) fn announce(&self) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        let wal = self.database.place.wal();
        if let Err(e) = rustix::fs::utimensat(CWD, &wal, &times, AtFlags::empty()) {
            tracing::debug!(path = %wal.display(), error = %e, "notifying watchers of a commit failed");
        }
    }
}

/// The caller's end of the thread.
pub(super) struct ConnectionHandle {
    jobs: mpsc::Sender<Job>,
}

impl fmt::Debug for ConnectionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

impl ConnectionHandle {
    /// Opens a connection and starts its thread. The thread ends when the worker is dropped.
    pub(super) fn start(name: &str, database: &Arc<Database>) -> Result<Self, StoreError> {
        let mut seed = [0; 8];
        seed.copy_from_slice(&random_bytes()[..8]);
        let mut desk = ConnectionThread {
            conn: database.connect()?,
            database: database.clone(),
            rng: SplitMix::new(u64::from_ne_bytes(seed)),
            deleted: 0,
        };
        let (jobs, queue) = mpsc::channel::<Job>();
        let work = move || {
            for job in queue {
                job(&mut desk);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned());
        match thread.spawn(work) {
            Ok(_) => Ok(Self { jobs }),
            Err(e) => Err(StoreError::unavailable(format!(
                "starting the database thread failed: {e}"
            ))),
        }
    }

    /// Reads; `key` is what a damaged page is reported under.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        key: &str,
        read: impl Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let key = key.to_owned();
        let answer = self.call(move |desk, given_up| {
            desk.database.place.check_unmoved()?;
            let conn = &desk.conn;
            patiently(&mut desk.rng, given_up, || read(conn)).map_err(|e| {
                let path = &desk.database.place.path;
                errors::explain(path, &key, WriteStage::BeforeCommit, &e)
            })
        });
        answer.await.unwrap_or_else(|| Err(gone()))
    }

    /// Writes.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&mut WriteSession<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = self.call(move |desk, given_up| {
            desk.database.place.check_unmoved()?;
            write(&mut WriteSession {
                conn: &desk.conn,
                database: &desk.database,
                rng: &mut desk.rng,
                given_up,
                deleted: &mut desk.deleted,
            })
        });
        answer.await.unwrap_or_else(|| Err(gone_in_a_write()))
    }

    /// Hands a job over and waits for its answer; `None` if the thread broke off.
    async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut ConnectionThread, &dyn Fn() -> bool) -> Result<T, StoreError>
        + Send
        + 'static,
    ) -> Option<Result<T, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let job = move |desk: &mut ConnectionThread| {
            if !reply.is_closed() {
                let answer = job(desk, &|| reply.is_closed());
                // Nobody waits for it any more: the outcome is theirs to find out.
                let _ = reply.send(answer);
            }
        };
        if self.jobs.send(Box::new(job)).is_err() {
            return Some(Err(gone()));
        }
        answer.await.ok()
    }
}

fn gone() -> StoreError {
    StoreError::unavailable("the database thread has ended; open the store again")
}

fn gone_in_a_write() -> StoreError {
    StoreError::unknown("the database thread ended during a write; open the store again")
}

/// Repeats `attempt` while another process holds a lock: with jitter, so that the waiting do not meet again and again.
pub(super) fn patiently<T>(
    rng: &mut SplitMix,
    given_up: &dyn Fn() -> bool,
    mut attempt: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    const FIRST_PAUSE_MICROS: u64 = 200;
    const LONGEST_PAUSE_MICROS: u64 = 5_000;
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE_MICROS;
    loop {
        match attempt() {
            Err(e) if errors::is_busy(&e) => {
                if begun.elapsed() >= LOCK_PATIENCE || given_up() {
                    return Err(e);
                }
                thread::sleep(Duration::from_micros(pause / 2 + rng.below(pause)));
                pause = (pause * 2).min(LONGEST_PAUSE_MICROS);
            }
            other => return other,
        }
    }
}
