//! The router's own transport: requests are calls of the application's, and wait as tasks.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::ids::ShardId;
use tenure_core::router::hold_queue::{ArrivalNo, FlightCounter, FlushMode};
use tenure_core::router::{HoldLimits, HoldReason};
use tenure_core::time::Time;
use tokio::sync::{Notify, oneshot};

use super::error::RouteError;
use super::lookup_table::{LookupTable, Route, ShardRef, ShardWaiters};
use super::transport::{DrainedReport, FlushAmount, ProbeReport, Transport};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Where requests wait.
pub(super) struct InProcessTransport {
    pub(super) table: Arc<LookupTable>,
    pub(super) limits: HoldLimits,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    count: AtomicU64,
    bytes: AtomicU64,
    /// Shards that whoever stops waits for.
    busy: AtomicU64,
    idle: Notify,
}

impl InProcessTransport {
    pub(super) fn new(
        table: Arc<LookupTable>,
        limits: HoldLimits,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            table,
            limits,
            clock,
            metrics,
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            idle: Notify::new(),
        }
    }

    fn with(&self, shard: &ShardId, act: impl FnOnce(ShardRef<'_>, &mut ShardWaiters)) {
        let keyspace = self.table.keyspace(shard.keyspace.as_str());
        if let Some(spot) = keyspace.and_then(|k| LookupTable::of_shard(k, &shard.shard)) {
            let mut waiting = spot.cold.lock();
            act(spot, &mut waiting);
            self.settled(spot, &mut waiting);
        }
    }

    /// Looks whether somebody waits for what has just happened to a shard.
    fn settled(&self, spot: ShardRef<'_>, waiting: &mut ShardWaiters) {
        waiting.lines.check_empty(spot.slot);
        if waiting.busy && waiting.lines.is_idle(spot.slot) {
            waiting.busy = false;
            if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.idle.notify_waiters();
            }
        }
    }

    /// Makes room for one more, or says which limit is in the way.
    fn admit(&self, waiting: &ShardWaiters, bytes: u64) -> Result<(), &'static str> {
        let count = self.count.fetch_add(1, Ordering::AcqRel);
        let size = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let room = self.limits.room(waiting.lines.held(), (count, size), bytes);
        if room.is_err() {
            self.count.fetch_sub(1, Ordering::AcqRel);
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
        room
    }

    fn released(&self, bytes: u64, since: Time) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.metrics.released(self.clock.now().since(since));
    }
}

impl Transport for InProcessTransport {
    fn hold(&self, shard: &ShardId, reason: HoldReason) {
        self.with(shard, |spot, waiting| waiting.lines.hold(spot.slot, reason));
    }

    fn drain(&self, shard: &ShardId, drained: DrainedReport) {
        self.with(shard, |spot, waiting| {
            waiting.lines.drain(spot.slot, drained)
        });
    }

    fn switch(&self, _shard: &ShardId, _to: &Route) {
        // Requests read the table when they go, and the router has written it.
    }

    fn flush(&self, shard: &ShardId, flush: FlushAmount) {
        let flush = match flush {
            FlushAmount::All => FlushMode::All,
            FlushAmount::One(trial) => FlushMode::One(trial),
        };
        self.with(shard, |spot, waiting| {
            if waiting.lines.flush(spot.slot, flush) > 0 {
                self.metrics.flushed();
            }
        });
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        for keyspace in self.table.keyspaces() {
            for at in 0..keyspace.len() {
                let (Some(slot), Some(cold)) = (keyspace.slot(at), keyspace.cold(at)) else {
                    continue;
                };
                let mut waiting = cold.lock();
                slot.hold();
                let first = waiting.lines.stop();
                if first && !waiting.lines.is_idle(slot) {
                    waiting.busy = true;
                    self.busy.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        Box::pin(async {
            loop {
                // Listens before it looks, so that nothing that happens in between is missed.
                let mut idle = pin!(self.idle.notified());
                idle.as_mut().enable();
                if self.busy.load(Ordering::Acquire) == 0 {
                    return;
                }
                idle.await;
            }
        })
    }
}

/// What a request is doing.
enum Doing {
    /// It is in flight, and passed without waiting.
    Passing,
    /// It waits in its line.
    Waiting(Time),
    /// In flight, after having waited. Requests of the same key may wait for its end.
    Running,
    /// Nothing any more.
    Over,
}

/// The place of one request at the desk. Dropping it, also because its caller went away, lets the next one go.
pub(super) struct QueuedRequest<'a> {
    desk: &'a InProcessTransport,
    spot: ShardRef<'a>,
    bytes: u64,
    ticket: ArrivalNo,
    doing: Doing,
    /// Until when it may be held, once it was.
    deadline: Option<Time>,
    trial: Option<ProbeReport>,
    /// Whether an owner has answered.
    answered: bool,
}

impl<'a> QueuedRequest<'a> {
    /// Waits until the request may go; says where.
    pub(super) async fn take(
        desk: &'a InProcessTransport,
        spot: ShardRef<'a>,
        bytes: u64,
    ) -> Result<(Self, Route), RouteError> {
        let (ticket, passed) = spot.slot.arrive();
        let mut place = Self {
            desk,
            spot,
            bytes,
            ticket,
            doing: Doing::Passing,
            deadline: None,
            trial: None,
            answered: false,
        };
        if passed && let Some(route) = desk.table.route(spot) {
            return Ok((place, route));
        }
        let route = place.wait(false).await?;
        Ok((place, route))
    }

    /// The request was refused: it goes back to its place, and waits there until it may go again.
    pub(super) async fn again(&mut self) -> Result<Route, RouteError> {
        self.wait(true).await
    }

    /// An owner has answered.
    pub(super) fn answered(mut self) {
        let trial = self.trial.take();
        self.answered = true;
        // First it is over, then that is told.
        drop(self);
        if let Some(trial) = trial {
            trial.answered();
        }
    }

    async fn wait(&mut self, refused: bool) -> Result<Route, RouteError> {
        self.trial = None;
        if let Some(mut go) = self.join(refused)? {
            let deadline = self.deadline.unwrap_or(Time::NEVER);
            self.trial = tokio::select! {
                biased;
                trial = &mut go => trial.ok().flatten(),
                () = self.desk.clock.sleep_until(deadline) => match self.expire() {
                    Some(error) => return Err(error),
                    None => go.await.ok().flatten(),
                },
            };
            self.goes();
        }
        // Nothing is sent before the shard had an owner.
        self.desk.table.route(self.spot).ok_or(RouteError::Stopping)
    }

    /// Goes to its line, unless it may pass at once.
    fn join(
        &mut self,
        refused: bool,
    ) -> Result<Option<oneshot::Receiver<Option<ProbeReport>>>, RouteError> {
        let (desk, spot) = (self.desk, self.spot);
        let mut waiting = spot.cold.lock();
        if !refused && !waiting.lines.is_stopping() && waiting.lines.passes(spot.line) {
            return Ok(None);
        }
        if waiting.lines.is_stopping() && !refused {
            return Err(RouteError::Stopping);
        }
        if let Err(what) = desk.admit(&waiting, self.bytes) {
            desk.metrics.overflowed();
            return Err(RouteError::Full {
                shard: spot.cold.id.clone(),
                what,
                reason: waiting.lines.reason(),
            });
        }
        let now = desk.clock.now();
        self.deadline.get_or_insert(now + desk.limits.age);
        self.doing = Doing::Waiting(now);
        desk.metrics.held();
        let (go, heard) = oneshot::channel();
        let lines = &mut waiting.lines;
        lines.join(spot.slot, spot.line, self.ticket, self.bytes, go);
        spot.slot.count_out();
        desk.settled(spot, &mut waiting);
        Ok(Some(heard))
    }

    /// It has been told to go.
    fn goes(&mut self) {
        if let Doing::Waiting(since) = self.doing {
            self.desk.released(self.bytes, since);
            self.doing = Doing::Running;
        }
    }

    /// It has been held for too long; nothing if it was told to go just now.
    fn expire(&mut self) -> Option<RouteError> {
        let reason = self.leave_line()?;
        self.desk.metrics.expired();
        Some(RouteError::HeldTooLong {
            shard: self.spot.cold.id.clone(),
            age: self.desk.limits.age,
            reason,
        })
    }

    /// Takes it out of its line; nothing if it was told to go.
    fn leave_line(&mut self) -> Option<HoldReason> {
        let ShardRef { slot, cold, line } = self.spot;
        let Doing::Waiting(since) = self.doing else {
            return None;
        };
        let mut waiting = cold.lock();
        let bytes = waiting.lines.give_up(slot, line, self.ticket)?;
        self.desk.settled(self.spot, &mut waiting);
        self.desk.released(bytes, since);
        self.doing = Doing::Over;
        Some(waiting.lines.reason())
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let ShardRef { slot, cold, line } = self.spot;
        if matches!(self.doing, Doing::Waiting(_)) && self.leave_line().is_none() {
            // It was told to go while it was going away.
            self.goes();
        }
        match std::mem::replace(&mut self.doing, Doing::Over) {
            Doing::Passing => {
                if slot.count_out() {
                    self.desk.settled(self.spot, &mut cold.lock());
                }
            }
            Doing::Running => {
                let mut waiting = cold.lock();
                slot.count_out();
                waiting.lines.over(slot, line, self.ticket, self.answered);
                self.desk.settled(self.spot, &mut waiting);
            }
            Doing::Waiting(_) | Doing::Over => {}
        }
    }
}
