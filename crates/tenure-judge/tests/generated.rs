//! Generated runs: what is clean is never flagged, and what was broken on purpose is always found.

use std::collections::BTreeMap;

use tenure_judge::{Judge, LogEvent, LogLine, Requirements, Verdict, judge};

/// Small, seeded and its own: the same seed gives the same run for ever.
struct Dice(u64);

impl Dice {
    /// A number from `low` to `high`, both included.
    fn roll(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        low + (mixed ^ (mixed >> 29)) % (high - low + 1)
    }
}

/// One owner's time on one shard, as it really was.
#[derive(Clone, Copy, Debug)]
struct Turn {
    shard: u64,
    epoch: u64,
    pid: u64,
    first: u64,
    last: u64,
}

/// A run without fault: per shard one owner after the other, killed or ended, with rising epochs.
struct Run {
    turns: Vec<Turn>,
    lines: Vec<LogLine<'static>>,
}

fn line(turn: Turn, t: u64, ev: LogEvent) -> LogLine<'static> {
    let Turn {
        shard, epoch, pid, ..
    } = turn;
    LogLine {
        t,
        pid,
        shard: format!("k/{shard}").into(),
        epoch,
        ev,
        node: format!("n{pid}").into(),
    }
}

fn clean_run(dice: &mut Dice) -> Run {
    let mut run = Run {
        turns: Vec::new(),
        lines: Vec::new(),
    };
    for shard in 0..dice.roll(1, 4) {
        let (mut now, mut epoch) = (dice.roll(1, 50), 0);
        for _ in 0..dice.roll(2, 6) {
            epoch += dice.roll(1, 3);
            let first = now;
            let mut turn = Turn {
                shard,
                epoch,
                pid: dice.roll(1, 1_000_000),
                first,
                last: first,
            };
            run.lines.push(line(turn, now, LogEvent::Start));
            for _ in 0..dice.roll(1, 8) {
                now += dice.roll(1, 30);
                let ev = if dice.roll(0, 3) == 0 {
                    LogEvent::Effect
                } else {
                    LogEvent::Beat
                };
                run.lines.push(line(turn, now, ev));
            }
            // Half of them are killed: no end, alive up to the last line.
            if dice.roll(0, 1) == 0 {
                now += dice.roll(0, 5);
                run.lines.push(line(turn, now, LogEvent::End));
            }
            turn.last = now;
            run.turns.push(turn);
            now += dice.roll(0, 40);
        }
    }
    run
}

/// Mixes the lines of different works, as files and processes do; equal stamps of one work keep their order.
fn mix(lines: Vec<LogLine<'static>>, dice: &mut Dice) -> Vec<LogLine<'static>> {
    let mut works: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines.into_iter().rev() {
        works
            .entry((line.shard.clone(), line.epoch, line.pid))
            .or_default()
            .push(line);
    }
    let mut works: Vec<_> = works.into_values().collect();
    let mut mixed = Vec::new();
    while !works.is_empty() {
        let pick = dice.roll(0, works.len() as u64 - 1) as usize;
        mixed.extend(works[pick].pop());
        if works[pick].is_empty() {
            works.swap_remove(pick);
        }
    }
    mixed
}

/// Two turns of one shard, one right after the other.
fn handover(run: &Run, dice: &mut Dice) -> (Turn, Turn) {
    let pairs: Vec<_> = run
        .turns
        .windows(2)
        .filter(|pair| pair[0].shard == pair[1].shard)
        .collect();
    let pair = pairs[dice.roll(0, pairs.len() as u64 - 1) as usize];
    (pair[0], pair[1])
}

/// Breaks many runs in one way and asks of each verdict that it says so.
fn break_runs(
    broken: impl Fn(&Run, &mut Dice) -> Vec<LogLine<'static>>,
    found: impl Fn(&Verdict) -> bool,
) {
    for seed in 0..2_000 {
        let mut dice = Dice(seed);
        let run = clean_run(&mut dice);
        let lines = broken(&run, &mut dice);
        let verdict = judge(mix(lines, &mut dice));
        assert!(found(&verdict), "seed {seed}: {verdict:#?}");
    }
}

#[test]
fn clean_runs_are_never_flagged() {
    for seed in 0..5_000 {
        let mut dice = Dice(seed);
        let run = clean_run(&mut dice);
        let verdict = judge(mix(run.lines, &mut dice));
        assert!(verdict.is_clean(), "seed {seed}: {verdict:#?}");
        assert_eq!(verdict.works, run.turns.len());
    }
}

#[test]
fn an_owner_that_writes_once_more_after_the_next_began_is_always_found() {
    let late = |run: &Run, dice: &mut Dice| {
        let (old, new) = handover(run, dice);
        let mut lines = run.lines.clone();
        // Its end, if it wrote one, never happened.
        lines.retain(|line| (line.pid, line.epoch, line.ev) != (old.pid, old.epoch, LogEvent::End));
        lines.push(line(
            old,
            dice.roll(new.first + 1, new.last),
            LogEvent::Beat,
        ));
        lines
    };
    break_runs(late, |verdict| verdict.overlaps.count > 0);
}

#[test]
fn an_owner_that_begins_before_the_other_is_done_is_always_found() {
    let hasty = |run: &Run, dice: &mut Dice| {
        let (old, new) = handover(run, dice);
        let mut lines = run.lines.clone();
        let early = dice.roll(old.first, old.last - 1);
        lines
            .iter_mut()
            .filter(|line| (line.pid, line.epoch, line.ev) == (new.pid, new.epoch, LogEvent::Start))
            .for_each(|line| line.t = early);
        lines
    };
    break_runs(hasty, |verdict| verdict.overlaps.count > 0);
}

#[test]
fn a_late_effect_after_the_end_is_always_found() {
    let unfenced = |run: &Run, dice: &mut Dice| {
        let (old, new) = handover(run, dice);
        let mut lines = run.lines.clone();
        lines.push(line(
            old,
            dice.roll(new.first + 1, new.last + 100),
            LogEvent::Effect,
        ));
        lines
    };
    break_runs(unfenced, |verdict| verdict.stale_effects.count == 1);
}

#[test]
fn swapped_epochs_are_always_found() {
    let swapped = |run: &Run, dice: &mut Dice| {
        let (old, new) = handover(run, dice);
        let mut lines = run.lines.clone();
        for line in &mut lines {
            match (line.pid, line.epoch) {
                at if at == (old.pid, old.epoch) => line.epoch = new.epoch,
                at if at == (new.pid, new.epoch) => line.epoch = old.epoch,
                _ => {}
            }
        }
        lines
    };
    break_runs(swapped, |verdict| verdict.regressions.count > 0);
}

#[test]
fn an_epoch_given_out_twice_is_always_found() {
    let twice = |run: &Run, dice: &mut Dice| {
        let (old, new) = handover(run, dice);
        let mut lines = run.lines.clone();
        lines
            .iter_mut()
            .filter(|line| (line.pid, line.epoch) == (new.pid, new.epoch))
            .for_each(|line| line.epoch = old.epoch);
        lines
    };
    break_runs(twice, |verdict| verdict.shared.count > 0);
}

/// The longest gap by looking at every nanosecond, which is slow and hard to get wrong.
fn longest_gap_by_hand(turns: &[Turn], from: u64, until: u64) -> u64 {
    let (mut longest, mut length) = (0, 0);
    for t in from..until {
        // The stretch from t to t + 1 is covered when one owner was alive at both.
        let alive = turns.iter().any(|turn| turn.first <= t && t < turn.last);
        length = if alive { 0 } else { length + 1 };
        longest = longest.max(length);
    }
    longest
}

#[test]
fn gaps_agree_with_a_count_of_every_nanosecond() {
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let run = clean_run(&mut dice);
        let from = run.turns.iter().map(|turn| turn.first).min().unwrap();
        let until = run.turns.iter().map(|turn| turn.last).max().unwrap();
        let demands = Requirements {
            from: Some(from + dice.roll(0, 9)),
            until: Some(until - dice.roll(0, 9)),
            ..Requirements::default()
        };
        let mut judge = Judge::default();
        run.lines.iter().for_each(|line| judge.see(line));
        let verdict = judge.verdict(&demands);
        for shard in run.turns.iter().map(|turn| turn.shard) {
            let turns: Vec<_> = run
                .turns
                .iter()
                .filter(|turn| turn.shard == shard)
                .copied()
                .collect();
            let found = verdict
                .gaps
                .iter()
                .find(|gap| gap.shard == format!("k/{shard}"));
            let expected =
                longest_gap_by_hand(&turns, demands.from.unwrap(), demands.until.unwrap());
            assert_eq!(
                found.map_or(0, |gap| gap.nanos()),
                expected,
                "seed {seed}, shard {shard}"
            );
        }
    }
}
