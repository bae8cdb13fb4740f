//! What is wrong with a cluster's records, each with what helps.

use serde::Serialize;
use tenure_core::ids::{KeyspaceName, SessionId, ShardId};
use tenure_core::layout::Key;
use tenure_core::record::{Damage, KeyspaceKind};
use tenure_core::view::{Cell, Table};

use super::report::Keyspace;
use crate::snapshot::{Lease, Snapshot};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// `damaged`, `newer`, `missing`, `quarantined`, `overdue` or `store_changed`.
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
    }
    sessions(snapshot, &mut problems);
    problems
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
            "store_changed",
            &Key::Cluster,
            format!(
                "the cluster was written to store {other}, but this is store {}: it was restored or exchanged, and \
                 nobody claims anything",
                snapshot.identity
            ),
            "tenure keyspace raise --all",
        ));
    }
    let nobody = snapshot.view.sessions.cells().next().is_none();
    if snapshot.view.cluster.cell(&()).is_none() && !nobody {
        problems.push(problem(
            "missing",
            &Key::Cluster,
            "the cluster's own record is missing",
            "the next node that starts writes it anew",
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
        |_| {
            "no node can start; put the record back from a backup, or delete the key: the next node writes it anew".to_owned()
        },
    );
    each(
        &view.leader,
        |()| Key::Leader,
        problems,
        |_| "delete the key; the nodes elect anew".to_owned(),
    );
    each(
        &view.keyspaces,
        |name| Key::Keyspace(name.clone()),
        problems,
        |name| {
            format!(
                "delete the key keyspaces/{name}; the nodes that serve it write it anew at a raised generation"
            )
        },
    );
    each(
        &view.nodes,
        |name| Key::Node(name.clone()),
        problems,
        |name| {
            format!("the node {name} cannot start; delete the key nodes/{name} while it is stopped")
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
        |id| format!("tenure repair {id}"),
    );
}

fn each<K: Ord + Clone, R>(
    table: &Table<K, R>,
    key: impl Fn(&K) -> Key,
    problems: &mut Vec<Problem>,
    help: impl Fn(&K) -> String,
) {
    for (name, cell) in table.cells() {
        let Cell::Damaged { damage, .. } = cell else {
            continue;
        };
        problems.push(match damage {
            Damage::Corrupt(_) => problem("damaged", &key(name), damage.to_string(), help(name)),
            Damage::Newer(_) => problem(
                "newer",
                &key(name),
                damage.to_string(),
                "upgrade this program; nothing older rewrites the record",
            ),
        });
    }
}

/// Keyspaces that have shards but no record of their own.
fn missing_keyspaces(snapshot: &Snapshot, problems: &mut Vec<Problem>) {
    let mut names: Vec<&KeyspaceName> = snapshot
        .view
        .shards
        .cells()
        .map(|(id, _)| &id.keyspace)
        .collect();
    names.dedup();
    for name in names {
        if snapshot.view.keyspaces.cell(name).is_none() {
            problems.push(problem(
                "missing",
                &Key::Keyspace(name.clone()),
                "there are shards of this keyspace but no record of its own: it is being created, or was lost",
                "nodes that serve it write it anew by themselves after a ttl",
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
            None | Some(Cell::Missing { .. }) if matches!(kind, KeyspaceKind::Hashed(_)) => {
                problems.push(problem(
                    "missing",
                    &key,
                    "the shard's record is missing",
                    format!("nodes that serve it write it anew by themselves after a ttl; without any, tenure repair {id}"),
                ));
            }
            Some(Cell::Present(seen)) => {
                if let Some(quarantine) = &seen.record.quarantine {
                    problems.push(problem(
                        "quarantined",
                        &key,
                        quarantine.reason.clone(),
                        format!("remove the cause, then tenure repair {id}"),
                    ));
                }
            }
            _ => {}
        }
    }
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
            Lease::Live | Lease::Ended(_) | Lease::Damaged => {}
        }
    }
}
