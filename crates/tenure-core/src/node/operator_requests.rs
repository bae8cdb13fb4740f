//! Requests of operators to the leader: single moves of shards, and an immediate rebalance of a keyspace.
//!
//! A request is stored in the record that it concerns, so that every leader reads it. The write that fulfils the request also removes it,
//! so a request takes effect once. Requests that cannot be fulfilled are removed too, so that they do not take effect unexpectedly later.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{KeyspaceName, ShardId};
use crate::keys::Key;
use crate::machine::Expect;
use crate::plan::{Decision, Plan, PlanRules};
use crate::reason::Reason;
use crate::record::{KeyspaceRecord, Ownership, Record, ShardRecord};

use super::context::Ctx;
use super::election::Leader;
use super::plan_writer::PlanUpdate;
use super::store_requests::{Pending, WritePurpose};

impl Leader {
    /// Returns the plan updates that follow from the operators' move requests.
    pub(super) fn requested_updates(
        &self,
        cx: &Ctx,
        keyspace: &KeyspaceName,
    ) -> Vec<(ShardId, PlanUpdate)> {
        let all = cx.view.shards.iter();
        let wished =
            all.filter(|(id, seen)| id.keyspace == *keyspace && seen.record.move_request.is_some());
        wished
            .filter_map(|(id, seen)| {
                Some((id.clone(), self.requested_update(cx, id, &seen.record)?))
            })
            .collect()
    }

    fn requested_update(&self, cx: &Ctx, id: &ShardId, record: &ShardRecord) -> Option<PlanUpdate> {
        let to = record.move_request.clone()?;
        if self.is_writing(cx, id)
            || cx.pause.is_active(cx.now)
            || record.ownership.moving().is_some()
        {
            return None;
        }
        if !cx.view.takes_shards(&to, &id.keyspace) {
            return Some(PlanUpdate::DropRequest);
        }
        let owner = record.owner().filter(|o| !cx.ended(o.session));
        match (owner, &record.ownership) {
            (Some(owner), _) if owner.node == to => Some(PlanUpdate::DropRequest),
            (Some(_), Ownership::Owned { serving: true, .. }) => {
                Some(PlanUpdate::Move(to, Reason::MoveRequested, false))
            }
            (Some(_), _) => None,
            (None, _) => Some(PlanUpdate::Assign(Some(to))),
        }
    }

    /// Returns the planning rules. While an operator requests a rebalance of the keyspace, the rules contain no waiting times.
    pub(super) fn adjusted_rules(
        &self,
        cx: &Ctx,
        keyspace: &KeyspaceName,
        rules: PlanRules,
    ) -> PlanRules {
        let record = cx.view.keyspaces.get(keyspace);
        match record.is_some_and(|k| k.rebalance) {
            true => rules.promptly(),
            false => rules,
        }
    }

    /// Removes the rebalance request of a keyspace once nothing is left to move.
    pub(super) fn clear_rebalance_request(
        &mut self,
        cx: &mut Ctx,
        keyspace: &KeyspaceName,
        planned: &Plan,
    ) {
        let Some(seen) = cx.view.keyspaces.seen(keyspace).cloned() else {
            return;
        };
        let moves = |d: &Decision| matches!(d, Decision::Move { .. });
        let key = Key::Keyspace(keyspace.clone());
        let in_progress = |p: &Pending| p.as_write().is_some_and(|write| write.key == key);
        let writes = cx.requests.values().any(in_progress);
        if !seen.record.rebalance
            || writes
            || planned.put_off.is_some()
            || planned.actions().any(moves)
            || self.moves_under_way(cx, keyspace)
        {
            return;
        }
        let record = KeyspaceRecord {
            head: seen.record.head.next(cx.nonce()),
            rebalance: false,
            ..(*seen.record).clone()
        };
        let record = Record::Keyspace(Arc::new(record));
        cx.put(
            key,
            Expect::Version(seen.version),
            record,
            WritePurpose::OwnRecord,
        );
    }

    fn moves_under_way(&self, cx: &Ctx, keyspace: &KeyspaceName) -> bool {
        let mut all = cx.view.shards.iter();
        all.any(|(id, seen)| {
            let moving = seen.record.ownership.moving().is_some();
            id.keyspace == *keyspace && (moving || self.is_writing(cx, id))
        })
    }
}

impl PlanRules {
    /// Returns the same rules without waiting times. The limits on concurrent moves remain.
    #[must_use]
    pub fn promptly(&self) -> Self {
        let calm = Duration::ZERO;
        self.with(|settings| {
            (
                settings.settle_time,
                settings.rejoin_after,
                settings.cool_down,
            ) = (calm, calm, calm);
            settings.band_shards = settings.band_shards.min(1);
        })
    }
}
