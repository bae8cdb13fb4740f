//! `tenure move`: one shard to one node, once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::admin::Moved;
use tenure_core::ids::{NodeName, ShardId};

use super::wait::{admin, at_once, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Move a shard to a node, once
#[derive(Debug, Args)]
#[command(
    name = "move",
    after_help = "The leader begins the move at once, without a dropped request. The shard stays there as long as balance does\n\
    not say otherwise; `tenure pin` keeps it there. Only where a leader plans: in keyspaces of other modes nobody\n\
    could be asked. Ctrl-C, or the end of the timeout, ends only the waiting.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop move orders/17 --to n1\n  \
    tenure --store sqlite:shop.db --cluster shop move topics/eu.payments --to n1 --timeout 0s"
)]
pub(crate) struct Move {
    /// The shard
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// The node
    #[arg(long, value_name = "NODE")]
    to: NodeName,
    /// How long to wait until it is served there; 0s: not at all
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Move {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (id, to) = (&self.shard, &self.to);
        let admin = admin(config).await?;
        let changed = admin.move_shard(id, to).await?;
        match changed {
            true => eprintln!("asked the leader to move shard {id} to {to}"),
            false => eprintln!("shard {id} is at {to}, or on its way there, already"),
        }
        let mut done = None;
        if !at_once(self.timeout) {
            let left = format!("shard {id} goes to {to} all the same, unless the move fails");
            let told = |moved: &Moved| match moved {
                Moved::Waiting => eprintln!("shard {id}: its leader has not begun"),
                Moved::UnderWay(what) => eprintln!("shard {id}: {what}"),
                Moved::Done => eprintln!("shard {id} is served by {to}"),
                Moved::CalledOff => {}
            };
            let moved =
                or_interrupted(admin.wait_until_moved(id, to, self.timeout, told), &left).await?;
            if moved == Moved::CalledOff {
                return Err(Exit::failed(format!(
                    "the move of shard {id} to {to} was called off, and the shard is where it was; {to} logs why, and the \
                     command can be run again"
                )));
            }
            done = Some(true);
        }
        if self.json {
            stdout::json(&json!({
                "shard": id.to_string(), "to": to, "changed": changed, "served_there": done,
            }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
