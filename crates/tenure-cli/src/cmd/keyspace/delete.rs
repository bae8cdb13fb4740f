//! `tenure keyspace delete`: marks a keyspace as deleted. Its records stay, so that no epoch is used twice.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::Record;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Delete a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "Marks the keyspace as deleted: nodes release its shards and claim none. The records stay, because their epochs\n\
    must not be used again. The command is rejected while shards are owned by live sessions; with --force their\n\
    nodes finish or cancel running requests and release the shards.\n\n\
    Examples:\n  tenure keyspace delete orders --yes"
)]
pub(crate) struct Delete {
    /// Keyspace name
    name: KeyspaceName,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Delete even while nodes own shards of the keyspace
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Delete {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let mut place = ClusterClient::open(config).await?;
        let snapshot = place.existing().await?;
        snapshot.keyspace(name)?;
        let owned = snapshot.owned(name);
        if owned > 0 && !self.force {
            return Err(Exit::failed(format!(
                "{owned} shards of keyspace {name} are owned by sessions that may be live; stop their nodes first, or \
                 pass --force"
            )));
        }
        let what = match owned {
            0 => format!("keyspace {name} will be deleted"),
            _ => format!("keyspace {name} will be deleted while {owned} of its shards are owned"),
        };
        confirm(self.yes, &what)?;
        // Conditional on the version that was confirmed: a concurrent change wins.
        let Some(seen) = snapshot.view.keyspaces.seen(name) else {
            return Err(Exit::failed(format!(
                "there is no keyspace {name}; `tenure keyspace list` shows the existing \
                ones"
            )));
        };
        let mut record = (*seen.record).clone();
        record.head = record.head.next(place.nonce());
        record.deleted = true;
        let key = Key::Keyspace(name.clone());
        let expect = Expect::Version(seen.version.clone());
        let record = Record::Keyspace(Arc::new(record));
        match place.put(&key, expect, &record).await? {
            CasResult::Done if owned > 0 => {
                eprintln!(
                    "deleted keyspace {name}; its nodes are releasing {owned} shards (`tenure status`)"
                );
            }
            CasResult::Done => eprintln!("deleted keyspace {name}"),
            CasResult::Lost => {
                return Err(Exit::failed(format!(
                    "keyspace {name} was changed concurrently; check it and run the command again"
                )));
            }
        }
        if self.json {
            stdout::json(&json!({ "keyspace": name, "owned": owned }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
