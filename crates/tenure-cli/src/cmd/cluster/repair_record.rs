//! `tenure cluster repair-record`: deletes a corrupt record, so that nodes write it again.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::AdminError;
use tenure::admin::{RecordRepair, RepairableRecord};

use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Delete a corrupt record, so that nodes write it again
#[derive(Debug, Args)]
#[command(
    after_help = "KEY is cluster, leader, keyspaces/NAME or nodes/NAME. A readable record, or one of a newer format, is never\n\
    deleted. `tenure shard repair` repairs the record of a shard.\n\n\
    Examples:\n  tenure cluster repair-record keyspaces/orders --dry-run\n  \
    tenure cluster repair-record keyspaces/orders --yes"
)]
pub(crate) struct RepairRecord {
    /// Key of the record, such as keyspaces/orders
    key: RepairableRecord,
    /// Show the effect without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RepairRecord {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let deleted = self.repair(config).await?;
        if self.json {
            let key = self.key.to_string();
            stdout::json(&json!({ "key": key, "dry_run": self.dry_run, "deleted": deleted }));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Deletes the record if it is corrupt. Returns whether it did.
    async fn repair(&self, config: &Config) -> Result<bool, Exit> {
        let key = &self.key;
        let admin = connect::open_existing(config).await?;
        let inspection = admin.inspect_record(key).await?;
        let Some(damage) = inspection.damage() else {
            eprintln!("record {key} is valid; nothing was changed");
            return Ok(false);
        };
        eprintln!("{key}: {damage}");
        let consequence = key.consequence();
        if self.dry_run {
            eprintln!("would delete this record; {consequence}");
            return Ok(false);
        }
        confirm(
            self.yes,
            &format!("the corrupt record {key} will be deleted"),
        )?;
        let deleted = || eprintln!("deleted {key}; {consequence}");
        let repaired = admin.repair_record(&inspection, deleted).await;
        match repaired.map_err(raced)? {
            RecordRepair::NotNeeded | RecordRepair::Deleted => {}
            RecordRepair::WrittenByNode => eprintln!("a node has written the record again"),
            RecordRepair::Rebuilt => eprintln!(
                "no running node knew the record, so it was written again from the other records; run `tenure \
                 keyspace bump-generation --all` before any node starts"
            ),
        }
        Ok(true)
    }
}

fn raced(error: AdminError) -> Exit {
    match error {
        AdminError::Raced(what) => Exit::failed(format!(
            "{what}; check `tenure status` and run the command again"
        )),
        other => other.into(),
    }
}
