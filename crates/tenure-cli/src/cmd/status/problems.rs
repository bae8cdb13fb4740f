//! What is wrong with a cluster's records, each with what helps.

use std::collections::BTreeSet;

use serde::Serialize;
use tenure_core::ids::{KeyspaceName, SessionId, ShardId};
use tenure_core::keys::Key;
use tenure_core::members::{self, Stuck, Unserved};
use tenure_core::record::{Damage, Failure, KeyspaceKind, NodeMode, Quarantine};
use tenure_core::view::{KeyState, Table};

use super::report::Keyspace;
use crate::snapshot::{Lease, Snapshot};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// `unreadable`, `newer_format`, `missing`, `quarantined`, `unserved`, `troubled`, `overdue`, `drained` or `store_replaced`.
    pub(crate) kind: &'static str,
    /// The record it is about.
    pub(crate) key: String,
    pub(crate) problem: String,
    /// What helps.
    pub(crate) help: String,
}

/// Everything that is wrong, the most general first.
pub(crate) fn all(snapshot: &Snapshot, keyspaces: &[Keyspace]) -> Vec<Problem> {
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

/// Nodes that take no shards although no operator wanted it so.
fn drained(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    for (name, seen) in snapshot.view.nodes.iter() {
        let mode = &seen.record.mode;
        let NodeMode::Drained(reason) = mode else {
            continue;
        };
        let reason = match reason.as_str() {
            NodeMode::STALE_RESTART => "its process was away for longer than its ttl",
            NodeMode::REGISTRATION_EXPIRED => "its session ran out while others lived",
            NodeMode::JOINED => "its first start was told only to join",
            _ => continue,
        };
        problems.push(problem(
            "drained",
            &Key::Node(name.clone()),
            format!("node {name} takes no shards: {mode}: {reason}"),
            format!("look into it, then tenure node resume {name}"),
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
                "the cluster was written to store {other}, but this is store {}: it was restored or exchanged, and \
                 nobody claims anything",
                snapshot.identity
            ),
            "tenure keyspace bump-generation --all",
        ));
    }
    if snapshot.view.cluster.cell(&()).is_none() {
        problems.push(problem(
            "missing",
            &Key::Cluster,
            "the cluster's own record is missing",
            "a node that runs writes it anew by itself; if none runs, tenure keyspace bump-generation --all before one starts",
        ));
    }
}

/// Records that cannot be read, of every kind.
fn damaged(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    let view = &snapshot.view;
    each(
        &view.cluster,
        |()| Key::Cluster,
        problems,
        |()| {
            "no node can start, and nothing that is lost is made anew: tenure cluster repair-record cluster, best while a \
             node runs that remembers it"
                .to_owned()
        },
    );
    each(
        &view.leader,
        |()| Key::Leader,
        problems,
        |()| "tenure cluster repair-record leader".to_owned(),
    );
    each(
        &view.keyspaces,
        |name| Key::Keyspace(name.clone()),
        problems,
        |name| {
            format!(
                "nothing of it is served: tenure cluster repair-record keyspaces/{name}; the nodes that serve it write it anew at a \
                 higher generation"
            )
        },
    );
    each(
        &view.nodes,
        |name| Key::Node(name.clone()),
        problems,
        |name| {
            format!(
                "tenure cluster repair-record nodes/{name}; the node writes it anew by itself, at once or when it starts"
            )
        },
    );
    each(
        &view.sessions,
        |id| Key::Session(*id),
        problems,
        |_| "its holder stops serving, and the nodes end it by themselves after its ttl".to_owned(),
    );
    each(
        &view.shards,
        |id| Key::Shard(id.clone()),
        problems,
        |id| {
            format!(
                "nodes that serve it restore it by themselves after the longest ttl; without any, \
                 tenure shard repair {id}"
            )
        },
    );
}

fn each<K: Ord + Clone, R>(
    table: &Table<K, R>,
    key: impl Fn(&K) -> Key,
    problems: &mut Vec<Problem>,
    help: impl Fn(&K) -> String,
) {
    for (name, cell) in table.cells() {
        let KeyState::Damaged { damage, .. } = cell else {
            continue;
        };
        problems.push(match damage {
            Damage::Corrupt(_) => problem("unreadable", &key(name), damage.to_string(), help(name)),
            Damage::Newer(_) => problem(
                "newer_format",
                &key(name),
                damage.to_string(),
                "upgrade this program; nothing older rewrites the record",
            ),
        });
    }
}

/// Keyspaces that are listed or have shards, but have no record of their own.
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
                "the keyspace is known but has no record of its own: it is being created, or was lost",
                "nodes that serve it write it anew by themselves after a ttl; without any, tenure keyspace create",
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
                    "the shard's record is missing",
                    format!("nodes that serve it write it anew by themselves after a ttl; without any, tenure shard repair {id}"),
                ));
            }
            Some(KeyState::Present(seen)) => {
                if let Some(quarantine) = &seen.record.quarantine {
                    problems.push(problem(
                        "quarantined",
                        &key,
                        why_quarantined(quarantine, &seen.record.failures),
                        format!("remove the cause, then tenure shard repair {id}"),
                    ));
                }
                if let (Some(said), Some(owner)) = (&seen.record.trouble, seen.record.owner())
                    && !snapshot.lease(owner.session).is_over()
                {
                    problems.push(problem(
                        "troubled",
                        &key,
                        said,
                        format!(
                            "see what node {} logs; it takes this back once the shard fares well",
                            owner.node
                        ),
                    ));
                }
            }
            _ => {}
        }
    }
}

/// Shards that nobody serves: those that no node can be given, at once; others once the nodes report them, after three ttl.
fn unserved(snapshot: &Snapshot, name: &KeyspaceName, problems: &mut Vec<Problem>) {
    let view = &snapshot.view;
    let ended = |session| {
        let lease = snapshot.lease(session);
        lease.is_over() || matches!(lease, Lease::Overdue(_) | Lease::Missing)
    };
    let nobody = members::participants(view, name, None).all(|node| ended(node.session));
    let blocked = match nobody {
        true => Some(Unserved::NoNode),
        false => members::blocked(view, name),
    };
    for stuck in members::stuck(view, name, ended, blocked) {
        let help = match stuck.reason {
            Unserved::NoNode => "start a node that serves the keyspace",
            Unserved::Cordoned => "tenure node uncordon one of its nodes, or start another",
            Unserved::Draining => "tenure node resume one of its nodes, or start another",
            Unserved::NoWeight => "start a node with a weight",
            Unserved::NoRoom => "raise a capacity, or start another node",
            Unserved::Loading => "see what their owners log; tenure status --shards names them",
            Unserved::Moving => {
                "see what their owners and the nodes that they move to log; tenure status --shards names them"
            }
            Unserved::Unclaimed | Unserved::Quarantined => {
                "see what the nodes of the keyspace log: claims that the store rejects, loads that fail"
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
fn why_unserved(stuck: &Stuck) -> String {
    let Stuck {
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

/// The reason, and of the nodes that could not load the shard those that it does not name.
fn why_quarantined(quarantine: &Quarantine, failures: &[Failure]) -> String {
    let mut reason = quarantine.reason.clone();
    for Failure { node, error, .. } in failures {
        let said = format!("{node}: {error}");
        if !reason.contains(&said) {
            reason.push_str("; ");
            reason.push_str(&said);
        }
    }
    reason
}

/// Sessions that something refers to and that are not as they should be.
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
        match snapshot.lease(session) {
            Lease::Missing => problems.push(problem(
                "missing",
                &key,
                "a session that a node or shard refers to is missing: that proves nothing about its end",
                "its holder stops serving, and the nodes write its end by themselves after its ttl",
            )),
            Lease::Overdue(_) => {
                let node = snapshot.view.sessions.get(&session).map(|s| s.node.to_string());
                problems.push(problem(
                    "overdue",
                    &key,
                    format!("the lease of node {} has run out and nobody has ended it", node.unwrap_or_default()),
                    "any node that runs ends it by itself; if none runs, start one",
                ));
            }
            Lease::Live | Lease::Stopping | Lease::Ended(_) | Lease::Unreadable => {}
        }
    }
}
