//! From a note to a log line: constant messages, everything else in fields.

use tenure_core::ids::NodeName;
use tenure_core::keys::Key;
use tenure_core::lease::LeasePhase;
use tenure_core::record::NodeMode;
use tenure_core::telemetry::{NodeEvent, ShardEvent, ShardStep};
use tracing::{debug, error, info, warn};

/// Logs a note. Each change of the lease is one line: a warning on the way down, information on the way up.
pub(crate) fn log(note: &NodeEvent) {
    match note {
        NodeEvent::Shard(transition) => shard(transition),
        NodeEvent::Lease { from, to } => lease(*from, *to),
        NodeEvent::Registered { session, mode } => {
            info!(%session, %mode, "node registered");
            stands_back(mode);
        }
        NodeEvent::ModeChanged { mode } => {
            info!(%mode, "node mode changed");
            stands_back(mode);
        }
        NodeEvent::StopRequested { session } => warn!(%session, "stop requested by an operator"),
        NodeEvent::Renewed { took, left } => debug!(?took, ?left, "lease renewed"),
        NodeEvent::RenewalFailed { streak, error } => debug!(streak, error, "lease renewal failed"),
        NodeEvent::LongLease { requested, granted } => warn!(
            ?requested,
            ?granted,
            "store granted a longer lease than requested, failover takes longer"
        ),
        NodeEvent::LeadershipAcquired { term } => info!(term, "leadership acquired"),
        NodeEvent::LeadershipLost { term } => info!(term, "leadership lost"),
        NodeEvent::Planned {
            keyspace,
            plan,
            nodes,
            assigned,
            moved,
            aborted,
            deferred,
        } => {
            let (deferred, reason) = deferred
                .as_ref()
                .map_or((0, ""), |(n, reason)| (*n, reason.as_str()));
            info!(%keyspace, term = plan.term, version = plan.seq, nodes, assigned, moved, aborted, deferred, reason, "plan published");
        }
        NodeEvent::PlanProblem { keyspace, problem } => {
            warn!(%keyspace, problem, "plan could not satisfy all constraints")
        }
        NodeEvent::StaleAssignmentsRemoved { keys, plan, nodes } => info!(
            deleted_count = keys.len(),
            keys = few(keys),
            term = plan.term,
            version = plan.seq,
            nodes,
            "stale assignments removed"
        ),
        NodeEvent::GcFailed { key, error } => {
            warn!(%key, error, "removing a stale assignment failed, retrying")
        }
        NodeEvent::SealFailed {
            shard,
            epoch,
            attempt,
            error,
        } => {
            warn!(%shard, %epoch, attempt, error, "seal failed, move aborted");
        }
        NodeEvent::RuntimeBlocked { since } => {
            error!(?since, "application runtime blocked, lease not renewed");
        }
        NodeEvent::SessionLost { session, reason } => warn!(%session, %reason, "session lost"),
        NodeEvent::SessionEnded {
            session,
            node,
            reason,
        } => info!(%session, %node, %reason, "session ended"),
        NodeEvent::WaitingForName { session, at_most } => {
            warn!(%session, ?at_most, "node name in use, waiting");
        }
        NodeEvent::ClaimRetry { shards } => {
            debug!(shards, "retrying claims of shards owned elsewhere")
        }
        NodeEvent::ClaimRetryExhausted { shards } => {
            warn!(
                shards,
                "shards still owned elsewhere after the retry window"
            );
        }
        NodeEvent::RecordUnreadable { key, damage } => error!(%key, %damage, "record unreadable"),
        NodeEvent::RecordMissing { key } => error!(%key, "required record missing from the store"),
        NodeEvent::StoreReplaced { problem } => {
            error!(problem, "store was replaced or restored from a backup")
        }
        NodeEvent::ClockJump { gap } => warn!(?gap, "process was not scheduled (clock jump)"),
        NodeEvent::WouldDo {
            shard,
            step,
            reason,
        } => info!(%shard, %step, %reason, "transition not executed in shadow mode"),
        NodeEvent::LoadFailed {
            shard,
            epoch,
            attempt,
            error,
        } => warn!(%shard, %epoch, attempt, error, "shard load failed"),
        NodeEvent::CancelOverdue { shard, epoch } => {
            error!(%shard, %epoch, "cancelled work did not stop, shard blocked");
        }
        NodeEvent::StartedWith { loaded, failed } => info!(loaded, failed, "node started"),
        NodeEvent::TombstoneRemoved { key } => debug!(%key, "tombstone removed"),
        NodeEvent::WriteDenied { key, error } => debug!(%key, error, "store denied the write"),
    }
}

/// Says of a node that was drained without an operator's doing why it takes no shards, and what helps.
fn stands_back(mode: &NodeMode) {
    if let NodeMode::Drained(reason) = mode
        && !mode.is_by_operator()
    {
        warn!(
            reason,
            "node is drained, run `tenure node resume NODE` to activate it"
        );
    }
}

fn lease(from: LeasePhase, to: LeasePhase) {
    let from = from.as_str();
    match to {
        LeasePhase::Attached => info!(from, "lease attached"),
        LeasePhase::Recovering => info!(from, "lease recovering"),
        LeasePhase::Degraded => warn!(from, "lease degraded"),
        LeasePhase::Detached => warn!(from, "lease detached, node stops serving"),
    }
}

fn shard(transition: &ShardEvent) {
    let ShardEvent {
        shard,
        step,
        epoch,
        session,
        reason,
        ..
    } = transition;
    let from = transition.from.as_ref().map(NodeName::as_str);
    let to = transition.to.as_ref().map(NodeName::as_str);
    macro_rules! line {
        ($level:ident, $message:literal) => {
            $level!(%shard, from, to, %epoch, %session, %reason, $message)
        };
    }
    match step {
        ShardStep::Claimed => line!(info, "shard claimed"),
        ShardStep::Loading => line!(debug, "shard loading"),
        ShardStep::Serving => line!(info, "shard serving"),
        ShardStep::Draining => line!(info, "shard draining"),
        ShardStep::Cancelled => line!(warn, "shard work cancelled"),
        ShardStep::Stopped => line!(debug, "shard stopped"),
        ShardStep::Released => line!(info, "shard released"),
        ShardStep::Restored => line!(warn, "shard record restored"),
        ShardStep::Quarantined => line!(error, "shard quarantined"),
        ShardStep::MoveStarted => line!(info, "shard move started"),
        ShardStep::Warming => line!(info, "shard warming"),
        ShardStep::Frozen => line!(debug, "shard frozen"),
        ShardStep::Thawed => line!(info, "shard thawed"),
        ShardStep::Sealed => line!(info, "shard sealed"),
        ShardStep::Taken => line!(info, "shard taken"),
        ShardStep::Aborted => line!(info, "move aborted"),
        ShardStep::Reclaimed => line!(info, "shard reclaimed"),
    }
}

/// The first of many keys, for a line that people read.
fn few(keys: &[Key]) -> String {
    const SHOWN: usize = 10;
    let mut text: Vec<String> = keys.iter().take(SHOWN).map(Key::to_string).collect();
    if keys.len() > SHOWN {
        text.push(format!("and {} more", keys.len() - SHOWN));
    }
    text.join(", ")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use tenure_core::ids::{Epoch, SessionId};
    use tenure_core::reason::Reason;
    use tenure_core::time::Time;

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(note: &NodeEvent) -> String {
        page(|| log(note))
    }

    /// What is logged at information level and above.
    pub(crate) fn page(act: impl FnOnce()) -> String {
        let page = Page::default();
        let writer = page.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().trim().to_owned()
    }

    #[test]
    fn a_lease_is_logged_as_a_warning_on_its_way_down_and_as_information_on_its_way_up() {
        use LeasePhase::{Attached, Degraded, Detached, Recovering};
        let check = |from, to, line: &str| {
            assert_eq!(logged(&NodeEvent::Lease { from, to }), line);
        };
        check(Attached, Degraded, "WARN lease degraded from=\"attached\"");
        check(
            Degraded,
            Detached,
            "WARN lease detached, node stops serving from=\"degraded\"",
        );
        check(
            Detached,
            Recovering,
            "INFO lease recovering from=\"detached\"",
        );
        check(
            Recovering,
            Attached,
            "INFO lease attached from=\"recovering\"",
        );
    }

    #[test]
    fn a_step_of_a_shard_is_logged_with_all_its_fields() {
        let note = NodeEvent::Shard(ShardEvent {
            time: Time(1),
            shard: "orders/1".parse().unwrap(),
            step: ShardStep::Claimed,
            from: Some(NodeName::new("a").unwrap()),
            to: Some(NodeName::new("b").unwrap()),
            epoch: Epoch::first(1),
            session: SessionId(1),
            reason: Reason::OwnerEnded,
        });
        let line = logged(&note);
        for part in [
            "INFO shard claimed",
            "shard=orders/1",
            "from=\"a\"",
            "to=\"b\"",
            "epoch=1.0",
            "reason=owner_ended",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
