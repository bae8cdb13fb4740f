//! The planner: a pure function from a view to decisions with reasons, the same bytes for the same input.
//!
//! | phase | file | what it finds out |
//! |---|---|---|
//! | 1 | `eligibility.rs` | what each node may do: keep, take, be filled |
//! | 2 | `in_flight.rs` | what is under way, what must be cancelled, what cannot stay where it is |
//! | 3 | `share.rs` | how many shards each node should have |
//! | 4 | `placement.rs` | where shards go that have no place or must leave theirs |
//! | 5 | `balance_count.rs`, `balance_load.rs` | what should move for balance: by number of shards, by load |
//! | 6 | `budget.rs` | what of that is allowed now |
//!
//! `damping.rs` says when balance has to wait. `policy.rs` stands in for phases 3 to 5 where a policy says for each shard
//! where it belongs. `view_index.rs` is the view sorted by node, `from_records.rs` makes a view out of records; [`Planner`] keeps it between plans.
//!
//! The planner advises. It never grants: what it says is written by a leader whose writes may be refused, and carried out
//! by nodes under the rules of the shard table. A wrong or outdated plan costs moves, never safety (P1).

mod balance_count;
mod balance_load;
mod budget;
mod builder;
mod damping;
mod decision;
mod eligibility;
mod from_records;
mod in_flight;
mod input;
mod load_average;
mod placement;
mod planner;
mod policy;
mod reason;
mod report;
mod settings;
pub(crate) mod target_counts;
mod validate_policy;
mod view_index;
pub mod what_if;

#[cfg(test)]
mod tests;

pub use decision::{Balance, Decision, DeferredMoves, Plan, PlanProblem};
pub use from_records::{LiveRecords, NoMemory, PlannerMemory, StaleReason, StaleRecord};
pub use input::{
    NodeIx, NodeState, OtherKeyspaces, Pin, PlanNode, PlanShard, PlanShardRecord, PlanView,
    ShardIx, ViewProblem,
};
pub use load_average::LoadAverage;
pub use planner::{Planner, ViewChange};
pub use policy::{EligibleNode, Placement, Policy, PolicyInput, jump_hash};
pub use reason::PlanReason;
pub use report::PlanReport;
pub use settings::{BalanceBy, Budgets, PlanRules, PlanSettings, PolicyKind, ZoneRule};
pub use validate_policy::{InvalidPlacement, check};

use crate::time::Time;
use builder::PlanBuilder;
use view_index::ViewIndex;

/// What should be done now.
pub fn plan(view: &PlanView, rules: &PlanRules, now: Time) -> Plan {
    plan_on(view, rules, &ViewIndex::of(view), now, None)
}

/// The same by a policy of one's own; `rules.policy` is then not looked at.
pub fn plan_with(view: &PlanView, rules: &PlanRules, policy: &dyn Policy, now: Time) -> Plan {
    plan_on(view, rules, &ViewIndex::of(view), now, Some(policy))
}

fn plan_on(
    view: &PlanView,
    rules: &PlanRules,
    index: &ViewIndex,
    now: Time,
    policy: Option<&dyn Policy>,
) -> Plan {
    let mut work = PlanBuilder::new(view, rules, index, now);
    work.settle();
    if policy.is_some() || rules.policy != PolicyKind::Sticky {
        work.follow(policy);
    } else {
        let shares = work.shares();
        if work.by_load() {
            let open = work.open_shares(&shares);
            work.place(&open);
            work.level(&shares);
        } else {
            work.place(&shares);
            work.balance(&shares);
        }
    }
    work.finish()
}
