//! What goes wrong in a run, drawn from its seed.

use std::fmt;
use std::time::Duration;

use crate::rng::Rng;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process dies, and another of its name starts later.
    Kill { back_after: Duration },
    /// The process ends in good order, and another of its name starts later.
    Stop { back_after: Duration },
    /// Nothing of the process runs, while time goes on.
    Suspend(Duration),
    /// The store refuses the process everything.
    Outage(Duration),
    /// The store does not answer the process; what it was asked happens afterwards.
    Hang(Duration),
    /// Writes happen, answers get lost.
    LoseAnswers(Duration),
    /// Everything takes longer on its way to the store.
    Slow(Duration, Duration),
    /// Nothing is heard of changes.
    Deaf(Duration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { back_after } => write!(f, "is killed, comes back after {back_after:?}"),
            Self::Stop { back_after } => {
                write!(
                    f,
                    "is stopped in good order, comes back after {back_after:?}"
                )
            }
            Self::Suspend(span) => write!(f, "is suspended for {span:?}"),
            Self::Outage(span) => write!(f, "is refused by the store for {span:?}"),
            Self::Hang(span) => write!(f, "is not answered by the store for {span:?}"),
            Self::LoseAnswers(span) => write!(f, "gets no answers for {span:?}"),
            Self::Slow(by, span) => write!(f, "reaches the store {by:?} late for {span:?}"),
            Self::Deaf(span) => write!(f, "hears of no changes for {span:?}"),
        }
    }
}

/// A fault, when it begins, and which process it hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) at: Duration,
    pub(super) node: usize,
    pub(super) fault: Fault,
}

/// Draws the faults of a run, in order of time. Each run uses some kinds only, and those the more.
pub(super) fn draw(rng: &mut Rng, nodes: usize, span: Duration, ttl: Duration) -> Vec<Planned> {
    let kinds: Vec<u64> = (0..8).filter(|_| rng.permille(500)).collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let most = span.as_nanos() / ttl.as_nanos().max(1) + 1;
    let count = rng.between(1, u64::try_from(most).unwrap_or(20));
    let mut all: Vec<Planned> = (0..count)
        .map(|_| {
            let at = upto(rng, span);
            let node = rng.below(nodes as u64) as usize;
            let kind = *rng.pick(&kinds);
            let fault = one(rng, kind, ttl);
            Planned { at, node, fault }
        })
        .collect();
    all.sort_by_key(|planned| planned.at);
    all
}

fn one(rng: &mut Rng, kind: u64, ttl: Duration) -> Fault {
    let long = skewed(rng, ttl * 2);
    match kind {
        0 => Fault::Kill { back_after: long },
        1 => Fault::Stop { back_after: long },
        2 => Fault::Suspend(long),
        3 => Fault::Outage(long),
        4 => Fault::Hang(long),
        5 => Fault::LoseAnswers(long),
        6 => Fault::Slow(upto(rng, ttl / 20), long),
        _ => Fault::Deaf(long),
    }
}

fn upto(rng: &mut Rng, most: Duration) -> Duration {
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(rng.between(1, most.max(1)))
}

fn skewed(rng: &mut Rng, most: Duration) -> Duration {
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(rng.skewed(1, most.max(1)))
}
