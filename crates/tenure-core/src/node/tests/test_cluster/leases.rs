//! Leases that the bench's store keeps the time of, as etcd does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::TestCluster;
use crate::ids::{LeaseId, SessionId};
use crate::keys::Key;
use crate::machine::{LeaseState, Reply, Request, StoreFailure};
use crate::node::Timekeeper;
use crate::record::{Record, SessionRecord};
use crate::time::Time;

/// All leases, the keys that go with them, and who cannot reach them.
#[derive(Default)]
pub(in super::super) struct Leases {
    granted: BTreeMap<LeaseId, (Duration, Time)>,
    attached: BTreeMap<Key, LeaseId>,
    /// Leases are granted for this long, whatever was asked for.
    pub(in super::super) grants: Option<Duration>,
    /// process: its requests fail with nothing done.
    pub(in super::super) away: BTreeSet<usize>,
    /// process: its requests are carried out, but the answers do not come back.
    pub(in super::super) mute: BTreeSet<usize>,
    /// What was asked of leases, and by whom.
    pub(in super::super) asked: Vec<(usize, Request)>,
}

impl TestCluster {
    /// A bench whose store keeps the time of sessions.
    pub(in super::super) fn leased(shards: u32) -> Self {
        let mut bench = Self::new(shards);
        bench.config.timekeeper = Timekeeper::Store;
        bench
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        self.leases.granted.values().map(|(_, until)| *until).min()
    }

    /// Ends the leases whose time has come, and the keys that go with them.
    pub(super) fn expire(&mut self) {
        let over = self.leases.granted.iter();
        let over = over.filter(|(_, (_, until))| *until <= self.now);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_lease(id);
        }
    }

    fn end_lease(&mut self, id: LeaseId) {
        self.leases.granted.remove(&id);
        let keys = self.leases.attached.iter().filter(|(_, l)| **l == id);
        for key in keys.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.delete(key);
        }
    }

    /// What becomes of a request of a process that is cut off.
    pub(super) fn cut_off(&mut self, i: usize, request: &Request) -> Option<Reply> {
        if self.leases.away.contains(&i) {
            return Some(Reply::Failed(StoreFailure::Unavailable("away".to_owned())));
        }
        if self.leases.mute.remove(&i) {
            self.answer(i, request.clone());
            self.leases.mute.insert(i);
            return Some(Reply::Failed(StoreFailure::Unknown("mute".to_owned())));
        }
        None
    }

    /// Whether a write names a lease that does not exist.
    pub(super) fn lacks_lease(&self, key: &Key, record: &Record) -> bool {
        let lease = record.lease(key);
        lease.is_some_and(|id| !self.leases.granted.contains_key(&id))
    }

    /// A key is under this lease from now on, or under none.
    pub(super) fn attach(&mut self, key: &Key, lease: Option<LeaseId>) {
        match lease {
            Some(id) => self.leases.attached.insert(key.clone(), id),
            None => self.leases.attached.remove(key),
        };
    }

    pub(super) fn lease_request(&mut self, i: usize, request: Request) -> Reply {
        self.leases.asked.push((i, request.clone()));
        let now = self.now;
        let granted = &mut self.leases.granted;
        match request {
            Request::CreateLease { session, ttl } => {
                let ttl = self.leases.grants.unwrap_or(ttl);
                let id = LeaseId::of(session);
                if granted.contains_key(&id) {
                    return Reply::Failed(StoreFailure::Denied("it exists".to_owned()));
                }
                granted.insert(id, (ttl, now + ttl));
                Reply::LeaseCreated(ttl)
            }
            Request::KeepAlive(session) => {
                let id = LeaseId::of(session);
                let Some((ttl, until)) = granted.get_mut(&id) else {
                    return Reply::KeptAlive(LeaseState::Gone);
                };
                *until = now + *ttl;
                let tied = self.leases.attached.get(&Key::Session(session)) == Some(&id);
                Reply::KeptAlive(if tied {
                    LeaseState::Alive(*ttl)
                } else {
                    LeaseState::Unattached
                })
            }
            Request::CheckLease(session) => {
                Reply::Lease(granted.contains_key(&LeaseId::of(session)))
            }
            other => unreachable!("{other:?} is not about leases"),
        }
    }

    /// `etcdctl lease revoke`.
    pub(in super::super) fn revoke(&mut self, session: SessionId) {
        self.end_lease(LeaseId::of(session));
    }

    /// Grants the lease of a session once more: a request that was repeated, or very late.
    pub(in super::super) fn grant_again(&mut self, session: SessionId) {
        let ttl = self.ttl();
        let until = self.now + ttl;
        self.leases
            .granted
            .insert(LeaseId::of(session), (ttl, until));
    }

    pub(in super::super) fn has_lease(&self, session: SessionId) -> bool {
        self.leases.granted.contains_key(&LeaseId::of(session))
    }

    pub(in super::super) fn is_attached(&self, session: SessionId) -> bool {
        self.leases.attached.get(&Key::Session(session)) == Some(&LeaseId::of(session))
    }

    /// Somebody writes a session's record by hand, and so without its lease.
    pub(in super::super) fn edit_session(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut SessionRecord),
    ) {
        let mut record = self.session(id).clone();
        record.head.rev += 1;
        change(&mut record);
        self.raw_set(Key::Session(id), Record::Session(Arc::new(record)));
    }

    /// The same by somebody who takes care to keep the lease (`etcdctl put --ignore-lease`).
    pub(in super::super) fn keep_attached(&mut self, id: SessionId, write: impl FnOnce(&mut Self)) {
        write(self);
        self.attach(&Key::Session(id), Some(LeaseId::of(id)));
    }
}
