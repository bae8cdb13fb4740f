//! `tenure shard lookup`: shard and owner of a key.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_core::hash;
use tenure_core::ids::{KeyspaceName, ShardId, ShardName};
use tenure_core::record::KeyspaceKind;

use super::show::ShardLocation;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Print the shard of a key and the node that owns it
#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 1 if no node owns the shard. With --offline the command needs no store: it prints only the shard,\n\
    which depends only on the key and the number of shards.\n\n\
    Examples:\n  tenure shard lookup user-42 --keyspace orders\n  \
    tenure shard lookup user-42 --json\n  \
    tenure shard lookup user-42 --offline --shard-count 64"
)]
pub(crate) struct Lookup {
    /// Key of the application; in a named keyspace the name of the shard
    key: String,
    /// Keyspace; optional if the cluster has exactly one
    #[arg(short = 'k', long, value_name = "NAME", conflicts_with = "offline")]
    keyspace: Option<KeyspaceName>,
    /// Compute the shard without a store
    #[arg(long, requires = "shard_count")]
    offline: bool,
    /// Number of shards of the keyspace, for --offline
    #[arg(long, value_name = "N", requires = "offline", value_parser = clap::value_parser!(u32).range(1..))]
    shard_count: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Lookup {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        if let Some(count) = self.shard_count {
            let shard = hash::shard_of(self.key.as_bytes(), count);
            match self.json {
                true => {
                    stdout::json(&json!({ "key": self.key, "shard": shard, "shard_count": count }))
                }
                false => stdout::line(shard.as_str()),
            }
            return Ok(ExitCode::SUCCESS);
        }
        let snapshot = connect::read_existing(config).await?;
        let keyspace = match &self.keyspace {
            Some(name) => name.clone(),
            None => snapshot.sole_keyspace()?,
        };
        let shard = match snapshot.keyspace(&keyspace)?.kind {
            KeyspaceKind::Hashed(count) => hash::shard_of(self.key.as_bytes(), count),
            KeyspaceKind::Named => ShardName::new(&self.key)?,
        };
        let mut answer = ShardLocation::new(&snapshot, &ShardId::new(keyspace, shard))?;
        answer.key = Some(self.key.clone());
        answer.print(self.json, false)
    }
}
