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
        NodeEvent::StopRequested { session } => {
            warn!(%session, "stop of this node requested by an operator")
        }
        NodeEvent::Renewed { took, left } => {
            debug!(duration = ?took, time_to_deadline = ?left, "lease renewed")
        }
        NodeEvent::RenewalFailed { streak, error } => {
            debug!(consecutive_failures = streak, error, "lease renewal failed")
        }
        NodeEvent::LongLease { requested, granted } => warn!(
            ?requested,
            ?granted,
            "store granted a longer lease than requested, other nodes claim this node's shards later after a crash"
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
            let (deferred, deferred_reason) = deferred
                .as_ref()
                .map_or((0, ""), |(n, reason)| (*n, reason.as_str()));
            info!(%keyspace, term = plan.term, version = plan.seq, nodes, assigned, moved, aborted, deferred, deferred_reason, "plan \
                published");
        }
        NodeEvent::PlanProblem { keyspace, problem } => {
            warn!(%keyspace, problem, "plan does not satisfy all constraints")
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
            warn!(%shard, %epoch, attempt, error, "handler failed to seal the shard, move aborted");
        }
        NodeEvent::RuntimeBlocked { since } => {
            error!(blocked_for = ?since, "async runtime of the application is blocked, lease not renewed");
        }
        NodeEvent::SessionLost { session, reason } => {
            warn!(%session, %reason, "session of this node has ended, registering a new session")
        }
        NodeEvent::SessionEnded {
            session,
            node,
            reason,
        } => info!(%session, %node, %reason, "this node ended the session of another node"),
        NodeEvent::WaitingForName { session, at_most } => {
            warn!(%session, longest_wait = ?at_most, "node name is used by another session, waiting for its end");
        }
        NodeEvent::ClaimRetry { shards } => {
            debug!(
                shards,
                "retrying claims of assigned shards that other nodes own"
            )
        }
        NodeEvent::ClaimRetryExhausted { shards } => {
            warn!(
                shards,
                "assigned shards still owned by other nodes after claim_retry_window, waiting for the next scan"
            );
        }
        NodeEvent::RecordUnreadable { key, damage } => {
            error!(%key, %damage, "record is corrupt or of a newer format and cannot be read")
        }
        NodeEvent::RecordMissing { key } => {
            error!(%key, "required record is missing from the store")
        }
        NodeEvent::StoreReplaced { problem } => {
            error!(problem, "store was replaced or restored from a backup")
        }
        NodeEvent::ClockJump { gap } => {
            warn!(paused_for = ?gap, "process did not run for longer than renew_interval (suspended or overloaded)")
        }
        NodeEvent::WouldDo {
            shard,
            step,
            reason,
        } => info!(%shard, %step, %reason, "shard transition not executed, node is in shadow mode"),
        NodeEvent::LoadFailed {
            shard,
            epoch,
            attempt,
            error,
        } => warn!(%shard, %epoch, attempt, error, "loading the shard failed"),
        NodeEvent::CancelOverdue { shard, epoch } => {
            error!(%shard, %epoch, "cancelled work of the shard did not stop in time, shard stays blocked until it stops");
        }
        NodeEvent::StartedWith { loaded, failed } => info!(
            shards_loaded = loaded,
            shards_failed = failed,
            "node started"
        ),
        NodeEvent::TombstoneRemoved { key } => debug!(%key, "unreferenced tombstone removed"),
        NodeEvent::WriteDenied { key, error } => {
            debug!(%key, error, "store denied permission to write a record")
        }
    }
}

/// Says of a node that was drained without an operator's doing why it takes no shards, and what helps.
fn stands_back(mode: &NodeMode) {
    if let NodeMode::Drained(reason) = mode
        && !mode.is_by_operator()
    {
        warn!(
            reason,
            "node is drained and owns no shards, run `tenure node resume NODE` to activate it"
        );
    }
}

fn lease(from: LeasePhase, to: LeasePhase) {
    let previous = from.as_str();
    match to {
        LeasePhase::Attached => info!(
            previous,
            "lease attached: renewals succeed, node may serve shards"
        ),
        LeasePhase::Recovering => info!(
            previous,
            "lease recovering: renewals succeed again, node does not serve yet"
        ),
        LeasePhase::Degraded => warn!(
            previous,
            "lease degraded: renewal failed, node still serves"
        ),
        LeasePhase::Detached => warn!(
            previous,
            "lease detached: not renewed in time, node stops serving"
        ),
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
        ShardStep::Loading => line!(debug, "shard is loading"),
        ShardStep::Serving => line!(info, "shard is serving"),
        ShardStep::Draining => line!(info, "shard is draining"),
        ShardStep::Cancelled => line!(warn, "work of the shard cancelled"),
        ShardStep::Stopped => line!(debug, "work of the shard stopped"),
        ShardStep::Released => line!(info, "shard released"),
        ShardStep::Restored => line!(warn, "lost record of the shard restored"),
        ShardStep::Quarantined => line!(
            error,
            "shard quarantined after failed loads, remove the cause and run `tenure shard repair`"
        ),
        ShardStep::MoveStarted => line!(info, "shard move started"),
        ShardStep::Warming => line!(info, "shard is loading at the move target"),
        ShardStep::Frozen => line!(debug, "shard frozen for a move"),
        ShardStep::Thawed => line!(info, "shard thawed, serving again after an aborted move"),
        ShardStep::Sealed => line!(info, "shard sealed for the move target"),
        ShardStep::Taken => line!(info, "shard taken by the move target"),
        ShardStep::Aborted => line!(info, "shard move aborted"),
        ShardStep::Reclaimed => line!(info, "shard reclaimed by its old owner"),
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
        check(
            Attached,
            Degraded,
            "WARN lease degraded: renewal failed, node still serves previous=\"attached\"",
        );
        check(
            Degraded,
            Detached,
            "WARN lease detached: not renewed in time, node stops serving previous=\"degraded\"",
        );
        check(
            Detached,
            Recovering,
            "INFO lease recovering: renewals succeed again, node does not serve yet previous=\"detached\"",
        );
        check(
            Recovering,
            Attached,
            "INFO lease attached: renewals succeed, node may serve shards previous=\"recovering\"",
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
