//! The node's own session: its renewals, and what it means when they fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{Nonce, SessionId, Version};
use crate::keys::Key;
use crate::lease::{Lease, LeasePhase};
use crate::machine::{Action, Connection, Expect, Found, Reply, Request, StoreFailure};
use crate::reason::Reason;
use crate::record::{BootClock, Damage, FORMAT, Head, Record, SessionRecord, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::startup::Boot;
use super::store_requests::{Pending, Settled};
use super::timers::Timer;
use super::{Life, Node, Timekeeper};

/// A session that this node has created, or is creating.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnSession {
    pub(super) id: SessionId,
    pub(super) record: Arc<SessionRecord>,
    /// The version to renew; `None` until the creation is confirmed.
    pub(super) version: Option<Version>,
    pub(super) lease: Option<Lease>,
    /// Renewals whose outcome is unknown, and when they were sent: one of them may be what stands in the store.
    pub(super) unsettled: Vec<(Nonce, Time)>,
    pub(super) busy: bool,
    /// The next renewal replaces a value that is not this node's, or cannot be read: it counts only if its answer is here
    /// in time.
    pub(super) rewriting: bool,
    /// Where the store keeps the time: a write of the record has failed, perhaps because its lease is gone. That is found
    /// out before the next.
    pub(super) refused: bool,
    /// The end of this session was sent. From then on the session owns nothing and is not renewed, whatever the outcome of the
    /// write.
    pub(super) resigned: bool,
    /// Registration time; zero before the node runs in this session.
    pub(super) registered: Time,
}

/// State of the renewals of the node's session, and what the session's record reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Session {
    /// Number of sessions that this process has created.
    pub(super) sessions: u64,
    /// Time before which the end of the session is not written again.
    pub(super) resign_not_before: Time,
    /// Last sign of life of the application's runtime.
    pub(super) progress: Time,
    /// It was reported that renewals have stopped because the runtime shows no sign of life.
    pub(super) wedged: bool,
    /// Session of this node that has expired according to the store.
    pub(super) ran_out: Option<SessionId>,
    /// Time of the last write of the session's record that reported costs or changed its list of unserved shards.
    pub(super) load_told: Time,
}

impl OwnSession {
    /// Returns whether a renewal of this session can have written this record: everything that renewals never change is as it
    /// was.
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

impl Node {
    /// Creates a session under an id that was never used.
    pub(super) fn create_session(&mut self) {
        self.session.sessions += 1;
        let id = SessionId(
            self.ctx
                .config
                .entropy
                .wrapping_add(u128::from(self.session.sessions)),
        );
        let nonce = self.ctx.nonce();
        let config = Arc::clone(&self.ctx.config);
        let cluster = self.ctx.view.cluster.get(&());
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
            boot_clock: self.boot_clock(),
            unknown: Unknown::new(),
        });
        self.ctx.own = Some(OwnSession {
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
        self.ctx.out.push(Action::Remember(id));
        match config.timekeeper {
            Timekeeper::Nodes => self.put_new_session(self.ctx.now),
            Timekeeper::Store => self.ask_for_lease(id),
        }
    }

    /// Writes the record of the session that is being created. Its time counts from `sent`.
    pub(super) fn put_new_session(&mut self, sent: Time) {
        let Some(holder) = &self.ctx.own else { return };
        let nonce = holder.record.head.nonce;
        let request = Request::Put {
            key: Key::Session(holder.id),
            expect: Expect::Absent,
            record: Record::Session(Arc::clone(&holder.record)),
        };
        self.ctx.ask(
            Connection::Renewal,
            request,
            Pending::CreateSession { nonce, sent },
        );
    }

    pub(super) fn on_session_created(&mut self, nonce: Nonce, sent: Time, reply: Reply) {
        let Some(holder) = self
            .ctx
            .own
            .as_mut()
            .filter(|h| h.record.head.nonce == nonce)
        else {
            return;
        };
        let Reply::Won(version) = reply else {
            // Whether the record is there or not, nobody will renew it: a fresh id is the simplest way on.
            return self.session_not_created(&reply);
        };
        holder.version = Some(version.clone());
        let sure = holder.record.leased.map_or(holder.record.ttl, |granted| {
            self.ctx.config.timing.sure_of(granted)
        });
        let ttl = sure.min(holder.record.ttl);
        let lease = Lease::new(self.ctx.now, sent, ttl, self.ctx.config.rules);
        holder.lease = Some(lease);
        let (id, record) = (holder.id, Arc::clone(&holder.record));
        self.ctx.learn(
            &Key::Session(id),
            Found {
                version,
                record: Ok(Record::Session(record)),
            },
        );
        self.ctx
            .timers
            .set(Timer::Renew, sent + self.ctx.config.timing.renew_interval);
        self.publish_lease();
        self.on_boot_settled(Settled::Done);
    }

    /// For how long the application's runtime has shown no sign of life, if that is too long.
    pub(super) fn is_wedged(&self) -> Option<Duration> {
        let silent = self.ctx.now.since(self.session.progress);
        (self.ctx.started && silent > self.ctx.config.timing.stall_limit).then_some(silent)
    }

    /// Sends a renewal, unless one is under way, the session's end was sent, or the application's runtime shows no sign of
    /// life.
    pub(super) fn renew(&mut self) {
        if self.ctx.has_resigned() {
            return;
        }
        if let Some(since) = self.is_wedged() {
            self.ctx.timers.set(
                Timer::Renew,
                self.ctx.now + self.ctx.config.timing.renew_retry_interval,
            );
            if !std::mem::replace(&mut self.session.wedged, true) {
                self.ctx.note(NodeEvent::RuntimeBlocked { since });
            }
            return;
        }
        self.session.wedged = false;
        let nonce = self.ctx.nonce();
        let boot_clock = self.boot_clock();
        let stopping = matches!(self.ctx.life, Life::Stopping);
        let loads = self.shards.loads(&self.ctx);
        let unserved = self.unserved();
        let news = self.is_news(&loads) || self.unserved_is_news(&unserved);
        let Some(holder) = self.ctx.own.as_mut().filter(|h| !h.busy) else {
            return;
        };
        let Some(version) = holder.version.clone() else {
            return;
        };
        let leaves = stopping && !holder.record.stopping;
        let holds = holder.record.held != self.ctx.held;
        let writes = (leaves || holder.rewriting || news || holds) && !holder.refused;
        if holder.record.leased.is_some()
            && !writes
            && !self.ctx.config.rules.broken_by(Mutant::RenewedByWriting)
        {
            return self.keep_alive();
        }
        holder.busy = true;
        let mut record = (*holder.record).clone();
        record.head = record.head.next(nonce);
        record.renewals += 1;
        record.boot_clock = boot_clock;
        // Nobody should count on a node that stops; what it has released goes to the others at once.
        record.stopping |= stopping;
        let tells_load = !loads.is_empty() || record.unserved != unserved;
        record.costs = loads;
        record.held = self.ctx.held.clone();
        record.unserved = unserved;
        let record = Record::Session(Arc::new(record));
        let id = holder.id;
        if tells_load {
            self.load_was_told(self.ctx.now);
        }
        let request = Request::Put {
            key: Key::Session(id),
            expect: Expect::Version(version),
            record: record.clone(),
        };
        self.ctx.ask(
            Connection::Renewal,
            request,
            Pending::Renew {
                id,
                nonce,
                sent: self.ctx.now,
                record,
            },
        );
        if self.ctx.config.rules.broken_by(Mutant::RenewPerShard) {
            self.renew_every_shard();
        }
    }

    /// Whether what the session says is held is not what is held.
    fn tells_old_news(&self) -> bool {
        let told = self.ctx.own.as_ref().map(|h| &h.record.held);
        told.is_some_and(|told| *told != self.ctx.held)
    }

    pub(super) fn on_renewed(&mut self, nonce: Nonce, sent: Time, record: Record, reply: Reply) {
        let Record::Session(record) = record else {
            return;
        };
        let Some(holder) = self.ctx.own.as_mut() else {
            return;
        };
        let id = holder.id;
        let key = Key::Session(id);
        match reply {
            Reply::Won(_)
                if holder.rewriting
                    && holder
                        .lease
                        .as_ref()
                        .is_none_or(|l| self.ctx.now >= l.deadline()) =>
            {
                self.session_over(Reason::RecordUnreadable);
            }
            Reply::Won(version) => {
                holder.busy = false;
                holder.rewriting = false;
                holder.version = Some(version.clone());
                holder.record = Arc::clone(&record);
                let leased = record.leased.is_some();
                self.ctx.learn(
                    &key,
                    Found {
                        version,
                        record: Ok(Record::Session(record)),
                    },
                );
                if leased && !self.ctx.config.rules.broken_by(Mutant::RenewedByWriting) {
                    // The lease's time goes on as if nothing had been written.
                    self.ctx.timers.set(Timer::Renew, self.ctx.now);
                } else {
                    self.renewal_confirmed(sent, self.ctx.config.timing.ttl);
                    if self.tells_old_news() {
                        self.ctx.timers.set(Timer::Renew, self.ctx.now);
                    }
                }
            }
            Reply::Lost => {
                self.ctx.ask(
                    Connection::Renewal,
                    Request::Get(key),
                    Pending::ReadSession { id },
                );
            }
            Reply::Failed(failure) => {
                if matches!(failure, StoreFailure::Unknown(_)) {
                    // Only the newest can still become the deadline that counts.
                    holder.unsettled.truncate(15);
                    holder.unsettled.insert(0, (nonce, sent));
                }
                holder.busy = false;
                holder.refused = record.leased.is_some();
                self.renewal_failed(failure);
            }
            _ => {}
        }
    }

    /// A renewal found another version than it expected: its own late write, or an end.
    pub(super) fn on_session_read(&mut self, reply: Reply) {
        let (rules, stopping) = (self.ctx.config.rules, self.ctx.is_leaving());
        let Some(holder) = self.ctx.own.as_mut() else {
            return;
        };
        let id = holder.id;
        holder.busy = false;
        let late = holder.rewriting
            && holder
                .lease
                .as_ref()
                .is_none_or(|l| self.ctx.now >= l.deadline());
        match reply {
            Reply::Got(Some(found)) => {
                let key = Key::Session(id);
                match found.record.clone() {
                    Ok(Record::Session(record)) if record.ended.is_none() => {
                        // A nonce alone proves nothing: somebody may have edited a copy of the record.
                        let believed = holder.may_have_written(&record, stopping)
                            || rules.broken_by(Mutant::CopyBelieved);
                        let own = holder
                            .unsettled
                            .iter()
                            .find(|(nonce, _)| believed && *nonce == record.head.nonce)
                            .copied();
                        let leased = holder.record.leased.is_some();
                        if own.is_none() && leased {
                            return self.tie_to_lease(found);
                        }
                        holder.version = Some(found.version.clone());
                        if own.is_some() {
                            holder.record = record;
                        } else {
                            // Only its holder knows what a session is: of what somebody else wrote, the rev alone counts.
                            let head = &mut Arc::make_mut(&mut holder.record).head;
                            head.rev = head.rev.max(record.head.rev);
                        }
                        self.ctx.learn(&key, found);
                        match own {
                            Some(_) if late => self.session_over(Reason::RecordUnreadable),
                            Some(_) if leased => self.found_own_write(),
                            Some((_, sent)) => {
                                self.renewal_confirmed(sent, self.ctx.config.timing.ttl)
                            }
                            None => self.ctx.timers.set(Timer::Renew, self.ctx.now),
                        }
                    }
                    Ok(_) => {
                        self.ctx.learn(&key, found);
                        self.session_over(Reason::SessionEnded);
                    }
                    Err(Damage::Corrupt(_)) => self.rewrite_session(found),
                    Err(newer) => self.renewal_failed(StoreFailure::Denied(newer.to_string())),
                }
            }
            Reply::Got(None) => self.session_over(Reason::RecordMissing),
            Reply::Failed(failure) => self.renewal_failed(failure),
            _ => {}
        }
    }

    /// The node's own session record cannot be read, or is not its own. What stood there may have been a tombstone; but as long
    /// as the lease has time, nobody can have proven an end, and the record may be written again. Later it may not.
    pub(super) fn rewrite_session(&mut self, found: Found) {
        let may_own = self.ctx.lease_phase().is_some_and(LeasePhase::may_own);
        let Some(key) = self.ctx.session().map(Key::Session) else {
            return;
        };
        let version = found.version.clone();
        self.ctx.learn(&key, found);
        let rev = self.ctx.view.fresh_rev(&key);
        let Some(holder) = self.ctx.own.as_mut().filter(|_| may_own) else {
            return self.session_over(Reason::RecordUnreadable);
        };
        let mut record = (*holder.record).clone();
        record.head.rev = record.head.rev.max(rev);
        holder.record = Arc::new(record);
        holder.version = Some(version);
        holder.rewriting = true;
        self.ctx.timers.set(Timer::Renew, self.ctx.now);
    }

    /// A renewal that was sent at `sent` is good for `ttl`, but for no longer than everybody reads in the record.
    pub(super) fn renewal_confirmed(&mut self, sent: Time, ttl: Duration) {
        let (timing, rules) = (self.ctx.timing(), self.ctx.config.rules);
        let Some(holder) = self.ctx.own.as_mut() else {
            return;
        };
        if !holder.rewriting {
            holder.unsettled.clear();
        }
        let ttl = ttl.min(holder.record.ttl);
        let Some(lease) = holder.lease.as_mut() else {
            return;
        };
        let from = lease.phase();
        let to = lease.confirmed(self.ctx.now, sent, ttl, &timing, rules);
        let left = lease.deadline().since(self.ctx.now);
        self.ctx.timers.set(
            Timer::Renew,
            (sent + timing.renew_interval).max(self.ctx.now),
        );
        self.ctx.note(NodeEvent::Renewed {
            took: self.ctx.now.since(sent),
            left,
        });
        self.publish_lease();
        self.lease_moved(from, to);
    }

    pub(super) fn renewal_failed(&mut self, failure: StoreFailure) {
        let (timing, rules) = (self.ctx.timing(), self.ctx.config.rules);
        let Some(lease) = self.ctx.own.as_mut().and_then(|h| h.lease.as_mut()) else {
            return;
        };
        let from = lease.phase();
        let to = lease.failed(self.ctx.now, &timing, rules);
        let streak = lease.failure_streak();
        if !rules.broken_by(Mutant::RenewalGivesUp) {
            self.ctx
                .timers
                .set(Timer::Renew, self.ctx.now + timing.renew_retry_interval);
        }
        let (StoreFailure::Unavailable(error)
        | StoreFailure::Unknown(error)
        | StoreFailure::Denied(error)) = failure;
        self.ctx.note(NodeEvent::RenewalFailed { streak, error });
        self.lease_moved(from, to);
    }

    /// Lets the clock act on the lease: called at every step, whatever the event.
    pub(super) fn tick_lease(&mut self) {
        let Some(lease) = self.ctx.own.as_mut().and_then(|h| h.lease.as_mut()) else {
            return;
        };
        let from = lease.phase();
        let to = lease.tick(self.ctx.now, &self.ctx.config.timing, self.ctx.config.rules);
        // Else it wants to be woken when it did before.
        if from != to {
            self.lease_moved(from, to);
        }
    }

    fn lease_moved(&mut self, from: LeasePhase, to: LeasePhase) {
        let rules = self.ctx.config.rules;
        let wake = self
            .ctx
            .own
            .as_ref()
            .and_then(|h| h.lease.as_ref())
            .and_then(|l| l.wake(&self.ctx.config.timing, rules));
        match wake {
            Some(at) => self.ctx.timers.set(Timer::Lease, at),
            None => self.ctx.timers.clear(&Timer::Lease),
        }
        if from == to {
            return;
        }
        self.ctx.note(NodeEvent::Lease { from, to });
        self.leader.look_at_leader(&mut self.ctx, &self.membership);
        if to == LeasePhase::Detached {
            self.shards.cut_all(&mut self.ctx, Reason::LeaseLost);
        }
        if to == LeasePhase::Attached {
            // What was observed while the store was away proves nothing about others.
            self.membership.trust_from(self.ctx.now);
            if let Some(company) = &mut self.startup.company {
                company.restart(self.ctx.now);
            }
            self.ctx.scan_all = true;
        }
    }

    fn publish_lease(&mut self) {
        let Some(holder) = &self.ctx.own else { return };
        let Some(lease) = &holder.lease else { return };
        let stop_time = lease.closes_at(&self.ctx.config.timing, self.ctx.config.rules);
        self.ctx.out.push(Action::Lease {
            session: holder.id,
            stop_time,
            deadline: lease.deadline(),
        });
        let wake = lease.wake(&self.ctx.config.timing, self.ctx.config.rules);
        if let Some(at) = wake {
            self.ctx.timers.set(Timer::Lease, at);
        }
    }

    /// The node's session is over: everything closes before anything else happens, then the node registers anew.
    pub(super) fn session_over(&mut self, reason: Reason) {
        let Some(holder) = self.ctx.own.take() else {
            return;
        };
        self.shards.cut_all(&mut self.ctx, reason);
        self.leader.stop_leading(&mut self.ctx);
        self.ctx.timers.clear(&Timer::Renew);
        self.ctx.timers.clear(&Timer::Lease);
        self.ctx.note(NodeEvent::SessionLost {
            session: holder.id,
            reason,
        });
        if matches!(self.ctx.life, Life::Running | Life::Booting) {
            self.ctx.life = Life::Booting;
            self.startup.boot = Boot::default();
            self.ctx.timers.set(Timer::Boot, self.ctx.now);
        }
        self.refresh_members();
    }
}

impl Node {
    fn boot_clock(&self) -> Option<BootClock> {
        let id = self.ctx.config.boot_id.clone()?;
        Some(BootClock {
            id,
            until_ns: self.ctx.now + self.ctx.config.timing.ttl,
        })
    }
}
