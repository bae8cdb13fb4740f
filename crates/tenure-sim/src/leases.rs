//! Leases that the simulated store keeps the time of, as etcd does: by a clock of its own, a little late, and with a fresh start
//! for all of them when another server takes charge.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::ids::{LeaseId, SessionId};
use tenure_core::keys::Key;
use tenure_core::machine::{LeaseState, Reply, Request, StoreFailure};
use tenure_core::record::Record;

use crate::check::CheckResult;
use crate::clock::{Instant, MS};
use crate::event_queue::ScheduledEvent;
use crate::rng::Rng;
use crate::run_config::{Class, Family, nanos};
use crate::world::World;

/// How late the store is at most in noticing that a lease has run out.
pub(crate) const LATE: u64 = 500 * MS;

/// All leases, and the keys that go with them.
#[derive(Debug)]
pub(crate) struct Leases {
    granted: BTreeMap<LeaseId, Granted>,
    attached: BTreeMap<Key, LeaseId>,
    /// How much faster than true time the store's clock runs, in parts per million.
    rate_ppm: i64,
    rng: Rng,
}

#[derive(Debug)]
struct Granted {
    ttl: Duration,
    until: Instant,
    /// Time of the grant or of the last keep-alive.
    kept: Instant,
}

/// Leases are granted in whole seconds.
pub(crate) fn granted(asked: Duration) -> Duration {
    Duration::from_secs(asked.as_secs() + u64::from(asked.subsec_nanos() > 0))
}

impl Leases {
    pub(crate) fn new(rng: Rng, rate_ppm: i64) -> Self {
        Self {
            granted: BTreeMap::new(),
            attached: BTreeMap::new(),
            rate_ppm,
            rng: rng.fork(1),
        }
    }

    /// When a lease that is (re)started now has run out on the store's clock.
    fn end(&self, now: Instant, ttl: Duration) -> Instant {
        let ttl = i128::from(nanos(ttl));
        let span = ttl * 1_000_000 / (1_000_000 + i128::from(self.rate_ppm));
        now + u64::try_from(span).unwrap_or(u64::MAX / 2)
    }

    /// A key has a new value, or none.
    pub(crate) fn written(&mut self, key: &Key, record: Option<&Record>) {
        match record.and_then(|record| record.lease(key)) {
            Some(lease) => {
                self.attached.insert(key.clone(), lease);
            }
            None => {
                self.attached.remove(key);
            }
        }
    }
}

impl World {
    /// Refuses a write under a lease that does not exist.
    pub(crate) fn refuse_unleased(&self, request: &Request) -> Option<Reply> {
        let Request::Put { key, record, .. } = request else {
            return None;
        };
        let lease = record.lease(key)?;
        (!self.leases.granted.contains_key(&lease)).then(|| {
            let reason = "the lease does not exist".to_owned();
            Reply::Failed(StoreFailure::Unavailable(reason))
        })
    }

    /// Carries out what is asked about leases; `None` for all other requests.
    pub(crate) fn lease_request(&mut self, request: &Request) -> Option<Reply> {
        let now = self.now;
        let leases = &mut self.leases;
        Some(match *request {
            Request::CreateLease { session, ttl } => {
                let (id, ttl) = (LeaseId::of(session), self.plan.meddling.granted(ttl));
                let until = leases.end(now, ttl);
                if leases.granted.contains_key(&id) {
                    let reason = "the lease exists".to_owned();
                    return Some(Reply::Failed(StoreFailure::Denied(reason)));
                }
                let kept = now;
                leases.granted.insert(id, Granted { ttl, until, kept });
                let late = leases.rng.below(LATE);
                self.queue.push(until + late, ScheduledEvent::LeaseEnds(id));
                Reply::LeaseCreated(ttl)
            }
            Request::KeepAlive(session) => {
                let id = LeaseId::of(session);
                let Some(ttl) = leases.granted.get(&id).map(|lease| lease.ttl) else {
                    return Some(Reply::KeptAlive(LeaseState::Gone));
                };
                let until = leases.end(now, ttl);
                if let Some(lease) = leases.granted.get_mut(&id) {
                    (lease.until, lease.kept) = (until, now);
                }
                let tied = leases.attached.get(&Key::Session(session)) == Some(&id);
                Reply::KeptAlive(if tied {
                    LeaseState::Alive(ttl)
                } else {
                    LeaseState::Unattached
                })
            }
            Request::CheckLease(session) => {
                Reply::Lease(leases.granted.contains_key(&LeaseId::of(session)))
            }
            _ => return None,
        })
    }

    /// The store looks whether a lease has run out; if so, its keys go.
    pub(crate) fn lease_ends(&mut self, id: LeaseId) -> CheckResult {
        let Some(lease) = self.leases.granted.get(&id) else {
            return Ok(());
        };
        let mut until = lease.until;
        if let Some((_, away)) = self.outage
            && away > self.now
        {
            // A server that is away ends nothing; whoever takes charge after it starts all leases anew, one that merely
            // stood still does not.
            let anew = self.leases.end(away, lease.ttl);
            let takes_over = self.plan.class == Class::LongOutage || self.leases.rng.permille(500);
            until = if takes_over { anew } else { away.max(until) };
            if let Some(lease) = self.leases.granted.get_mut(&id) {
                lease.until = until;
            }
        }
        if until > self.now {
            let late = self.leases.rng.below(LATE);
            self.queue.push(until + late, ScheduledEvent::LeaseEnds(id));
            return Ok(());
        }
        self.end_lease(id)
    }

    /// Time of the last keep-alive of a session's lease.
    pub(crate) fn kept_alive_at(&self, session: SessionId) -> Option<Instant> {
        let lease = self.leases.granted.get(&LeaseId::of(session));
        lease.map(|lease| lease.kept)
    }

    /// Somebody ends a lease before its time.
    pub(crate) fn revoke(&mut self, session: SessionId) -> CheckResult {
        self.end_lease(LeaseId::of(session))
    }

    /// Somebody who wrote a session's record by hand took care to keep its lease, or did not.
    pub(crate) fn tie(&mut self, session: SessionId, tied: bool) {
        let (key, id) = (Key::Session(session), LeaseId::of(session));
        if tied && self.leases.granted.contains_key(&id) {
            self.leases.attached.insert(key, id);
        } else {
            self.leases.attached.remove(&key);
        }
    }

    fn end_lease(&mut self, id: LeaseId) -> CheckResult {
        self.leases.granted.remove(&id);
        let keys = self.leases.attached.iter().filter(|(_, l)| **l == id);
        for key in keys.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.store.remove(key.clone());
            self.changed(&key)?;
        }
        Ok(())
    }

    /// Whether the store keeps the time of sessions.
    pub(crate) fn keeps_time(&self) -> bool {
        self.plan.family == Family::Leased
    }
}
