//! Every reason has words of its own, and there is none that nothing gives.

use std::collections::BTreeSet;

use super::harness::*;
use crate::ids::ShardName;
use crate::plan::{
    BalanceBy, NodeState, Placement, Plan, PlanNode, PlanReason, PlanSettings, PlanShardRecord,
    PlanView, Policy, PolicyInput, PolicyKind, ZoneRule, plan, plan_with,
};

#[test]
fn every_reason_has_words_of_its_own() {
    let words: BTreeSet<&str> = PlanReason::ALL.iter().map(|r| r.as_str()).collect();
    let texts: BTreeSet<String> = PlanReason::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(
        (words.len(), texts.len()),
        (PlanReason::ALL.len(), PlanReason::ALL.len())
    );
}

#[derive(Debug)]
struct Silent;

impl Policy for Silent {
    fn assign(&self, _: &PolicyInput<'_>) -> Vec<Placement> {
        Vec::new()
    }
}

/// What has been said so far.
struct Heard(BTreeSet<PlanReason>);

impl Heard {
    fn plan(&mut self, view: &PlanView, plan: &Plan) {
        self.0.extend(plan.put_off.map(|p| p.reason));
        self.0
            .extend(view.shards().map(|(ix, _)| plan.reason(view, ix)));
    }

    fn case(
        &mut self,
        owners: &[u32],
        node: impl FnOnce(&mut Vec<PlanNode>),
        shard: impl FnOnce(&mut Vec<PlanShardRecord>),
        settings: impl FnOnce(&mut PlanSettings),
    ) {
        let mut all = nodes(3);
        node(&mut all);
        let mut shards = owned(owners.iter().copied());
        shard(&mut shards);
        let view = view(all, shards);
        let plan = plan(&view, &rules(settings), LATER);
        self.plan(&view, &plan);
    }
}

fn state(node: usize, state: NodeState) -> impl FnOnce(&mut Vec<PlanNode>) {
    move |all| all[node].state = state
}

fn none<T>(_: &mut T) {}

#[test]
fn there_is_no_reason_that_nothing_gives() {
    let mut heard = Heard(BTreeSet::new());
    let even = [0, 1, 2];
    let lop = [0, 0, 0, 0, 0, 0];
    heard.case(
        &even,
        none,
        |s| s.push(PlanShardRecord::free(ShardName::index(9))),
        none,
    );
    heard.case(&even, state(0, NodeState::Away), none, none);
    heard.case(&even, state(0, NodeState::Draining), none, none);
    heard.case(&even, state(0, NodeState::Leaving), none, none);
    heard.case(&even, none, |s| s[0].pin = Some(name("n1")), none);
    heard.case(&even, none, |s| s[0].pin = Some(name("x")), none);
    heard.case(&even, |all| all[0].capacity = Some(0), none, none);
    heard.case(&even, none, none, |s| {
        s.required_labels.insert("a".to_owned(), "b".to_owned());
    });
    heard.case(&lop, none, none, none);
    heard.case(&lop, none, none, |s| s.balance_by = BalanceBy::Cost);
    heard.case(&lop, none, none, |s| s.policy = PolicyKind::Jump);
    heard.case(&lop, none, none, |s| s.band_shards = 9);
    heard.case(&lop, none, none, |s| s.budgets.total = 1);
    heard.case(&lop, none, none, |s| s.budgets.per_source = 1);
    heard.case(&lop, none, none, |s| s.budgets.per_target = 1);
    let cooling = |s: &mut Vec<PlanShardRecord>| s.iter_mut().for_each(|s| s.moved = Some(LATER));
    heard.case(&lop, none, cooling, none);
    heard.case(&lop, |all| all[1].since = LATER, none, none);
    let back = |all: &mut Vec<PlanNode>| {
        all[1..].iter_mut().for_each(|n| {
            n.since = LATER - SECOND * 5;
            n.absences = 1;
        });
    };
    heard.case(&lop, back, none, none);
    let drains = |all: &mut Vec<PlanNode>| {
        all[1].state = NodeState::Draining;
        all[1].since = LATER - SECOND * 5;
    };
    heard.case(&[0, 0, 0, 0, 0, 0, 0, 1], drains, none, none);
    let zoned = |all: &mut Vec<PlanNode>| all[0].zone = Some("a".to_owned());
    heard.case(&lop, zoned, none, |s| {
        s.zones = ZoneRule::Spread { most_percent: 50 }
    });
    let zones = vec!["b".to_owned()];
    let other = |all: &mut Vec<PlanNode>| all[1].zone = Some("b".to_owned());
    heard.case(&lop, other, none, |s| s.zones = ZoneRule::Prefer { zones });
    let to = |s: &mut Vec<PlanShardRecord>| s[0].moving = Some(name("n1"));
    let sealed = |s: &mut Vec<PlanShardRecord>| {
        s[0].moving = Some(name("n1"));
        s[0].sealed = true;
    };
    heard.case(&even, none, to, none);
    heard.case(&even, state(1, NodeState::Away), to, none);
    heard.case(&even, state(1, NodeState::Draining), to, none);
    heard.case(&even, state(1, NodeState::Away), sealed, none);
    let labelled = |all: &mut Vec<PlanNode>| {
        for i in [0, 2] {
            all[i].labels.insert("a".to_owned(), "b".to_owned());
        }
    };
    heard.case(&even, labelled, to, |s| {
        s.required_labels.insert("a".to_owned(), "b".to_owned());
    });
    let recent = |all: &mut Vec<PlanNode>| {
        all[0].state = NodeState::Away;
        all[0].since = LATER;
    };
    heard.case(&even, recent, none, |s| s.failover_after = SECOND);
    let full = |all: &mut Vec<PlanNode>| {
        all.iter_mut().for_each(|n| n.capacity = Some(1));
        all[0].state = NodeState::Draining;
    };
    heard.case(&even, full, none, none);
    heard.case(
        &even,
        state(1, NodeState::Cordoned),
        |s| s[0].pin = Some(name("n1")),
        none,
    );
    let refused = view(nodes(1), free(1));
    let plan = plan_with(&refused, &at_once(), &Silent, LATER);
    heard.plan(&refused, &plan);
    let silent: Vec<&PlanReason> = PlanReason::ALL
        .iter()
        .filter(|r| !heard.0.contains(r))
        .collect();
    assert!(silent.is_empty(), "never given: {silent:?}");
}
