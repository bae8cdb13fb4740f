//! One stay of a shard at this node: what driver, handler tasks and requests share of it.

use std::any::Any;
use std::sync::Arc;

use tenure_core::ids::{Epoch, SessionId, ShardId};
use tenure_core::machine::{Close, RunId};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::data_dir::DataDir;
use crate::driver::Inputs;
use crate::gate::{Gate, LeaseCell};

/// One stay, from load to drained.
pub(crate) struct Stay {
    pub(crate) run: RunId,
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    pub(crate) session: SessionId,
    pub(crate) clock: Clock,
    pub(crate) inputs: Inputs,
    pub(crate) gate: Gate,
    /// Cancelled when the gate opens: starts the handler's loop.
    pub(crate) opened: CancellationToken,
    /// Cancelled when the shard is lost: ends all work.
    pub(crate) cut: CancellationToken,
    /// Cancelled when the stay is to end, lost or not: ends the load and the loop.
    pub(crate) stop: CancellationToken,
    /// The handler's state, as its `StateCell`.
    pub(crate) state: Arc<dyn Any + Send + Sync>,
    /// A lock that is free says that no work is left; so all work holds on to it.
    pub(crate) _data_dir: Option<Arc<DataDir>>,
}

/// What a stay begins with.
pub(crate) struct Begin {
    pub(crate) run: RunId,
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    pub(crate) session: SessionId,
    pub(crate) meta: Option<String>,
    pub(crate) lease: Arc<LeaseCell>,
}

impl Stay {
    pub(crate) fn new(
        begin: &Begin,
        clock: Clock,
        inputs: Inputs,
        state: Arc<dyn Any + Send + Sync>,
        data_dir: Option<Arc<DataDir>>,
    ) -> Arc<Self> {
        let cut = CancellationToken::new();
        Arc::new(Self {
            run: begin.run,
            shard: begin.shard.clone(),
            epoch: begin.epoch,
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
            Close::Cut => self.cut.cancel(),
        }
    }
}
