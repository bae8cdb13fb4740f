//! Sessions whose time the store keeps, by leases of its own (etcd).
//!
//! The session's record is attached to its lease and goes when the lease does. At rest nothing is written: the lease is kept
//! alive, and that counts only together with a look at the record that shows it still attached. What proves a session's end
//! is that its *lease* is gone, asked of the store; that its record is gone proves nothing, for anybody may have deleted it.
//! A lease that ran out was not renewed for a whole ttl, so its holder's gates have closed by themselves (P1). One that was
//! revoked by hand cannot be told from it: whoever revokes a lease vouches for its holder's death.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::SessionId;
use crate::keys::Key;
use crate::machine::{Connection, Found, LeaseState, Refusal, Reply, Request, StoreFailure};
use crate::reason::Reason;
use crate::record::{Damage, EndReason, Role};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::store_requests::{Pending, Settled, WritePurpose};
use super::timers::Timer;
use super::{Life, Node, Timekeeper};

impl Node {
    /// Asks for the lease of a session that is being created.
    pub(super) fn ask_for_lease(&mut self, id: SessionId) {
        let ttl = self.config.timing.ttl;
        let sent = self.now;
        self.ask(
            Connection::Renewal,
            Request::CreateLease { session: id, ttl },
            Pending::Grant { id, sent },
        );
    }

    /// The lease is there: now the record. The time counts from when the lease was asked for.
    pub(super) fn on_granted(&mut self, sent: Time, reply: Reply) {
        let requested = self.config.timing.ttl;
        if let (Reply::Failed(failure), Some(id)) = (&reply, self.session()) {
            self.tell_denied(&Key::Session(id), failure);
        }
        let (Reply::LeaseCreated(granted), Some(holder)) = (&reply, self.holder.as_mut()) else {
            // Whether the lease is there or not, nobody will keep it alive: a fresh id is the simplest way on.
            return self.session_not_created(&reply);
        };
        let granted = *granted;
        let record = Arc::make_mut(&mut holder.record);
        record.leased = Some(granted);
        record.ttl = requested.min(granted);
        if granted > requested {
            self.note(NodeEvent::LongLease { requested, granted });
        }
        self.put_new_session(sent);
    }

    /// Keeps the lease alive.
    pub(super) fn keep_alive(&mut self) {
        let sent = self.now;
        let Some(holder) = self.holder.as_mut() else {
            return;
        };
        holder.busy = true;
        holder.refused = false;
        let id = holder.id;
        self.ask(
            Connection::Renewal,
            Request::KeepAlive(id),
            Pending::KeepAlive { id, sent },
        );
    }

    pub(super) fn on_kept(&mut self, sent: Time, reply: Reply) {
        let Some(holder) = self.holder.as_mut() else {
            return;
        };
        holder.busy = false;
        let (id, ttl) = (holder.id, holder.record.ttl);
        match reply {
            Reply::KeptAlive(LeaseState::Alive(left)) => {
                let sure = self.config.timing.sure_of(left);
                self.renewal_confirmed(sent, sure);
                self.look_at_own_record(id);
                if self.holds_unsaid() {
                    // It came while the lease was kept alive, and owners wait to hear of it.
                    self.timers.set(Timer::Renew, self.now);
                }
            }
            Reply::KeptAlive(LeaseState::Unattached)
                if self.config.rules.broken_by(Mutant::LooseKeyIgnored) =>
            {
                self.renewal_confirmed(sent, ttl);
            }
            Reply::KeptAlive(LeaseState::Unattached) => {
                // What stands there now says how to go on; until then the deadline stays where it is.
                self.read_own_record(id);
            }
            Reply::KeptAlive(LeaseState::Gone) => {
                self.ran_out = Some(id);
                self.session_over(Reason::SessionEnded);
            }
            Reply::Failed(failure) => self.renewal_failed(failure),
            _ => {}
        }
    }

    /// Returns true if a held move is missing in the session's record.
    fn holds_unsaid(&self) -> bool {
        let Some(holder) = &self.holder else {
            return false;
        };
        self.held.iter().any(|(keyspace, shards)| {
            let said = holder.record.held.get(keyspace);
            let said = |shard| said.and_then(|said| said.get(shard));
            shards.iter().any(|(shard, mv)| said(shard) != Some(mv))
        })
    }

    fn read_own_record(&mut self, id: SessionId) {
        if let Some(holder) = self.holder.as_mut() {
            holder.busy = true;
        }
        self.ask(
            Connection::Renewal,
            Request::Get(Key::Session(id)),
            Pending::ReadSession { id },
        );
    }

    /// The lease is kept and the record is under it; but does the record say what it should? Others go by it, and where
    /// nothing is written at rest, only this look finds out.
    fn look_at_own_record(&mut self, id: SessionId) {
        let known = self.view.version(&Key::Session(id));
        let Some(holder) = &self.holder else { return };
        let leaves = matches!(self.life, Life::Stopping) && !holder.record.stopping;
        if leaves || holder.rewriting {
            let soon = self.now + self.config.timing.renew_retry_interval;
            self.timers.set_sooner(Timer::Renew, soon);
        } else if known != holder.version {
            self.read_own_record(id);
        }
    }

    /// Somebody else wrote the node's own record, and without its lease it would stay for ever: it is written again.
    pub(super) fn tie_to_lease(&mut self, found: Found) {
        self.rewrite_session(found);
        let error = "the session's record was written by another process".to_owned();
        self.renewal_failed(StoreFailure::Unavailable(error));
    }

    /// A write of the record whose outcome was not known is what stands there. The lease's time is another matter.
    pub(super) fn found_own_write(&mut self) {
        if let Some(holder) = self.holder.as_mut() {
            holder.rewriting = false;
            // Found once more, it was copied by somebody.
            holder.unsettled.clear();
        }
        self.timers.set(Timer::Renew, self.now);
    }

    /// Asks whether the lease of a session is gone, unless that is being asked already.
    pub(super) fn ask_lease(&mut self, id: SessionId, purpose: WritePurpose) {
        let asked = |p: &Pending| matches!(p, Pending::AskLease { id: other, .. } if *other == id);
        if purpose != WritePurpose::Boot && self.pending.values().any(asked) {
            return;
        }
        if self.config.rules.broken_by(Mutant::LeaseNotAsked) {
            return self.end_session(id, EndReason::LeaseGone, purpose);
        }
        self.ask(
            Connection::Default,
            Request::CheckLease(id),
            Pending::AskLease { id, purpose },
        );
    }

    /// The store has said whether a lease is still there.
    pub(super) fn on_lease_told(&mut self, id: SessionId, purpose: WritePurpose, reply: Reply) {
        let Reply::Lease(alive) = reply else {
            return self.settled(purpose, Settled::Failed { unknown: false });
        };
        let missing = self.view.is_missing(&Key::Session(id));
        if self.ended(id) || self.session() == Some(id) {
            self.settled(purpose, Settled::Lost);
        } else if !alive && purpose != WritePurpose::Boot && self.is_newer(id) {
            // Never rewritten, not even then.
            self.settled(purpose, Settled::Lost);
        } else if !alive {
            self.end_session(id, EndReason::LeaseGone, purpose);
        } else if missing {
            // Its holder finds out at its next renewal, and has stopped a ttl from now at the latest.
            self.end_session(id, EndReason::Missing, purpose);
        } else if purpose == WritePurpose::Boot && self.has_waited_for(id) {
            let record = self.view.sessions.get(&id);
            if record.is_some_and(|s| !s.is_live() || s.leased.is_none()) || self.is_corrupt(id) {
                // How long its lease is cannot be known. A holder that lives says so again, and soon; the watch may leave that
                // out.
                self.read(Key::Session(id));
                return self.settled(purpose, Settled::Failed { unknown: false });
            }
            self.refuse(Refusal::NameInUse { session: id });
        } else {
            self.settled(purpose, Settled::Lost);
        }
    }

    /// Asks after the sessions up to the next node's, and after everyone whose record cannot be read or tells of no lease: a
    /// record that lost its lease by somebody's hand would stay for ever once its holder is dead. Each has somebody who asks,
    /// and nobody asks after all.
    pub(super) fn ask_after_neighbours(&mut self) {
        let Some(me) = self.session() else { return };
        if self.config.timekeeper != Timekeeper::Store
            || self.config.role != Role::Node
            || !matches!(self.life, Life::Running)
        {
            return;
        }
        let mut asked: Vec<SessionId> = Vec::new();
        let cells = || self.view.sessions.cells();
        let odd = cells().filter(|(_, cell)| match cell {
            KeyState::Present(seen) => seen.record.is_live() && seen.record.leased.is_none(),
            KeyState::Damaged { .. } => true,
            KeyState::Missing { .. } => false,
        });
        asked.extend(odd.map(|(id, _)| *id));
        let (before, after): (Vec<_>, Vec<_>) = self
            .view
            .sessions
            .iter()
            .filter(|(id, seen)| **id != me && seen.record.is_live())
            .partition(|(id, _)| **id < me);
        for (id, seen) in after.into_iter().chain(before) {
            asked.push(*id);
            let named = self.view.nodes.get(&seen.record.node);
            if seen.record.role == Role::Node && named.is_some_and(|n| n.session == *id) {
                // From there on it asks.
                break;
            }
        }
        for id in asked {
            if id != me {
                self.ask_lease(id, WritePurpose::ExpireSession(id));
            }
        }
    }

    fn is_corrupt(&self, id: SessionId) -> bool {
        let cell = self.view.sessions.cell(&id);
        matches!(
            cell,
            Some(KeyState::Damaged {
                damage: Damage::Corrupt(_),
                ..
            })
        )
    }

    /// When the store must have ended the session of a process that is dead, counted from now on: it is granted for longer than
    /// the ttl where the store has a least time of its own, and is not looked at all the time.
    pub(super) fn lease_ends_within(&self, session: SessionId) -> Duration {
        let record = self.view.sessions.get(&session);
        let granted = record.and_then(|s| s.leased).unwrap_or_default();
        let longest = granted.max(self.longest_ttl());
        longest + longest / 5 + Duration::from_secs(1)
    }

    /// Goes on with a start that finds its name taken, where the store keeps the time.
    pub(super) fn wait_for_lease(&mut self, session: SessionId, limit: Time) -> Option<Time> {
        let missing = self.view.is_missing(&Key::Session(session));
        if self.view.sessions.cell(&session).is_none() {
            self.absent.insert(Key::Session(session));
            return Some(self.now + self.config.timing.renew_interval);
        }
        if !missing && self.now < limit {
            return Some(limit);
        }
        self.timers.clear(&Timer::Boot);
        self.ask_lease(session, WritePurpose::Boot);
        None
    }
}
