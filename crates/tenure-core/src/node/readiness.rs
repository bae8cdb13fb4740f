//! When a node counts as started: once what it is given at its start is loaded, or has failed to load.
//!
//! Where a leader plans, what a node is given shows only when a plan has spoken. A starter waits for the plan of shards that
//! nobody has, so that the first node of a cluster is ready when it says so; but not for long, as there may be nobody to plan.

use std::collections::BTreeSet;

use crate::ids::ShardId;
use crate::record::{NodeMode, Role};
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::shards::ShardSlot;
use super::timers::Timer;
use super::{Action, Node};

/// For how many ttls a starter waits for a plan: as long as it would not take shards without one.
const PATIENCE: u32 = 2;

/// What must come to rest before a node counts as started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Initial {
    /// Shards that nobody has and no plan has spoken of.
    unplanned: BTreeSet<ShardId>,
    /// How long to wait for that.
    until: Time,
    /// Shards that are being claimed or loaded; looked up once all are planned.
    settling: Option<BTreeSet<ShardId>>,
}

impl Node {
    /// Notes what a node that has just registered must wait for.
    pub(super) fn begin_ready(&mut self) {
        if self.ctx.started {
            return;
        }
        let until = self.ctx.now + self.ctx.config.timing.ttl * PATIENCE;
        let unplanned: BTreeSet<ShardId> = match self.ctx.config.role {
            // Who takes no shards waits for none.
            Role::Node if self.ctx.own_node.mode == NodeMode::Active => {
                let all = self.ctx.view.shards.iter().map(|(id, _)| id);
                all.filter(|id| self.ctx.is_unplanned(id))
                    .cloned()
                    .collect()
            }
            Role::Node | Role::Shadow | Role::Planner | Role::Router => BTreeSet::new(),
        };
        if !unplanned.is_empty() {
            self.ctx.timers.set_sooner(Timer::Tick, until);
        }
        self.startup.initial = Some(Initial {
            unplanned,
            until,
            settling: None,
        });
    }

    pub(super) fn check_started(&mut self) {
        let Some(mut initial) = self.startup.initial.take() else {
            return;
        };
        if self.is_ready(&mut initial) {
            return self.now_started();
        }
        self.startup.initial = Some(initial);
    }

    /// One shard at a time: with many, looking at all of them at every step would take the start's time squared.
    fn is_ready(&self, initial: &mut Initial) -> bool {
        while let Some(first) = initial.unplanned.first() {
            if self.ctx.now < initial.until && self.ctx.is_unplanned(first) {
                return false;
            }
            initial.unplanned.pop_first();
        }
        if initial.settling.is_none() && self.shards.is_looking(&self.ctx) {
            return false;
        }
        let settling = initial.settling.get_or_insert_with(|| {
            let stays = self
                .shards
                .slots
                .iter()
                .filter(|(_, stay)| stay.is_settling());
            stays.map(|(id, _)| id.clone()).collect()
        });
        while let Some(first) = settling.first() {
            if self
                .shards
                .slots
                .get(first)
                .is_some_and(ShardSlot::is_settling)
            {
                return false;
            }
            settling.pop_first();
        }
        true
    }

    fn now_started(&mut self) {
        if std::mem::replace(&mut self.ctx.started, true) {
            return;
        }
        let loaded = self
            .shards
            .slots
            .values()
            .filter(|s| s.is_serving())
            .count();
        let failed = self
            .shards
            .slots
            .values()
            .filter(|s| s.attempts > 0)
            .count();
        self.ctx.note(NodeEvent::StartedWith { loaded, failed });
        self.ctx.out.push(Action::Started);
    }
}
