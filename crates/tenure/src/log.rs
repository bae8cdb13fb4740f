//! From a note to a log line: constant messages, everything else in fields.

use tenure_core::ids::NodeName;
use tenure_core::lease::LeasePhase;
use tenure_core::note::{Note, ShardStep, Transition};
use tracing::{debug, error, info, warn};

/// Logs a note. Each change of the lease is one line: a warning on the way down, information on the way up.
pub(crate) fn log(note: &Note) {
    match note {
        Note::Shard(transition) => shard(transition),
        Note::Lease { from, to } => lease(*from, *to),
        Note::Registered { session, mode } => info!(%session, ?mode, "node registered"),
        Note::Renewed { took, left } => debug!(?took, ?left, "lease renewed"),
        // The change of phase has its line; one per try would drown it.
        Note::RenewalFailed { streak, error } => debug!(streak, error, "lease renewal failed"),
        Note::Wedged { since } => {
            error!(
                ?since,
                "application runtime stands still: lease not renewed"
            );
        }
        Note::SessionLost { session, why } => warn!(%session, %why, "session lost"),
        Note::Ended { session, node, why } => info!(%session, %node, %why, "session ended"),
        Note::WaitingForName { session, at_most } => {
            warn!(%session, ?at_most, "node name in use: waiting");
        }
        Note::AcquireRetry { shards } => debug!(shards, "shards held elsewhere: looking again"),
        Note::AcquireWindowExhausted { shards } => {
            warn!(shards, "shards still held elsewhere after the retry window");
        }
        Note::Damaged { key, damage } => error!(%key, %damage, "record unreadable"),
        Note::Missing { key } => error!(%key, "record missing"),
        Note::Estranged { problem } => error!(problem, "store exchanged or gone back"),
        Note::Overslept { gap } => warn!(?gap, "process was not scheduled"),
        Note::Would { shard, step, why } => info!(%shard, %step, %why, "observer would act"),
        Note::LoadFailed {
            shard,
            epoch,
            attempt,
            error,
        } => warn!(%shard, %epoch, attempt, error, "shard load failed"),
        Note::StartedWith { loaded, failed } => info!(loaded, failed, "node started"),
        Note::Swept { key } => debug!(%key, "tombstone removed"),
        Note::Denied { key, error } => debug!(%key, error, "write denied"),
    }
}

fn lease(from: LeasePhase, to: LeasePhase) {
    let from = from.as_str();
    match to {
        LeasePhase::Attached => info!(from, "lease attached"),
        LeasePhase::Recovering => info!(from, "lease recovering"),
        LeasePhase::Degraded => warn!(from, "lease degraded"),
        LeasePhase::Detached => warn!(from, "lease detached: nothing is owned"),
    }
}

fn shard(transition: &Transition) {
    let Transition {
        shard,
        step,
        epoch,
        session,
        why,
        ..
    } = transition;
    let from = transition.from.as_ref().map(NodeName::as_str);
    let to = transition.to.as_ref().map(NodeName::as_str);
    macro_rules! line {
        ($level:ident, $message:literal) => {
            $level!(%shard, from, to, %epoch, %session, %why, $message)
        };
    }
    match step {
        ShardStep::Claimed => line!(info, "shard claimed"),
        ShardStep::Loading => line!(debug, "shard loading"),
        ShardStep::Serving => line!(info, "shard serving"),
        ShardStep::Draining => line!(info, "shard draining"),
        ShardStep::Cut => line!(warn, "shard cut"),
        ShardStep::Stopped => line!(debug, "shard stopped"),
        ShardStep::Released => line!(info, "shard released"),
        ShardStep::Restored => line!(warn, "shard record restored"),
        ShardStep::Quarantined => line!(error, "shard quarantined"),
    }
}
