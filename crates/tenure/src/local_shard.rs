//! One stay of a shard at this node: what driver, handler tasks and requests share of it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure_core::ids::{Epoch, SessionId, ShardId};
use tenure_core::machine::{ActivationId, Close};
use tenure_core::time::Time;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::data_dir::DataDir;
use crate::driver::DriverSender;
use crate::gate::{Gate, LeaseCell};

/// One stay, from load to drained.
pub(crate) struct LocalShard {
    pub(crate) run: ActivationId,
    pub(crate) shard: ShardId,
    epoch: AtomicU64,
    owned: AtomicBool,
    sealed: AtomicBool,
    pub(crate) session: SessionId,
    pub(crate) clock: Clock,
    pub(crate) inputs: DriverSender,
    pub(crate) gate: Gate,
    /// Cancelled when the gate opens: starts the handler's loop.
    pub(crate) opened: CancellationToken,
    /// Cancelled when the shard is lost: ends all work.
    pub(crate) cut: CancellationToken,
    /// Cancelled when the stay is to end, lost or not: ends the load and the loop.
    pub(crate) stop: CancellationToken,
    /// Whether its gate is shut for a move, and when streams are cut then.
    pub(crate) moving: watch::Sender<bool>,
    cut_streams_at: AtomicU64,
    /// What its task is to do next.
    pub(crate) orders: mpsc::UnboundedSender<ActivationCommand>,
    /// The handler's state, as its `StateCell`.
    pub(crate) state: Arc<dyn Any + Send + Sync>,
    /// A lock that is free says that no work is left; so all work holds on to it.
    pub(crate) _data_dir: Option<Arc<DataDir>>,
}

/// What a stay begins with.
pub(crate) struct ActivationStart {
    pub(crate) run: ActivationId,
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    pub(crate) session: SessionId,
    pub(crate) meta: Option<String>,
    pub(crate) lease: Arc<LeaseCell>,
    /// Whether the shard is this node's already.
    pub(crate) owned: bool,
}

/// What the task of a stay is to do, beside what its tokens say.
#[derive(Debug)]
pub(crate) enum ActivationCommand {
    /// Apply what the last owner wrote up to here.
    CatchUp(String),
    /// Say when nothing is in flight any more; the gate is shut for this move.
    Freeze(u64),
    /// Forget that.
    Thaw,
    /// End the loop and write out what must outlive the stay.
    Seal,
}

impl LocalShard {
    pub(crate) fn new(
        begin: &ActivationStart,
        clock: Clock,
        inputs: DriverSender,
        state: Arc<dyn Any + Send + Sync>,
        data_dir: Option<Arc<DataDir>>,
        orders: mpsc::UnboundedSender<ActivationCommand>,
    ) -> Arc<Self> {
        let cut = CancellationToken::new();
        Arc::new(Self {
            run: begin.run,
            shard: begin.shard.clone(),
            epoch: AtomicU64::new(begin.epoch.0),
            owned: AtomicBool::new(begin.owned),
            sealed: AtomicBool::new(false),
            moving: watch::Sender::new(false),
            cut_streams_at: AtomicU64::new(0),
            orders,
            session: begin.session,
            gate: Gate::new(clock.clone(), begin.lease.clone()),
            clock,
            inputs,
            opened: CancellationToken::new(),
            stop: cut.child_token(),
            cut,
            state,
            _data_dir: data_dir,
        })
    }

    /// The epoch that its work carries.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Acquire)
    }

    /// Whether its state was written out for a successor.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub(crate) fn sealed(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// The shard is this node's from now on.
    pub(crate) fn own(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::Release);
        self.owned.store(true, Ordering::Release);
    }

    /// Lets nothing more in, for a move that may be called off.
    pub(crate) fn freeze(&self, mv: u64, cut_at: Time) {
        self.gate.freeze();
        self.cut_streams_at.store(cut_at.0, Ordering::Release);
        self.moving.send_replace(true);
        self.order(ActivationCommand::Freeze(mv));
    }

    /// Lets work in again.
    pub(crate) fn thaw(&self) {
        self.order(ActivationCommand::Thaw);
        self.moving.send_replace(false);
        self.gate.thaw();
    }

    pub(crate) fn order(&self, order: ActivationCommand) {
        // A task that is gone has said so.
        let _ = self.orders.send(order);
    }

    pub(crate) fn cut_streams_at(&self) -> Time {
        Time(self.cut_streams_at.load(Ordering::Acquire))
    }

    pub(crate) async fn moves_no_more(&self) {
        let mut moving = self.moving.subscribe();
        let _ = moving.wait_for(|moving| !*moving).await;
    }

    /// Lets work in.
    pub(crate) fn open(&self) {
        self.gate.open();
        self.opened.cancel();
    }

    /// Lets no more work in, and cancels what is running if asked to. May be repeated and sharpened.
    pub(crate) fn close(&self, how: Close) {
        self.gate.close();
        match how {
            Close::Drain => self.stop.cancel(),
            Close::Cancel => self.cut.cancel(),
        }
    }
}
