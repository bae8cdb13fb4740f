//! The verdict as people and as programs read it.

use std::fmt::Write;

use serde::Serialize;
use tenure_judge::{Findings, ReadSummary, TimeWindow, Verdict, WorkId, show_duration};

use crate::args::Args;

/// How many findings of one kind are printed; JSON has more.
const PRINTED: usize = 5;

#[derive(Serialize)]
struct Json<'a> {
    passed: bool,
    against: Vec<&'static str>,
    files: usize,
    truncated: usize,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// The verdict as one line of JSON.
pub(crate) fn json(verdict: &Verdict, reading: ReadSummary, passed: bool) -> String {
    let against = verdict
        .against()
        .into_iter()
        .map(|(kind, _)| kind)
        .collect();
    let json = Json {
        passed,
        against,
        files: reading.files,
        truncated: reading.truncated,
        verdict,
    };
    // Plain structs of numbers and strings: there is nothing in them that JSON could refuse.
    serde_json::to_string(&json).unwrap_or_default() + "\n"
}

/// The verdict in words, ending with one line that says it all.
pub(crate) fn text(verdict: &Verdict, reading: ReadSummary, args: &Args) -> String {
    let mut out = String::new();
    let length = verdict
        .window
        .map_or(0, |window| window.until - window.from);
    let _ = writeln!(
        out,
        "checked {} lines of {} file(s): {} shard(s), {} activation(s), {} resumed, over {}",
        verdict.lines,
        reading.files,
        verdict.shards,
        verdict.works,
        verdict.resumed,
        show_duration(length)
    );
    if reading.truncated > 0 {
        let _ = writeln!(
            out,
            "{} file(s) end in an incomplete line (process killed while writing), tolerated",
            reading.truncated
        );
    }
    findings(&mut out, verdict);
    if let Some(gap) = verdict.gaps.first() {
        let limit = args.max_gap.map_or(String::new(), |limit| {
            format!(" (allowed: {})", show_duration(limit))
        });
        let length = show_duration(gap.nanos());
        let _ = writeln!(
            out,
            "longest gap: {} for {length} from {}{limit}",
            gap.shard, gap.from
        );
    }
    let against: Vec<_> = verdict
        .against()
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let _ = match (
        args.expect_overlap,
        verdict.overlaps.count,
        against.is_empty(),
    ) {
        (true, 0, _) => writeln!(out, "verdict: no overlap found, but one was expected"),
        (true, count, _) => writeln!(out, "verdict: {count} overlap(s) found, as expected"),
        (false, _, true) => writeln!(out, "verdict: clean"),
        (false, _, false) => writeln!(out, "verdict: violations: {}", against.join(", ")),
    };
    out
}

fn findings(out: &mut String, verdict: &Verdict) {
    list(out, &verdict.overlaps, |o| {
        let (earlier, later) = (one(&o.earlier), one(&o.later));
        let length = show_duration(o.both.until - o.both.from);
        let (first, second) = (stamps(o.earlier_alive), stamps(o.later_alive));
        format!(
            "overlap: {}: {earlier} {first} and {later} {second}, both for {length}",
            o.shard
        )
    });
    list(out, &verdict.regressions, |r| {
        let (work, after) = (one(&r.work), one(&r.after));
        format!(
            "decreasing epoch: {}: {work} began at {} after {after} at {}",
            r.shard, r.at, r.after_at
        )
    });
    list(out, &verdict.shared, |s| {
        format!(
            "epoch shared: {}: epoch {} by pids {:?} of nodes {:?}",
            s.shard, s.epoch, s.pids, s.nodes
        )
    });
    list(out, &verdict.stale_effects, |s| {
        let (late, work) = (show_duration(s.first - s.superseded_at), one(&s.work));
        format!(
            "stale effects: {}: {} of {work}, the first {late} after a higher epoch began",
            s.shard, s.effects
        )
    });
    list(out, &verdict.strays, |s| {
        format!(
            "outside start and end: {}: {} of {} at {}",
            s.shard,
            s.ev.name(),
            one(&s.work),
            s.at
        )
    });
    list(out, &verdict.unseen, |shard| {
        format!("never served: {shard}")
    });
    list(out, &verdict.unexpected, |shard| {
        format!("unexpected: {shard}")
    });
    list(out, &verdict.long_gaps, |g| {
        format!(
            "gap: {}: {} from {}",
            g.shard,
            show_duration(g.nanos()),
            g.from
        )
    });
    list(out, &verdict.uncovered, |shard| {
        format!("not served at the end: {shard}")
    });
}

fn list<T>(out: &mut String, findings: &Findings<T>, show: impl Fn(&T) -> String) {
    for finding in findings.listed.iter().take(PRINTED) {
        let _ = writeln!(out, "{}", show(finding));
    }
    let more = findings.count - findings.listed.len().min(PRINTED) as u64;
    if more > 0 {
        let _ = writeln!(out, "  … and {more} more like the last");
    }
}

fn one(work: &WorkId) -> String {
    format!("epoch {} (pid {}, {})", work.epoch, work.pid, work.node)
}

fn stamps(window: TimeWindow) -> String {
    format!("[{}..{}]", window.from, window.until)
}
