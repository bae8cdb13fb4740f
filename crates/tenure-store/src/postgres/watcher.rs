//! The task that follows a database and tells every watch what it asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{Revision, Version};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_postgres::Row;

use super::client::StatementSession;
use super::connection::ConnectionFactory;
use super::keys;
use super::reconnect::ReconnectingClient;
use super::revisions::RevisionPositions;
use crate::error::StoreError;
use crate::fanout::{Subscription, Watcher, Watchers};
use crate::store::Entry;
use crate::watch::{Change, ChangeBatch, Watch};

/// How often the database is looked at although nobody announced anything: a writer may die between writing and announcing.
const SLOW_LOOK: Duration = Duration::from_secs(2);

/// How often it is looked at when one announcement follows the other: every node is told of every node's renewals. After a
/// quiet time the first few are followed at once.
const PACE: Duration = Duration::from_millis(25);
const BURST: u32 = 20;

/// How long to wait before looking again when the database could not be reached.
const RETRY: Duration = Duration::from_millis(100);

/// How many changes a batch holds at most.
const BATCH: usize = 1000;

/// The caller's end of the task. It ends when this is dropped.
pub(super) struct WatcherHandle {
    subscriptions: mpsc::UnboundedSender<Subscription>,
}

impl fmt::Debug for WatcherHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

impl WatcherHandle {
    pub(super) fn start(
        runtime: &Handle,
        dialer: ConnectionFactory,
        positions: Arc<RevisionPositions>,
    ) -> Self {
        let (subscriptions, incoming) = mpsc::unbounded_channel();
        let woken = Arc::new(Notify::new());
        let task = Follower {
            link: ReconnectingClient::listening(runtime, dialer, woken.clone()),
            woken,
            positions,
            incoming,
            watchers: Watchers::default(),
            seen: None,
            pace: Pace::new(),
        };
        runtime.spawn(task.run());
        Self { subscriptions }
    }

    pub(super) fn subscribe(
        &self,
        prefix: &str,
        from: Revision,
    ) -> impl Future<Output = Result<Watch, StoreError>> + Send + use<> {
        let (subscription, answer) = Subscription::new(prefix, from);
        // A task that has ended drops it, and the answer says so.
        let _ = self.subscriptions.send(subscription);
        answer
    }
}

/// Where the following stands.
#[derive(Clone)]
struct Position {
    identity: String,
    revision: Revision,
    /// As the server says it.
    place: Arc<str>,
}

/// What was found since a position.
enum News {
    /// These batches lead to this position.
    Told(Vec<ChangeBatch>, Position),
    /// Nobody knows any more.
    Gap(Position),
}

struct Follower {
    link: ReconnectingClient,
    woken: Arc<Notify>,
    positions: Arc<RevisionPositions>,
    incoming: mpsc::UnboundedReceiver<Subscription>,
    watchers: Watchers,
    /// Everything up to here has been told.
    seen: Option<Position>,
    pace: Pace,
}

impl Follower {
    async fn run(mut self) {
        let mut slow = tokio::time::interval(SLOW_LOOK);
        slow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                subscription = self.incoming.recv() => match subscription {
                    None => return,
                    Some(subscription) => self.subscribe(subscription).await,
                },
                () = self.woken.notified() => {
                    self.pace.wait().await;
                    self.look().await;
                }
                _ = slow.tick() => self.look().await,
            }
        }
    }

    /// Reads what is new and tells it. A database that cannot be reached is looked at again soon.
    async fn look(&mut self) {
        if self.watchers.are_gone() {
            // Whoever comes next says from where.
            self.seen = None;
            return;
        }
        let Some(seen) = self.seen.clone() else {
            return;
        };
        match self.news(&seen).await {
            Ok(News::Told(batches, position)) => {
                for batch in &batches {
                    self.watchers.tell(batch);
                }
                self.seen = Some(position);
            }
            Ok(News::Gap(position)) => {
                self.seen = Some(position);
                self.watchers.gap();
            }
            Err(e @ StoreError::Denied { .. }) => self.watchers.close(&e),
            Err(e) => {
                tracing::debug!(error = %e, "polling for changes failed");
                tokio::time::sleep(RETRY).await;
                self.woken.notify_one();
            }
        }
    }

    /// Adds a watch: what it missed first, then from where all the others are.
    async fn subscribe(&mut self, subscription: Subscription) {
        self.look().await;
        let (watcher, watch) = subscription.open();
        let answer = self.replay(watcher, subscription.from).await;
        subscription.answer(answer.map(|()| watch));
    }

    async fn replay(&mut self, watcher: Watcher, from: Revision) -> Result<(), StoreError> {
        let session = self.link.session().await?;
        let Some(place) = self.positions.find(&session.identity, from) else {
            watcher.gap();
            return Ok(());
        };
        let from = Position {
            identity: session.identity.clone(),
            revision: from,
            place,
        };
        match self.news_by(&session, &from).await? {
            News::Gap(_) => watcher.gap(),
            News::Told(batches, position) => {
                if batches.iter().all(|batch| watcher.tell(batch)) {
                    self.watchers.add(watcher);
                    // The others may be told again what was committed since they were told last, which a watch may do.
                    self.seen.get_or_insert(position);
                }
            }
        }
        Ok(())
    }

    async fn news(&self, since: &Position) -> Result<News, StoreError> {
        let session = self.link.session().await?;
        self.news_by(&session, since).await
    }

    async fn news_by(
        &self,
        session: &StatementSession,
        since: &Position,
    ) -> Result<News, StoreError> {
        let revision = since.revision.0.cast_signed();
        let changes = &session.statements.changes;
        let place = &*since.place;
        let rows = session.read("", changes, &[&place, &revision]).await?;
        let (here, found) = read_changes(session, rows)?;
        let mut position = found.position;
        self.positions
            .note(&session.identity, position.revision, &position.place);
        position.identity.clone_from(&session.identity);
        // Another server, or one that was restored: what was seen before is not its past.
        let same = since.identity == session.identity && position.revision >= since.revision;
        if !here || !same {
            return Ok(News::Gap(position));
        }
        let batches = into_batches(found.changes, since.revision, position.revision);
        Ok(News::Told(batches, position))
    }
}

struct Found {
    position: Position,
    changes: Vec<Change>,
}

/// The rows of `CHANGES`: a first one that says where we are, and whether all is still known; then the changes.
fn read_changes(session: &StatementSession, rows: Vec<Row>) -> Result<(bool, Found), StoreError> {
    let odd = |e: tokio_postgres::Error| session.odd(&e);
    let mut head = None;
    let mut changes: Vec<(i64, Change)> = Vec::with_capacity(rows.len());
    for row in rows {
        let key: Option<&str> = row.try_get(0).map_err(odd)?;
        let value: Option<&[u8]> = row.try_get(1).map_err(odd)?;
        let version: i64 = row.try_get(2).map_err(odd)?;
        let flag: bool = row.try_get(3).map_err(odd)?;
        let Some(key) = key else {
            let place = String::from_utf8_lossy(value.unwrap_or_default()).into();
            let position = Position {
                identity: String::new(),
                revision: Revision(version.cast_unsigned()),
                place,
            };
            head = Some((flag, position));
            continue;
        };
        let Some(key) = keys::unescape(key) else {
            tracing::warn!(key, "row skipped: its key was not written by tenure");
            continue;
        };
        changes.push((version, change(key, value, version)));
    }
    changes.sort_by_key(|(version, _)| *version);
    let Some((here, position)) = head else {
        let reason =
            "the row with the state of the store is missing; restore the database from a backup";
        return Err(StoreError::denied(reason));
    };
    let changes = changes.into_iter().map(|(_, change)| change).collect();
    Ok((here, Found { position, changes }))
}

fn change(key: String, value: Option<&[u8]>, version: i64) -> Change {
    match value {
        None => Change::Deleted { key },
        Some(value) => Change::Put(Entry {
            key,
            value: value.into(),
            version: Version::Number(version.cast_unsigned()),
        }),
    }
}

/// Cuts changes into batches. Only with the last of them has everything been shown.
fn into_batches(changes: Vec<Change>, from: Revision, upto: Revision) -> Vec<ChangeBatch> {
    let mut batches: Vec<ChangeBatch> = Vec::new();
    for chunk in changes.chunks(BATCH) {
        batches.push(ChangeBatch {
            changes: chunk.to_vec(),
            upto: from,
        });
    }
    if let Some(last) = batches.last_mut() {
        last.upto = upto;
    }
    batches
}

/// Lets a few through at once and then one at a time.
struct Pace {
    /// When the next would be due if all had kept the pace.
    due: Instant,
}

impl Pace {
    fn new() -> Self {
        Self {
            due: Instant::now(),
        }
    }

    async fn wait(&mut self) {
        let now = Instant::now();
        let earliest = now.checked_sub(PACE * BURST).unwrap_or(now);
        self.due = self.due.max(earliest) + PACE;
        if self.due > now {
            tokio::time::sleep_until(self.due).await;
        }
    }
}
