//! `tenure shard repair`: repair of a corrupt, missing or quarantined shard record.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::AdminError;
use tenure::admin::{ShardInspection, ShardProblem, ShardRepair};
use tenure_core::ids::ShardId;

use crate::cmd::confirm::confirm;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Repair a shard that is quarantined, or whose record is corrupt or missing
#[derive(Debug, Args)]
#[command(
    after_help = "A corrupt or missing record is written again at a new generation, after the longest ttl of the cluster. No node\n\
    claims the shard before every live session has confirmed not to own it. A quarantined shard may be claimed\n\
    again. A record of a newer format is not changed. `tenure cluster repair-record` repairs other records.\n\n\
    Examples:\n  tenure shard repair orders/17 --dry-run\n  tenure shard repair orders/17 --yes"
)]
pub(crate) struct Repair {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
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

impl Repair {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let id = &self.shard;
        let admin = connect::open_existing(config).await?;
        let inspection = admin.inspect_shard(id).await?;
        let problem = self.report(&inspection);
        match (problem, self.dry_run) {
            (None, _) => {}
            (Some(_), true) => self.report_effect(&inspection),
            (Some(_), false) => {
                self.confirm(&inspection)?;
                let repaired = admin.repair_shard(&inspection).await;
                report_result(id, repaired.map_err(raced)?);
            }
        }
        if self.json {
            stdout::json(
                &json!({ "shard": id.to_string(), "problem": problem, "dry_run": self.dry_run }),
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reports the problem and returns it as one word.
    fn report(&self, inspection: &ShardInspection) -> Option<&'static str> {
        let id = &self.shard;
        match inspection.problem() {
            ShardProblem::None => {
                eprintln!("shard {id} needs no repair; nothing was changed");
                None
            }
            ShardProblem::Quarantined { reason } => {
                eprintln!("shard {id} is quarantined: {reason}");
                Some("quarantined")
            }
            ShardProblem::Corrupt { damage } => {
                eprintln!("shard {id}: {damage}");
                Some("corrupt")
            }
            ShardProblem::Missing => {
                eprintln!(
                    "shard {id} has no record; nodes that serve the keyspace write the record again"
                );
                Some("missing")
            }
        }
    }

    fn report_effect(&self, inspection: &ShardInspection) {
        match inspection.problem() {
            ShardProblem::Quarantined { .. } => eprintln!("would end the quarantine"),
            _ => eprintln!(
                "would watch the key for {}, reserve a generation of keyspace {}, and write a new record; nodes claim the shard after {} sessions have confirmed not to own it",
                duration::show(inspection.watch_time()),
                self.shard.keyspace,
                inspection.witnesses()
            ),
        }
    }

    fn confirm(&self, inspection: &ShardInspection) -> Result<(), Exit> {
        let quarantined = matches!(inspection.problem(), ShardProblem::Quarantined { .. });
        let effect = match quarantined {
            true => "nodes will try to load the shard again",
            false => "the record will be written again at a new generation",
        };
        confirm(self.yes, &format!("shard {}: {effect}", self.shard))?;
        if !quarantined {
            let time = duration::show(inspection.watch_time());
            eprintln!("watching the key for {time}");
        }
        Ok(())
    }
}

fn report_result(id: &ShardId, repaired: ShardRepair) {
    match repaired {
        ShardRepair::NotNeeded => {}
        ShardRepair::QuarantineEnded => {
            eprintln!("ended the quarantine; nodes may claim the shard again");
        }
        ShardRepair::WrittenByOther => eprintln!(
            "the record of shard {id} was written by another process; nothing was changed"
        ),
        ShardRepair::Restored {
            generation,
            witnesses,
        } => eprintln!(
            "wrote shard {id} again at generation {generation}; before a node claims it, {} must confirm not to own it",
            match witnesses {
                0 => "no session".to_owned(),
                1 => "1 session".to_owned(),
                n => format!("{n} sessions"),
            }
        ),
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
