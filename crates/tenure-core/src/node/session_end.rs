//! Ends of sessions: tombstones by compare-and-swap, and checks of sessions that records refer to.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{Nonce, SessionId};
use crate::keys::Key;
use crate::machine::{Connection, Expect, Request};
use crate::record::{EndReason, Ended, FORMAT, Head, Record, Role, SessionRecord, Unknown};
use crate::rules::Mutant;
use crate::view::KeyState;

use super::Timekeeper;
use super::context::Ctx;
use super::store_requests::{Pending, WritePurpose};

/// Writes a session's tombstone over exactly the version that was seen.
pub(super) fn end_session(cx: &mut Ctx, id: SessionId, reason: EndReason, purpose: WritePurpose) {
    let nonce = cx.nonce();
    let by = cx.session().unwrap_or(SessionId(cx.config.entropy));
    let ended = Some(Ended { reason, by });
    let key = Key::Session(id);
    let (expect, record) = match cx.view.sessions.cell(&id) {
        Some(KeyState::Present(seen)) => {
            let mut head = seen.record.head.next(nonce);
            // A manual edit may have set an old rev, and views ignore a tombstone with an old rev.
            head.rev = head.rev.max(cx.view.fresh_rev(&key));
            let record = SessionRecord {
                head,
                ended,
                ..(*seen.record).clone()
            };
            (Expect::Version(seen.version.clone()), record)
        }
        Some(KeyState::Damaged { version, .. }) => (
            Expect::Version(version.clone()),
            bare_tombstone(cx, id, nonce, ended),
        ),
        _ => (Expect::Absent, bare_tombstone(cx, id, nonce, ended)),
    };
    cx.put(key, expect, Record::Session(Arc::new(record)), purpose);
}

/// Returns the tombstone of a session without a readable record. The node's name comes from records that refer to the session.
pub(super) fn bare_tombstone(
    cx: &Ctx,
    id: SessionId,
    nonce: Nonce,
    ended: Option<Ended>,
) -> SessionRecord {
    let owners = cx
        .view
        .shards
        .iter()
        .filter_map(|(_, seen)| seen.record.owner());
    let named = cx
        .view
        .nodes
        .iter()
        .find(|(_, seen)| seen.record.session == id)
        .map(|(name, _)| name.clone());
    let node = named.or_else(|| {
        owners
            .into_iter()
            .find(|o| o.session == id)
            .map(|o| o.node.clone())
    });
    SessionRecord {
        head: Head {
            rev: cx.view.fresh_rev(&Key::Session(id)),
            ..Head::first(nonce)
        },
        ended,
        stopping: false,
        node: node.unwrap_or_else(|| cx.config.name.clone()),
        role: Role::Node,
        addresses: BTreeMap::new(),
        zone: None,
        weight: 0,
        labels: BTreeMap::new(),
        capacity: None,
        keyspaces: Arc::default(),
        costs: BTreeMap::new(),
        held: BTreeMap::new(),
        unserved: BTreeMap::new(),
        ttl: cx.longest_ttl(),
        renewals: 0,
        boot: 0,
        reads_format: FORMAT,
        version: cx.config.version.as_str().into(),
        store: cx.view.cluster.get(&()).map_or("", |c| &c.store).into(),
        leased: None,
        boot_clock: None,
        unknown: Unknown::new(),
    }
}

/// Initiates the proof of the end of a session that has no record, but to which other records refer.
pub(super) fn check_expired(cx: &mut Ctx, id: SessionId) {
    if cx.config.role == Role::Shadow || !cx.may_own() {
        return;
    }
    match cx.view.sessions.cell(&id) {
        None => {
            cx.absent.insert(Key::Session(id));
        }
        Some(KeyState::Missing { .. }) => {
            let purpose = WritePurpose::ExpireSession(id);
            if cx.is_writing(&purpose) {
                return;
            }
            match cx.config.timekeeper {
                Timekeeper::Store => ask_lease(cx, id, purpose),
                Timekeeper::Nodes => end_session(cx, id, EndReason::Missing, purpose),
            }
        }
        _ => {}
    }
}

/// Queries the store for the lease of a session, unless such a query is in progress.
pub(super) fn ask_lease(cx: &mut Ctx, id: SessionId, purpose: WritePurpose) {
    let asked = |p: &Pending| matches!(p, Pending::AskLease { id: other, .. } if *other == id);
    if purpose != WritePurpose::Boot && cx.requests.values().any(asked) {
        return;
    }
    if cx.config.rules.broken_by(Mutant::LeaseNotAsked) {
        return end_session(cx, id, EndReason::LeaseGone, purpose);
    }
    cx.ask(
        Connection::Default,
        Request::CheckLease(id),
        Pending::AskLease { id, purpose },
    );
}
