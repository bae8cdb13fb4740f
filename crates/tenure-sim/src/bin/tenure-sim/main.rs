//! The `tenure-sim` program: simulates clusters, explores their states, and checks the traces of real nodes.

mod model;
mod run;
mod state;
mod validate;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tenure_console::exit::{self, Exit};
use tenure_console::stdout;
use tenure_sim::run::replay;
use tenure_sim::run_config::Mask;
use tenure_sim::shrink::shrink;
use tenure_sim::world::ProtocolVariant;

/// Simulate whole clusters under faults, in virtual time
#[derive(Debug, Parser)]
#[command(
    name = "tenure-sim",
    version,
    after_help = "Results are printed to standard output, everything else to standard error.\n\
    Exit codes: 0 success · 1 a violation was found · 2 invalid usage or input · 130 interrupted\n\n\
    Examples:\n  tenure-sim run --seeds 10000\n  \
    tenure-sim run --seeds 1000000 --state sim.json --json\n  tenure-sim replay 4711 | less\n  \
    tenure-sim validate traces/*.jsonl\n  tenure-sim model"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Replay(Replay),
    Validate(validate::Validate),
    Model(model::Model),
}

/// Simulate the cluster of one seed again and print its events
#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if the seed violates an invariant.\n\n\
    Examples:\n  tenure-sim replay 4711\n  tenure-sim replay 4711 --shrink")]
struct Replay {
    /// Seed to replay
    seed: u64,
    /// Leave out injected faults as long as the invariant violation still occurs
    #[arg(long)]
    shrink: bool,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    exit::finish(execute(command))
}

fn execute(command: Command) -> Result<ExitCode, Exit> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Exit::failed(format!("the async runtime cannot be started: {e}")))?;
    runtime.block_on(async {
        match command {
            Command::Run(run) => run.run().await,
            Command::Replay(replay) => replay.run(),
            Command::Validate(validate) => validate.run(),
            Command::Model(model) => model.run().await,
        }
    })
}

impl Replay {
    fn run(&self) -> Result<ExitCode, Exit> {
        let seed = self.seed;
        let mask = match self.shrink {
            false => Mask::default(),
            true => match shrink(seed, ProtocolVariant::default()) {
                Some(shrunk) => {
                    eprintln!("{} faults left after shrinking", shrunk.faults);
                    shrunk.mask
                }
                None => Mask::default(),
            },
        };
        let story = replay(seed, &mask, ProtocolVariant::default());
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use tenure_console::reference;

    use super::*;

    #[test]
    fn the_reference_of_commands_is_what_the_parser_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/sim.md");
        reference::check(Cli::command(), "tenure-sim", path.as_ref());
    }

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }
}
