//! `tenure queue stats`: number of tasks in each state.

use std::process::ExitCode;

use clap::Args;

use super::{open, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Count the tasks of a queue by state
#[derive(Debug, Args)]
#[command(
    after_help = "Counts index entries without reading tasks: a task that is changing its state may be counted in the old or\n\
    the new one.\n\n\
    Examples:\n  tenure queue stats mails\n  \
    tenure queue stats mails --json"
)]
pub(super) struct StatsCommand {
    /// Queue name
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StatsCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let work = async { Ok((queue.stats().await?, queue.now().await?)) };
        let (stats, now) = or_interrupted(work, || "the count is not complete".to_owned()).await?;
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
            eprintln!("oldest due task: waiting for {}", duration::show(waiting));
        }
        if stats.paused {
            eprintln!("queue {} is paused", self.queue);
        }
        if stats.odd > 0 {
            eprintln!(
                "warning: {} keys in the indexes are not index entries; `tenure queue repair-index {}` deletes them",
                stats.odd, self.queue
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
