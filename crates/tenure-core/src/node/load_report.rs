//! What shards cost to serve: reported by the application, smoothed by the owner, told to the others in the session's record.
//!
//! No write is made for it alone where renewals are writes anyway (P7). Where the store keeps the time of sessions, the record
//! is written when the load has changed by enough to matter, and not more often than once per ttl. The measure belongs to the
//! shard: it is in the session of its owner while that has it, dead or alive, and in the shard's record between owners.

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

/// How many shards a session tells of: the heaviest.
const TOLD: usize = 2_000;
/// By how many percent a shard's load must have changed for a write that nothing else calls for.
const BAND_PERCENT: u32 = 20;

impl Session {
    /// Whether what the session says of its load is off by so much from this that it is worth a write.
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

    /// The session's record was sent, with the load or another report of unserved shards.
    pub(super) fn note_cost_report(&mut self, _cx: &mut Ctx, now: Time) {
        self.costs_reported_at = now;
    }
}

impl Shards {
    /// The application said what a shard costs.
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

    /// What a shard costs, as far as the records and this node know.
    pub(super) fn known_load(&self, cx: &Ctx, id: &ShardId) -> Option<u32> {
        let record = cx.view.shards.get(id)?;
        let own = self.slots.get(id).filter(|_| cx.is_mine(record));
        own.and_then(|slot| slot.load)
            .map(LoadAverage::load)
            .or_else(|| load_in_records(&cx.view, id, record))
    }

    /// What the node's session says next of the shards that it serves.
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
