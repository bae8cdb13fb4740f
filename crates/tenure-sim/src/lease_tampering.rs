//! Hands on sessions whose time the store keeps: leases revoked, records written without them, leases longer than asked for.
//!
//! Drawn from a source of chance of their own, and last: what a seed means otherwise stays what it was.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{NodeName, SessionId};
use tenure_core::keys::Key;
use tenure_core::record::{Record, SessionRecord};

use crate::check::CheckResult;
use crate::clock::{Instant, MS, SEC};
use crate::fault::Fault;
use crate::run_config::{Class, Family, RunConfig, nanos};
use crate::world::{World, named};

/// Tampering with the lease or the record of a node's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseTampering {
    /// Revokes its lease. Where the plan says that no one is hurt, only a dead holder's.
    Revoke,
    /// Writes the record as it is, but without the lease.
    Copy,
    /// Writes it without the lease and without a word of it, good for a moment.
    Bare,
    /// Writes another session's record there, without a lease.
    Mistake,
    /// Writes another session's record there, under the lease.
    TiedMistake,
    /// Makes it unreadable, under the lease.
    TiedGarbage,
}

impl fmt::Display for LeaseTampering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoke => "revoke",
            Self::Copy => "copy",
            Self::Bare => "bare",
            Self::Mistake => "mistake",
            Self::TiedMistake => "tied-mistake",
            Self::TiedGarbage => "tied-garbage",
        })
    }
}

/// Configuration of the tampering with leases in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseTamperingConfig {
    /// Leases of living holders are revoked: whoever does so vouches for their death, so P1 is not asked of such a run.
    pub revokes_living: bool,
    /// The store grants leases this many times longer than asked for; 0 and 1: not.
    pub stretch: u32,
}

/// Adds hands to a drawn plan.
pub(crate) fn draw(plan: &mut RunConfig) {
    let mut rng = plan.rng(8);
    let chaos = matches!(plan.class, Class::Chaos | Class::Beyond);
    if plan.family != Family::Leased || !chaos || rng.permille(400) {
        return;
    }
    plan.meddling.revokes_living = rng.permille(300);
    if rng.permille(300) {
        plan.meddling.stretch = rng.between(2, 8) as u32;
    }
    for _ in 0..rng.skewed(0, 12) {
        let at = rng.between(SEC, plan.heal_at - SEC);
        let node = rng.below(plan.nodes as u64) as usize;
        let hand = *rng.pick(&[
            LeaseTampering::Revoke,
            LeaseTampering::Revoke,
            LeaseTampering::Copy,
            LeaseTampering::Bare,
            LeaseTampering::Mistake,
            LeaseTampering::TiedMistake,
            LeaseTampering::TiedGarbage,
        ]);
        plan.faults.push((at, Fault::Hand { node, hand }));
        if rng.permille(300) {
            // Soon after comes what makes it worst.
            let ttl = nanos(plan.timing.ttl);
            let hand = *rng.pick(&[
                LeaseTampering::Revoke,
                LeaseTampering::Copy,
                LeaseTampering::TiedGarbage,
            ]);
            let at = at + rng.skewed(MS, ttl);
            plan.faults.push((at, Fault::Hand { node, hand }));
        }
    }
}

impl LeaseTamperingConfig {
    /// For how long a lease is granted.
    pub(crate) fn granted(&self, asked: Duration) -> Duration {
        crate::leases::granted(asked) * self.stretch.max(1)
    }

    /// How much later than usual everything is over because of long leases: that of a dead process, and then that of one
    /// that waited for its name.
    pub(crate) fn delay(&self, asked: Duration) -> Instant {
        let usual = crate::leases::granted(asked);
        3 * nanos(self.granted(asked) - usual)
    }
}

impl World {
    pub(crate) fn lay_hand_on(&mut self, node: usize, hand: LeaseTampering) -> CheckResult {
        let name = Key::Node(named(NodeName::new(format!("n{node}"))));
        let session = match self.store.get(&name).map(|found| &found.record) {
            Some(Ok(Record::Node(record))) => record.session,
            _ => return Ok(()),
        };
        let key = Key::Session(session);
        match hand {
            LeaseTampering::Revoke if !self.may_revoke(session) => Ok(()),
            LeaseTampering::Revoke => self.revoke(session),
            LeaseTampering::Copy => self.overwrite_session(key, |_| ()),
            LeaseTampering::Bare => self.overwrite_session(key, |record| {
                record.leased = None;
                record.ttl = Duration::from_millis(1);
            }),
            LeaseTampering::Mistake | LeaseTampering::TiedMistake => {
                let Some(other) = self.another_session(session) else {
                    return Ok(());
                };
                self.overwrite_session(key, |record| *record = other)?;
                self.tie(session, hand == LeaseTampering::TiedMistake);
                Ok(())
            }
            LeaseTampering::TiedGarbage => {
                if self.store.corrupt(key.clone()).is_some() {
                    self.changed(&key)?;
                    self.tie(session, true);
                }
                Ok(())
            }
        }
    }

    /// True if an operator may revoke a session's lease: its holder is dead, or its deadline has passed, also the one that the
    /// last keep-alive gives. The holder may not have processed the answer yet.
    fn may_revoke(&self, session: SessionId) -> bool {
        let over = self.gates.lease(session).is_none_or(|lease| {
            let now = lease.clock.at(self.now);
            let renewed = self.kept_alive_at(session).map(|at| lease.clock.at(at));
            let latest = renewed.map_or(lease.deadline, |at| at + self.plan.timing.ttl);
            !self.processes[lease.pid].alive || now >= lease.deadline.max(latest)
        });
        over || self.plan.meddling.revokes_living || self.plan.class == Class::Beyond
    }

    fn another_session(&self, than: SessionId) -> Option<SessionRecord> {
        self.store
            .iter()
            .find_map(|(key, found)| match &found.record {
                Ok(Record::Session(r)) if r.is_live() && *key != Key::Session(than) => {
                    Some(SessionRecord::clone(r))
                }
                _ => None,
            })
    }

    fn overwrite_session(
        &mut self,
        key: Key,
        change: impl FnOnce(&mut SessionRecord),
    ) -> CheckResult {
        let Some(Ok(Record::Session(record))) = self.store.get(&key).map(|found| &found.record)
        else {
            return Ok(());
        };
        // Nobody takes a tombstone for a session by mistake.
        if !record.is_live() {
            return Ok(());
        }
        let mut record = SessionRecord::clone(record);
        change(&mut record);
        self.store
            .overwrite(key.clone(), Record::Session(Arc::new(record)));
        self.changed(&key)?;
        if let Key::Session(id) = key {
            self.tie(id, false);
        }
        Ok(())
    }
}
