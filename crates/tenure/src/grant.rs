//! What application code holds while it may work on a shard.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::ids::{Epoch, SessionId, ShardId};
use tenure_core::machine::Event;
use tenure_core::time::Time;
use tokio_util::sync::CancellationToken;

use crate::local_shard::LocalShard;

/// The grant is over: another process may own the shard, now or soon. Whatever was not done yet must not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grant for shard {shard} at epoch {epoch} has expired")]
pub struct GrantExpired {
    /// The shard.
    pub shard: ShardId,
    /// The epoch that the grant was for.
    pub epoch: Epoch,
}

/// The right to work on one shard at one epoch, for as long as the lease lasts.
///
/// Work that can be cancelled is cancelled when the grant ends. Work that cannot be (a blocking call, an effect elsewhere)
/// asks [`Grant::check`] before each effect and hands [`Grant::epoch`] to the resource, which keeps the greatest epoch it
/// has seen and refuses smaller ones (P2).
#[derive(Clone)]
pub struct Grant {
    stay: Arc<LocalShard>,
    token: CancellationToken,
}

impl Grant {
    /// The grant of a unit of work: ends when the shard is lost.
    pub(crate) fn of_work(stay: Arc<LocalShard>) -> Self {
        let token = stay.cut.clone();
        Self { stay, token }
    }

    /// The grant of a loop: ends when the shard is lost or is about to be given away.
    pub(crate) fn of_loop(stay: Arc<LocalShard>) -> Self {
        let token = stay.stop.clone();
        Self { stay, token }
    }

    /// The shard.
    pub fn shard(&self) -> &ShardId {
        &self.stay.shard
    }

    /// The fencing token: grows with every change of owner and is never reused.
    pub fn epoch(&self) -> Epoch {
        self.stay.epoch()
    }

    /// The incarnation of this node that owns the shard.
    pub fn session(&self) -> SessionId {
        self.stay.session
    }

    /// When others may take the shard unless the lease is renewed before. Work ends earlier, see [`Grant::remaining`].
    pub fn deadline(&self) -> Time {
        self.stay.gate.lease().deadline()
    }

    /// When work ends by itself unless the lease is renewed before: earlier than [`Grant::deadline`] by the margin that
    /// stopping it may take.
    pub fn closes_at(&self) -> Time {
        self.stay.gate.lease().closes_at()
    }

    /// Waits until the lease reaches beyond `deadline`: for those who tell others, such as a watchdog, how long they may
    /// go on.
    pub async fn renewed(&self, deadline: Time) {
        self.stay.gate.lease().beyond(deadline).await;
    }

    /// How long work may go on unless the lease is renewed before. Zero once the grant is over.
    pub fn remaining(&self) -> Duration {
        if self.token.is_cancelled() {
            return Duration::ZERO;
        }
        let closes_at = self.stay.gate.lease().closes_at();
        closes_at.since(self.stay.clock.now())
    }

    /// Whether the grant still holds, by the clock: right even if nothing in this process has run for a while.
    pub fn check(&self) -> Result<(), GrantExpired> {
        if self.token.is_cancelled() || !self.stay.gate.in_time() {
            return Err(self.lost());
        }
        Ok(())
    }

    /// Waits until the grant is over. In a [`run`](crate::Handler::run) loop also until the shard is to be given away.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Does work for as long as the grant holds, and drops it when the grant ends.
    ///
    /// The clock is asked at every step of the work: work that wakes after its lease does not go on.
    pub async fn run_until_lost<F: Future>(&self, work: F) -> Result<F::Output, GrantExpired> {
        let mut work = pin!(work);
        let mut over = pin!(self.token.cancelled());
        poll_fn(|cx| {
            if over.as_mut().poll(cx).is_ready() || !self.stay.gate.in_time() {
                return Poll::Ready(Err(self.lost()));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Waits until the shard is to move to another node or to be given up: long-lived work, such as a stream, should end now.
    /// What has not ended after three quarters of `drain_timeout` should be dropped ([`Grant::stream_deadline`]); a move that
    /// waits for longer is called off.
    pub async fn move_requested(&self) {
        tokio::select! {
            () = self.frozen() => {}
            () = self.stay.stop.cancelled() => {}
        }
    }

    async fn frozen(&self) {
        let mut moving = self.stay.moving.subscribe();
        // A stay that is gone moves no more.
        let _ = moving.wait_for(|moving| *moving).await;
    }

    /// Waits until streams that were asked to end by [`Grant::move_requested`] have had their time, or the grant is over.
    pub async fn stream_deadline(&self) {
        loop {
            tokio::select! {
                () = self.frozen() => {}
                () = self.stay.cut.cancelled() => return,
            }
            let cut_at = self.stay.cut_streams_at();
            tokio::select! {
                () = self.stay.clock.sleep_until(cut_at) => return,
                () = self.stay.cut.cancelled() => return,
                () = self.stay.moves_no_more() => {}
            }
        }
    }

    /// Says what is wrong with the shard although it is served, for `tenure status` to show; `None` says that all is well
    /// again, as does the end of the stay.
    ///
    /// Returns at once; the word is written to the shard's record soon, cut to 200 bytes, if the grant still holds then.
    /// Every change of it is a write to the store: report conditions, not progress.
    pub fn report_trouble(&self, trouble: Option<&str>) {
        self.stay.inputs.event(Event::Trouble {
            activation: self.stay.run,
            trouble: trouble.map(ToOwned::to_owned),
        });
    }

    /// Says what the shard has cost to serve since the last report, in whatever unit the application has: requests, bytes,
    /// milliseconds. A leader that evens out load (`balance_by = "cost"`) goes by it.
    ///
    /// Returns at once. The reports are smoothed, and told to others with the next renewal of the session; call it every
    /// second or so.
    pub fn report_cost(&self, cost: u32) {
        let activation = self.stay.run;
        self.stay.inputs.event(Event::Cost { activation, cost });
    }

    pub(crate) fn stay(&self) -> &Arc<LocalShard> {
        &self.stay
    }

    pub(crate) fn lost(&self) -> GrantExpired {
        GrantExpired {
            shard: self.stay.shard.clone(),
            epoch: self.stay.epoch(),
        }
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grant")
            .field("shard", self.shard())
            .field("epoch", &self.epoch())
            .field("remaining", &self.remaining())
            .finish()
    }
}
