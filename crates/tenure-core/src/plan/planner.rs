//! A planner that remembers: small changes cost little.

use super::decision::Plan;
use super::input::{PlanNode, PlanShard, PlanShardRecord, PlanView, ShardIx};
use super::policy::Policy;
use super::settings::PlanRules;
use super::view_index::ViewIndex;
use super::{input::NodeIx, plan_on};
use crate::ids::{NodeName, ShardName};
use crate::time::Time;

/// One change of what the planner looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ViewChange {
    /// A node came, or is different now.
    Node(PlanNode),
    /// A node is to be forgotten.
    NodeGone(NodeName),
    /// A shard was created, or is different now.
    Shard(PlanShardRecord),
    /// A shard was deleted.
    ShardGone(ShardName),
}

/// A view and its index, kept up to date change by change. What it plans is the same as a plan from nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Planner {
    view: PlanView,
    index: ViewIndex,
    rules: PlanRules,
}

impl Planner {
    /// A planner that starts from this view.
    pub fn new(view: PlanView, rules: PlanRules) -> Self {
        let index = ViewIndex::of(&view);
        Self { view, index, rules }
    }

    /// What it looks at.
    pub fn view(&self) -> &PlanView {
        &self.view
    }

    /// How it plans.
    pub fn rules(&self) -> &PlanRules {
        &self.rules
    }

    /// Plans differently from now on.
    pub fn set_rules(&mut self, rules: PlanRules) {
        self.rules = rules;
    }

    /// Takes in a change. A change of a shard or a node costs little; new names shift numbers and cost a pass over all shards.
    pub fn apply(&mut self, delta: ViewChange) {
        match delta {
            ViewChange::Node(node) => self.put_node(node),
            ViewChange::NodeGone(name) => {
                if let Some(node) = self.view.find_node(&name) {
                    self.view.remove_node(node);
                    self.index = ViewIndex::of(&self.view);
                }
            }
            ViewChange::Shard(spec) => match self.view.find_shard(&spec.name) {
                Some(ix) => {
                    let state = self.view.resolve(&spec);
                    self.set_shard(ix, state);
                }
                None => {
                    self.view.put_shard(&spec);
                    self.index = ViewIndex::of(&self.view);
                }
            },
            ViewChange::ShardGone(name) => {
                if let Some(shard) = self.view.find_shard(&name) {
                    self.view.remove_shard(shard);
                    self.index = ViewIndex::of(&self.view);
                }
            }
        }
    }

    /// Changes a shard by numbers.
    pub fn set_shard(&mut self, shard: ShardIx, state: PlanShard) {
        let old = self.view.shard(shard);
        if old != state {
            self.index.remove(shard, &old);
            self.view.set_shard(shard, state);
            self.index.add(shard, &state);
        }
    }

    fn put_node(&mut self, node: PlanNode) {
        let known = self.view.find_node(&node.name);
        let same_zone = known.is_some_and(|ix| self.view.node(ix).zone == node.zone);
        let NodeIx(at) = self.view.put_node(node);
        if known.is_none() {
            self.index.seats.insert(at as usize, Default::default());
            self.index.lists.insert(at as usize, Vec::new());
        }
        if !same_zone {
            self.index.number_zones(&self.view);
        }
    }

    /// What should be done now.
    pub fn plan(&self, now: Time) -> Plan {
        plan_on(&self.view, &self.rules, &self.index, now, None)
    }

    /// The same by a policy of one's own.
    pub fn plan_with(&self, policy: &dyn Policy, now: Time) -> Plan {
        plan_on(&self.view, &self.rules, &self.index, now, Some(policy))
    }

    /// Bytes that it keeps besides the names, roughly.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.view.bytes()
    }
}
