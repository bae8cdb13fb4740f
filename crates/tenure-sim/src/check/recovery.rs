//! P6 and P7: everything comes back by itself, and then costs next to nothing.

use std::collections::BTreeSet;

use tenure_core::ids::{KeyspaceName, NodeName};
use tenure_core::keys::Key;
use tenure_core::record::{NodeMode, Ownership, Record};

use super::gates::GateChecker;
use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::process::Process;
use crate::run_config::{Family, RunConfig, nanos};
use crate::store::Store;

/// What is still missing from a cluster that is whole; `None` if nothing is.
///
/// Whole: every shard has a readable record that says it is served by a live session of a live process, whose gate is open
/// at that epoch, which is not below the keyspace's floor; its node has not been told to stand back; every live process has a live session, and no other session is
/// live.
pub(crate) fn missing(
    at: Instant,
    shards: &[Key],
    processes: &[Process],
    store: &Store,
    gates: &GateChecker,
) -> Option<String> {
    let mut sessions = BTreeSet::new();
    for (key, found) in store.iter() {
        let Key::Session(id) = key else { continue };
        match &found.record {
            Ok(Record::Session(session)) if session.is_live() => {
                let holder = gates.lease(*id).map(|lease| lease.pid);
                match holder {
                    Some(pid) if processes[pid].alive => {
                        sessions.insert(pid);
                    }
                    _ => return Some(format!("session {id} of a departed process is not ended")),
                }
            }
            Ok(_) => {}
            Err(_) => return Some(format!("{key} cannot be read")),
        }
    }
    for (pid, _) in processes
        .iter()
        .enumerate()
        .filter(|(_, process)| process.alive)
    {
        if !sessions.contains(&pid) {
            return Some(format!("process {pid} has no live session"));
        }
    }
    let mut known = Known::default();
    shards
        .iter()
        .enumerate()
        .find_map(|(shard, key)| unserved(at, shard, key, store, gates, &mut known))
}

/// What was looked up for a shard and is the same for most others.
#[derive(Default)]
struct Known<'a> {
    floor: Option<(&'a KeyspaceName, u32)>,
    modes: Vec<(&'a NodeName, Option<&'a NodeMode>)>,
}

impl<'a> Known<'a> {
    /// The floor of a keyspace's epochs; none if there is no record that says so.
    fn floor(&mut self, keyspace: &'a KeyspaceName, store: &Store) -> u32 {
        match self.floor {
            Some((known, floor)) if known == keyspace => floor,
            _ => {
                let found = store.get(&Key::Keyspace(keyspace.clone()));
                let floor = match found.map(|found| &found.record) {
                    Some(Ok(Record::Keyspace(keyspace))) => keyspace.min_generation,
                    _ => 0,
                };
                self.floor = Some((keyspace, floor));
                floor
            }
        }
    }

    /// The mode of a node, as far as a record says so.
    fn mode(&mut self, node: &'a NodeName, store: &'a Store) -> Option<&'a NodeMode> {
        if let Some((_, mode)) = self.modes.iter().find(|(known, _)| *known == node) {
            return *mode;
        }
        let found = store.get(&Key::Node(node.clone()));
        let mode = match found.map(|found| &found.record) {
            Some(Ok(Record::Node(node))) => Some(&node.mode),
            _ => None,
        };
        self.modes.push((node, mode));
        mode
    }
}

fn unserved<'a>(
    at: Instant,
    shard: usize,
    key: &'a Key,
    store: &'a Store,
    gates: &GateChecker,
    known: &mut Known<'a>,
) -> Option<String> {
    let Some(found) = store.get(key) else {
        return Some(format!("{key} is missing"));
    };
    let Ok(Record::Shard(record)) = &found.record else {
        return Some(format!("{key} cannot be read"));
    };
    let Ownership::Owned { by, serving: true } = &record.ownership else {
        return Some(format!(
            "{key} is {} at epoch {}",
            record.ownership.name(),
            record.epoch
        ));
    };
    if let Key::Shard(id) = key {
        let floor = known.floor(&id.keyspace, store);
        if record.epoch.generation() < floor {
            return Some(format!(
                "{key} is served at epoch {}, below generation {floor}",
                record.epoch
            ));
        }
    }
    if let Some(mode) = known.mode(&by.node, store)
        && *mode != NodeMode::Active
    {
        return Some(format!("{key} is served by {}, which is {mode}", by.node));
    }
    let Some((pid, epoch)) = gates.admitting(at, shard) else {
        return Some(format!(
            "{key} is said to be served by {} at epoch {}, but no gate is open",
            by.node, record.epoch
        ));
    };
    let holder = gates.lease(by.session).map(|lease| lease.pid);
    if holder != Some(pid) || epoch != record.epoch {
        return Some(format!(
            "{key} belongs to session {}, but process {pid} serves it at epoch {epoch}",
            by.session
        ));
    }
    None
}

/// Checker that an idle cluster writes and reads no more than it may (P7).
#[derive(Debug)]
pub(crate) struct IdleTrafficChecker {
    from: Instant,
    writes: Vec<u64>,
    lists: Vec<u64>,
    owners: Vec<Option<(usize, tenure_core::ids::Epoch)>>,
}

impl IdleTrafficChecker {
    pub(crate) fn begin(
        at: Instant,
        shards: usize,
        processes: &[Process],
        gates: &GateChecker,
    ) -> Self {
        Self {
            from: at,
            writes: processes.iter().map(|process| process.writes).collect(),
            lists: processes.iter().map(|process| process.lists).collect(),
            owners: (0..shards)
                .map(|shard| gates.admitting(at, shard))
                .collect(),
        }
    }

    pub(crate) fn end(
        &self,
        at: Instant,
        plan: &RunConfig,
        processes: &[Process],
        gates: &GateChecker,
    ) -> CheckResult {
        for (pid, process) in processes
            .iter()
            .enumerate()
            .filter(|(_, process)| process.alive)
        {
            let own = process.clock.at(at).since(process.clock.at(self.from));
            let renewals = nanos(own) / nanos(plan.timing.renew_interval) + 2;
            let writes = process.writes - self.writes.get(pid).copied().unwrap_or(0);
            let lists = process.lists - self.lists.get(pid).copied().unwrap_or(0);
            // Nothing has to be written where the store keeps the time.
            let renewals = if plan.family == Family::Leased {
                0
            } else {
                renewals
            };
            if writes > renewals {
                let what = format!(
                    "at rest process {pid} wrote {writes} times in {renewals} renewal intervals"
                );
                return Err(Violation::new("P7", at, what));
            }
            let allowed = nanos(own) / nanos(plan.timing.relist_interval) + 1;
            if lists > allowed {
                let what =
                    format!("at rest process {pid} listed everything {lists} times, not {allowed}");
                return Err(Violation::new("P7", at, what));
            }
        }
        for (shard, before) in self.owners.iter().enumerate() {
            let now = gates.admitting(at, shard);
            if now != *before {
                let what = format!(
                    "at rest shard {shard} went from {before:?} to {now:?} (process, epoch)"
                );
                return Err(Violation::new("P7", at, what));
            }
        }
        Ok(())
    }
}
