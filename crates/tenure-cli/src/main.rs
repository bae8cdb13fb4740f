//! The `tenure` command.

mod cli;
mod cmd;
mod config;
mod connect;

use std::process::ExitCode;

use tenure_console::{exit, logging, stdout, table};

use cli::{Cli, Command};
use config::Config;
use config::settings_table::SettingDefinition;
// Name by which the benchmarks and `exec` import this module.
use exit::Exit;

fn main() -> ExitCode {
    // The supervision starts this program again as its helpers.
    tenure_exec::run_helper().unwrap_or_else(|| exit::finish(run(cli::parse())))
}

fn run(cli: Cli) -> Result<ExitCode, Exit> {
    let global = cli.global;
    // These commands need no store and no settings. They must work even if the configuration is invalid.
    let command = match cli.command {
        Command::Completion(command) => return command.run(),
        Command::Config(command) => return command.run(&global),
        Command::Grant(command) => return command.run(),
        Command::Hidden(command) => return command.run(),
        command => command,
    };
    let config = match &command {
        Command::Exec(command) => command.config(&global)?,
        Command::Planner(command) => command.config(&global)?,
        Command::Sidecar(command) => command.config(&global)?,
        Command::Router(command) => command.config(&global)?,
        Command::Keyspace(command) => command.config(&global)?,
        Command::Queue(command) => command.config(&global)?,
        Command::Worker(command) => command.config(&global)?,
        Command::Status(_) | Command::Node(_) | Command::Task(_) | Command::Schedule(_) => {
            global.load(Default::default(), |_| false)?
        }
        _ => global.load(Default::default(), SettingDefinition::is_operators)?,
    };
    start_logging(&config)?;
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Exit::failed(format!("the async runtime cannot be started: {e}")))?;
    let done = runtime.block_on(async {
        match command {
            Command::Status(command) => command.run(&config).await,
            Command::Cluster(command) => command.run(&config).await,
            Command::Node(command) => command.run(&config).await,
            Command::Keyspace(command) => command.run(&config).await,
            Command::Shard(command) => command.run(&config).await,
            Command::Queue(command) => command.run(&config).await,
            Command::Store(command) => command.run(&config).await,
            Command::Task(command) => command.run(&config).await,
            Command::Schedule(command) => command.run(&config).await,
            Command::Worker(command) => command.run(&config).await,
            Command::Exec(command) => command.run(&config).await,
            Command::Sidecar(command) => command.run(&config).await,
            Command::Router(command) => command.run(&config).await,
            Command::Planner(command) => command.run(&config).await,
            Command::Up(command) => command.run(&config).await,
            Command::Completion(command) => command.run(),
            Command::Config(command) => command.run(&global),
            Command::Grant(command) => command.run(),
            Command::Hidden(command) => command.run(),
        }
    });
    // A store call without an answer must not block the exit.
    runtime.shutdown_background();
    done
}

fn start_logging(config: &Config) -> Result<(), Exit> {
    let filter = config.text("log").unwrap_or("warn");
    logging::start(filter).map_err(|e| Exit::usage(format!("--log: {e}")))
}
