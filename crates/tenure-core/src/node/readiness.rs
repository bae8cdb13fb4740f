//! Readiness: a node counts as started once the shards it gets at its start are loaded, or have failed to load.
//!
//! Where a leader plans, the node's shards are known only after a plan. A starting node waits until a plan covers the unowned shards, so
//! that the first node of a cluster is ready when it reports so. The wait is bounded, because there may be no leader.

use std::collections::BTreeSet;

use crate::ids::ShardId;
use crate::record::{NodeMode, Role};
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::Action;
use super::context::Ctx;
use super::shards::{ShardSlot, Shards};
use super::startup::Startup;
use super::timers::Timer;

/// Maximum wait of a starting node for a plan, in multiples of the ttl: the time for which it takes no shards without a plan.
const PATIENCE: u32 = 2;

/// Conditions for a node to count as started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StartupWait {
    /// Unowned shards that no plan covers yet.
    unplanned: BTreeSet<ShardId>,
    /// End of the wait for plans.
    until: Time,
    /// Shards that are being claimed or loaded; determined once all shards are planned.
    settling: Option<BTreeSet<ShardId>>,
}

impl Startup {
    /// Records the conditions that a newly registered node waits for.
    pub(super) fn begin_ready(&mut self, cx: &mut Ctx) {
        if cx.started {
            return;
        }
        let until = cx.now + cx.config.timing.ttl * PATIENCE;
        let unplanned: BTreeSet<ShardId> = match cx.config.role {
            // A node that takes no shards waits for none.
            Role::Node if cx.own_node.mode == NodeMode::Active => {
                let all = cx.view.shards.iter().map(|(id, _)| id);
                all.filter(|id| cx.is_unplanned(id)).cloned().collect()
            }
            Role::Node | Role::Shadow | Role::Planner | Role::Router => BTreeSet::new(),
        };
        if !unplanned.is_empty() {
            cx.timers.set_sooner(Timer::Tick, until);
        }
        self.initial = Some(StartupWait {
            unplanned,
            until,
            settling: None,
        });
    }

    pub(super) fn check_started(&mut self, cx: &mut Ctx, shards: &Shards) {
        let Some(mut initial) = self.initial.take() else {
            return;
        };
        if self.is_ready(cx, shards, &mut initial) {
            return self.now_started(cx, shards);
        }
        self.initial = Some(initial);
    }

    /// Returns `true` once all conditions are met.
    ///
    /// The node checks one shard at a time. With many shards, a check of all of them at every step would take quadratic time.
    fn is_ready(&self, cx: &Ctx, shards: &Shards, initial: &mut StartupWait) -> bool {
        while let Some(first) = initial.unplanned.first() {
            if cx.now < initial.until && cx.is_unplanned(first) {
                return false;
            }
            initial.unplanned.pop_first();
        }
        if initial.settling.is_none() && shards.is_scanning(cx) {
            return false;
        }
        let settling = initial.settling.get_or_insert_with(|| {
            let slots = shards.slots.iter().filter(|(_, slot)| slot.is_settling());
            slots.map(|(id, _)| id.clone()).collect()
        });
        while let Some(first) = settling.first() {
            if shards.slots.get(first).is_some_and(ShardSlot::is_settling) {
                return false;
            }
            settling.pop_first();
        }
        true
    }

    fn now_started(&mut self, cx: &mut Ctx, shards: &Shards) {
        if std::mem::replace(&mut cx.started, true) {
            return;
        }
        let loaded = shards.slots.values().filter(|s| s.is_serving()).count();
        let failed = shards.slots.values().filter(|s| s.attempts > 0).count();
        cx.note(NodeEvent::StartedWith { loaded, failed });
        cx.out.push(Action::Started);
    }
}
