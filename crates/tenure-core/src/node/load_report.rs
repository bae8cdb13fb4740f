//! Costs of shards: reported by the application, smoothed by the owner, and published in the session's record.
//!
//! Where renewals are writes, costs cause no additional write (P7). Where the store keeps the time of sessions, the record is written
//! when the costs have changed considerably, at most once per ttl. The cost belongs to the shard. While a session owns the shard, the
//! cost is in that session's record, even if the session has ended. Between owners the cost is in the shard's record.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::ShardId;
use crate::machine::ActivationId;
use crate::plan::LoadAverage;
use crate::record::{Costs, ShardRecord};
use crate::time::Time;

use super::context::Ctx;
use super::renewal::Session;
use super::shards::Shards;

/// Maximum number of shards whose costs a session reports: those with the highest costs.
const TOLD: usize = 2_000;
/// Change of a shard's cost, in percent, above which a write for costs alone is justified.
const BAND_PERCENT: u32 = 20;

impl Session {
    /// Returns `true` if the costs in the session's record differ enough from `new` to justify a write.
    pub(super) fn costs_changed(&self, cx: &Ctx, new: &Costs) -> bool {
        let Some(holder) = &cx.own else {
            return false;
        };
        if cx.now < self.costs_reported_at + cx.config.timing.ttl {
            return false;
        }
        let old = &holder.record.costs;
        let differs = |keyspace, shard, load: u32| {
            let told = old
                .get(keyspace)
                .and_then(|k: &BTreeMap<_, u32>| k.get(shard));
            told.is_none_or(|told| {
                u64::from(told.abs_diff(load)) * 100
                    > u64::from(load.max(*told)) * u64::from(BAND_PERCENT)
            })
        };
        new.iter().any(|(keyspace, shards)| {
            shards
                .iter()
                .any(|(shard, load)| differs(keyspace, shard, *load))
        })
    }

    /// Notes a sent record with costs or with a changed report of unserved shards.
    pub(super) fn note_cost_report(&mut self, _cx: &mut Ctx, now: Time) {
        self.costs_reported_at = now;
    }
}

impl Shards {
    /// Records the cost of a shard as reported by the application.
    pub(super) fn on_cost(&mut self, cx: &mut Ctx, activation: ActivationId, load: u32) {
        let Some(id) = self.activations.get(&activation).cloned() else {
            return;
        };
        let window = cx
            .view
            .keyspaces
            .get(&id.keyspace)
            .map(|k| k.planning.settings().cost_window);
        let known = self.known_load(cx, &id);
        let now = cx.now;
        self.measured = true;
        let Some(slot) = self
            .slots
            .get_mut(&id)
            .filter(|s| s.is_activation(activation))
        else {
            return;
        };
        let before = slot.load.unwrap_or_else(|| {
            known.map_or_else(LoadAverage::default, |load| {
                LoadAverage::going_on_from(load, now)
            })
        });
        slot.load = Some(before.report(load, now, window.unwrap_or_default()));
    }

    /// Returns the cost of a shard, as far as the records and this node know it.
    pub(super) fn known_load(&self, cx: &Ctx, id: &ShardId) -> Option<u32> {
        let record = cx.view.shards.get(id)?;
        let own = self.slots.get(id).filter(|_| cx.is_mine(record));
        own.and_then(|slot| slot.load)
            .map(LoadAverage::load)
            .or_else(|| load_in_records(&cx.view, id, record))
    }

    /// Returns the costs of the served shards for the next record of the session.
    pub(super) fn reported_costs(&self, _cx: &Ctx) -> Costs {
        if !self.measured {
            return Costs::new();
        }
        let load = |id: &ShardId| {
            let slot = self.slots.get(id).filter(|slot| slot.is_serving())?;
            Some(slot.load?.load())
        };
        let mut all: Vec<(Reverse<u32>, &ShardId)> = self
            .activations
            .values()
            .filter_map(|id| Some((Reverse(load(id)?), id)))
            .collect();
        all.sort_unstable();
        let mut told: Costs = BTreeMap::new();
        for (Reverse(load), id) in all.into_iter().take(TOLD) {
            let keyspace = told.entry(id.keyspace.clone()).or_default();
            keyspace.insert(id.shard.clone(), load);
        }
        told
    }
}

pub(crate) fn load_in_records(
    view: &crate::view::View,
    id: &ShardId,
    record: &ShardRecord,
) -> Option<u32> {
    let owner = record.owner().and_then(|o| view.sessions.get(&o.session));
    owner
        .and_then(|session| session.cost_of(id))
        .or(record.cost)
}
