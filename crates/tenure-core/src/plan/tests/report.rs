//! Questions of the form "what if", and the report that answers them.

use super::harness::*;
use crate::plan::what_if::{FORMS, WhatIfChange, apply, parse};
use crate::plan::{NodeState, PlanReport, PlanView, plan};

fn ask(view: &PlanView, text: &str) -> PlanReport {
    let view = apply(view, &parse(text).unwrap(), LATER).unwrap();
    let plan = plan(&view, &at_once(), LATER);
    PlanReport::new(&view, &plan)
}

fn even() -> PlanView {
    view(nodes(3), owned((0..12).map(|i| i % 3)))
}

fn shards(report: &PlanReport) -> Vec<u32> {
    report.nodes.iter().map(|n| n.shards.1).collect()
}

#[test]
fn every_question_is_read() {
    let check = |text: &str, expected: WhatIfChange| assert_eq!(parse(text), Ok(vec![expected]));
    check("remove n3", WhatIfChange::Remove(name("n3")));
    check("add 2", WhatIfChange::AddSome(2));
    check("add big-one", WhatIfChange::Add(name("big-one")));
    check("weight n1=2", WhatIfChange::Weight(name("n1"), 2));
    check(" capacity  n1 = 7 ", WhatIfChange::Capacity(name("n1"), 7));
    check(
        "zone n1=eu",
        WhatIfChange::Zone(name("n1"), "eu".to_owned()),
    );
    check(
        "cordon n2",
        WhatIfChange::State(name("n2"), NodeState::Cordoned),
    );
    check(
        "drain n2",
        WhatIfChange::State(name("n2"), NodeState::Draining),
    );
    check(
        "resume n2",
        WhatIfChange::State(name("n2"), NodeState::Active),
    );
    let shard = || "orders/3".parse().unwrap();
    check("pin orders/3=n1", WhatIfChange::Pin(shard(), name("n1")));
    check("unpin orders/3", WhatIfChange::Unpin(shard()));
    check("cost orders/3=500", WhatIfChange::Load(shard(), 500));
    assert_eq!(parse("add 1; drain n0;").unwrap().len(), 2);
}

#[test]
fn what_is_not_understood_is_named_with_the_way_out() {
    let check = |text: &str, part: &str| {
        let problem = parse(text).unwrap_err().to_string();
        assert!(problem.contains(part), "{text}: {problem}");
    };
    check("", FORMS);
    check("explode n1", "\"explode\" is unknown; use remove NODE");
    check("drain", "names no node, shard or number");
    check("weight n1", "the value is missing; write weight n1=VALUE");
    check("weight n1=0", "\"0\" is not a whole number of at least 1");
    check("weight n1=-2", "\"-2\" is not a whole number of at least 1");
    check("cost orders/3=much", "\"much\" is not a whole number");
    check("add 0", "between 1 and 100000");
    check("pin 3=n1", "is not of the form KEYSPACE/SHARD");
}

#[test]
fn what_does_not_fit_the_cluster_is_named() {
    let check = |text: &str, expected: &str| {
        let problem = apply(&even(), &parse(text).unwrap(), LATER).unwrap_err();
        assert_eq!(problem.to_string(), expected);
    };
    check("remove n9", "what if \"n9\": the node does not exist");
    check("add n1", "what if \"n1\": the node exists already");
    check(
        "unpin orders/99",
        "what if \"orders/99\": the shard does not exist",
    );
    check(
        "unpin other/1",
        "what if \"other/1\": the plan is for keyspace orders",
    );
}

#[test]
fn each_change_has_its_effect() {
    let check = |text: &str, expected: &[u32]| {
        assert_eq!(shards(&ask(&even(), text)), expected, "{text}");
    };
    check("remove n0", &[0, 6, 6]);
    check("drain n0", &[0, 6, 6]);
    check("drain n0; resume n0", &[4, 4, 4]);
    check("add 1", &[3, 3, 3, 3]);
    check("add 3", &[2, 2, 2, 2, 2, 2]);
    check("add z9", &[3, 3, 3, 3]);
    check("weight n1=200", &[3, 6, 3]);
    check("capacity n1=0", &[6, 0, 6]);
    check("cordon n0; add 1", &[4, 3, 3, 2]);
    check("pin orders/0=n2; drain n1", &[6, 0, 6]);
}

#[test]
fn loads_and_zones_and_pins_reach_the_view() {
    let text = "cost orders/0=77; zone n0=eu; pin orders/1=nobody";
    let view = apply(&even(), &parse(text).unwrap(), LATER).unwrap();
    let report = ask(&view, "unpin orders/2");
    assert_eq!(report.nodes[0].zone.as_deref(), Some("eu"));
    assert_eq!(report.nodes[0].load, (77, 77));
    assert_eq!(report.stays[0].reason, "pin_unknown");
    assert_eq!(report.stays[0].examples, ["1"]);
}

#[test]
fn the_report_says_what_moves_and_why() {
    let report = ask(&even(), "add 1; drain n0");
    assert_eq!(
        report.to_string(),
        "keyspace orders: 12 shards; 0 to claim, 4 of 4 moves now, 0 to abort\n\
         before  0 to 4 shards per node, fullest 1.000 of its target, cost 0.000, 0 unassigned\n\
         after   4 to 4 shards per node, fullest 1.000 of its target, cost 0.000, 0 unassigned\n\
         \n\
         NODE   STATE     WEIGHT  SHARDS\n\
         n0     draining     100  4 → 0\n\
         new-1  active       100  0 → 4\n\
         \n\
         move 0 from n0 to new-1: its owner is draining\n\
         move 3 from n0 to new-1: its owner is draining\n\
         move 6 from n0 to new-1: its owner is draining\n\
         move 9 from n0 to new-1: its owner is draining\n"
    );
}

#[test]
fn stays_cancels_and_problems_are_part_of_the_report() {
    let mut shards = owned([0, 0, 1]);
    shards[0].moving = Some(name("n2"));
    let view = view(nodes(3), shards);
    let report = ask(&view, "drain n2; capacity n1=1; weight n0=1; drain n0");
    let text = report.to_string();
    assert!(
        text.contains("abort the move of 0: the target is draining"),
        "{text}"
    );
    assert!(
        text.contains("stay, each because all nodes that accept shards are at capacity"),
        "{text}"
    );
    assert!(
        text.contains("problem: 2 shards exceed the capacity"),
        "{text}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["changes"][0]["action"], "abort");
    assert_eq!(json["changes"][0]["reason"], "target_draining");
    assert_eq!(json["balance"]["before"]["most"], 1);
}

#[test]
fn long_lists_are_cut_in_the_text_and_whole_in_the_data() {
    let view = view(nodes(2), free(100));
    let report = ask(&view, "weight n0=100");
    assert_eq!(report.changes.len(), 100);
    assert!(report.to_string().contains("and 60 more"));
}
