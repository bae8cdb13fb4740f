//! A test kit: an application's own handler, on real nodes, in virtual time, while things go wrong.
//!
//! A [`Scenario`] says how the application is made and what its requests are. A [`Kit`] runs it once for each seed: several
//! processes over one store in memory, each with a runtime and a clock of its own, driven in turn by one thread. Stores
//! fail, hang and lose answers; processes are killed, started again, stopped in good order, and suspended while time goes
//! on. All of that follows from the seed, and so does everything else: a seed that fails fails again.
//!
//! The kit checks what Tenure promises, as the application sees it: never two processes admitted to one shard at one
//! instant, epochs that only grow and belong to one session each, and everything served again once faults are over. The
//! scenario adds what the application promises ([`Scenario::check`], [`Scenario::finally`]). `docs/testing.md` has a guide.
//!
//! ```
//! use std::sync::Arc;
//! use tenure::{Handler, Hashed, Node, Result, Shard};
//! use tenure_sim::kit::{Kit, Scenario};
//!
//! struct Greeter;
//! impl Handler for Greeter {
//!     type State = u64;
//!     async fn load(&self, _: &Shard) -> Result<u64> {
//!         Ok(0)
//!     }
//! }
//!
//! struct Greetings;
//! impl Scenario for Greetings {
//!     type Handler = Greeter;
//!     fn handler(&self, _node: &str) -> Greeter {
//!         Greeter
//!     }
//!     async fn request(&self, node: &Node, n: u64) {
//!         if let Ok(entered) = node.enter::<Greeter>("greetings", n.to_string()) {
//!             let _ = entered.run(async |count, _| *count += 1).await;
//!         }
//!     }
//! }
//!
//! Kit::new("greetings", Hashed(4)).nodes(2).check(0..3, || Arc::new(Greetings));
//! ```

mod faults;
mod ledger;
mod process;
mod run;
mod table;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tenure::{AssignedBy, Handler, KeyspaceKind, Node, Settings};

pub use table::{Table, WriteResult};

/// An application and the use that is made of it. A new one is made for every seed.
pub trait Scenario: Send + Sync + 'static {
    /// What the application implements.
    type Handler: Handler;

    /// Makes the handler of a process that starts. What outlives processes (a database, or what stands for one) belongs to
    /// the scenario and is shared with every handler.
    fn handler(&self, node: &str) -> Self::Handler;

    /// One request, as it reaches a process: by chance any live one, whether or not it owns what the request is about. `n`
    /// is the request's number. Runs inside that process: it is suspended and dies with it.
    fn request(&self, node: &Node, n: u64) -> impl Future<Output = ()> + Send;

    /// What must be true all the while. Asked after every step of the run.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// What must be true in the end: faults are over, everything was served again, all requests are done, and all
    /// processes have stopped in good order.
    fn finally(&self) -> Result<(), String> {
        Ok(())
    }
}

/// How to run scenarios.
#[derive(Clone, Debug)]
pub struct Kit {
    keyspace: String,
    kind: KeyspaceKind,
    mode: AssignedBy,
    nodes: usize,
    settings: Settings,
    span: Duration,
    step: Duration,
    every: Duration,
    calm: bool,
}

impl Kit {
    /// Runs with one keyspace, three nodes, a ttl of six seconds, a minute of faults, and about fifty requests per second.
    pub fn new(keyspace: impl Into<String>, kind: KeyspaceKind) -> Self {
        Self {
            keyspace: keyspace.into(),
            kind,
            mode: AssignedBy::default(),
            nodes: 3,
            settings: Settings {
                ttl: Duration::from_secs(6),
                ..Settings::default()
            },
            span: Duration::from_secs(60),
            step: Duration::from_millis(10),
            every: Duration::from_millis(20),
            calm: false,
        }
    }

    /// How many processes there are, at least one.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes.max(1);
        self
    }

    /// Who assigns the shards.
    #[must_use]
    pub fn mode(mut self, mode: AssignedBy) -> Self {
        self.mode = mode;
        self
    }

    /// The nodes' times and limits.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// For how long things go wrong, in virtual time.
    #[must_use]
    pub fn span(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }

    /// How long it is between two requests, on average.
    #[must_use]
    pub fn request_every(mut self, every: Duration) -> Self {
        self.every = every.max(self.step);
        self
    }

    /// Nothing goes wrong: for seeing that the scenario itself is right.
    #[must_use]
    pub fn without_faults(mut self) -> Self {
        self.calm = true;
        self
    }

    /// Runs every seed of the range and panics at the first that fails, with its story and how to run it again. If
    /// `TENURE_KIT_SEED` is set, runs that seed alone and prints its story.
    pub fn check<S: Scenario>(&self, seeds: Range<u64>, scenario: impl Fn() -> Arc<S>) {
        if let Some(seed) = chosen() {
            let report = self.run(seed, scenario());
            eprintln!("{report}");
            assert!(report.failure.is_none(), "seed {seed} fails");
            return;
        }
        for seed in seeds {
            let report = self.run(seed, scenario());
            assert!(
                report.failure.is_none(),
                "{report}\nto run it again: TENURE_KIT_SEED={seed} cargo test NAME_OF_THIS_TEST -- --nocapture"
            );
        }
    }

    /// Runs one seed.
    pub fn run<S: Scenario>(&self, seed: u64, scenario: Arc<S>) -> SeedReport {
        run::run(self, seed, scenario)
    }
}

/// The seed that whoever runs the tests has asked for.
fn chosen() -> Option<u64> {
    std::env::var("TENURE_KIT_SEED").ok()?.parse().ok()
}

/// What came of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// What was broken, and when; nothing if all went well.
    pub failure: Option<String>,
    /// What happened, one line each: virtual seconds, who, what.
    pub story: Vec<String>,
    /// How many requests were begun.
    pub requests: u64,
    /// How often a gate was seen to open.
    pub openings: u64,
}

impl fmt::Display for SeedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        match &self.failure {
            Some(failure) => write!(f, "seed {} fails: {failure}", self.seed),
            None => write!(
                f,
                "seed {}: all went well, {} requests, {} openings",
                self.seed, self.requests, self.openings
            ),
        }
    }
}
