//! `tenure queue schedule`: tasks that are submitted again and again.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_queue::{Payload, Retry, ScheduleSpec};

use super::{meta, open};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Submit tasks again and again, by the clock
#[derive(Debug, Args)]
#[command(
    after_help = "Each tick is submitted once, by whichever worker owns the queue's first shard: there must be a worker.\n\
    After a time without one, only the last tick that was missed is made up for.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue schedule set mails report '0 8 * * mon-fri' 'daily report' --zone Europe/Berlin\n  \
    tenure --store sqlite:shop.db --cluster shop queue schedule ls mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue schedule rm mails report"
)]
pub(super) struct ScheduleCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Set(Set),
    Ls(Ls),
    Rm(Rm),
}

/// Create a schedule, or change one
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop queue schedule set mails report '0 8 * * mon-fri' 'daily report' --zone Europe/Berlin"
)]
struct Set {
    /// The queue
    queue: String,
    /// The schedule's name
    name: String,
    /// When, as cron writes it: minute, hour, day, month, day of the week
    cron: String,
    /// What each task carries, as text
    #[arg(default_value = "")]
    payload: String,
    /// What each task carries is JSON
    #[arg(long)]
    as_json: bool,
    /// By the clocks of which zone
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    zone: String,
    /// The priority of each task, from 0 to 9
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// How long one attempt may take
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How often each task is tried
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// Something to find the tasks by; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = meta)]
    meta: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List schedules, with their next tick
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop queue schedule ls mails --json"
)]
struct Ls {
    /// The queue
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a schedule; tasks that it has submitted stay
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db --cluster shop queue schedule rm mails report"
)]
struct Rm {
    /// The queue
    queue: String,
    /// The schedule's name
    name: String,
}

impl ScheduleCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Set(action) => action.run(config).await,
            Action::Ls(action) => action.run(config).await,
            Action::Rm(action) => action.run(config).await,
        }
    }
}

impl Set {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let payload = match self.as_json {
            false => Payload::bytes(self.payload.clone()),
            true => {
                let value = serde_json::from_str(&self.payload);
                let value =
                    value.map_err(|e| Exit::usage(format!("the payload is no JSON: {e}")))?;
                Payload::Json(value)
            }
        };
        let queue = open(config, &self.queue).await?;
        let mut spec = ScheduleSpec::new(&self.cron, payload).zone(&self.zone);
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.timeout = self.timeout;
        spec.retry = self.attempts.map(|attempts| Retry {
            attempts,
            ..queue.settings().retry
        });
        spec.metadata = self.meta.iter().cloned().collect();
        let schedule = queue.schedule(&self.name, spec).await?;
        let next = schedule.spec.next(queue.now().await?)?;
        let shown = next.map(|next| next.to_string());
        eprintln!(
            "schedule {}: next {}",
            self.name,
            shown.as_deref().unwrap_or("never")
        );
        if self.json {
            stdout::json(&json!({ "schedule": schedule, "next": next }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Ls {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let now = queue.now().await?;
        let headings = ["NAME", "CRON", "ZONE", "NEXT", "#SUBMITTED", "#MISSED"];
        let mut table = Table::new(&headings);
        for schedule in queue.schedules().await? {
            let next = schedule.spec.next(now)?;
            if self.json {
                stdout::json_line(&json!({ "schedule": schedule, "next": next }));
                continue;
            }
            table.row(vec![
                schedule.name.to_string(),
                schedule.spec.cron.clone(),
                schedule.spec.zone.clone(),
                next.map(|next| next.to_string()).unwrap_or_default(),
                schedule.submitted.to_string(),
                schedule.missed.to_string(),
            ]);
        }
        if !self.json {
            stdout::text(&table.render(WIDTH));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Rm {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        queue.unschedule(&self.name).await?;
        eprintln!("schedule {} is removed", self.name);
        Ok(ExitCode::SUCCESS)
    }
}
