//! The rules, one function each, on the spans of one shard.

use std::collections::BTreeSet;

use crate::history::{Span, WorkHistory};
use crate::{
    EpochRegression, Findings, Overlap, Requirements, SharedEpoch, StaleEffects, StrayLine,
    TimeWindow, UnservedGap, Verdict, WorkId,
};

/// One span and whose it is.
type Alive<'a> = (Span, &'a WorkId);

/// What must hold at every instant, whatever was asked.
pub(crate) fn safety(
    shard: &str,
    told: &[WorkHistory],
    demands: &Requirements,
    verdict: &mut Verdict,
) {
    let alive = by_start(told);
    verdict.works += told.len();
    verdict.resumed += told
        .iter()
        .map(|told| told.spans.len().saturating_sub(1) as u64)
        .sum::<u64>();
    overlaps(shard, &alive, &mut verdict.overlaps);
    regressions(shard, &alive, &mut verdict.regressions);
    shared(shard, told, demands.restarts, &mut verdict.shared);
    stale_effects(shard, told, &mut verdict.stale_effects);
    for (span, work) in &alive {
        if let Some(ev) = span.stray {
            verdict.strays.add(|| StrayLine {
                shard: shard.to_owned(),
                work: (*work).clone(),
                at: span.first,
                ev,
            });
        }
    }
}

/// What must hold of a shard that somebody should be working on.
pub(crate) fn presence(
    shard: &str,
    told: &[WorkHistory],
    demands: &Requirements,
    verdict: &mut Verdict,
) {
    let Some(window) = verdict.window else { return };
    let alive = by_start(told);
    if let Some(gap) = longest_gap(shard, &alive, window) {
        if demands.max_gap.is_some_and(|limit| gap.nanos() > limit) {
            verdict.long_gaps.add(|| gap.clone());
        }
        verdict.gaps.push(gap);
    }
    if let Some(tail) = demands.covered_by {
        let since = window.until.saturating_sub(tail);
        if !alive
            .iter()
            .any(|(span, _)| span.first <= window.until && span.last >= since)
        {
            verdict.uncovered.add(|| shard.to_owned());
        }
    }
}

fn by_start(told: &[WorkHistory]) -> Vec<Alive<'_>> {
    let mut alive: Vec<_> = told
        .iter()
        .flat_map(|told| told.spans.iter().map(move |span| (*span, &told.work)))
        .collect();
    alive.sort_by_key(|(span, _)| (span.first, span.last));
    alive
}

/// Each pair of spans that share an instant. Spans that only touch do not: which came first cannot be told.
fn overlaps(shard: &str, alive: &[Alive<'_>], found: &mut Findings<Overlap>) {
    let mut open: Vec<&Alive<'_>> = Vec::new();
    for later in alive {
        // Enough, because of two that begin together the shorter one comes first.
        open.retain(|earlier| earlier.0.last > later.0.first);
        for earlier in &open {
            found.add(|| Overlap {
                shard: shard.to_owned(),
                earlier: earlier.1.clone(),
                earlier_alive: window(earlier.0),
                later: later.1.clone(),
                later_alive: window(later.0),
                both: TimeWindow {
                    from: later.0.first,
                    until: earlier.0.last.min(later.0.last),
                },
            });
        }
        open.push(later);
    }
}

/// Spans that begin under a lower epoch than one that began strictly before. An equal epoch is a matter of
/// [`shared`], or the same work that came back.
fn regressions(shard: &str, alive: &[Alive<'_>], found: &mut Findings<EpochRegression>) {
    let mut highest: Option<&Alive<'_>> = None;
    for together in alive.chunk_by(|a, b| a.0.first == b.0.first) {
        for (span, work) in together {
            if let Some((before, after)) = highest.filter(|(_, after)| after.epoch > work.epoch) {
                found.add(|| EpochRegression {
                    shard: shard.to_owned(),
                    work: (*work).clone(),
                    at: span.first,
                    after: (*after).clone(),
                    after_at: before.first,
                });
            }
        }
        highest = highest
            .into_iter()
            .chain(together)
            .max_by_key(|(_, work)| work.epoch);
    }
}

/// Epochs with more than one process or node. With `restarts`, processes of one node may follow each other.
fn shared(shard: &str, told: &[WorkHistory], restarts: bool, found: &mut Findings<SharedEpoch>) {
    for same in told.chunk_by(|a, b| a.work.epoch == b.work.epoch) {
        let nodes: BTreeSet<&String> = same.iter().flat_map(|told| &told.nodes).collect();
        if nodes.len() > 1 || (same.len() > 1 && !restarts) {
            found.add(|| SharedEpoch {
                shard: shard.to_owned(),
                epoch: same[0].work.epoch,
                pids: same.iter().map(|told| told.work.pid).collect(),
                nodes: nodes.into_iter().cloned().collect(),
            });
        }
    }
}

/// Effects that come after a higher epoch began: what an unfenced resource lets through.
fn stale_effects(shard: &str, told: &[WorkHistory], found: &mut Findings<StaleEffects>) {
    // From the highest epoch down, carrying the earliest start of what lies above.
    let mut superseded_at: Option<u64> = None;
    for same in told.chunk_by(|a, b| a.work.epoch == b.work.epoch).rev() {
        for told in same {
            let Some(superseded_at) = superseded_at else {
                break;
            };
            let fresh = told
                .effects
                .partition_point(|effect| *effect <= superseded_at);
            if let Some(first) = told.effects.get(fresh) {
                found.add(|| StaleEffects {
                    shard: shard.to_owned(),
                    work: told.work.clone(),
                    superseded_at,
                    first: *first,
                    effects: told.effects.len() - fresh,
                });
            }
        }
        let start = same
            .iter()
            .filter_map(|told| told.spans.first())
            .map(|span| span.first)
            .min();
        superseded_at = superseded_at.into_iter().chain(start).min();
    }
}

/// The longest time inside the window with nobody alive.
fn longest_gap(shard: &str, alive: &[Alive<'_>], window: TimeWindow) -> Option<UnservedGap> {
    let mut longest: Option<UnservedGap> = None;
    let mut covered = window.from;
    let end = (window.until, window.until);
    for (first, last) in alive
        .iter()
        .map(|(span, _)| (span.first, span.last))
        .chain([end])
    {
        let until = first.min(window.until);
        if until > covered
            && longest
                .as_ref()
                .is_none_or(|gap| until - covered > gap.nanos())
        {
            longest = Some(UnservedGap {
                shard: shard.to_owned(),
                from: covered,
                until,
            });
        }
        covered = covered.max(last);
    }
    longest
}

fn window(span: Span) -> TimeWindow {
    TimeWindow {
        from: span.first,
        until: span.last,
    }
}
