//! The node's own session: its renewals, and the consequences of failed renewals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Nonce, SessionId, Version};
use crate::keys::Key;
use crate::lease::{Lease, LeasePhase};
use crate::machine::{Action, Connection, Expect, Found, Reply, Request, StoreFailure};
use crate::reason::Reason;
use crate::record::{BootClock, FORMAT, Head, Record, RecordError, SessionRecord, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::shards::Shards;
use super::store_requests::Pending;
use super::timers::Timer;
use super::{Life, Timekeeper, shutdown, sync, unserved};

/// Session that this node has created or is creating.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnSession {
    pub(super) id: SessionId,
    pub(super) record: Arc<SessionRecord>,
    /// Version that the next renewal expects; `None` until the creation is confirmed.
    pub(super) version: Option<Version>,
    pub(super) lease: Option<Lease>,
    /// Renewals with unknown outcome and their send times. The value in the store may be that of any of them.
    pub(super) unsettled: Vec<(Nonce, Time)>,
    pub(super) busy: bool,
    /// The next renewal replaces a value that is unreadable or was written by another process. Such a renewal counts only if its reply
    /// arrives before the deadline.
    pub(super) rewriting: bool,
    /// A write of the record has failed, perhaps because its lease is gone. Used only where the store keeps the time. A keep-alive
    /// checks the lease before the next write.
    pub(super) refused: bool,
    /// The end of this session was sent. From then on the session owns nothing and is not renewed, whatever the outcome of the write.
    pub(super) resigned: bool,
    /// Registration time; zero before the node runs in this session.
    pub(super) registered: Time,
}

/// State of the renewals of the node's session, and of the reports in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Session {
    /// Number of sessions that this process has created.
    pub(super) sessions: u64,
    /// Earliest time at which the end of the session is written again.
    pub(super) resign_not_before: Time,
    /// Last sign of life of the application's runtime.
    pub(super) progress: Time,
    /// `true` once a blocked runtime, which stops the renewals, was reported.
    pub(super) wedged: bool,
    /// Session of this node that has expired according to the store.
    pub(super) expired_session: Option<SessionId>,
    /// Time of the last write of the session's record that reported costs or changed its list of unserved shards.
    pub(super) costs_reported_at: Time,
}

/// A change of the session that concerns other parts of the node.
#[derive(Clone, Copy, Debug)]
pub(super) enum SessionChange {
    /// The lease is in another phase.
    Lease(LeasePhase),
    /// The session is over. Everything closes before anything else happens, then the node registers again.
    Over(Reason),
}

impl OwnSession {
    /// Returns whether a renewal of this session can have written this record: all fields that renewals never change are as before.
    fn may_have_written(&self, record: &SessionRecord, stopping: bool) -> bool {
        let mine = &*self.record;
        let same = SessionRecord {
            head: mine.head.clone(),
            stopping: mine.stopping,
            costs: mine.costs.clone(),
            held: mine.held.clone(),
            unserved: mine.unserved.clone(),
            renewals: mine.renewals,
            boot_clock: mine.boot_clock.clone(),
            ..record.clone()
        };
        same == *mine && (!record.stopping || mine.stopping || stopping)
    }
}

impl Session {
    /// Creates a session under an id that was never used.
    pub(super) fn create_session(&mut self, cx: &mut Ctx) {
        self.sessions += 1;
        let id = SessionId(cx.config.entropy.wrapping_add(u128::from(self.sessions)));
        let nonce = cx.nonce();
        let config = Arc::clone(&cx.config);
        let cluster = cx.view.cluster.get(&());
        let record = Arc::new(SessionRecord {
            head: Head::first(nonce),
            ended: None,
            stopping: false,
            node: config.name.clone(),
            role: config.role,
            addresses: config.addresses.clone(),
            zone: config.zone.clone(),
            weight: config.weight,
            labels: config.labels.clone(),
            capacity: config.capacity,
            keyspaces: Arc::new(config.keyspaces.keys().cloned().collect()),
            costs: BTreeMap::new(),
            held: BTreeMap::new(),
            unserved: BTreeMap::new(),
            ttl: config.timing.ttl,
            renewals: 0,
            boot: cluster.map_or(0, |c| c.boot),
            reads_format: FORMAT,
            version: config.version.as_str().into(),
            store: cluster.map_or("", |c| &c.store).into(),
            leased: None,
            boot_clock: boot_clock(cx),
            unknown: Unknown::new(),
        });
        cx.own = Some(OwnSession {
            id,
            record,
            version: None,
            lease: None,
            unsettled: Vec::new(),
            busy: false,
            rewriting: false,
            refused: false,
            resigned: false,
            registered: Time::ZERO,
        });
        cx.out.push(Action::Remember(id));
        match config.timekeeper {
            Timekeeper::Nodes => self.put_new_session(cx, cx.now),
            Timekeeper::Store => self.ask_for_lease(cx, id),
        }
    }

    /// Writes the record of the session that is being created. Its time counts from `sent`.
    pub(super) fn put_new_session(&mut self, cx: &mut Ctx, sent: Time) {
        let Some(holder) = &cx.own else { return };
        let nonce = holder.record.head.nonce;
        let request = Request::Put {
            key: Key::Session(holder.id),
            expect: Expect::Absent,
            record: Record::Session(Arc::clone(&holder.record)),
        };
        cx.ask(
            Connection::Renewal,
            request,
            Pending::CreateSession { nonce, sent },
        );
    }

    /// Returns the time since the runtime's last sign of life if it exceeds `stall_limit`.
    pub(super) fn is_wedged(&self, cx: &Ctx) -> Option<Duration> {
        let silent = cx.now.since(self.progress);
        (cx.started && silent > cx.config.timing.stall_limit).then_some(silent)
    }

    /// Sends a renewal, unless one is in progress, the session's end was sent, or the application's runtime shows no sign of life.
    pub(super) fn renew(&mut self, cx: &mut Ctx, shards: &Shards) {
        if cx.has_resigned() {
            return;
        }
        if let Some(since) = self.is_wedged(cx) {
            cx.timers
                .set(Timer::Renew, cx.now + cx.config.timing.renew_retry_interval);
            if !std::mem::replace(&mut self.wedged, true) {
                cx.note(NodeEvent::RuntimeBlocked { since });
            }
            return;
        }
        self.wedged = false;
        let nonce = cx.nonce();
        let boot_clock = boot_clock(cx);
        let stopping = matches!(cx.life, Life::Stopping);
        let loads = shards.reported_costs(cx);
        let unserved = unserved::unserved_shards(cx);
        let news = self.costs_changed(cx, &loads) || self.unserved_changed(cx, &unserved);
        let Some(holder) = cx.own.as_mut().filter(|h| !h.busy) else {
            return;
        };
        let Some(version) = holder.version.clone() else {
            return;
        };
        let leaves = stopping && !holder.record.stopping;
        let holds = holder.record.held != cx.held;
        let writes = (leaves || holder.rewriting || news || holds) && !holder.refused;
        if holder.record.leased.is_some()
            && !writes
            && !cx.config.rules.broken_by(Mutant::RenewedByWriting)
        {
            return self.keep_alive(cx);
        }
        holder.busy = true;
        let mut record = (*holder.record).clone();
        record.head = record.head.next(nonce);
        record.renewals += 1;
        record.boot_clock = boot_clock;
        // Other nodes exclude a stopping node from assignment and claim the shards that it releases at once.
        record.stopping |= stopping;
        let tells_load = !loads.is_empty() || record.unserved != unserved;
        record.costs = loads;
        record.held = cx.held.clone();
        record.unserved = unserved;
        let record = Record::Session(Arc::new(record));
        let id = holder.id;
        if tells_load {
            self.note_cost_report(cx, cx.now);
        }
        let request = Request::Put {
            key: Key::Session(id),
            expect: Expect::Version(version),
            record: record.clone(),
        };
        cx.ask(
            Connection::Renewal,
            request,
            Pending::Renew {
                id,
                nonce,
                sent: cx.now,
                record,
            },
        );
        if cx.config.rules.broken_by(Mutant::RenewPerShard) {
            sync::renew_every_shard(cx);
        }
    }

    /// Returns `true` if the moves that the session reports as held differ from those held now.
    fn held_changed(&self, cx: &Ctx) -> bool {
        let told = cx.own.as_ref().map(|h| &h.record.held);
        told.is_some_and(|told| *told != cx.held)
    }

    pub(super) fn on_renewed(
        &mut self,
        cx: &mut Ctx,
        nonce: Nonce,
        sent: Time,
        record: Record,
        reply: Reply,
    ) -> Option<SessionChange> {
        let Record::Session(record) = record else {
            return None;
        };
        let holder = cx.own.as_mut()?;
        let id = holder.id;
        let key = Key::Session(id);
        match reply {
            Reply::Won(_)
                if holder.rewriting
                    && holder.lease.as_ref().is_none_or(|l| cx.now >= l.deadline()) =>
            {
                return Some(SessionChange::Over(Reason::RecordUnreadable));
            }
            Reply::Won(version) => {
                holder.busy = false;
                holder.rewriting = false;
                holder.version = Some(version.clone());
                holder.record = Arc::clone(&record);
                let leased = record.leased.is_some();
                cx.learn(
                    &key,
                    Found {
                        version,
                        record: Ok(Record::Session(record)),
                    },
                );
                if leased && !cx.config.rules.broken_by(Mutant::RenewedByWriting) {
                    // The write does not extend the lease, so a keep-alive follows.
                    cx.timers.set(Timer::Renew, cx.now);
                } else {
                    let change = self.renewal_confirmed(cx, sent, cx.config.timing.ttl);
                    if self.held_changed(cx) {
                        cx.timers.set(Timer::Renew, cx.now);
                    }
                    return change;
                }
            }
            Reply::Lost => {
                cx.ask(
                    Connection::Renewal,
                    Request::Get(key),
                    Pending::ReadSession { id },
                );
            }
            Reply::Failed(failure) => {
                if matches!(failure, StoreFailure::Unknown(_)) {
                    // Only the newest renewals can still set the deadline, so at most 16 are kept.
                    holder.unsettled.truncate(15);
                    holder.unsettled.insert(0, (nonce, sent));
                }
                holder.busy = false;
                holder.refused = record.leased.is_some();
                return self.renewal_failed(cx, failure);
            }
            _ => {}
        }
        None
    }

    /// Evaluates the stored record after a renewal found an unexpected version: the node's own late write, a foreign write, or an end.
    pub(super) fn on_session_read(&mut self, cx: &mut Ctx, reply: Reply) -> Option<SessionChange> {
        let (rules, stopping) = (cx.config.rules, cx.is_leaving());
        let holder = cx.own.as_mut()?;
        let id = holder.id;
        holder.busy = false;
        let late = holder.rewriting && holder.lease.as_ref().is_none_or(|l| cx.now >= l.deadline());
        match reply {
            Reply::Got(Some(found)) => {
                let key = Key::Session(id);
                match found.record.clone() {
                    Ok(Record::Session(record)) if record.ended.is_none() => {
                        // A nonce alone proves nothing: another process may have edited a copy of the record.
                        let believed = holder.may_have_written(&record, stopping)
                            || rules.broken_by(Mutant::CopyBelieved);
                        let own = holder
                            .unsettled
                            .iter()
                            .find(|(nonce, _)| believed && *nonce == record.head.nonce)
                            .copied();
                        let leased = holder.record.leased.is_some();
                        if own.is_none() && leased {
                            return self.tie_to_lease(cx, found);
                        }
                        holder.version = Some(found.version.clone());
                        if own.is_some() {
                            holder.record = record;
                        } else {
                            // Only the session's own process knows the right content. Of a foreign write, the rev alone counts.
                            let head = &mut Arc::make_mut(&mut holder.record).head;
                            head.rev = head.rev.max(record.head.rev);
                        }
                        cx.learn(&key, found);
                        match own {
                            Some(_) if late => {
                                return Some(SessionChange::Over(Reason::RecordUnreadable));
                            }
                            Some(_) if leased => self.found_own_write(cx),
                            Some((_, sent)) => {
                                return self.renewal_confirmed(cx, sent, cx.config.timing.ttl);
                            }
                            None => cx.timers.set(Timer::Renew, cx.now),
                        }
                        None
                    }
                    Ok(_) => {
                        cx.learn(&key, found);
                        Some(SessionChange::Over(Reason::SessionEnded))
                    }
                    Err(RecordError::Corrupt(_)) => self.rewrite_session(cx, found),
                    Err(newer) => self.renewal_failed(cx, StoreFailure::Denied(newer.to_string())),
                }
            }
            Reply::Got(None) => Some(SessionChange::Over(Reason::RecordMissing)),
            Reply::Failed(failure) => self.renewal_failed(cx, failure),
            _ => None,
        }
    }

    /// Schedules a rewrite of the node's own session record, which is unreadable or was written by another process. The value may have
    /// replaced a tombstone. But while the lease has time left, no process can have proven an end, so the rewrite is safe. After that
    /// the session is over.
    pub(super) fn rewrite_session(&mut self, cx: &mut Ctx, found: Found) -> Option<SessionChange> {
        let may_own = cx.lease_phase().is_some_and(LeasePhase::may_own);
        let key = cx.session().map(Key::Session)?;
        let version = found.version.clone();
        cx.learn(&key, found);
        let rev = cx.view.fresh_rev(&key);
        let Some(holder) = cx.own.as_mut().filter(|_| may_own) else {
            return Some(SessionChange::Over(Reason::RecordUnreadable));
        };
        let mut record = (*holder.record).clone();
        record.head.rev = record.head.rev.max(rev);
        holder.record = Arc::new(record);
        holder.version = Some(version);
        holder.rewriting = true;
        cx.timers.set(Timer::Renew, cx.now);
        None
    }

    /// Extends the lease by `ttl` from the time `sent`, but at most by the ttl in the record, on which other processes rely.
    pub(super) fn renewal_confirmed(
        &mut self,
        cx: &mut Ctx,
        sent: Time,
        ttl: Duration,
    ) -> Option<SessionChange> {
        let (timing, rules) = (cx.timing(), cx.config.rules);
        let holder = cx.own.as_mut()?;
        if !holder.rewriting {
            holder.unsettled.clear();
        }
        let ttl = ttl.min(holder.record.ttl);
        let lease = holder.lease.as_mut()?;
        let from = lease.phase();
        let to = lease.confirmed(cx.now, sent, ttl, &timing, rules);
        let left = lease.deadline().since(cx.now);
        cx.timers
            .set(Timer::Renew, (sent + timing.renew_interval).max(cx.now));
        cx.note(NodeEvent::Renewed {
            took: cx.now.since(sent),
            left,
        });
        self.publish_lease(cx);
        self.lease_moved(cx, from, to)
    }

    pub(super) fn renewal_failed(
        &mut self,
        cx: &mut Ctx,
        failure: StoreFailure,
    ) -> Option<SessionChange> {
        let (timing, rules) = (cx.timing(), cx.config.rules);
        let lease = cx.own.as_mut().and_then(|h| h.lease.as_mut())?;
        let from = lease.phase();
        let to = lease.failed(cx.now, &timing, rules);
        let streak = lease.failure_streak();
        if !rules.broken_by(Mutant::RenewalGivesUp) {
            cx.timers
                .set(Timer::Renew, cx.now + timing.renew_retry_interval);
        }
        let (StoreFailure::Unavailable(error)
        | StoreFailure::Unknown(error)
        | StoreFailure::Denied(error)) = failure;
        cx.note(NodeEvent::RenewalFailed { streak, error });
        self.lease_moved(cx, from, to)
    }

    /// Applies the passage of time to the lease; called at every step, whatever the event.
    pub(super) fn tick_lease(&mut self, cx: &mut Ctx) -> Option<SessionChange> {
        let lease = cx.own.as_mut().and_then(|h| h.lease.as_mut())?;
        let from = lease.phase();
        let to = lease.tick(cx.now, &cx.config.timing, cx.config.rules);
        // In the same phase the wake-up time is unchanged.
        match from == to {
            true => None,
            false => self.lease_moved(cx, from, to),
        }
    }

    fn lease_moved(
        &mut self,
        cx: &mut Ctx,
        from: LeasePhase,
        to: LeasePhase,
    ) -> Option<SessionChange> {
        let rules = cx.config.rules;
        let wake = cx
            .own
            .as_ref()
            .and_then(|h| h.lease.as_ref())
            .and_then(|l| l.wake(&cx.config.timing, rules));
        match wake {
            Some(at) => cx.timers.set(Timer::Lease, at),
            None => cx.timers.clear(&Timer::Lease),
        }
        if from == to {
            return None;
        }
        cx.note(NodeEvent::Lease { from, to });
        Some(SessionChange::Lease(to))
    }

    fn publish_lease(&mut self, cx: &mut Ctx) {
        let Some(holder) = &cx.own else { return };
        let Some(lease) = &holder.lease else { return };
        let stop_time = lease.closes_at(&cx.config.timing, cx.config.rules);
        cx.out.push(Action::Lease {
            session: holder.id,
            stop_time,
            deadline: lease.deadline(),
        });
        let wake = lease.wake(&cx.config.timing, cx.config.rules);
        if let Some(at) = wake {
            cx.timers.set(Timer::Lease, at);
        }
    }

    /// Evaluates a change of the session's own record.
    pub(super) fn on_own_record(&self, cx: &mut Ctx) -> Option<SessionChange> {
        let id = cx.session()?;
        match cx.view.sessions.cell(&id) {
            Some(KeyState::Present(seen))
                if seen.record.ended.is_some() && !shutdown::is_resigning(cx) =>
            {
                Some(SessionChange::Over(Reason::SessionEnded))
            }
            Some(KeyState::Missing { .. }) => Some(SessionChange::Over(Reason::RecordMissing)),
            // Other processes take this node for dead until the record is rewritten.
            Some(KeyState::Damaged { .. }) => {
                cx.timers.set(Timer::Renew, cx.now);
                None
            }
            _ => None,
        }
    }
}

fn boot_clock(cx: &Ctx) -> Option<BootClock> {
    let id = cx.config.boot_id.clone()?;
    Some(BootClock {
        id,
        until_ns: cx.now + cx.config.timing.ttl,
    })
}

impl Session {
    /// Begins the lease of a session whose record was created. Returns `None` if the reply is for another session. Returns `false` if
    /// the session was not created.
    pub(super) fn on_created(
        &mut self,
        cx: &mut Ctx,
        nonce: Nonce,
        sent: Time,
        reply: &Reply,
    ) -> Option<bool> {
        let own = cx
            .own
            .as_mut()
            .filter(|own| own.record.head.nonce == nonce)?;
        let Reply::Won(version) = reply else {
            // Whether the record exists or not, no process renews it. A new id is the simplest way to continue.
            return Some(false);
        };
        own.version = Some(version.clone());
        let timing = &cx.config.timing;
        let sure = match own.record.leased {
            Some(granted) => timing.sure_of(granted),
            None => own.record.ttl,
        };
        let ttl = sure.min(own.record.ttl);
        own.lease = Some(Lease::new(cx.now, sent, ttl, cx.config.rules));
        let key = Key::Session(own.id);
        let found = Found {
            version: version.clone(),
            record: Ok(Record::Session(Arc::clone(&own.record))),
        };
        cx.learn(&key, found);
        let at = sent + cx.config.timing.renew_interval;
        cx.timers.set(Timer::Renew, at);
        self.publish_lease(cx);
        Some(true)
    }
}
