//! Policies that say where each shard belongs: rendezvous, jump, users' own.

use super::harness::*;
use crate::assign::{Member, Ranking};
use crate::ids::SessionId;
use crate::plan::{
    Decision, NodeIx, NodeState, Placement, PlanProblem, PlanReason, PlanRules, Policy,
    PolicyInput, PolicyKind, ShardIx, jump_hash, plan, plan_with,
};

fn by(policy: PolicyKind) -> PlanRules {
    rules(|s| s.policy = policy).at_once()
}

fn settled(nodes_: u32, shards: u32, rules: &PlanRules) -> World {
    let mut world = World::new(view(nodes(nodes_), free(shards)), rules.clone());
    world.round();
    assert!(world.round().decisions.is_empty());
    assert_eq!(world.claims, shards);
    world
}

#[test]
fn rendezvous_gives_every_shard_to_the_node_that_symmetric_nodes_would_choose() {
    let world = settled(7, 200, &by(PolicyKind::Rendezvous));
    let member = |n: &crate::plan::PlanNode| Member {
        name: n.name.clone(),
        session: SessionId(1),
        weight: n.weight,
    };
    let members: Vec<Member> = world.view.nodes().iter().map(member).collect();
    let ranking = Ranking::new(&members);
    for (ix, shard) in world.view.shards() {
        let winner = ranking.winner(&world.view.shard_id(ix), |_| true).unwrap();
        assert_eq!(world.view.node(shard.owner.unwrap()).name, *winner);
    }
}

#[test]
fn a_node_that_joins_or_leaves_moves_only_its_own_with_rendezvous() {
    let mut world = settled(7, 500, &by(PolicyKind::Rendezvous));
    world.join("n9");
    let plan = world.round();
    let new = world.node("n9");
    assert!(
        plan.actions()
            .all(|d| matches!(d, Decision::Move { to, .. } if *to == new))
    );
    assert_eq!(world.moves, world.has("n9"));
    let has = world.has("n3");
    world.set("n3", NodeState::Draining);
    world.moves = 0;
    world.round();
    assert_eq!(world.moves, has);
    assert!(world.round().is_quiet());
}

#[test]
fn jump_moves_only_to_the_node_that_is_last_in_the_order() {
    let mut world = settled(8, 800, &by(PolicyKind::Jump));
    let counts = counts(&world.view);
    assert!(counts.iter().all(|c| (70..130).contains(c)), "{counts:?}");
    world.join("z");
    world.round();
    assert_eq!(world.moves, world.has("z"));
    assert!((60..120).contains(&world.has("z")));
}

#[test]
fn the_jump_hash_is_the_published_one() {
    // From the paper's code in floating point, for keys mixed as here.
    let published = |mut key: u64, buckets: u32| {
        let (mut b, mut j) = (-1i64, 0i64);
        while j < i64::from(buckets) {
            b = j;
            key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
            let scale = (1u64 << 31) as f64 / ((key >> 33) + 1) as f64;
            j = ((b + 1) as f64 * scale) as i64;
        }
        b as u32
    };
    for key in 0..2000u64 {
        let key = crate::hash::mix(key);
        for buckets in [1, 2, 10, 1000] {
            assert_eq!(jump_hash(key, buckets), published(key, buckets));
        }
    }
    assert_eq!(jump_hash(7, 0), 0);
}

#[test]
fn jump_knows_no_weights_and_rendezvous_does() {
    for (policy, low, high) in [
        (PolicyKind::Jump, 150, 250),
        (PolicyKind::Rendezvous, 260, 400),
    ] {
        let mut all = nodes(2);
        all[0].weight = 400;
        let mut world = World::new(view(all, free(400)), by(policy));
        world.round();
        assert!(
            (low..high).contains(&world.has("n0")),
            "{policy}: {}",
            world.has("n0")
        );
    }
}

#[test]
fn capacity_pins_and_cordons_hold_for_every_policy() {
    for policy in [PolicyKind::Jump, PolicyKind::Rendezvous] {
        let mut all = nodes(4);
        all[0].capacity = Some(3);
        all[1].state = NodeState::Cordoned;
        let mut shards = free(60);
        for shard in &mut shards[..5] {
            shard.owner = Some(name("n1"));
        }
        shards[7].pin = Some(name("n2"));
        let mut world = World::new(view(all, shards), by(policy));
        world.round();
        assert!(world.round().is_quiet());
        assert_eq!((world.has("n0"), world.has("n1")), (3, 5), "{policy}");
        let pinned = world.view.find_shard(&crate::ids::ShardName::index(7));
        let owner = world.view.shard(pinned.unwrap()).owner;
        assert_eq!(owner, Some(world.node("n2")), "{policy}");
    }
}

#[test]
fn shards_for_which_there_is_no_room_stay_and_say_so() {
    for policy in [PolicyKind::Jump, PolicyKind::Rendezvous] {
        let mut all = nodes(2);
        all.iter_mut().for_each(|n| n.capacity = Some(2));
        let plan = plan(&view(all, free(6)), &by(policy), LATER);
        assert_eq!(plan.actions().count(), 4);
        let stays: Vec<PlanReason> = plan.decisions[4..].iter().map(Decision::reason).collect();
        assert_eq!(stays, [PlanReason::NoRoom; 2]);
    }
}

#[test]
fn a_policys_wishes_are_followed_at_the_planners_pace() {
    let rules = rules(|s| {
        s.policy = PolicyKind::Rendezvous;
        s.budgets.total = 5;
    });
    let mut world = World::new(view(nodes(4), owned((0..100).map(|i| i % 4))), rules);
    let plan = world.round();
    assert_eq!(plan.moves_allowed, 5);
    assert!(plan.moves_wanted > 50);
    world.join("n9");
    let plan = world.round();
    assert_eq!(plan.put_off.unwrap().reason, PlanReason::SettleTime);
}

/// Answers with whatever it was made with.
#[derive(Debug)]
struct Says(fn(&PolicyInput<'_>) -> Vec<Placement>);

impl Policy for Says {
    fn assign(&self, input: &PolicyInput<'_>) -> Vec<Placement> {
        (self.0)(input)
    }
}

fn all_to(input: &PolicyInput<'_>, node: u32) -> Vec<Placement> {
    (0..input.view.shard_count() as u32)
        .map(|i| Placement {
            shard: ShardIx(i),
            node: NodeIx(node),
        })
        .collect()
}

#[test]
fn a_policy_of_ones_own_is_followed() {
    let mut view = view(nodes(3), free(9));
    let policy = Says(|input| all_to(input, 2));
    let plan = plan_with(&view, &at_once(), &policy, LATER);
    for d in &plan.decisions {
        carry_out(&mut view, d, LATER);
    }
    assert_eq!(counts(&view), [0, 0, 9]);
    assert!(plan_with(&view, &at_once(), &policy, LATER).is_quiet());
}

#[test]
fn nonsense_is_refused_and_the_old_plan_stands() {
    let check = |says: fn(&PolicyInput<'_>) -> Vec<Placement>, expected: &str| {
        let mut all = nodes(3);
        all[1].state = NodeState::Cordoned;
        all[2].capacity = Some(2);
        let mut shards = owned([0, 0, 0, 1]);
        shards[0].owner = None;
        let plan = plan_with(&view(all, shards), &at_once(), &Says(says), LATER);
        assert!(plan.is_quiet());
        // The free shard says why it is not given to anyone.
        assert_eq!(plan.decisions.len(), 1);
        assert_eq!(plan.decisions[0].reason(), PlanReason::PolicyRejected);
        let [PlanProblem::PolicyRefused(nonsense)] = &plan.problems[..] else {
            panic!("{:?}", plan.problems);
        };
        assert_eq!(nonsense.to_string(), expected);
    };
    check(|i| all_to(i, 9), "node number 9 does not exist");
    check(
        |i| all_to(i, 1),
        "node n1 accepts no shards; choose among the nodes that were passed to the policy",
    );
    check(
        |i| all_to(i, 2),
        "node n2 was assigned 4 shards but has room for 2",
    );
    check(|_| Vec::new(), "shard 0 was assigned to no node");
    check(
        |i| [all_to(i, 0), all_to(i, 0)].concat(),
        "shard 0 was assigned to two nodes",
    );
    check(
        |_| {
            let (shard, node) = (ShardIx(77), NodeIx(0));
            vec![Placement { shard, node }]
        },
        "shard number 77 does not exist",
    );
}

#[test]
fn a_policy_may_leave_a_shard_on_a_cordoned_node() {
    let mut all = nodes(2);
    all[0].state = NodeState::Cordoned;
    let says = Says(|input| {
        let at = |ix| input.view.shard(ix).owner.unwrap();
        let stay = |shard| Placement {
            shard,
            node: at(shard),
        };
        input.view.shards().map(|(ix, _)| stay(ix)).collect()
    });
    let plan = plan_with(&view(all, owned([0, 0, 1])), &at_once(), &says, LATER);
    assert!(
        plan.decisions.is_empty() && plan.problems.is_empty(),
        "{plan:?}"
    );
}

#[test]
fn names_of_policies_are_read_as_they_are_written() {
    for policy in [PolicyKind::Sticky, PolicyKind::Rendezvous, PolicyKind::Jump] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let problem = "fair".parse::<PolicyKind>().unwrap_err();
    assert_eq!(
        problem,
        "unknown policy \"fair\"; use sticky, rendezvous or jump"
    );
}
