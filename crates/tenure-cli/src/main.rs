//! The `tenure` command.

mod cli;
mod cluster_client;
mod cmd;
mod config;
mod exit;
mod fleet;
mod snapshot;
mod stdout;
mod supervise;
mod table;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command};
use config::Config;
use exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(fail) => {
            for line in fail.message.lines() {
                eprintln!("error: {line}");
            }
            ExitCode::from(fail.code)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Exit> {
    let global = cli.global;
    // These need no store and no settings, and must work where the configuration is broken.
    let command = match cli.command {
        Command::Completions(command) => return command.run(),
        Command::Config(command) => return command.run(&global),
        Command::Check(command) => return command.run(),
        Command::Hidden(command) => return command.run(),
        command => command,
    };
    let config = match &command {
        Command::Exec(command) => command.config(&global)?,
        Command::Leader(command) => command.config(&global)?,
        Command::Node(command) => command.config(&global)?,
        Command::Router(command) => command.config(&global)?,
        Command::Keyspace(command) => command.config(&global)?,
        Command::Queue(command) => command.config(&global)?,
        Command::Worker(command) => command.config(&global)?,
        _ => global.load(Default::default())?,
    };
    start_logging(&config)?;
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Exit::failed(format!("the runtime cannot be started: {e}")))?;
    let done = runtime.block_on(async {
        match command {
            Command::Status(command) => command.run(&config).await,
            Command::Owner(command) => command.run(&config).await,
            Command::Key(command) => command.run(&config).await,
            Command::Keyspace(command) => command.run(&config).await,
            Command::Cluster(command) => command.run(&config).await,
            Command::Plan(command) => command.run(&config).await,
            Command::Leader(command) => command.run(&config).await,
            Command::Pin(command) => command.run(&config).await,
            Command::Unpin(command) => command.run(&config).await,
            Command::Cordon(command) => command.run(&config).await,
            Command::Uncordon(command) => command.run(&config).await,
            Command::Drain(command) => command.run(&config).await,
            Command::Activate(command) => command.run(&config).await,
            Command::Evict(command) => command.run(&config).await,
            Command::Move(command) => command.run(&config).await,
            Command::Rebalance(command) => command.run(&config).await,
            Command::Freeze(command) => command.run(&config).await,
            Command::Unfreeze(command) => command.run(&config).await,
            Command::Shard(command) => command.run(&config).await,
            Command::Sweep(command) => command.run(&config).await,
            Command::Repair(command) => command.run(&config).await,
            Command::Doctor(command) => command.run(&config).await,
            Command::Queue(command) => command.run(&config).await,
            Command::Task(command) => command.run(&config).await,
            Command::Schedule(command) => command.run(&config).await,
            Command::Worker(command) => command.run(&config).await,
            Command::Sim(command) => command.run().await,
            Command::Bench(command) => command.run().await,
            Command::BenchNode(command) => command.run().await,
            Command::Completions(command) => command.run(),
            Command::Config(command) => command.run(&global),
            Command::Exec(command) => command.run(&config).await,
            Command::Node(command) => command.run(&config).await,
            Command::Router(command) => command.run(&config).await,
            Command::Up(command) => command.run(&config).await,
            Command::Check(command) => command.run(),
            Command::Hidden(command) => command.run(),
        }
    });
    // A call that hangs in the store must not keep the process.
    runtime.shutdown_background();
    done
}

fn start_logging(config: &Config) -> Result<(), Exit> {
    let filter = config.text("log").unwrap_or("warn");
    let mut filter = filter.to_owned();
    // What the NATS client says at every turn is told by the store, once and with the way out.
    if !filter.contains("async_nats") {
        filter.push_str(",async_nats=off");
    }
    let filter = EnvFilter::try_new(filter).map_err(|e| Exit::usage(format!("--log: {e}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    Ok(())
}
