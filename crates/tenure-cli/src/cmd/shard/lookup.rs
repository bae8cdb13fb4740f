//! `tenure key`: which shard a key belongs to.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_core::hash;
use tenure_core::ids::KeyspaceName;
use tenure_core::record::KeyspaceKind;

use crate::cluster_client::ClusterClient;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Print the shard that a key belongs to
#[derive(Debug, Args)]
#[command(
    after_help = "With --shards no store is needed: the shard follows from the key alone.\n\n\
    Examples:\n  tenure key user-42 --shards 64\n  tenure --store sqlite:shop.db key user-42 --keyspace orders"
)]
pub(crate) struct Key {
    /// The key, as the application has it
    key: String,
    /// The keyspace; not needed if there is only one
    #[arg(long, value_name = "NAME", conflicts_with = "shards")]
    keyspace: Option<KeyspaceName>,
    /// How many shards the keyspace has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Key {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (keyspace, shards) = match self.shards {
            Some(shards) => (None, shards),
            None => {
                let (name, shards) = self.hashed(config).await?;
                (Some(name), shards)
            }
        };
        let shard = hash::shard_of(self.key.as_bytes(), shards);
        if self.json {
            stdout::json(&json!({
                "key": self.key,
                "keyspace": keyspace,
                "shards": shards,
                "shard": shard,
            }));
        } else {
            match keyspace {
                Some(keyspace) => stdout::line(format!("{keyspace}/{shard}")),
                None => stdout::line(shard.as_str()),
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn hashed(&self, config: &Config) -> Result<(KeyspaceName, u32), Exit> {
        let place = ClusterClient::look(config).await?;
        let snapshot = place.existing().await?;
        let name = match &self.keyspace {
            Some(name) => name.clone(),
            None => snapshot.sole_keyspace()?,
        };
        match snapshot.keyspace(&name)?.kind {
            KeyspaceKind::Hashed(shards) => Ok((name, shards)),
            KeyspaceKind::Named => Err(Exit::failed(format!(
                "keyspace {name} is named: its shards are chosen by name, not by key"
            ))),
        }
    }
}
