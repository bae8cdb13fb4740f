//! What can be typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::cmd;
use crate::config::{Config, Sources};
use crate::exit::Exit;

/// Decides which process owns which shard, and makes sure that it is never two.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    after_help = "Data goes to standard output, everything else to standard error.\n\
                  Exit codes: 0 done · 1 it is not so, or refused · 2 bad usage, input or configuration\n\n\
                  Examples:\n  \
                  tenure --store sqlite:shop.db --cluster shop keyspace create orders --shards 64\n  \
                  tenure --store sqlite:shop.db status\n  \
                  TENURE_STORE=sqlite:shop.db tenure owner user-42"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where ownership is written down, such as sqlite:shop.db [env: TENURE_STORE]
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    /// The cluster's name; where only reading, not needed if the store holds one cluster [env: TENURE_CLUSTER]
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// What to log to standard error, such as info or tenure=debug [env: TENURE_LOG]
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// A configuration file in TOML [env: TENURE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Global {
    /// Everything that the configuration is made from, with the further flags of a command.
    pub(crate) fn sources(&self, mut flags: BTreeMap<&'static str, String>) -> Sources {
        for (name, given) in [
            ("store", &self.store),
            ("cluster", &self.cluster),
            ("log", &self.log),
        ] {
            if let Some(text) = given {
                flags.insert(name, text.clone());
            }
        }
        Sources {
            flags,
            env: std::env::vars_os()
                .map(|(name, text)| (lossy(name), lossy(text)))
                .collect(),
            file: self.config.clone(),
        }
    }

    /// The configuration, or all that is wrong with it.
    pub(crate) fn load(&self, flags: BTreeMap<&'static str, String>) -> Result<Config, Exit> {
        Config::load(&self.sources(flags)).map_err(|problems| Exit::usage(problems.join("\n")))
    }
}

/// A value that is not UTF-8 fits no setting; with the replaced characters it is refused by name.
fn lossy(text: std::ffi::OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(cmd::up::Up),
    Exec(cmd::exec::Exec),
    Node(cmd::node::NodeCommand),
    Router(cmd::router::RouterCommand),
    Check(cmd::check::Check),
    Status(cmd::status::Status),
    Owner(cmd::owner::Owner),
    Key(cmd::key::Key),
    Keyspace(cmd::keyspace::Keyspace),
    Cluster(cmd::cluster::Cluster),
    Plan(cmd::plan::Plan),
    Leader(cmd::leader::Leader),
    Pin(cmd::pin::Pin),
    Unpin(cmd::pin::Unpin),
    Cordon(cmd::cordon::Cordon),
    Uncordon(cmd::cordon::Uncordon),
    Drain(cmd::drain::Drain),
    Activate(cmd::drain::Activate),
    Evict(cmd::evict::Evict),
    Move(cmd::move_shard::Move),
    Rebalance(cmd::rebalance::Rebalance),
    Freeze(cmd::freeze::Freeze),
    Unfreeze(cmd::freeze::Unfreeze),
    Shard(cmd::shard::Shard),
    Sweep(cmd::sweep::Sweep),
    Repair(cmd::repair::Repair),
    Doctor(cmd::doctor::Doctor),
    Queue(cmd::queue::QueueCommand),
    Task(cmd::task::TaskCommand),
    Schedule(cmd::schedule::ScheduleCommand),
    Worker(cmd::worker::WorkerCommand),
    Config(cmd::config::ConfigCommand),
    Sim(cmd::sim::Sim),
    Bench(cmd::bench::Bench),
    Completions(cmd::completions::Completions),
    #[command(name = "__bench-node", hide = true)]
    BenchNode(cmd::bench::BenchNode),
    #[command(flatten)]
    Hidden(cmd::exec::internal_commands::Hidden),
}
