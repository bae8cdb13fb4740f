//! Sessions whose time the store keeps, by its own leases (etcd).
//!
//! The session's record is attached to its lease and is removed with it. At rest nothing is written: a renewal is a keep-alive. The
//! keep-alive counts only together with a read that shows the record still attached. A session's end is proven by the absence of its
//! *lease*, as reported by the store. A missing record proves nothing, because any process may have deleted it. An expired lease was
//! not renewed for a whole ttl, so the session's gates have closed by themselves (P1). A manually revoked lease cannot be distinguished
//! from an expired one: an operator who revokes a lease must know that the process is dead.

use crate::node::session_end;
use std::sync::Arc;

use crate::ids::SessionId;
use crate::keys::Key;
use crate::machine::{Connection, Found, LeaseState, Reply, Request, StoreFailure};
use crate::reason::Reason;
use crate::record::{EndReason, Role};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::renewal::{Session, SessionChange};
use super::store_requests::{Pending, WriteOutcome, WritePurpose};
use super::timers::Timer;
use super::{Life, Timekeeper};

/// Continues a start whose name is taken, where the store keeps the time. Returns the time of the next check, or `None` while the
/// store is queried for the lease.
pub(super) fn wait_for_lease(cx: &mut Ctx, session: SessionId, limit: Time) -> Option<Time> {
    let missing = cx.view.is_missing(&Key::Session(session));
    if cx.view.sessions.cell(&session).is_none() {
        cx.absent.insert(Key::Session(session));
        return Some(cx.now + cx.config.timing.renew_interval);
    }
    if !missing && cx.now < limit {
        return Some(limit);
    }
    cx.timers.clear(&Timer::Boot);
    session_end::ask_lease(cx, session, WritePurpose::Boot);
    None
}

impl Session {
    /// Requests the lease of a session that is being created.
    pub(super) fn ask_for_lease(&mut self, cx: &mut Ctx, id: SessionId) {
        let ttl = cx.config.timing.ttl;
        let sent = cx.now;
        cx.ask(
            Connection::Renewal,
            Request::CreateLease { session: id, ttl },
            Pending::Grant { id, sent },
        );
    }

    /// Sends a keep-alive for the lease.
    pub(super) fn keep_alive(&mut self, cx: &mut Ctx) {
        let sent = cx.now;
        let Some(holder) = cx.own.as_mut() else {
            return;
        };
        holder.busy = true;
        holder.refused = false;
        let id = holder.id;
        cx.ask(
            Connection::Renewal,
            Request::KeepAlive(id),
            Pending::KeepAlive { id, sent },
        );
    }

    pub(super) fn on_kept_alive(
        &mut self,
        cx: &mut Ctx,
        sent: Time,
        reply: Reply,
    ) -> Option<SessionChange> {
        let holder = cx.own.as_mut()?;
        holder.busy = false;
        let (id, ttl) = (holder.id, holder.record.ttl);
        match reply {
            Reply::KeptAlive(LeaseState::Alive(left)) => {
                let sure = cx.config.timing.sure_of(left);
                let change = self.renewal_confirmed(cx, sent, sure);
                self.check_own_record(cx, id);
                if self.held_unreported(cx) {
                    // The move was added during the keep-alive, and owners wait for its report.
                    cx.timers.set(Timer::Renew, cx.now);
                }
                change
            }
            Reply::KeptAlive(LeaseState::Unattached)
                if cx.config.rules.broken_by(Mutant::LooseKeyIgnored) =>
            {
                self.renewal_confirmed(cx, sent, ttl)
            }
            Reply::KeptAlive(LeaseState::Unattached) => {
                // The record decides the next step. The deadline does not change until then.
                self.read_own_record(cx, id);
                None
            }
            Reply::KeptAlive(LeaseState::Gone) => {
                self.expired_session = Some(id);
                Some(SessionChange::Over(Reason::SessionEnded))
            }
            Reply::Failed(failure) => self.renewal_failed(cx, failure),
            _ => None,
        }
    }

    /// Returns `true` if the session's record lacks a held move.
    fn held_unreported(&self, cx: &Ctx) -> bool {
        let Some(holder) = &cx.own else {
            return false;
        };
        cx.held.iter().any(|(keyspace, shards)| {
            let said = holder.record.held.get(keyspace);
            let said = |shard| said.and_then(|said| said.get(shard));
            shards.iter().any(|(shard, mv)| said(shard) != Some(mv))
        })
    }

    fn read_own_record(&mut self, cx: &mut Ctx, id: SessionId) {
        if let Some(holder) = cx.own.as_mut() {
            holder.busy = true;
        }
        cx.ask(
            Connection::Renewal,
            Request::Get(Key::Session(id)),
            Pending::ReadSession { id },
        );
    }

    /// Checks the content of the session's record while the lease is alive. Other processes rely on the record. At rest nothing is
    /// written, so only this check detects a difference.
    fn check_own_record(&mut self, cx: &mut Ctx, id: SessionId) {
        let known = cx.view.version(&Key::Session(id));
        let Some(holder) = &cx.own else { return };
        let leaves = matches!(cx.life, Life::Stopping) && !holder.record.stopping;
        if leaves || holder.rewriting {
            let soon = cx.now + cx.config.timing.renew_retry_interval;
            cx.timers.set_sooner(Timer::Renew, soon);
        } else if known != holder.version {
            self.read_own_record(cx, id);
        }
    }

    /// Rewrites the node's own record after a foreign write. Without its lease the record would outlive the process.
    pub(super) fn tie_to_lease(&mut self, cx: &mut Ctx, found: Found) -> Option<SessionChange> {
        if let Some(over) = self.rewrite_session(cx, found) {
            return Some(over);
        }
        let error = "the session's record was written by another process".to_owned();
        self.renewal_failed(cx, StoreFailure::Unavailable(error))
    }

    /// Accepts the stored record as this node's own write, whose outcome was unknown. The write does not extend the lease.
    pub(super) fn found_own_write(&mut self, cx: &mut Ctx) {
        if let Some(holder) = cx.own.as_mut() {
            holder.rewriting = false;
            // A second value with this nonce would be a copy by another process.
            holder.unsettled.clear();
        }
        cx.timers.set(Timer::Renew, cx.now);
    }
}

/// Queries the leases of the sessions up to the next node's, and of all sessions whose record is unreadable or names no lease. A
/// record that lost its lease by a manual edit would otherwise outlive its process. Every session is checked by some node, and no
/// node checks all of them.
pub(super) fn check_neighbour_leases(cx: &mut Ctx) {
    let Some(me) = cx.session() else { return };
    if cx.config.timekeeper != Timekeeper::Store
        || cx.config.role != Role::Node
        || !matches!(cx.life, Life::Running)
    {
        return;
    }
    let mut asked: Vec<SessionId> = Vec::new();
    let cells = || cx.view.sessions.cells();
    let odd = cells().filter(|(_, cell)| match cell {
        KeyState::Present(seen) => seen.record.is_live() && seen.record.leased.is_none(),
        KeyState::Damaged { .. } => true,
        KeyState::Missing { .. } => false,
    });
    asked.extend(odd.map(|(id, _)| *id));
    let (before, after): (Vec<_>, Vec<_>) = cx
        .view
        .sessions
        .iter()
        .filter(|(id, seen)| **id != me && seen.record.is_live())
        .partition(|(id, _)| **id < me);
    for (id, seen) in after.into_iter().chain(before) {
        asked.push(*id);
        let named = cx.view.nodes.get(&seen.record.node);
        if seen.record.role == Role::Node && named.is_some_and(|n| n.session == *id) {
            // The node of that session checks those after it.
            break;
        }
    }
    for id in asked {
        if id != me {
            session_end::ask_lease(cx, id, WritePurpose::ExpireSession(id));
        }
    }
}

impl Session {
    /// Writes the record of a session after the store has created its lease. The ttl counts from the request for the lease.
    ///
    /// Returns `false` if there is no lease.
    pub(super) fn on_lease_created(&mut self, cx: &mut Ctx, sent: Time, reply: &Reply) -> bool {
        let requested = cx.config.timing.ttl;
        if let (Reply::Failed(failure), Some(id)) = (reply, cx.session()) {
            cx.report_denied(&Key::Session(id), failure);
        }
        let (Reply::LeaseCreated(granted), Some(own)) = (reply, cx.own.as_mut()) else {
            // Whether the lease exists or not, no process keeps it alive. A new id is the simplest way to continue.
            return false;
        };
        let granted = *granted;
        let record = Arc::make_mut(&mut own.record);
        record.leased = Some(granted);
        record.ttl = requested.min(granted);
        if granted > requested {
            cx.note(NodeEvent::LongLease { requested, granted });
        }
        self.put_new_session(cx, sent);
        true
    }
}

/// Result of a check whether the lease of a session exists.
pub(super) enum LeaseCheck {
    /// The check is settled without a write.
    WriteOutcome(WriteOutcome),
    /// The end of the session is being written.
    Writing,
    /// A live process has this node's name.
    NameInUse,
}

/// Evaluates the result of a check whether the lease of a session exists. `waited` is `true` if a start has waited for this session for
/// long enough.
pub(super) fn on_lease_checked(
    cx: &mut Ctx,
    id: SessionId,
    purpose: &WritePurpose,
    reply: &Reply,
    waited: bool,
) -> LeaseCheck {
    let Reply::Lease(alive) = *reply else {
        return LeaseCheck::WriteOutcome(WriteOutcome::Failed { unknown: false });
    };
    let starts = *purpose == WritePurpose::Boot;
    if cx.ended(id) || cx.session() == Some(id) {
        return LeaseCheck::WriteOutcome(WriteOutcome::Lost);
    }
    if !alive {
        // A record of a newer format is never rewritten.
        if !starts && cx.view.is_newer(id) {
            return LeaseCheck::WriteOutcome(WriteOutcome::Lost);
        }
        session_end::end_session(cx, id, EndReason::LeaseGone, purpose.clone());
        return LeaseCheck::Writing;
    }
    if cx.view.is_missing(&Key::Session(id)) {
        // The session's process detects the end at its next renewal. That process stops within a ttl from now.
        session_end::end_session(cx, id, EndReason::Missing, purpose.clone());
        return LeaseCheck::Writing;
    }
    if !starts || !waited {
        return LeaseCheck::WriteOutcome(WriteOutcome::Lost);
    }
    let record = cx.view.sessions.get(&id);
    if record.is_some_and(|s| !s.is_live() || s.leased.is_none()) || cx.view.is_corrupt(id) {
        // The length of the lease is unknown. A live owner soon writes the record again, but the watch may miss that.
        cx.read(Key::Session(id));
        return LeaseCheck::WriteOutcome(WriteOutcome::Failed { unknown: false });
    }
    LeaseCheck::NameInUse
}
