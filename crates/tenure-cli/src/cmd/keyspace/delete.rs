//! `tenure keyspace delete`: marks a keyspace as deleted. Its records stay, so that no epoch is used twice.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::AdminError;
use tenure::admin::OwnedShards;
use tenure_core::ids::KeyspaceName;

use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::connect;
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
        let admin = connect::open_existing(config).await?;
        let owned_shards = match self.force {
            true => OwnedShards::Release,
            false => OwnedShards::Refuse,
        };
        let deletion = admin.check_keyspace_deletion(name, owned_shards).await?;
        let owned = deletion.owned();
        let what = match owned {
            0 => format!("keyspace {name} will be deleted"),
            _ => format!("keyspace {name} will be deleted while {owned} of its shards are owned"),
        };
        confirm(self.yes, &what)?;
        admin.delete_keyspace(deletion).await.map_err(raced)?;
        match owned {
            0 => eprintln!("deleted keyspace {name}"),
            _ => eprintln!(
                "deleted keyspace {name}; its nodes are releasing {owned} shards (`tenure status`)"
            ),
        }
        if self.json {
            stdout::json(&json!({ "keyspace": name, "owned": owned }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn raced(error: AdminError) -> Exit {
    match error {
        AdminError::Raced(what) => {
            Exit::failed(format!("{what}; check it and run the command again"))
        }
        other => other.into(),
    }
}
