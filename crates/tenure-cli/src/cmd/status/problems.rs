//! Problems of a cluster, each with the command or action that solves it.

use std::collections::BTreeSet;

use serde::Serialize;
use tenure::admin::{SessionState, Snapshot};
use tenure_core::ids::{KeyspaceName, SessionId, ShardId};
use tenure_core::keys::Key;
use tenure_core::members::{self, UnservedGroup, UnservedReason};
use tenure_core::record::{KeyspaceKind, LoadFailure, NodeMode, Quarantine, RecordError};
use tenure_core::view::{KeyState, KnownRecords};

use super::report::KeyspaceSummary;

/// A condition that needs an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// `unreadable`, `newer_format`, `missing`, `quarantined`, `unserved`, `troubled`, `overdue`, `drained` or `store_replaced`.
    pub(crate) kind: &'static str,
    /// Key of the affected record.
    pub(crate) key: String,
    pub(crate) problem: String,
    /// Action that solves the problem.
    pub(crate) help: String,
}

/// All problems, the most general first.
pub(crate) fn all(snapshot: &Snapshot, keyspaces: &[KeyspaceSummary]) -> Vec<Problem> {
    let mut problems = Vec::new();
    cluster(snapshot, &mut problems);
    damaged(snapshot, &mut problems);
    missing_keyspaces(snapshot, &mut problems);
    for keyspace in keyspaces {
        shards(snapshot, &keyspace.name, &mut problems);
        unserved(snapshot, &keyspace.name, &mut problems);
    }
    sessions(snapshot, &mut problems);
    drained(snapshot, &mut problems);
    problems
}

/// Nodes that were drained by a rule instead of by an operator.
fn drained(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    for (name, seen) in snapshot.view.nodes.iter() {
        let mode = &seen.record.mode;
        let NodeMode::Drained(reason) = mode else {
            continue;
        };
        let reason = match reason.as_str() {
            NodeMode::STALE_RESTART => "its process was down for longer than its ttl",
            NodeMode::REGISTRATION_EXPIRED => "its session expired while other nodes were live",
            NodeMode::JOINED => "it was first started with start_drained",
            _ => continue,
        };
        problems.push(problem(
            "drained",
            &Key::Node(name.clone()),
            format!("node {name} gets no shards: {mode}: {reason}"),
            format!("check the cause, then run tenure node resume {name}"),
        ));
    }
}

fn problem(
    kind: &'static str,
    key: &Key,
    problem: impl Into<String>,
    help: impl Into<String>,
) -> Problem {
    Problem {
        kind,
        key: key.to_string(),
        problem: problem.into(),
        help: help.into(),
    }
}

fn cluster(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    if let Some(other) = snapshot.other_store() {
        problems.push(problem(
            "store_replaced",
            &Key::Cluster,
            format!(
                "the cluster record names store {other}, but this is store {}: the store was replaced or restored from a \
                 backup; no node claims shards",
                snapshot.identity
            ),
            "run tenure keyspace bump-generation --all",
        ));
    }
    if snapshot.view.cluster.cell(&()).is_none() {
        problems.push(problem(
            "missing",
            &Key::Cluster,
            "the cluster record is missing",
            "a running node writes the record again; if none runs, run tenure keyspace bump-generation --all before \
             starting one",
        ));
    }
}

/// Unreadable records of every kind.
fn damaged(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    let view = &snapshot.view;
    each(
        &view.cluster,
        |()| Key::Cluster,
        problems,
        |()| {
            "no node starts and lost records are not restored until the record is repaired: run tenure cluster repair-record cluster, \
             if possible while a node is running"
                .to_owned()
        },
    );
    each(
        &view.leader,
        |()| Key::Leader,
        problems,
        |()| "run tenure cluster repair-record leader".to_owned(),
    );
    each(
        &view.keyspaces,
        |name| Key::Keyspace(name.clone()),
        problems,
        |name| {
            format!(
                "no shard of keyspace {name} is served: run tenure cluster repair-record keyspaces/{name}; nodes that \
                 serve the keyspace write the record again at a higher generation"
            )
        },
    );
    each(
        &view.nodes,
        |name| Key::Node(name.clone()),
        problems,
        |name| {
            format!(
                "run tenure cluster repair-record nodes/{name}; the node writes the record again, immediately or at \
                 its next start"
            )
        },
    );
    each(
        &view.sessions,
        |id| Key::Session(*id),
        problems,
        |_| {
            "the session's node stops serving; other nodes expire the session after its ttl"
                .to_owned()
        },
    );
    each(
        &view.shards,
        |id| Key::Shard(id.clone()),
        problems,
        |id| {
            format!(
                "nodes that serve the keyspace write the record again after the longest ttl; if none runs, run tenure \
                 shard repair {id}"
            )
        },
    );
}

fn each<K: Ord + Clone, R>(
    table: &KnownRecords<K, R>,
    key: impl Fn(&K) -> Key,
    problems: &mut Vec<Problem>,
    help: impl Fn(&K) -> String,
) {
    for (name, cell) in table.cells() {
        let KeyState::Damaged { damage, .. } = cell else {
            continue;
        };
        problems.push(match damage {
            RecordError::Corrupt(_) => {
                problem("unreadable", &key(name), damage.to_string(), help(name))
            }
            RecordError::Newer(_) => problem(
                "newer_format",
                &key(name),
                damage.to_string(),
                "upgrade this program; older versions never change the record",
            ),
        });
    }
}

/// Keyspaces that are listed or have shards, but have no keyspace record.
fn missing_keyspaces(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    let shards = snapshot.view.shards.cells().map(|(id, _)| &id.keyspace);
    let cluster = snapshot.view.cluster.get(&());
    let listed = cluster.into_iter().flat_map(|c| c.keyspaces.keys());
    let names: BTreeSet<&KeyspaceName> = shards.chain(listed).collect();
    for name in names {
        if snapshot.view.keyspaces.cell(name).is_none() {
            problems.push(problem(
                "missing",
                &Key::Keyspace(name.clone()),
                "the keyspace record is missing: the keyspace is being created, or the record was lost",
                "nodes that serve the keyspace write the record again after a ttl; if none runs, run tenure keyspace \
                 create",
            ));
        }
    }
}

fn shards(snapshot: &Snapshot, name: &KeyspaceName, problems: &mut Vec<Problem>) {
    let Some(kind) = snapshot.view.keyspaces.get(name).map(|k| k.kind) else {
        return;
    };
    for (shard, cell) in snapshot.shards(name, kind) {
        let id = ShardId::new(name.clone(), shard);
        let key = Key::Shard(id.clone());
        match cell {
            None | Some(KeyState::Missing { .. }) if matches!(kind, KeyspaceKind::Hashed(_)) => {
                problems.push(problem(
                    "missing",
                    &key,
                    "the shard record is missing",
                    format!("nodes that serve the keyspace write the record again after a ttl; if none runs, run \
                        tenure shard repair {id}"),
                ));
            }
            Some(KeyState::Present(seen)) => {
                if let Some(quarantine) = &seen.record.quarantine {
                    problems.push(problem(
                        "quarantined",
                        &key,
                        why_quarantined(quarantine, &seen.record.failures),
                        format!("remove the cause, then run tenure shard repair {id}"),
                    ));
                }
                if let (Some(said), Some(owner)) = (&seen.record.trouble, seen.record.owner())
                    && !snapshot.session_state(owner.session).is_over()
                {
                    problems.push(problem(
                        "troubled",
                        &key,
                        said,
                        format!(
                            "check the log of node {}; the node clears the problem when the application recovers",
                            owner.node
                        ),
                    ));
                }
            }
            _ => {}
        }
    }
}

/// Shards that are not served: immediately if no node can own them, otherwise after three ttl.
fn unserved(snapshot: &Snapshot, name: &KeyspaceName, problems: &mut Vec<Problem>) {
    let view = &snapshot.view;
    let ended = |session| {
        let lease = snapshot.session_state(session);
        lease.is_over() || matches!(lease, SessionState::Overdue(_) | SessionState::Missing)
    };
    let nobody = members::participants(view, name, None).all(|node| ended(node.session));
    let blocked = match nobody {
        true => Some(UnservedReason::NoNode),
        false => members::blocked(view, name),
    };
    for stuck in members::stuck(view, name, ended, blocked) {
        let help = match stuck.reason {
            UnservedReason::NoNode => "start a node that serves the keyspace",
            UnservedReason::Cordoned => {
                "uncordon one of its nodes (tenure node uncordon), or start another"
            }
            UnservedReason::Draining => {
                "resume one of its nodes (tenure node resume), or start another"
            }
            UnservedReason::NoWeight => "start a node with a weight above 0",
            UnservedReason::NoRoom => "raise the capacity of a node, or start another node",
            UnservedReason::Loading => "check the logs of their owners (tenure status --shards)",
            UnservedReason::Moving => {
                "check the logs of their owners and targets (tenure status --shards)"
            }
            UnservedReason::Unclaimed | UnservedReason::Quarantined => {
                "check the logs of the keyspace's nodes for rejected claims and failed loads"
            }
        };
        problems.push(problem(
            "unserved",
            &Key::Keyspace(name.clone()),
            why_unserved(&stuck),
            help,
        ));
    }
}

/// Returns number, names and reason in one sentence.
fn why_unserved(stuck: &UnservedGroup) -> String {
    let UnservedGroup {
        reason,
        count,
        shards,
    } = stuck;
    let (word, verb) = match count {
        1 => ("shard", "is"),
        _ => ("shards", "are"),
    };
    let long = match reason.is_in_records() {
        true => "",
        false => " for longer than three ttl",
    };
    let mut named: Vec<String> = shards.iter().map(ToString::to_string).collect();
    if named.len() < *count {
        named.push("…".to_owned());
    }
    let named = named.join(", ");
    let (text, reason) = (reason.text(), reason.as_str());
    format!("{count} {word} {verb} not served{long}: {text} ({reason}): {named}")
}

/// The reason, followed by the load failures that it does not contain.
fn why_quarantined(quarantine: &Quarantine, failures: &[LoadFailure]) -> String {
    let mut reason = quarantine.reason.clone();
    for LoadFailure { node, error, .. } in failures {
        let said = format!("{node}: {error}");
        if !reason.contains(&said) {
            reason.push_str("; ");
            reason.push_str(&said);
        }
    }
    reason
}

/// Missing and overdue sessions that a node or shard refers to.
fn sessions(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    let owners = snapshot
        .view
        .shards
        .iter()
        .filter_map(|(_, s)| s.record.owner());
    let mut known: Vec<SessionId> = owners.map(|owner| owner.session).collect();
    known.extend(
        snapshot
            .view
            .nodes
            .iter()
            .map(|(_, seen)| seen.record.session),
    );
    known.sort();
    known.dedup();
    for session in known {
        let key = Key::Session(session);
        match snapshot.session_state(session) {
            SessionState::Missing => problems.push(problem(
                "missing",
                &key,
                "a node or shard refers to this session, but the session's record is missing, which does not prove \
                 that it has ended",
                "the session's node stops serving; other nodes expire the session after its ttl",
            )),
            SessionState::Overdue(_) => {
                let node = snapshot.view.sessions.get(&session).map(|s| s.node.to_string());
                problems.push(problem(
                    "overdue",
                    &key,
                    format!("the lease of node {} expired, but its session has not ended", node.unwrap_or_default()),
                    "a running node expires the session; if none runs, start one",
                ));
            }
            SessionState::Live | SessionState::Stopping | SessionState::Ended(_) | SessionState::Unreadable => {}
        }
    }
}
