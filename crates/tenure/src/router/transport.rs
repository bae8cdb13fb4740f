//! What a transport does for a router: the five things that a move needs of whatever carries requests.

use std::future::Future;
use std::pin::Pin;

use tenure_core::ids::ShardId;
use tenure_core::router::HoldReason;
use tokio::sync::mpsc;

use super::driver::{RouterInput, ShardPosition};
use super::lookup_table::Route;

/// Carries requests to the owners of shards, and keeps them back when told to.
///
/// The router decides; a transport carries out. The calls come one after the other, from one task, and must not wait. Every
/// shard begins held. For each: `hold` → `drain` → `switch` → `flush`, as often as it changes hands; a move that is called
/// off, and an owner that was not ready, go without the `switch`.
///
/// A transport keeps the order of requests that belong together: while it still has an older one, a new one goes behind it.
/// It never sends again what an owner has answered. What is refused with *not the owner* it asks
/// [`OwnerDirectory::refused`](super::OwnerDirectory::refused) about.
pub trait Transport: Send + Sync + 'static {
    /// Sends nothing more for this shard and keeps what comes. May be repeated with another reason.
    fn hold(&self, shard: &ShardId, reason: HoldReason);

    /// Reports, by [`DrainedReport::report`], when nothing is in flight for this shard any more. A later call takes the place of an
    /// earlier one.
    fn drain(&self, shard: &ShardId, drained: DrainedReport);

    /// From now on requests for this shard go here.
    fn switch(&self, shard: &ShardId, to: &Route);

    /// Sends what was kept for this shard, in order.
    fn flush(&self, shard: &ShardId, flush: FlushAmount);

    /// The router is to end: takes nothing more, and is done when nothing is kept and nothing is in flight.
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// How much to send of what was kept.
#[derive(Debug)]
pub enum FlushAmount {
    /// All of it; then whatever comes goes straight on.
    All,
    /// The first alone, because the owner has just refused: the rest waits for what becomes of it. If nothing is kept, the
    /// next that comes goes.
    One(ProbeReport),
}

/// Reports that nothing is in flight for a shard any more.
#[derive(Debug)]
pub struct DrainedReport {
    pub(super) at: ShardPosition,
    pub(super) hold: u64,
    pub(super) tell: mpsc::UnboundedSender<RouterInput>,
}

impl DrainedReport {
    /// Nothing is in flight.
    pub fn report(self) {
        let Self { at, hold, tell } = self;
        // A keeper that is gone needs no reports.
        let _ = tell.send(RouterInput::Drained { at, hold });
    }
}

/// Reports that an owner which has refused takes requests again.
#[derive(Debug)]
pub struct ProbeReport {
    pub(super) at: ShardPosition,
    pub(super) tell: mpsc::UnboundedSender<RouterInput>,
}

impl ProbeReport {
    /// The owner has answered, or nothing was kept.
    pub fn answered(self) {
        let Self { at, tell } = self;
        let _ = tell.send(RouterInput::Answered { at });
    }
}
