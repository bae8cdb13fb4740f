//! A little world that carries out what the planner says: plan, apply, let time pass, plan again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{KeyspaceName, NodeName, ShardName};
use crate::plan::{
    Budgets, Decision, NodeIx, NodeState, Plan, PlanNode, PlanRules, PlanSettings, PlanShardRecord,
    PlanView, ShardIx, plan,
};
use crate::time::Time;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Long after everything has come to rest.
pub(super) const LATER: Time = Time(1_000_000_000_000_000);

pub(super) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(super) fn keyspace() -> KeyspaceName {
    KeyspaceName::new("orders").unwrap()
}

/// Nodes `n0`, `n1`, … that have been there for ever.
pub(super) fn nodes(count: u32) -> Vec<PlanNode> {
    (0..count)
        .map(|i| PlanNode::new(name(&format!("n{i}")), Time::ZERO))
        .collect()
}

pub(super) fn free(count: u32) -> Vec<PlanShardRecord> {
    (0..count)
        .map(|i| PlanShardRecord::free(ShardName::index(i)))
        .collect()
}

/// Shards whose owners are given by number.
pub(super) fn owned(owners: impl IntoIterator<Item = u32>) -> Vec<PlanShardRecord> {
    (0..)
        .zip(owners)
        .map(|(i, n)| PlanShardRecord::owned(ShardName::index(i), name(&format!("n{n}"))))
        .collect()
}

pub(super) fn view(nodes: Vec<PlanNode>, shards: Vec<PlanShardRecord>) -> PlanView {
    PlanView::new(keyspace(), nodes, shards).unwrap()
}

/// The defaults with changes.
pub(super) fn rules(change: impl FnOnce(&mut PlanSettings)) -> PlanRules {
    let mut settings = PlanSettings::default();
    change(&mut settings);
    settings.check().unwrap()
}

/// Rules that do everything at once.
pub(super) fn at_once() -> PlanRules {
    rules(|_| ()).at_once()
}

/// How many shards each node has or is to have.
pub(super) fn counts(view: &PlanView) -> Vec<u32> {
    let mut counts = vec![0; view.nodes().len()];
    for (_, shard) in view.shards() {
        if let Some(node) = shard.bound_for() {
            counts[node.at()] += 1;
        }
    }
    counts
}

/// Carries out one decision at once.
pub(super) fn carry_out(view: &mut PlanView, decision: &Decision, now: Time) {
    let ix = decision.shard();
    let mut shard = view.shard(ix);
    match *decision {
        Decision::Intend { to, .. } | Decision::Move { to, .. } => {
            shard.owner = Some(to);
            shard.intended = Some(to);
            shard.moving = None;
            if matches!(decision, Decision::Move { .. }) {
                shard.moved = Some(now);
            }
        }
        Decision::Cancel { .. } => {
            shard.moving = None;
            shard.intended = shard.owner;
        }
        Decision::Stay { .. } => {}
    }
    view.set_shard(ix, shard);
}

/// Nodes, shards, a clock, and a count of what was moved.
pub(super) struct World {
    pub(super) view: PlanView,
    pub(super) rules: PlanRules,
    pub(super) now: Time,
    /// Moves and new claims so far, by shard.
    pub(super) changes: BTreeMap<ShardIx, u32>,
    pub(super) moves: u32,
    pub(super) claims: u32,
    /// Plans that said to do something.
    pub(super) plans: u32,
}

impl World {
    pub(super) fn new(view: PlanView, rules: PlanRules) -> Self {
        Self {
            view,
            rules,
            now: LATER,
            changes: BTreeMap::new(),
            moves: 0,
            claims: 0,
            plans: 0,
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Plans once and carries everything out, checking what must hold of any plan.
    pub(super) fn round(&mut self) -> Plan {
        let plan = plan(&self.view, &self.rules, self.now);
        self.plans += u32::from(!plan.is_quiet());
        for d in plan.actions() {
            if let Decision::Intend { to, .. } | Decision::Move { to, .. } = *d {
                let state = self.view.node(to).state;
                assert_eq!(
                    state,
                    NodeState::Active,
                    "{d:?} goes to a node that is {state}"
                );
                *self.changes.entry(d.shard()).or_default() += 1;
            }
            self.moves += u32::from(matches!(d, Decision::Move { .. }));
            self.claims += u32::from(matches!(d, Decision::Intend { .. }));
        }
        for d in plan.decisions.clone() {
            carry_out(&mut self.view, &d, self.now);
        }
        plan
    }

    /// Plans every second for so long.
    pub(super) fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.wait(SECOND);
            self.round();
        }
    }

    pub(super) fn node(&self, node: &str) -> NodeIx {
        self.view.find_node(&name(node)).unwrap()
    }

    pub(super) fn has(&self, node: &str) -> u32 {
        counts(&self.view)[self.node(node).at()]
    }

    /// A node comes.
    pub(super) fn join(&mut self, node: &str) {
        let node = PlanNode::new(name(node), self.now);
        self.view.put_node(node);
    }

    /// A node changes its state; one that comes back from being away has one absence more.
    pub(super) fn set(&mut self, node: &str, state: NodeState) {
        let mut node = self.view.node(self.node(node)).clone();
        if node.state == NodeState::Away && state == NodeState::Active {
            node.absences += 1;
        }
        node.state = state;
        node.since = self.now;
        self.view.put_node(node);
    }

    pub(super) fn forget(&mut self, node: &str) {
        let node = self.node(node);
        self.view.remove_node(node);
    }
}

/// Budgets that hold nothing up.
pub(super) fn unlimited(settings: &mut PlanSettings) {
    settings.budgets = Budgets::UNLIMITED;
}
