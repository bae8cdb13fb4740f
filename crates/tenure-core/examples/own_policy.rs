//! A policy of one's own: topics live in the zone that their name begins with, evenly within it.
//!
//! `cargo run -p tenure-core --example own_policy`

use std::collections::BTreeMap;
use std::error::Error;

use tenure_core::ids::{KeyspaceName, NodeName, ShardName};
use tenure_core::plan::{
    EligibleNode, Placement, PlanNode, PlanReport, PlanSettings, PlanShardRecord, PlanView, Policy,
    PolicyInput, plan_with,
};
use tenure_core::time::Time;

/// `eu.payments` belongs to zone `eu`; to any node if that zone has none that takes shards.
#[derive(Debug)]
struct ByPrefix;

impl Policy for ByPrefix {
    fn assign(&self, input: &PolicyInput<'_>) -> Vec<Placement> {
        let mut given: BTreeMap<u32, u32> = BTreeMap::new();
        let mut answer = Vec::new();
        for (shard, _) in input.view.shards() {
            let name = input.view.shard_name(shard).as_str();
            let home = name.split('.').next();
            let at_home = |t: &&EligibleNode| input.view.node(t.node).zone.as_deref() == home;
            let has = |t: &&EligibleNode| given.get(&t.node.0).copied().unwrap_or(0);
            let open = |t: &&EligibleNode| has(t) < t.room;
            let takers = || input.takers.iter().filter(open);
            // The emptiest node of the zone; the order of names breaks ties, so that the answer is always the same.
            let best = takers().filter(at_home).min_by_key(has);
            if let Some(taker) = best.or_else(|| takers().min_by_key(has)) {
                *given.entry(taker.node.0).or_default() += 1;
                let node = taker.node;
                answer.push(Placement { shard, node });
            }
        }
        // Without room for all, shards are missing here: the planner then refuses the answer, and the old plan stands.
        answer
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut nodes = Vec::new();
    for (name, zone) in [("n1", "eu"), ("n2", "eu"), ("n3", "us")] {
        let mut node = PlanNode::new(NodeName::new(name)?, Time::ZERO);
        node.zone = Some(zone.to_owned());
        nodes.push(node);
    }
    let mut shards = Vec::new();
    for topic in ["eu.orders", "eu.payments", "us.orders", "us.payments"] {
        // Everything is on n1 so far.
        let owner = NodeName::new("n1")?;
        shards.push(PlanShardRecord::owned(ShardName::new(topic)?, owner));
    }
    let view = PlanView::new(KeyspaceName::new("topics")?, nodes, shards)
        .map_err(|problems| format!("{problems:?}"))?;
    let rules = PlanSettings::default()
        .check()
        .map_err(|problems| format!("{problems:?}"))?;
    // The planner checks the answer, and moves shards towards it within budgets, cool-downs and debounce.
    let now = Time(3_600_000_000_000);
    let plan = plan_with(&view, &rules, &ByPrefix, now);
    print!("{}", PlanReport::new(&view, &plan));
    Ok(())
}
