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

impl Ctx {
    /// Writes a session's tombstone over exactly the version that was seen.
    pub(super) fn end_session(&mut self, id: SessionId, reason: EndReason, purpose: WritePurpose) {
        let nonce = self.nonce();
        let by = self.session().unwrap_or(SessionId(self.config.entropy));
        let ended = Some(Ended { reason, by });
        let key = Key::Session(id);
        let (expect, record) = match self.view.sessions.cell(&id) {
            Some(KeyState::Present(seen)) => {
                let mut head = seen.record.head.next(nonce);
                // A manual edit may have set an old rev, and views ignore a tombstone with an old rev.
                head.rev = head.rev.max(self.view.fresh_rev(&key));
                let record = SessionRecord {
                    head,
                    ended,
                    ..(*seen.record).clone()
                };
                (Expect::Version(seen.version.clone()), record)
            }
            Some(KeyState::Damaged { version, .. }) => (
                Expect::Version(version.clone()),
                self.bare_tombstone(id, nonce, ended),
            ),
            _ => (Expect::Absent, self.bare_tombstone(id, nonce, ended)),
        };
        self.put(key, expect, Record::Session(Arc::new(record)), purpose);
    }

    /// Returns the tombstone of a session without a readable record. The node's name comes from records that refer to the session.
    pub(super) fn bare_tombstone(
        &self,
        id: SessionId,
        nonce: Nonce,
        ended: Option<Ended>,
    ) -> SessionRecord {
        let owners = self
            .view
            .shards
            .iter()
            .filter_map(|(_, seen)| seen.record.owner());
        let named = self
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
                rev: self.view.fresh_rev(&Key::Session(id)),
                ..Head::first(nonce)
            },
            ended,
            stopping: false,
            node: node.unwrap_or_else(|| self.config.name.clone()),
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
            ttl: self.longest_ttl(),
            renewals: 0,
            boot: 0,
            reads_format: FORMAT,
            version: self.config.version.as_str().into(),
            store: self.view.cluster.get(&()).map_or("", |c| &c.store).into(),
            leased: None,
            boot_clock: None,
            unknown: Unknown::new(),
        }
    }

    /// Initiates the proof of the end of a session that has no record, but to which other records refer.
    pub(super) fn check_expired(&mut self, id: SessionId) {
        if self.config.role == Role::Shadow || !self.may_own() {
            return;
        }
        match self.view.sessions.cell(&id) {
            None => {
                self.absent.insert(Key::Session(id));
            }
            Some(KeyState::Missing { .. }) => {
                let purpose = WritePurpose::ExpireSession(id);
                if self.is_writing(&purpose) {
                    return;
                }
                match self.config.timekeeper {
                    Timekeeper::Store => self.ask_lease(id, purpose),
                    Timekeeper::Nodes => self.end_session(id, EndReason::Missing, purpose),
                }
            }
            _ => {}
        }
    }

    /// Queries the store for the lease of a session, unless such a query is in progress.
    pub(super) fn ask_lease(&mut self, id: SessionId, purpose: WritePurpose) {
        let asked = |p: &Pending| matches!(p, Pending::AskLease { id: other, .. } if *other == id);
        if purpose != WritePurpose::Boot && self.requests.values().any(asked) {
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
}
