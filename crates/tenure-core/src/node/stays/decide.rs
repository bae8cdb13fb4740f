//! What to do about a shard, derived from its record, the lease and its phase here alone.

use std::sync::Arc;

use crate::ids::{Epoch, ShardId};
use crate::machine::Close;
use crate::note::ShardStep;
use crate::record::{Role, ShardRecord, Tenancy};
use crate::rules::Mutant;
use crate::shard::Change;
use crate::time::Time;
use crate::view::{Cell, Seen};
use crate::why::Why;

use super::{Phase, Stay, Then};
use crate::node::{Life, Node};

/// What to do about a shard.
pub(super) enum Decision {
    Nothing,
    WaitUntil(Time),
    Close(Close, Why, Then),
    Adopt(Epoch),
    Write(Change),
    Would(ShardStep, Why),
    /// Load it while another node serves it.
    Warm(u64),
    CatchUp(String),
    /// Open what was taken at the end of a move.
    Promote(Epoch),
    /// Shut the gate for a move.
    Freeze(u64),
    Thaw,
}

impl Node {
    /// The shard's record, if it and its keyspace's are there and readable; else why not.
    pub(super) fn readable(&self, id: &ShardId) -> Result<(&Seen<ShardRecord>, u32), Why> {
        if self.estranged.is_some() {
            return Err(Why::StoreChanged);
        }
        let floor = match self.view.keyspaces.cell(&id.keyspace) {
            Some(Cell::Present(seen)) if seen.record.removed => return Err(Why::KeyspaceRemoved),
            Some(Cell::Present(seen)) => seen.record.floor,
            Some(Cell::Damaged { .. }) => return Err(Why::RecordDamaged),
            Some(Cell::Missing { .. }) | None => return Err(Why::RecordMissing),
        };
        match self.view.shards.cell(id) {
            Some(Cell::Present(seen)) => Ok((seen, floor)),
            Some(Cell::Damaged { .. }) => Err(Why::RecordDamaged),
            Some(Cell::Missing { .. }) | None => Err(Why::RecordMissing),
        }
    }

    pub(super) fn decide(&mut self, id: &ShardId) -> Decision {
        let rules = self.config.rules;
        let Some(stay) = self.stays.get(id) else {
            return self.decide_idle(id);
        };
        match &stay.phase {
            Phase::Loading { epoch, .. } | Phase::Serving { epoch, .. } => {
                let (epoch, writing) = (*epoch, stay.writing.is_some());
                self.decide_active(id, epoch, writing)
            }
            Phase::Closing {
                how: Close::Drain,
                cut_at,
                then,
                ..
            } => {
                if self.now >= *cut_at {
                    return Decision::Close(Close::Cut, Why::DrainTimeout, then.clone());
                }
                Decision::WaitUntil(*cut_at)
            }
            Phase::Closing { .. }
                if rules.broken_by(Mutant::ClaimWhileBusy) && stay.writing.is_none() =>
            {
                self.decide_idle(id)
            }
            Phase::Closing { .. } => Decision::Nothing,
            Phase::Frozen {
                epoch, mv, limit, ..
            } => {
                let (epoch, mv, limit) = (*epoch, *mv, *limit);
                self.decide_frozen(id, epoch, mv, limit)
            }
            Phase::Sealing {
                epoch, mv, limit, ..
            } => {
                let (epoch, mv, limit) = (*epoch, *mv, *limit);
                self.decide_sealing(id, epoch, mv, limit)
            }
            Phase::Succeeding {
                mv, step, limit, ..
            } => {
                let (mv, step, limit) = (*mv, *step, *limit);
                self.decide_succeeding(id, mv, step, limit)
            }
            Phase::Idle | Phase::Resting { .. } if stay.writing.is_some() => Decision::Nothing,
            Phase::Idle | Phase::Resting { .. } if self.now < stay.not_before => {
                Decision::WaitUntil(stay.not_before)
            }
            Phase::Resting { until } => match self.readable(id) {
                Ok((seen, _))
                    if self.is_mine(&seen.record) && self.now < *until && !self.is_leaving() =>
                {
                    Decision::WaitUntil(*until)
                }
                _ => self.decide_idle(id),
            },
            Phase::Idle => self.decide_idle(id),
        }
    }

    pub(in crate::node) fn is_leaving(&self) -> bool {
        matches!(self.life, Life::Stopping)
    }

    pub(in crate::node) fn is_mine(&self, record: &ShardRecord) -> bool {
        let by_name = self.config.rules.broken_by(Mutant::NameIsIdentity)
            && record.owner().is_some_and(|o| o.node == self.config.name);
        self.session().is_some_and(|me| record.is_owned_by(me))
            || (by_name && self.session().is_some())
    }

    /// A shard that is loading or serving: may it go on?
    fn decide_active(&mut self, id: &ShardId, epoch: Epoch, writing: bool) -> Decision {
        if !self.may_own() {
            return Decision::Close(Close::Cut, Why::LeaseLost, Then::Look);
        }
        let (record, floor) = match self.readable(id) {
            Ok((seen, floor)) => (Arc::clone(&seen.record), floor),
            Err(Why::KeyspaceRemoved) => {
                let why = Why::KeyspaceRemoved;
                return Decision::Close(Close::Drain, why, Then::Release { to: None, why });
            }
            Err(why) => return Decision::Close(Close::Cut, why, Then::Look),
        };
        if !self.is_mine(&record) || record.epoch != epoch || is_sealed(&record) {
            return Decision::Close(Close::Cut, Why::Superseded, Then::Look);
        }
        if epoch.generation() < floor {
            return Decision::Close(Close::Cut, Why::GenerationRaised, Then::Look);
        }
        if record.tenancy.moving().is_some() {
            return self.decide_moving(id, &record, writing);
        }
        self.note_called_off(id, writing);
        if record.doomed {
            let why = Why::Deleted;
            return Decision::Close(Close::Drain, why, Then::Release { to: None, why });
        }
        if let Some((to, why)) = self.gives(id, &record)
            && (why != Why::Rebalance || self.leaving.len() < self.config.timing.release_batch)
        {
            if self.config.rules.broken_by(Mutant::ReleaseBeforeStop) && !writing {
                return Decision::Write(Change::Release { to, why });
            }
            return match self.begin_move(id, &record, to.as_ref(), why) {
                Some(_) if writing => Decision::Nothing,
                Some(decision) => decision,
                None => Decision::Close(Close::Drain, why, Then::Release { to, why }),
            };
        }
        if let Some(Phase::Loading { since, .. }) = self.stays.get(id).map(|s| &s.phase) {
            let limit = *since + self.config.timing.load_timeout;
            if self.now < limit {
                return Decision::WaitUntil(limit);
            }
            if let Some(stay) = self.stays.get_mut(id) {
                stay.last_error = format!(
                    "it did not load within {:?}",
                    self.config.timing.load_timeout
                );
            }
            return Decision::Close(Close::Cut, Why::LoadFailed, Then::Rest);
        }
        match self.stays.get(id) {
            Some(stay) if stay.is_serving() && !writing => self.decide_word(stay, &record),
            _ => Decision::Nothing,
        }
    }

    /// A shard that is open here and stays so: does its record say how it is?
    fn decide_word(&self, stay: &Stay, record: &ShardRecord) -> Decision {
        let change = match record.tenancy {
            Tenancy::Held { serving: false, .. } => Change::Serve,
            Tenancy::Held { .. } if record.trouble != stay.trouble && !self.is_leaving() => {
                Change::Tell {
                    said: stay.trouble.clone(),
                }
            }
            _ => return Decision::Nothing,
        };
        if self.now < stay.not_before {
            return Decision::WaitUntil(stay.not_before);
        }
        Decision::Write(change)
    }

    /// A shard of which nothing runs here: should something?
    pub(super) fn decide_idle(&mut self, id: &ShardId) -> Decision {
        if !self.may_own() {
            return Decision::Nothing;
        }
        let Ok((seen, floor)) = self.readable(id) else {
            self.wait_for(id, false);
            return self.decide_unreadable(id);
        };
        let (record, since) = (Arc::clone(&seen.record), seen.since);
        if self.is_mine(&record) && is_sealed(&record) {
            // Its state ends there: only its successor, or a new epoch, goes on from it.
            return self.decide_sealed(&record, since);
        }
        if self.is_mine(&record) {
            self.wait_for(id, false);
            if record.epoch.generation() < floor {
                return Decision::Write(Change::Claim);
            }
            if record.doomed && record.tenancy.moving().is_none() {
                let why = Why::Deleted;
                return Decision::Write(Change::Release { to: None, why });
            }
            let given_up = self.stays.get(id).map_or(Epoch(0), |s| s.given_up);
            let rules = self.config.rules;
            let barred = record.epoch <= given_up;
            let reopens = rules.broken_by(Mutant::ReopenAfterUnknownRelease);
            if barred && !reopens && record.tenancy.moving().is_some() {
                return self.decide_seal_again(id, &record);
            }
            if barred && !reopens {
                let given = self.gives(id, &record).and_then(|(to, _)| to);
                return Decision::Write(Change::Release {
                    to: given.or_else(|| record.intended.clone()),
                    why: Why::Rebalance,
                });
            }
            if let Some((to, why)) = self.gives(id, &record)
                && record.tenancy.moving().is_none()
            {
                return Decision::Write(Change::Release { to, why });
            }
            return Decision::Adopt(record.epoch);
        }
        self.left(id);
        if let Some(owner) = record.owner() {
            self.mourn(owner.session);
        }
        if let Some(decision) = self.decide_successor(id, &record, since) {
            return decision;
        }
        if let Tenancy::Free { witnesses } = &record.tenancy {
            for witness in witnesses {
                self.mourn(*witness);
            }
        }
        if let Tenancy::Free { witnesses } = &record.tenancy
            && let Some(change) = self.deny(witnesses)
        {
            return Decision::Write(change);
        }
        let wanted = !self.is_leaving() && self.wants(id, &record);
        let live_owner = record.owner().is_some_and(|o| !self.ended(o.session));
        let deaf = self.from_watch && !self.config.timing.acquire_watch_enabled;
        self.wait_for(
            id,
            wanted && (live_owner || deaf) && self.config.role == Role::Node,
        );
        if record.doomed && !live_owner && self.is_first_of(&id.keyspace) {
            return Decision::Write(Change::Delete);
        }
        let claimable = record.quarantine.is_none() && !record.doomed;
        if !claimable || matches!(record.tenancy, Tenancy::Deleted) {
            return Decision::Nothing;
        }
        if !wanted && !live_owner && self.is_coordinated(&id.keyspace) && !self.is_leaving() {
            let at = self.unled_claim_at(&record, since);
            if at > self.now && at < Time::NEVER {
                return Decision::WaitUntil(at);
            }
        }
        if !wanted {
            return Decision::Nothing;
        }
        if live_owner && self.imagines(&id.keyspace) {
            return Decision::Would(ShardStep::Moving, Why::Planned);
        }
        if live_owner && !self.config.rules.broken_by(Mutant::TakeoverWithoutProof) {
            return Decision::Nothing;
        }
        if matches!(&record.tenancy, Tenancy::Free { witnesses } if !witnesses.is_empty()) {
            return Decision::Nothing;
        }
        if self.lacks_room(&id.keyspace, 1) {
            return Decision::Nothing;
        }
        self.decide_claim(&record)
    }

    fn decide_claim(&mut self, record: &ShardRecord) -> Decision {
        if self.from_watch && !self.config.timing.acquire_watch_enabled {
            // The next retry takes it, also where those who waited for it have long stopped to retry.
            self.claim_on_retry();
            return Decision::Nothing;
        }
        if self.config.role == Role::Observer {
            let why = if record.owner().is_some() {
                Why::OwnerEnded
            } else {
                Why::Free
            };
            return Decision::Would(ShardStep::Claimed, why);
        }
        Decision::Write(Change::Claim)
    }

    fn decide_unreadable(&mut self, id: &ShardId) -> Decision {
        // A shard of a removed keyspace that is still ours in the records is given up for good.
        let removed = self
            .view
            .keyspaces
            .get(&id.keyspace)
            .is_some_and(|k| k.removed);
        let Some(record) = self
            .view
            .shards
            .get(id)
            .filter(|r| removed && self.is_mine(r))
        else {
            return Decision::Nothing;
        };
        match record.tenancy {
            Tenancy::Held { .. } => Decision::Write(Change::Release {
                to: None,
                why: Why::KeyspaceRemoved,
            }),
            _ => Decision::Nothing,
        }
    }
}

fn is_sealed(record: &ShardRecord) -> bool {
    matches!(record.tenancy, Tenancy::Sealed { .. })
}
