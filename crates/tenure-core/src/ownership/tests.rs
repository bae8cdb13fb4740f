//! The table, row by row, and what no sequence of rows can do.

use proptest::prelude::*;

use super::*;
use crate::ids::Epoch;
use crate::invariants::check_successor;

const PLAN: PlanId = PlanId { term: 1, seq: 1 };

fn who(n: u128) -> Owner {
    Owner {
        node: NodeName::new(format!("n{n}")).unwrap(),
        session: SessionId(n),
    }
}

fn writer(n: u128) -> WriteIdentity {
    WriteIdentity {
        owner: who(n),
        nonce: Nonce {
            writer: SessionId(n),
            n: 1,
        },
    }
}

fn record(tenancy: Ownership) -> ShardRecord {
    let nonce = Nonce {
        writer: SessionId(9),
        n: 0,
    };
    let mut record = ShardRecord {
        ownership: tenancy,
        ..ShardRecord::new(Head::first(nonce), 1)
    };
    record.epoch = Epoch(Epoch::first(1).0 + 4);
    record
}

fn mv() -> Move {
    Move {
        id: 1,
        to: who(2),
        reason: Reason::Planned,
        more: false,
    }
}

fn held(serving: bool) -> Ownership {
    Ownership::Owned {
        by: who(1),
        serving,
    }
}

fn states() -> Vec<Ownership> {
    vec![
        Ownership::FREE,
        Ownership::Free {
            awaiting_disclaimers: vec![SessionId(1), SessionId(3)],
        },
        held(false),
        held(true),
        Ownership::Warming {
            by: who(1),
            mv: mv(),
        },
        Ownership::Freezing {
            by: who(1),
            mv: mv(),
        },
        Ownership::Sealed {
            by: who(1),
            mv: mv(),
            seal: "s".to_owned(),
        },
        Ownership::Deleted,
    ]
}

fn step(
    from: &ShardRecord,
    by: u128,
    change: Transition,
    ended: &[u128],
) -> Result<ShardRecord, TransitionError> {
    let ended = |s: SessionId| ended.contains(&s.0);
    apply(
        from,
        &writer(by),
        change,
        &TransitionContext {
            ended: &ended,
            highest_epoch: Epoch(0),
            min_generation: 0,
            load: None,
            rules: Rules::sound(),
        },
    )
}

/// Names of the states from which `change` by `by` works.
fn works_from(by: u128, change: Transition, ended: &[u128]) -> Vec<(&'static str, &'static str)> {
    states()
        .into_iter()
        .filter_map(|tenancy| {
            let old = record(tenancy);
            step(&old, by, change.clone(), ended)
                .ok()
                .map(|new| (old.ownership.name(), new.ownership.name()))
        })
        .collect()
}

#[test]
fn a_free_shard_is_claimed_and_nothing_else_of_a_live_owner() {
    assert_eq!(works_from(3, Transition::Claim, &[]), [("free", "loading")]);
}

#[test]
fn every_state_of_an_ended_owner_can_be_claimed() {
    let from: Vec<_> = works_from(3, Transition::Claim, &[1])
        .into_iter()
        .map(|(from, _)| from)
        .collect();
    assert_eq!(
        from,
        [
            "free", "loading", "serving", "warming", "freezing", "sealed"
        ]
    );
}

#[test]
fn only_the_owner_serves_releases_fails_and_seals() {
    let seal = || Transition::Seal {
        seal: "x".to_owned(),
    };
    let release = || Transition::Release {
        to: None,
        reason: Reason::Rebalance,
    };
    let fail = || Transition::Fail {
        error: "e".to_owned(),
    };
    assert_eq!(
        works_from(1, Transition::Serve, &[]),
        [("loading", "serving")]
    );
    assert_eq!(
        works_from(1, release(), &[]),
        [("loading", "free"), ("serving", "free")]
    );
    assert_eq!(
        works_from(1, fail(), &[]),
        [("loading", "free"), ("serving", "free")]
    );
    assert_eq!(works_from(1, seal(), &[]), [("freezing", "sealed")]);
    for change in [Transition::Serve, release(), fail(), seal()] {
        assert_eq!(works_from(2, change, &[]), []);
    }
}

#[test]
fn the_owner_tells_of_trouble_and_a_change_of_owner_ends_it() {
    let tell = |said: &str| Transition::ReportTrouble {
        said: Some(said.to_owned()),
    };
    assert_eq!(
        works_from(1, tell("x"), &[]),
        [("loading", "loading"), ("serving", "serving")]
    );
    assert_eq!(works_from(2, tell("x"), &[]), []);
    let held = record(held(true));
    let long = format!("{}ä…", "x".repeat(TROUBLE_LEN - 1));
    let told = step(&held, 1, tell(&long), &[]).unwrap();
    assert_eq!(told.trouble, Some("x".repeat(TROUBLE_LEN - 1)));
    assert_eq!(told.epoch, held.epoch);
    let well = step(&told, 1, Transition::ReportTrouble { said: None }, &[]).unwrap();
    assert_eq!(well.trouble, None);
    let release = Transition::Release {
        to: None,
        reason: Reason::Rebalance,
    };
    for (by, change) in [
        (1, release),
        (3, Transition::Claim),
        (3, Transition::ReleaseDeadOwner),
    ] {
        let ended: &[u128] = if by == 3 { &[1] } else { &[] };
        assert_eq!(step(&told, by, change, ended).unwrap().trouble, None);
    }
}

#[test]
fn a_move_goes_through_every_phase_and_only_its_target_takes() {
    let plan = |to| Transition::BeginMove {
        id: 7,
        to,
        plan: PLAN,
        reason: Reason::Planned,
        more: false,
    };
    assert_eq!(works_from(3, plan(who(2)), &[]), [("serving", "warming")]);
    assert_eq!(
        works_from(3, plan(who(2)), &[2]),
        [],
        "not to a target that has ended"
    );
    assert_eq!(works_from(3, plan(who(1)), &[]), [], "not to itself");
    assert_eq!(
        works_from(2, Transition::Warmed, &[]),
        [("warming", "freezing")]
    );
    assert_eq!(works_from(3, Transition::Warmed, &[]), []);
    assert_eq!(
        works_from(2, Transition::Take { serving: true }, &[]),
        [("sealed", "serving")]
    );
    assert_eq!(works_from(3, Transition::Take { serving: true }, &[]), []);
}

#[test]
fn another_incarnation_of_the_target_is_not_the_target() {
    let mut again = writer(2);
    again.owner.session = SessionId(22);
    let old = record(Ownership::Sealed {
        by: who(1),
        mv: mv(),
        seal: String::new(),
    });
    let facts = TransitionContext {
        ended: &|_| false,
        highest_epoch: Epoch(0),
        min_generation: 0,
        load: None,
        rules: Rules::sound(),
    };
    assert_eq!(
        apply(&old, &again, Transition::Take { serving: true }, &facts),
        Err(TransitionError::NotYours)
    );
}

#[test]
fn a_move_is_called_off_at_the_same_epoch_until_it_is_sealed() {
    assert_eq!(
        works_from(3, Transition::Cancel { failed: None }, &[]),
        [("warming", "serving"), ("freezing", "serving")]
    );
    let old = record(Ownership::Freezing {
        by: who(1),
        mv: mv(),
    });
    assert_eq!(
        step(&old, 3, Transition::Cancel { failed: None }, &[])
            .unwrap()
            .epoch,
        old.epoch
    );
}

#[test]
fn a_sealed_shard_returns_to_its_owner_only_without_its_target_and_at_a_new_epoch() {
    let reaffirm = |too_old| Transition::Reclaim { too_old };
    assert_eq!(works_from(1, reaffirm(false), &[]), []);
    assert_eq!(
        works_from(1, reaffirm(false), &[2]),
        [("sealed", "loading")]
    );
    assert_eq!(works_from(1, reaffirm(true), &[]), [("sealed", "loading")]);
    assert_eq!(works_from(3, reaffirm(true), &[2]), []);
    let old = record(Ownership::Sealed {
        by: who(1),
        mv: mv(),
        seal: String::new(),
    });
    assert!(step(&old, 1, reaffirm(true), &[]).unwrap().epoch > old.epoch);
}

#[test]
fn a_plan_of_an_older_term_is_refused() {
    let mut old = record(held(true));
    old.plan = PlanId { term: 2, seq: 0 };
    let plan = PlanId { term: 1, seq: 99 };
    let moving = Transition::BeginMove {
        id: 1,
        to: who(2),
        plan,
        reason: Reason::Planned,
        more: false,
    };
    assert_eq!(step(&old, 3, moving, &[]), Err(TransitionError::StalePlan));
    assert_eq!(
        step(&old, 3, Transition::Assign { node: None, plan }, &[]),
        Err(TransitionError::StalePlan)
    );
}

#[test]
fn a_restored_shard_waits_for_every_witness() {
    let old = record(Ownership::Free {
        awaiting_disclaimers: vec![SessionId(1), SessionId(3)],
    });
    assert_eq!(
        step(&old, 3, Transition::Claim, &[]),
        Err(TransitionError::AwaitingDisclaimers)
    );
    assert_eq!(
        step(
            &old,
            3,
            Transition::DisclaimOwnership {
                session: SessionId(1)
            },
            &[]
        ),
        Err(TransitionError::NotYours)
    );
    let one = step(
        &old,
        3,
        Transition::DisclaimOwnership {
            session: SessionId(1),
        },
        &[1],
    )
    .unwrap();
    let none = step(
        &one,
        3,
        Transition::DisclaimOwnership {
            session: SessionId(3),
        },
        &[],
    )
    .unwrap();
    assert_eq!(none.ownership, Ownership::FREE);
    assert!(step(&none, 3, Transition::Claim, &[]).is_ok());
}

#[test]
fn three_different_nodes_that_cannot_load_quarantine_a_shard() {
    let mut at = record(Ownership::FREE);
    for n in [1, 1, 2, 3] {
        at = step(&at, n, Transition::Claim, &[]).unwrap();
        at = step(
            &at,
            n,
            Transition::Fail {
                error: format!("e{n}"),
            },
            &[],
        )
        .unwrap();
    }
    assert_eq!(
        at.quarantine.as_ref().unwrap().reason,
        "could not be loaded by n1: e1; n2: e2; n3: e3"
    );
    assert_eq!(
        step(&at, 4, Transition::Claim, &[]),
        Err(TransitionError::Quarantined)
    );
    let lifted = step(&at, 4, Transition::ClearQuarantine, &[]).unwrap();
    assert!(lifted.failures.is_empty() && step(&lifted, 4, Transition::Claim, &[]).is_ok());
}

#[test]
fn a_failure_after_service_begins_a_new_count() {
    let mut at = record(Ownership::FREE);
    for n in [1, 2] {
        at = step(&at, n, Transition::Claim, &[]).unwrap();
        at = step(
            &at,
            n,
            Transition::Fail {
                error: "e".to_owned(),
            },
            &[],
        )
        .unwrap();
    }
    at = step(&at, 3, Transition::Claim, &[]).unwrap();
    at = step(&at, 3, Transition::Serve, &[]).unwrap();
    assert_eq!(
        at.failures.len(),
        2,
        "who could not load it is remembered while it is served"
    );
    at = step(
        &at,
        3,
        Transition::Fail {
            error: "e".to_owned(),
        },
        &[],
    )
    .unwrap();
    assert_eq!(at.failures.len(), 1);
    assert_eq!(at.quarantine, None);
}

#[test]
fn an_owner_claims_anew_under_a_raised_floor() {
    let old = record(held(true));
    let facts = TransitionContext {
        ended: &|_| false,
        highest_epoch: Epoch(0),
        min_generation: 3,
        load: None,
        rules: Rules::sound(),
    };
    let new = apply(&old, &writer(1), Transition::Claim, &facts).unwrap();
    assert_eq!(new.epoch.to_string(), "3.1");
    assert_eq!(
        apply(&old, &writer(2), Transition::Claim, &facts),
        Err(TransitionError::OwnerLive)
    );
}

#[test]
fn a_deleted_shard_keeps_its_epoch_over_its_re_creation() {
    let old = record(Ownership::FREE);
    let deleted = step(&old, 1, Transition::Delete, &[]).unwrap();
    assert_eq!(
        step(&deleted, 1, Transition::Claim, &[]),
        Err(TransitionError::Illegal)
    );
    let again = step(
        &deleted,
        1,
        Transition::Recreate {
            meta: Some("m".to_owned()),
        },
        &[],
    )
    .unwrap();
    assert!(step(&again, 1, Transition::Claim, &[]).unwrap().epoch > old.epoch);
}

#[test]
fn the_record_remembers_its_last_changes_of_owner() {
    let mut at = record(Ownership::FREE);
    for n in 1..=4 {
        at = step(&at, n, Transition::Claim, &[]).unwrap();
        at = step(
            &at,
            n,
            Transition::Release {
                to: None,
                reason: Reason::Rebalance,
            },
            &[],
        )
        .unwrap();
    }
    let last: Vec<_> = at
        .history
        .iter()
        .map(|p| (p.to.as_ref().map(ToString::to_string), p.reason))
        .collect();
    assert_eq!(last.len(), HISTORY_LEN);
    assert_eq!(last[3], (Some("n4".to_owned()), Reason::Free));
    assert_eq!(last[4], (None, Reason::Rebalance));
}

fn any_change() -> impl Strategy<Value = Transition> {
    let n = 1..4u128;
    prop_oneof![
        4 => Just(Transition::Claim),
        3 => Just(Transition::Serve),
        3 => n.clone().prop_map(|n| Transition::BeginMove { id: 1, to: who(n), plan: PLAN, reason: Reason::Planned, more: false }),
        3 => Just(Transition::Warmed),
        3 => Just(Transition::Seal { seal: "s".to_owned() }),
        3 => Just(Transition::Take { serving: true }),
        1 => Just(Transition::Cancel { failed: None }),
        1 => any::<bool>().prop_map(|too_old| Transition::Reclaim { too_old }),
        1 => Just(Transition::ReleaseDeadOwner),
        2 => Just(Transition::Release { to: None, reason: Reason::Rebalance }),
        1 => Just(Transition::ReportTrouble { said: Some("t".to_owned()) }),
        1 => Just(Transition::Fail { error: "e".to_owned() }),
        1 => n.prop_map(|n| Transition::DisclaimOwnership { session: SessionId(n) }),
        1 => Just(Transition::ClearQuarantine),
        1 => Just(Transition::Delete),
        1 => Just(Transition::Recreate { meta: None }),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_changes_breaks_an_invariant(
        changes in proptest::collection::vec((1..4u128, any_change(), any::<bool>()), 1..60),
    ) {
        let mut at = record(Ownership::Free { awaiting_disclaimers: vec![SessionId(2)] });
        let mut ended = Vec::new();
        for (by, change, ends) in changes {
            if ends && ended.len() < 2 && !ended.contains(&by) {
                ended.push(by);
            }
            if let Ok(new) = step(&at, by, change.clone(), &ended) {
                prop_assert_eq!(check_successor(&at, &new), Ok(()), "{:?} by {}: {:?} -> {:?}", change, by, at, new);
                at = new;
            }
        }
    }
}
