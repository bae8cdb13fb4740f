//! `tenure queue stats`: how many tasks there are in each state.

use std::process::ExitCode;

use clap::Args;

use super::{open, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Count the tasks of a queue in each state
#[derive(Debug, Args)]
#[command(
    after_help = "Counted by the indexes, without reading a task: one on its way between two states may be counted in either.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue stats mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue stats mails --json"
)]
pub(super) struct StatsCommand {
    /// The queue
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StatsCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let work = async { Ok((queue.stats().await?, queue.now().await?)) };
        let (stats, now) = or_interrupted(work, || "nothing was counted".to_owned()).await?;
        let waiting = stats.oldest_due.map(|due| now.since(due));
        if self.json {
            let mut value = serde_json::to_value(&stats).unwrap_or_default();
            value["queue"] = self.queue.as_str().into();
            value["oldest_due_ms"] = waiting.map(|w| w.as_millis() as u64).into();
            stdout::json(&value);
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&["STATE", "#TASKS"]);
        for (name, count) in [
            ("ready", stats.ready),
            ("delayed", stats.delayed),
            ("running", stats.running),
            ("done", stats.done),
            ("dead", stats.dead),
        ] {
            table.row(vec![name.to_owned(), count.to_string()]);
        }
        stdout::text(&table.render(WIDTH));
        if let Some(waiting) = waiting {
            eprintln!("the oldest has been due for {}", duration::show(waiting));
        }
        if stats.paused {
            eprintln!("the queue is paused");
        }
        if stats.odd > 0 {
            eprintln!(
                "warning: {} keys in the indexes are none of ours; `tenure queue rebuild-index {}` removes them",
                stats.odd, self.queue
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
