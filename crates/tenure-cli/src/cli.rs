//! Command tree and global options.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::cmd;
use crate::config::settings_table::{self, SettingDefinition};
use crate::config::{Config, ConfigSources};
use crate::exit::Exit;

/// Assigns each shard to one process at a time, never to two
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    after_help = "Results are printed to standard output, everything else to standard error.\n\
                  Exit codes: 0 success · 1 failed, rejected or condition not met · 2 invalid usage, input or configuration\n\
                  The examples in each help assume TENURE_STORE and TENURE_CLUSTER, or the same settings in ./tenure.toml.\n\n\
                  Examples:\n  \
                  tenure up\n  \
                  tenure -s sqlite:shop.db -c shop keyspace create orders --shards 64\n  \
                  tenure -s sqlite:shop.db status\n  \
                  TENURE_STORE=sqlite:shop.db tenure shard lookup user-42"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Store URL, such as sqlite:shop.db or etcd://127.0.0.1:2379 [env: TENURE_STORE]
    #[arg(short = 's', long, global = true, value_name = "URL")]
    store: Option<String>,
    /// Cluster name; optional for read-only commands if the store holds exactly one cluster [env: TENURE_CLUSTER]
    #[arg(short = 'c', long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// Log filter for standard error, such as info or tenure=debug [env: TENURE_LOG]
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// Configuration file in TOML; default: ./tenure.toml, then the user's tenure/config.toml [env: TENURE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting, such as ttl=10s; repeatable. `tenure config show` lists all settings
    #[arg(long, global = true, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(&'static str, String)>,
}

/// Parses `NAME=VALUE` of `--set`.
fn setting(text: &str) -> Result<(&'static str, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or("expected NAME=VALUE, such as ttl=10s")?;
    let name = name.trim().replace('-', "_");
    match settings_table::find(&name) {
        Some(setting) => Ok((setting.name, value.to_owned())),
        None => Err(format!(
            "unknown setting {name:?}{}",
            crate::config::meant(&name)
        )),
    }
}

impl Global {
    /// Sources of the configuration, including the given flags of a command.
    pub(crate) fn sources(
        &self,
        mut flags: BTreeMap<&'static str, String>,
    ) -> Result<ConfigSources, Exit> {
        for (name, given) in [
            ("store", &self.store),
            ("cluster", &self.cluster),
            ("log", &self.log),
        ] {
            if let Some(text) = given {
                flags.insert(name, text.clone());
            }
        }
        for (name, text) in &self.set {
            if flags.insert(name, text.clone()).is_some() {
                return Err(Exit::usage(format!(
                    "--set {name}: the setting is given twice; pass it once"
                )));
            }
        }
        let env: Vec<_> = std::env::vars_os()
            .map(|(name, text)| (lossy(name), lossy(text)))
            .collect();
        let set = self.set.iter().map(|(name, _)| *name).collect();
        Ok(ConfigSources::new(flags, set, env, self.config.clone()))
    }

    /// The configuration, or an error that lists all of its problems.
    ///
    /// A setting of `--set` that `takes` rejects would have no effect on the command and is an error. Files and environment
    /// are shared by all commands, so their settings are not checked against one.
    pub(crate) fn load(
        &self,
        flags: BTreeMap<&'static str, String>,
        takes: fn(&SettingDefinition) -> bool,
    ) -> Result<Config, Exit> {
        let mut problems: Vec<String> = self
            .set
            .iter()
            .filter_map(|(name, _)| settings_table::find(name))
            .filter(|knob| !knob.is_global() && !takes(knob))
            .map(|knob| {
                format!(
                    "--set {}: the setting has no effect on this command",
                    knob.name
                )
            })
            .collect();
        match Config::load(&self.sources(flags)?) {
            Ok(config) if problems.is_empty() => Ok(config),
            Ok(_) => Err(Exit::usage(problems.join("\n"))),
            Err(others) => {
                problems.extend(others);
                Err(Exit::usage(problems.join("\n")))
            }
        }
    }
}

/// Replaces invalid UTF-8. No setting accepts the replacement character, so such a value is rejected by name.
fn lossy(text: std::ffi::OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// Top-level commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(cmd::up::UpCommand),
    Exec(cmd::exec::ExecCommand),
    Sidecar(cmd::sidecar::SidecarCommand),
    Router(cmd::router::RouterCommand),
    Planner(cmd::planner::PlannerCommand),
    Status(cmd::status::StatusCommand),
    Cluster(cmd::cluster::ClusterCommand),
    Node(cmd::node::NodeCommand),
    Keyspace(cmd::keyspace::KeyspaceCommand),
    Shard(cmd::shard::ShardCommand),
    Queue(cmd::queue::QueueCommand),
    Store(cmd::store::StoreCommand),
    Task(cmd::task::TaskCommand),
    Schedule(cmd::schedule::ScheduleCommand),
    Worker(cmd::worker::WorkerCommand),
    Config(cmd::config::ConfigCommand),
    Grant(cmd::grant::GrantCommand),
    Completion(cmd::completion::Completion),
    #[command(flatten)]
    Hidden(cmd::exec::internal_commands::InternalCommand),
}

/// Headings of the top-level help, with their commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start here", &["up"]),
    (
        "Processes",
        &["exec", "sidecar", "router", "planner", "worker"],
    ),
    (
        "Ownership",
        &["status", "cluster", "node", "keyspace", "shard"],
    ),
    ("Tasks", &["queue", "task", "schedule"]),
    (
        "Setup and diagnosis",
        &["store", "config", "grant", "completion"],
    ),
];

/// The parser, with the top-level commands grouped under [`GROUPS`].
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut template = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        let _ = writeln!(template, "\n{heading}:");
        for name in *names {
            let about = command
                .find_subcommand(name)
                .and_then(|c| c.get_about())
                .map(ToString::to_string)
                .unwrap_or_default();
            let _ = writeln!(template, "  {name:<11} {about}");
        }
    }
    template.push_str("\nGlobal options:\n{options}{after-help}");
    command.help_template(template)
}

/// Parses the arguments of this process; prints help or an error and exits where clap does.
pub(crate) fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tenure_console::reference;

    use super::*;

    #[test]
    fn every_visible_command_is_in_exactly_one_group_of_the_help() {
        let command = command();
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        let shown: BTreeSet<&str> = shown.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let once: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), once.len(), "a command is in two groups");
        assert_eq!(once, shown);
    }

    #[test]
    fn the_reference_of_commands_is_what_the_parser_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
        reference::check(command(), "tenure-cli", path.as_ref());
    }

    #[test]
    fn the_parser_is_consistent() {
        command().debug_assert();
    }
}
