//! `tenure keyspace create`.

use std::process::ExitCode;

use clap::Args;
use tenure::admin::{CreationProgress, KeyspaceCreation, NewKeyspace};
use tenure_core::ids::KeyspaceName;
use tenure_core::record::{AssignedBy, KeyspaceKind};

use crate::config::flags::PlanFlags;
use crate::config::{Config, planning};
use crate::connect;
use crate::exit::Exit;

/// Maximum number of shards; a larger number is taken for a typing error.
const MOST_SHARDS: i64 = 1_000_000;
/// Number of shards from which on their creation is reported.
const REPORTED_FROM: usize = 2000;

/// Create a keyspace with all its shards
#[derive(Debug, Args)]
#[command(
    after_help = "Does nothing if an equal keyspace exists. Nodes create their keyspaces themselves; use this command to create\n\
    one before the first node starts.\n\n\
    Examples:\n  tenure keyspace create orders --shards 64\n  \
    tenure keyspace create topics --named --assigned-by fair-share\n  \
    tenure keyspace create orders --shards 64 --zones spread:40 --cool-down 5m"
)]
pub(crate) struct Create {
    /// Keyspace name
    name: KeyspaceName,
    /// Number of shards; a key selects one by its hash
    #[arg(long, value_name = "N", conflicts_with = "named", required_unless_present = "named",
          value_parser = clap::value_parser!(u32).range(1..=MOST_SHARDS))]
    shards: Option<u32>,
    /// Create an empty keyspace of named shards; see `tenure shard create`
    #[arg(long)]
    named: bool,
    /// Method of assigning shards to nodes: leader (an elected node plans), rendezvous (by hash) or fair-share (each node claims up to its share)
    #[arg(long, value_name = "MODE", default_value = "leader")]
    assigned_by: AssignedBy,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) flags: PlanFlags,
}

impl Create {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let plan = config
            .plan()
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        let new = NewKeyspace {
            name: name.clone(),
            kind: self
                .shards
                .map_or(KeyspaceKind::Named, KeyspaceKind::Hashed),
            assigned_by: self.assigned_by,
            planning: plan,
        };
        new.check()?;
        let admin = connect::open_or_create(config).await?;
        let progress = |progress| match progress {
            CreationProgress::WaitingForCreator => {
                eprintln!("another process is creating keyspace {name}; waiting for its record")
            }
            CreationProgress::ShardsWritten { written, total } if total > REPORTED_FROM => {
                eprintln!("{written} of {total} shards written");
            }
            CreationProgress::ShardsWritten { .. } => {}
        };
        let (kind, mode) = (new.kind, new.assigned_by);
        match admin.create_keyspace(&new, progress).await? {
            KeyspaceCreation::Created => {
                eprintln!("created keyspace {name} ({kind}, {mode})");
                planning::warn_of_load(&new.planning);
            }
            KeyspaceCreation::Existing => {
                eprintln!("keyspace {name} already exists ({kind}, {mode})");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
