//! All processes of one cluster side by side: versions, revs and epochs of shards (P2), the ends of sessions, and gates (P1).
//!
//! A value counts once a process has read it or was told that its write won. Values of one key stand in the order of their
//! versions where the store counts its writes, and of their revs where versions are mere marks.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::ids::{Epoch, SessionId, ShardId, Version};
use tenure_core::invariants::check_successor;
use tenure_core::record::{EndReason, SessionRecord, ShardRecord};
use tenure_core::time::Time;

use super::gates::{GateInterval, alone};
use super::report::{CheckKind, FindingSink, TracePosition};

/// The name of a clock that several processes may share.
pub(super) type ClockName = Arc<str>;

/// Reading of a clock, which may be compared with others of the same clock.
#[derive(Clone)]
pub(super) struct ClockReading {
    pub(super) clock: ClockName,
    pub(super) t: Time,
}

impl ClockReading {
    fn is_before(&self, other: &Self) -> bool {
        self.clock == other.clock && self.t < other.t
    }
}

/// What the processes of a cluster did to each other.
#[derive(Default)]
pub(super) struct Cluster {
    shards: BTreeMap<ShardId, Shard>,
    sessions: BTreeMap<SessionId, Session>,
    gates: BTreeMap<(ShardId, ClockName), Vec<GateInterval>>,
}

#[derive(Default)]
struct Shard {
    values: BTreeMap<Version, (Arc<ShardRecord>, TracePosition)>,
    /// Which version a write that won took the place of.
    replaced: BTreeMap<Version, (Version, TracePosition)>,
    owners: BTreeMap<Epoch, (SessionId, TracePosition)>,
    loads: Vec<(Epoch, SessionId, TracePosition)>,
}

#[derive(Default)]
struct Session {
    values: BTreeMap<Version, (u64, bool, TracePosition)>,
    /// The latest that its holder was allowed to serve until.
    deadline: Option<(ClockReading, TracePosition)>,
    expired: Option<(ClockReading, TracePosition)>,
    tombstone: Option<(ClockReading, TracePosition)>,
    kept: Option<(ClockReading, TracePosition)>,
}

impl Cluster {
    /// A value of a shard is known to have been in the store.
    pub(super) fn shard(
        &mut self,
        id: &ShardId,
        version: &Version,
        record: &Arc<ShardRecord>,
        place: &TracePosition,
        sink: &mut FindingSink,
    ) {
        let shard = self.shards.entry(id.clone()).or_default();
        if let Some((known, first)) = shard.values.get(version) {
            if known != record {
                let what = format!(
                    "shard {id} at version {version} differs from the record with this version at \
                    {first}"
                );
                sink.found(place, CheckKind::Record, what);
            }
            return;
        }
        shard
            .values
            .insert(version.clone(), (record.clone(), place.clone()));
        let Some(owner) = record.owner() else { return };
        let first = shard
            .owners
            .entry(record.epoch)
            .or_insert_with(|| (owner.session, place.clone()));
        if first.0 != owner.session {
            let what = format!(
                "epoch {} of {id} belongs to session {} and to session {} ({})",
                record.epoch, owner.session, first.0, first.1
            );
            sink.found(place, CheckKind::P2, what);
        }
    }

    /// A write of a shard won against a version.
    pub(super) fn replaced(
        &mut self,
        id: &ShardId,
        old: &Version,
        new: &Version,
        place: &TracePosition,
        sink: &mut FindingSink,
    ) {
        let shard = self.shards.entry(id.clone()).or_default();
        let known = shard.replaced.get(old);
        if let Some((other, first)) = known.filter(|(other, _)| other != new) {
            let what = format!(
                "version {old} of {id} was replaced by version {new}, and by version {other} at {first}"
            );
            return sink.found(place, CheckKind::Record, what);
        }
        shard
            .replaced
            .insert(old.clone(), (new.clone(), place.clone()));
    }

    /// An epoch was handed to the application.
    pub(super) fn loaded(
        &mut self,
        id: &ShardId,
        epoch: Epoch,
        by: SessionId,
        place: &TracePosition,
    ) {
        let shard = self.shards.entry(id.clone()).or_default();
        shard.loads.push((epoch, by, place.clone()));
    }

    /// A value of a session is known to have been in the store.
    pub(super) fn session(
        &mut self,
        id: SessionId,
        version: &Version,
        record: &SessionRecord,
        place: &TracePosition,
    ) {
        let session = self.sessions.entry(id).or_default();
        // A creation that lands late, or an end without proof, after somebody removed a proven one, is neither.
        let renewed = record.is_live() && record.renewals > 0;
        let counts = renewed || record.is_proven_end();
        if counts && !session.values.contains_key(version) {
            let value = (record.head.rev, renewed, place.clone());
            session.values.insert(version.clone(), value);
        }
    }

    /// A process was told that its tombstone for a session stands; it had asked for it at `asked`.
    pub(super) fn buried(
        &mut self,
        id: SessionId,
        reason: EndReason,
        asked: ClockReading,
        won: ClockReading,
        place: &TracePosition,
    ) {
        let session = self.sessions.entry(id).or_default();
        if reason == EndReason::Expired {
            session.expired = Some((asked, place.clone()));
        }
        session.tombstone = Some((won, place.clone()));
    }

    /// The holder of a session may serve until then.
    pub(super) fn leased(&mut self, id: SessionId, until: ClockReading, place: &TracePosition) {
        let session = self.sessions.entry(id).or_default();
        let known = session.deadline.as_ref();
        if known.is_none_or(|(known, _)| known.t < until.t) {
            session.deadline = Some((until, place.clone()));
        }
    }

    /// The store kept a session's lease alive; it had been asked to at this time.
    pub(super) fn kept(&mut self, id: SessionId, asked: ClockReading, place: &TracePosition) {
        self.sessions.entry(id).or_default().kept = Some((asked, place.clone()));
    }

    pub(super) fn opened(&mut self, clock: &ClockName, openings: Vec<(ShardId, GateInterval)>) {
        for (shard, opening) in openings {
            let gates = self.gates.entry((shard, clock.clone())).or_default();
            gates.push(opening);
        }
    }

    pub(super) fn finish(self, sink: &mut FindingSink) {
        for ((shard, _), openings) in self.gates {
            alone(&shard, openings, sink);
        }
        for (id, shard) in &self.shards {
            shard.finish(id, sink);
        }
        for (id, session) in &self.sessions {
            session.finish(*id, sink);
        }
    }
}

impl Shard {
    fn finish(&self, id: &ShardId, sink: &mut FindingSink) {
        let values = in_order(&self.values, |(record, _)| record.head.rev);
        for pair in values.windows(2) {
            let [(old, _), (new, place)] = pair else {
                continue;
            };
            if let Err((check, problem)) = follows(old, new) {
                sink.found(place, check, format!("{id}: {problem}"));
            }
        }
        for (epoch, session, place) in &self.loads {
            let owner = self.owners.get(epoch).map(|(owner, _)| owner);
            if owner != Some(session) {
                let what = match owner {
                    Some(owner) => format!(
                        "session {session} loads {id} at epoch {epoch}, which belongs to session {owner}"
                    ),
                    None => format!(
                        "session {session} loads {id} at epoch {epoch}, which no record has"
                    ),
                };
                sink.found(place, CheckKind::P2, what);
            }
        }
    }
}

/// What must hold of two values of a shard, the second later than the first, with or without others in between.
fn follows(old: &ShardRecord, new: &ShardRecord) -> Result<(), (CheckKind, String)> {
    if new.head.rev == old.head.rev + 1 {
        return check_successor(old, new).map_err(|problem| {
            let check = match problem.starts_with("P1") {
                true => CheckKind::P1,
                false => CheckKind::P2,
            };
            (check, problem.to_owned())
        });
    }
    if new.epoch < old.epoch {
        let problem = format!("the epoch decreased from {} to {}", old.epoch, new.epoch);
        return Err((CheckKind::P2, problem));
    }
    // A record that was lost is made anew: its rev need not follow.
    let anew = new.owner().is_none() && new.history.is_empty();
    if new.head.rev <= old.head.rev && !anew {
        let problem = format!(
            "the rev decreased from {} to {}",
            old.head.rev, new.head.rev
        );
        return Err((CheckKind::Record, problem));
    }
    Ok(())
}

impl Session {
    fn finish(&self, id: SessionId, sink: &mut FindingSink) {
        let mut ended: Option<&TracePosition> = None;
        for (_, live, place) in in_order(&self.values, |value| value.0) {
            match (live, ended) {
                (true, Some(end)) => {
                    let what = format!("session {id} is renewed after its end ({end})");
                    sink.found(place, CheckKind::Session, what);
                }
                (false, None) => ended = Some(place),
                _ => {}
            }
        }
        if let (Some((deadline, lease)), Some((asked, place))) = (&self.deadline, &self.expired)
            && asked.is_before(deadline)
        {
            let what = format!(
                "session {id} is ended as expired at {}, but its holder may serve until {} ({lease})",
                asked.t, deadline.t
            );
            sink.found(place, CheckKind::P1, what);
        }
        if let (Some((ended, tombstone)), Some((asked, place))) = (&self.tombstone, &self.kept)
            && ended.is_before(asked)
        {
            let what = format!(
                "the lease of session {id} is kept alive at {}, after its end at {} ({tombstone})",
                asked.t, ended.t
            );
            sink.found(place, CheckKind::Session, what);
        }
    }
}

/// Values in the order in which they were written.
fn in_order<T>(values: &BTreeMap<Version, T>, rev: impl Fn(&T) -> u64) -> Vec<&T> {
    let counted = values.keys().all(|v| matches!(v, Version::Number(_)));
    // Numbers are in the order of the map.
    let mut values: Vec<&T> = values.values().collect();
    if !counted {
        values.sort_by_key(|value| rev(value));
    }
    values
}
