//! `tenure queue list` and `show`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tenure_queue::Queue;

use super::open;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// List the queues of the cluster
#[derive(Debug, Args)]
#[command(after_help = "With --json, one object per line.\n\n\
    Examples:\n  tenure queue list")]
pub(super) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the settings of a queue
#[derive(Debug, Args)]
#[command(after_help = "`tenure queue stats` counts its tasks.\n\n\
    Examples:\n  tenure queue show mails")]
pub(super) struct Show {
    /// Queue name
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A queue with its settings, as printed with `--json`.
pub(super) fn described(queue: &Queue) -> Value {
    json!({ "queue": queue.name(), "settings": queue.settings(), "paused": queue.is_paused() })
}

impl List {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let cluster = connect::named_cluster(config)?;
        let store = connect::open_store(config).await?;
        let mut table = Table::new(&["QUEUE", "#SHARDS", "PAUSED"]);
        for name in Queue::names(&*store, cluster.as_str()).await? {
            let queue = Queue::open(store.clone(), cluster.as_str(), name.as_str()).await?;
            match self.json {
                true => stdout::json_line(&described(&queue)),
                false => table.row(vec![
                    name.to_string(),
                    queue.layout().shards().to_string(),
                    if queue.is_paused() { "paused" } else { "" }.to_owned(),
                ]),
            }
        }
        if !self.json {
            stdout::text(&table.render(WIDTH));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        match self.json {
            true => stdout::json(&described(&queue)),
            false => stdout::text(&text(&queue)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(queue: &Queue) -> String {
    let settings = queue.settings();
    let timeout = settings.attempt_timeout.map(duration::show);
    let mut text = String::new();
    for (name, value) in [
        ("queue", queue.name().to_string()),
        (
            "state",
            if queue.is_paused() {
                "paused"
            } else {
                "active"
            }
            .to_owned(),
        ),
        ("shards", settings.shards.to_string()),
        ("claim timeout", duration::show(settings.claim_timeout)),
        (
            "attempt timeout",
            timeout.unwrap_or_else(|| "none".to_owned()),
        ),
        ("max attempts", settings.retry.max_attempts.to_string()),
        ("retry delay", duration::show(settings.retry.delay)),
        ("retry delay max", duration::show(settings.retry.delay_max)),
        ("payload max", format!("{} bytes", settings.payload_max)),
        ("result max", format!("{} bytes", settings.result_max)),
        ("retain done", duration::show(settings.retain_done)),
        ("retain dead", duration::show(settings.retain_dead)),
    ] {
        let _ = writeln!(text, "{name:<16}{value}");
    }
    text
}
