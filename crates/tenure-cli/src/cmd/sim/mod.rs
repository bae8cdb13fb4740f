//! `tenure sim`: the simulator. The same machines that ship, in virtual time, under seeded misfortune.

mod model;
mod run;
mod state;
mod validate;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use tenure_sim::run::replay;
use tenure_sim::run_config::Mask;
use tenure_sim::shrink::shrink;
use tenure_sim::world::Under;

use crate::exit::Exit;
use crate::stdout;

/// Simulate whole clusters under faults, in virtual time
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure sim run --seeds 10000\n  \
    tenure sim run --seeds 1000000 --state sim.json --json\n  tenure sim replay 4711 | less\n  \
    tenure sim validate traces/*.jsonl\n  tenure sim model")]
pub(crate) struct Sim {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Run),
    Replay(Replay),
    Validate(validate::Validate),
    Model(model::Model),
}

/// Simulate the cluster of one seed again and print its events
#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if the seed violates an invariant.\n\n\
    Examples:\n  tenure sim replay 4711\n  tenure sim replay 4711 --shrink")]
struct Replay {
    /// Seed to replay
    seed: u64,
    /// Leave out injected faults as long as the invariant violation still occurs
    #[arg(long)]
    shrink: bool,
}

impl Sim {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        match self.action {
            Action::Run(run) => run.run().await,
            Action::Replay(replay) => replay.run(),
            Action::Validate(validate) => validate.run(),
            Action::Model(model) => model.run().await,
        }
    }
}

impl Replay {
    fn run(&self) -> Result<ExitCode, Exit> {
        let seed = self.seed;
        let mask = match self.shrink {
            false => Mask::default(),
            true => match shrink(seed, Under::default()) {
                Some(shrunk) => {
                    eprintln!("{} faults left after shrinking", shrunk.faults);
                    shrunk.mask
                }
                None => Mask::default(),
            },
        };
        let story = replay(seed, &mask, Under::default());
        stdout::line(story.lines.join("\n"));
        match story.violation {
            None => {
                eprintln!("seed {seed}: no violation");
                Ok(ExitCode::SUCCESS)
            }
            Some(violation) => Err(Exit::failed(format!("seed {seed}: {violation}"))),
        }
    }
}
