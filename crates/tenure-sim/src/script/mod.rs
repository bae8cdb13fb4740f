//! Scenarios as text: what goes wrong and when, what must be true and when, and a transcript of what happened.
//!
//! ```text
//! nodes 3                      # before the first `at`: the cluster
//! shards 4
//! ttl 2500ms
//! routers 1                    # r0, r1, …, with clients
//! at 5s pause n1 10s           # what goes wrong
//! at 4s mark                   # remembers who serves what
//! at 20s expect served         # every shard is served
//! at 20s expect same owners    # as at the mark
//! at 20s expect answered 1s    # no request has failed or waited for so long
//! end 30s
//! ```
//!
//! Every promise that needs no healing (P1, P2, order) is checked all the while.

mod parse;

use tenure_core::ids::Epoch;

use crate::clock::{Instant, MS, SEC};
use crate::event_log::EventLog;
use crate::run_config::RunConfig;
use crate::world::{ProtocolVariant, World};

pub use parse::parse;

/// A scenario.
#[derive(Clone, Debug)]
pub struct Script {
    plan: RunConfig,
    steps: Vec<(Instant, usize, Step)>,
    end: Instant,
}

/// Something that the script itself does.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Mark,
    Expect(Expectation),
}

/// Something that must be true.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expectation {
    /// Every shard is served and every session is that of a live process.
    Served,
    /// Not so.
    NotServed,
    /// The same nodes serve the same shards as at the mark.
    SameOwners,
    /// The same epochs are served as at the mark.
    SameEpochs,
    /// All epochs are higher than at the mark.
    HigherEpochs,
    /// This shard's epoch is higher than at the mark, all others are the same.
    OnlyHigher(usize),
    /// No gate of this node admits work.
    Closed(usize),
    /// Some gate of this node admits work.
    Open(usize),
    /// No gate admits work for this shard.
    ShardClosed(usize),
    /// This node admits work for this shard.
    ShardOpen(usize, usize),
    /// No request has failed so far, and none has waited for longer than this.
    Answered(u64),
    /// Some request waits.
    SomethingHeld,
    /// This promise was broken by now. The script ends there: it shows a limit that the documents state.
    Broken(String),
}

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFailure {
    /// The line that was not true, or the line before which a promise was broken.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl std::fmt::Display for ScriptFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

/// Who serves each shard, by node and epoch.
type Served = Vec<Option<(usize, Epoch)>>;

/// Plays a script; the transcript tells of transitions alone.
pub fn play(script: &Script, under: ProtocolVariant) -> (Vec<String>, Result<(), ScriptFailure>) {
    let mut world = World::new(script.plan.clone(), under, EventLog::Keep(Vec::new()));
    world.transcript = true;
    let result = perform(script, &mut world);
    (world.trace.into_lines(), result)
}

fn perform(script: &Script, world: &mut World) -> Result<(), ScriptFailure> {
    let mut mark = served(world);
    for (at, line, step) in &script.steps {
        let failure = |problem| ScriptFailure {
            line: *line,
            problem,
        };
        let verdict = world.run_until(*at);
        if let (Err(violation), Step::Expect(Expectation::Broken(promise))) = (&verdict, step)
            && violation.promise == promise
        {
            let line = format_args!("VIOLATION {violation}");
            world.trace.line(world.now, "check", line);
            return Ok(());
        }
        verdict.map_err(|violation| failure(violation.to_string()))?;
        match step {
            Step::Mark => mark = served(world),
            Step::Expect(expectation) => {
                let said = words(&mark, &served(world));
                hold(expectation, &mark, world).map_err(|problem| {
                    failure(format!("at {}: {problem}; {said}", seconds(*at)))
                })?;
            }
        }
    }
    world
        .run_until(script.end)
        .map_err(|violation| ScriptFailure {
            line: 0,
            problem: violation.to_string(),
        })
}

fn served(world: &World) -> Served {
    (0..world.shards.len())
        .map(|shard| {
            let (pid, epoch) = world.gates.admitting(world.now, shard)?;
            Some((world.processes[pid].node, epoch))
        })
        .collect()
}

fn hold(expectation: &Expectation, mark: &Served, world: &World) -> Result<(), String> {
    let now = served(world);
    let node = |entry: &Option<(usize, Epoch)>| entry.map(|(node, _)| node);
    let epoch = |entry: &Option<(usize, Epoch)>| entry.map(|(_, epoch)| epoch);
    let must = |true_: bool, problem: &str| {
        if true_ {
            Ok(())
        } else {
            Err(problem.to_owned())
        }
    };
    match *expectation {
        Expectation::Broken(ref promise) => Err(format!("{promise} is not broken")),
        Expectation::Answered(within) => {
            must(world.coverage.failed_requests == 0, "a request has failed")?;
            must(world.coverage.answered > 0, "no request was answered yet")?;
            let before = world.now.saturating_sub(within);
            let late = world.requests.end(world.now, before);
            late.map_err(|violation| violation.what)
        }
        Expectation::SomethingHeld => must(world.requests.anything_waits(), "nothing waits"),
        Expectation::Served => world.missing().map_or(Ok(()), Err),
        Expectation::NotServed => must(world.missing().is_some(), "everything is served"),
        Expectation::SameOwners => must(
            now.iter().map(node).eq(mark.iter().map(node)),
            "owners changed",
        ),
        Expectation::SameEpochs => must(
            now.iter().map(epoch).eq(mark.iter().map(epoch)),
            "epochs changed",
        ),
        Expectation::HigherEpochs => must(
            now.iter()
                .zip(mark)
                .all(|(now, then)| epoch(now) > epoch(then)),
            "an epoch did not grow",
        ),
        Expectation::OnlyHigher(shard) => must(
            now.iter().zip(mark).enumerate().all(|(n, (now, then))| {
                if n == shard {
                    epoch(now) > epoch(then)
                } else {
                    now == then
                }
            }),
            "another shard changed, or this one did not",
        ),
        Expectation::Closed(which) => must(
            !now.iter().any(|entry| node(entry) == Some(which)),
            "a gate is open",
        ),
        Expectation::Open(which) => must(
            now.iter().any(|entry| node(entry) == Some(which)),
            "no gate is open",
        ),
        Expectation::ShardClosed(shard) => must(now[shard].is_none(), "the gate is open"),
        Expectation::ShardOpen(shard, which) => must(
            node(&now[shard]) == Some(which),
            "the gate is not open there",
        ),
    }
}

fn words(mark: &Served, now: &Served) -> String {
    let one = |served: &Served| {
        let all: Vec<String> = served
            .iter()
            .enumerate()
            .map(|(shard, entry)| match entry {
                Some((node, epoch)) => format!("{shard}:n{node}@{epoch}"),
                None => format!("{shard}:-"),
            })
            .collect();
        all.join(" ")
    };
    format!("marked [{}], now [{}]", one(mark), one(now))
}

fn seconds(at: Instant) -> String {
    format!("{}.{:03}s", at / SEC, at % SEC / MS)
}
