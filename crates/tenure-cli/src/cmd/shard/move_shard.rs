//! `tenure shard move`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::admin::MoveStatus;
use tenure_core::ids::{NodeName, ShardId};

use crate::cmd::wait::{at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Move a shard to a node
#[derive(Debug, Args)]
#[command(
    name = "move",
    after_help = "The leader starts the move immediately; no request is dropped. Later the leader may move the shard again for\n\
    balance; `tenure shard pin` prevents that. Keyspaces without a leader reject the command. Ctrl-C, or the end\n\
    of --wait-timeout, ends only the waiting.\n\n\
    Examples:\n  tenure shard move orders/17 --to n1\n  \
    tenure shard move topics/eu.payments --to n1 --wait-timeout 0s"
)]
pub(crate) struct MoveCommand {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// Target node
    #[arg(long, value_name = "NODE")]
    to: NodeName,
    /// Time to wait until the target serves the shard; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    wait_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl MoveCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (id, to) = (&self.shard, &self.to);
        let admin = connect::open_existing(config).await?;
        let changed = admin.move_shard(id, to).await?;
        match changed {
            true => eprintln!("requested the move of shard {id} to {to}"),
            false => eprintln!("shard {id} is already at {to} or moving there"),
        }
        let mut done = None;
        if !at_once(self.wait_timeout) {
            let left = format!("the move of shard {id} to {to} continues");
            let told = |moved: &MoveStatus| match moved {
                MoveStatus::Waiting => eprintln!("shard {id}: the leader has not started the move"),
                MoveStatus::UnderWay(what) => eprintln!("shard {id}: {what}"),
                MoveStatus::Done => eprintln!("shard {id} is served by {to}"),
                MoveStatus::CalledOff => {}
            };
            let moved = or_interrupted(
                admin.wait_until_moved(id, to, self.wait_timeout, told),
                &left,
            )
            .await?;
            if moved == MoveStatus::CalledOff {
                return Err(Exit::failed(format!(
                    "the move of shard {id} to {to} was aborted; check the log of {to} for the reason, then run the \
                     command again"
                )));
            }
            done = Some(true);
        }
        if self.json {
            stdout::json(&json!({
                "shard": id.to_string(), "target": to, "changed": changed, "served": done,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
