//! Each rule of the judge, one situation per line.

use tenure_judge::{Judge, LogEvent, LogLine, Requirements, TimeWindow, Verdict};

/// Reads a story: `STAMP SHARD PID.EPOCH@NODE EVENT`, separated by `;`.
fn tell(story: &str) -> Vec<LogLine<'_>> {
    story
        .split(';')
        .map(str::trim)
        .filter(|words| !words.is_empty())
        .map(parse)
        .collect()
}

fn parse(words: &str) -> LogLine<'_> {
    let [t, shard, who, ev] = words.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("{words}")
    };
    let (pid, rest) = who.split_once('.').unwrap();
    let (epoch, node) = rest.split_once('@').unwrap();
    let ev = match ev {
        "start" => LogEvent::Start,
        "beat" => LogEvent::Beat,
        "effect" => LogEvent::Effect,
        "end" => LogEvent::End,
        other => panic!("{other}"),
    };
    let [t, pid, epoch] = [t, pid, epoch].map(|number| number.parse().unwrap());
    LogLine {
        t,
        pid,
        shard: shard.into(),
        epoch,
        ev,
        node: node.into(),
    }
}

fn judge_with(story: &str, demands: &Requirements) -> Verdict {
    let mut judge = Judge::default();
    tell(story).iter().for_each(|line| judge.see(line));
    judge.verdict(demands)
}

/// Checks that exactly these kinds speak against a story, whatever the order of its lines.
fn check_with(story: &str, demands: &Requirements, against: &[&str]) -> Verdict {
    let kinds = |verdict: &Verdict| {
        verdict
            .against()
            .iter()
            .map(|(kind, _)| *kind)
            .collect::<Vec<_>>()
    };
    let verdict = judge_with(story, demands);
    assert_eq!(kinds(&verdict), against, "{story}: {verdict:#?}");
    let backwards: Vec<_> = story.split(';').rev().collect();
    assert_eq!(
        kinds(&judge_with(&backwards.join(";"), demands)),
        against,
        "backwards: {story}"
    );
    verdict
}

fn check(story: &str, against: &[&str]) -> Verdict {
    check_with(story, &Requirements::default(), against)
}

const OVERLAP: &str = "overlaps";
const BACK: &str = "decreasing epochs";
const SHARED: &str = "epochs with more than one owner";
const STALE: &str = "activations with stale effects";
const STRAY: &str = "lines outside start and end";
const UNSEEN: &str = "shards never served";
const UNEXPECTED: &str = "unexpected shards";
const GAP: &str = "shards with a gap above the limit";
const UNCOVERED: &str = "shards not served at the end";

#[test]
fn a_clean_handover_is_clean() {
    check(
        "1 s 1.1@a start; 5 s 1.1@a effect; 9 s 1.1@a end; 10 s 2.2@b start; 20 s 2.2@b end",
        &[],
    );
}

#[test]
fn a_killed_owner_was_alive_up_to_its_last_line() {
    check(
        "1 s 1.1@a start; 9 s 1.1@a beat; 10 s 2.2@b start; 20 s 2.2@b beat",
        &[],
    );
    check(
        "1 s 1.1@a start; 11 s 1.1@a beat; 10 s 2.2@b start; 20 s 2.2@b beat",
        &[OVERLAP],
    );
}

#[test]
fn a_stopped_owner_that_never_wakes_is_clean_and_one_that_beats_again_is_not() {
    check(
        "1 s 1.1@a start; 2 s 1.1@a beat; 50 s 2.2@b start; 60 s 2.2@b end",
        &[],
    );
    let verdict = check(
        "1 s 1.1@a start; 2 s 1.1@a beat; 50 s 2.2@b start; 55 s 1.1@a beat; 60 s 2.2@b end",
        &[OVERLAP],
    );
    let overlap = &verdict.overlaps.listed[0];
    assert_eq!((overlap.earlier.pid, overlap.later.pid), (1, 2));
    assert_eq!(overlap.earlier_alive, TimeWindow { from: 1, until: 55 });
    assert_eq!(
        overlap.later_alive,
        TimeWindow {
            from: 50,
            until: 60
        }
    );
    assert_eq!(
        overlap.both,
        TimeWindow {
            from: 50,
            until: 55
        }
    );
}

#[test]
fn spans_that_touch_in_one_nanosecond_do_not_overlap() {
    check(
        "1 s 1.1@a start; 10 s 1.1@a end; 10 s 2.2@b start; 20 s 2.2@b end",
        &[],
    );
    check(
        "1 s 1.1@a start; 11 s 1.1@a end; 10 s 2.2@b start; 20 s 2.2@b end",
        &[OVERLAP],
    );
}

#[test]
fn a_single_line_inside_another_work_is_an_overlap() {
    check(
        "1 s 1.1@a start; 10 s 2.2@b start; 20 s 1.1@a end",
        &[OVERLAP],
    );
    check(
        "5 s 1.1@a start; 5 s 2.2@b start; 9 s 1.1@a beat; 9 s 2.2@b beat",
        &[OVERLAP],
    );
}

#[test]
fn work_of_one_process_at_two_epochs_overlaps_too() {
    check(
        "1 s 1.1@a start; 10 s 1.2@a start; 11 s 1.1@a end; 20 s 1.2@a end",
        &[OVERLAP],
    );
}

#[test]
fn three_at_once_are_three_overlaps() {
    let story = "1 s 1.1@a start; 2 s 2.2@b start; 3 s 3.3@c start; 9 s 1.1@a end; 9 s 2.2@b end; 9 s 3.3@c end";
    assert_eq!(check(story, &[OVERLAP]).overlaps.count, 3);
}

#[test]
fn different_shards_have_nothing_to_do_with_each_other() {
    check(
        "1 s 1.5@a start; 20 s 1.5@a end; 5 r 2.2@b start; 30 r 2.2@b end",
        &[],
    );
}

#[test]
fn an_epoch_that_starts_after_a_higher_one_goes_back() {
    let verdict = check(
        "1 s 1.7@a start; 2 s 1.7@a end; 5 s 2.6@b start; 6 s 2.6@b end",
        &[BACK],
    );
    let back = &verdict.regressions.listed[0];
    assert_eq!(
        (back.work.epoch, back.at, back.after.epoch, back.after_at),
        (6, 5, 7, 1)
    );
}

#[test]
fn of_two_starts_in_one_nanosecond_neither_is_before_the_other() {
    check("5 s 1.2@a start; 5 s 2.1@b start; 9 s 2.1@b end", &[]);
}

#[test]
fn the_highest_epoch_so_far_counts_and_not_the_last_one() {
    let story = "1 s 1.9@a start; 2 s 1.9@a end; 3 s 2.4@b start; 4 s 2.4@b end; 5 s 3.5@c start; 6 s 3.5@c end";
    assert_eq!(check(story, &[BACK]).regressions.count, 2);
}

#[test]
fn an_epoch_of_two_processes_or_two_nodes_is_shared() {
    let verdict = check(
        "1 s 1.3@a start; 2 s 1.3@a end; 5 s 2.3@b start; 6 s 2.3@b end",
        &[SHARED],
    );
    assert_eq!(verdict.shared.listed[0].pids, [1, 2]);
    assert_eq!(verdict.shared.listed[0].nodes, ["a", "b"]);
    check(
        "1 s 1.3@a start; 2 s 1.3@a end; 5 s 2.3@a start; 6 s 2.3@a end",
        &[SHARED],
    );
    check("1 s 1.3@a start; 2 s 1.3@b end", &[SHARED]);
}

#[test]
fn where_restarts_are_allowed_processes_of_one_node_may_follow_each_other() {
    let demands = Requirements {
        restarts: true,
        ..Requirements::default()
    };
    check_with(
        "1 s 1.3@a start; 2 s 1.3@a beat; 5 s 2.3@a start; 6 s 2.3@a end",
        &demands,
        &[],
    );
    check_with(
        "1 s 1.3@a start; 2 s 1.3@a end; 5 s 2.3@b start; 6 s 2.3@b end",
        &demands,
        &[SHARED],
    );
    check_with(
        "1 s 1.3@a start; 5 s 2.3@a start; 6 s 1.3@a beat; 9 s 2.3@a end",
        &demands,
        &[OVERLAP],
    );
}

#[test]
fn work_may_come_back_at_its_own_epoch_until_a_higher_one_began() {
    let verdict = check(
        "1 s 1.3@a start; 2 s 1.3@a end; 5 s 1.3@a start; 6 s 1.3@a end",
        &[],
    );
    assert_eq!(verdict.resumed, 1);
    let story = "1 s 1.3@a start; 2 s 1.3@a end; 3 s 2.4@b start; 4 s 2.4@b end; 5 s 1.3@a start; 6 s 1.3@a end";
    check(story, &[BACK]);
}

#[test]
fn an_effect_after_a_higher_epoch_began_is_stale() {
    let story = "1 s 1.1@a start; 5 s 1.1@a effect; 10 s 2.2@b start; 12 s 1.1@a effect; 13 s 1.1@a effect; 20 s 2.2@b end";
    let verdict = check(story, &[OVERLAP, STALE]);
    let stale = &verdict.stale_effects.listed[0];
    assert_eq!(
        (
            stale.work.pid,
            stale.superseded_at,
            stale.first,
            stale.effects
        ),
        (1, 10, 12, 2)
    );
}

#[test]
fn a_stale_effect_is_seen_also_when_the_higher_epoch_is_long_over() {
    check(
        "1 s 1.1@a start; 2 s 1.1@a end; 3 s 2.2@b start; 4 s 2.2@b end; 9 s 1.1@a effect",
        &[BACK, STALE, STRAY],
    );
    check(
        "1 s 1.1@a start; 3 s 2.2@b start; 4 s 2.2@b end; 9 s 1.1@a effect",
        &[OVERLAP, STALE],
    );
}

#[test]
fn an_effect_in_the_very_nanosecond_of_the_next_start_is_not_stale() {
    check(
        "1 s 1.1@a start; 10 s 1.1@a effect; 10 s 2.2@b start; 11 s 2.2@b effect",
        &[],
    );
}

#[test]
fn lines_outside_start_and_end_are_strays() {
    let verdict = check("1 s 1.1@a beat; 2 s 1.1@a beat", &[STRAY]);
    assert_eq!((verdict.strays.count, verdict.strays.listed[0].at), (1, 1));
    check("1 s 1.1@a start; 2 s 1.1@a end; 3 s 1.1@a end", &[STRAY]);
}

#[test]
fn gaps_are_measured_from_the_first_to_the_last_line_of_the_run() {
    let story = "0 r 9.1@z start; 100 r 9.1@z end; 10 s 1.1@a start; 20 s 1.1@a end; 60 s 2.2@b start; 90 s 2.2@b end";
    let verdict = check_with(
        story,
        &Requirements {
            max_gap: Some(40),
            ..Requirements::default()
        },
        &[],
    );
    let gap = &verdict.gaps[0];
    assert_eq!(
        (gap.shard.as_str(), gap.from, gap.until, verdict.gaps.len()),
        ("s", 20, 60, 1)
    );
    check_with(
        story,
        &Requirements {
            max_gap: Some(39),
            ..Requirements::default()
        },
        &[GAP],
    );
}

#[test]
fn the_time_before_the_first_and_after_the_last_owner_is_a_gap_too() {
    let late = "0 r 9.1@z start; 100 r 9.1@z end; 70 s 1.1@a start; 100 s 1.1@a end";
    let early = "0 r 9.1@z start; 100 r 9.1@z end; 0 s 1.1@a start; 30 s 1.1@a end";
    for story in [late, early] {
        assert_eq!(check(story, &[]).gaps[0].nanos(), 70);
        check_with(
            story,
            &Requirements {
                max_gap: Some(69),
                ..Requirements::default()
            },
            &[GAP],
        );
    }
}

#[test]
fn a_short_work_inside_a_long_one_makes_no_gap() {
    let story = "0 s 1.1@a start; 10 s 2.2@b start; 20 s 2.2@b end; 100 s 1.1@a end";
    assert_eq!(check(story, &[OVERLAP]).gaps, []);
}

#[test]
fn a_window_narrows_gaps_and_coverage_and_nothing_else() {
    let story = "0 s 1.1@a start; 10 s 1.1@a end; 50 s 2.2@b start; 60 s 2.2@b end; 95 s 3.2@c start; 100 s 3.2@c end";
    let window = |from, until| Requirements {
        max_gap: Some(5),
        from: Some(from),
        until: Some(until),
        ..Requirements::default()
    };
    check_with(story, &window(0, 14), &[SHARED]);
    check_with(story, &window(0, 16), &[SHARED, GAP]);
    check_with(story, &window(46, 64), &[SHARED]);
    let covered = |until| Requirements {
        covered_by: Some(10),
        until: Some(until),
        ..Requirements::default()
    };
    check_with(story, &covered(70), &[SHARED]);
    check_with(story, &covered(71), &[SHARED, UNCOVERED]);
    check_with(story, &covered(49), &[SHARED, UNCOVERED]);
}

#[test]
fn every_shard_must_be_alive_in_the_last_part_when_that_is_asked() {
    let story = "0 r 9.1@z start; 100 r 9.1@z end; 0 s 1.1@a start; 60 s 1.1@a beat";
    check_with(
        story,
        &Requirements {
            covered_by: Some(40),
            ..Requirements::default()
        },
        &[],
    );
    let verdict = check_with(
        story,
        &Requirements {
            covered_by: Some(39),
            ..Requirements::default()
        },
        &[UNCOVERED],
    );
    assert_eq!(verdict.uncovered.listed, ["s"]);
}

#[test]
fn shards_asked_for_must_appear_and_others_must_not() {
    let story = "1 k/0 1.1@a start; 9 k/0 1.1@a end; 1 k/1 1.1@a start; 9 k/1 1.1@a end";
    check_with(story, &Requirements::of_keyspace("k", 2), &[]);
    assert_eq!(
        check_with(story, &Requirements::of_keyspace("k", 3), &[UNSEEN])
            .unseen
            .listed,
        ["k/2"]
    );
    assert_eq!(
        check_with(story, &Requirements::of_keyspace("k", 1), &[UNEXPECTED])
            .unexpected
            .listed,
        ["k/1"]
    );
    let all = Requirements {
        max_gap: Some(3),
        covered_by: Some(1),
        ..Requirements::of_keyspace("k", 3)
    };
    let verdict = check_with(story, &all, &[UNSEEN, GAP, UNCOVERED]);
    assert_eq!(
        (verdict.gaps[0].shard.as_str(), verdict.gaps[0].nanos()),
        ("k/2", 8)
    );
}

#[test]
fn no_lines_give_an_empty_verdict() {
    assert_eq!(check("", &[]), Verdict::default());
}
