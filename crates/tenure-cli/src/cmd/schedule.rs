//! `tenure schedule`: recurring tasks.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_queue::{Payload, QueueError, RetryPolicy, ScheduleSpec};

use super::confirm::confirm;
use super::queue::{metadata, open};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use crate::table::Table;

/// Manage schedules, which submit recurring tasks
#[derive(Debug, Args)]
#[command(
    after_help = "The worker that owns the first shard of the queue submits one task per tick, so at least one worker must run. After\n\
    a time without workers, only the last missed tick is submitted.\n\n\
    Examples:\n  \
    tenure schedule put mails report '0 8 * * mon-fri' 'daily report'\n  \
    tenure schedule list mails\n  \
    tenure schedule delete mails report"
)]
pub(crate) struct ScheduleCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Put(PutCommand),
    Delete(Delete),
}

/// List the schedules of a queue with the time of their next task
#[derive(Debug, Args)]
#[command(after_help = "With --json, one object per line.\n\n\
    Examples:\n  tenure schedule list mails")]
struct List {
    /// Queue name
    queue: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Create or replace a schedule
#[derive(Debug, Args)]
#[command(
    after_help = "CRON has five fields: minute, hour, day of month, month, day of week. The first tick is the next one from now on.\n\n\
    Examples:\n  \
    tenure schedule put mails report '0 8 * * mon-fri' 'daily report' --time-zone Europe/Berlin"
)]
struct PutCommand {
    /// Queue name
    queue: String,
    /// Schedule name
    #[arg(value_name = "SCHEDULE")]
    name: String,
    /// Times at which a task is submitted, in cron syntax, such as '0 9 * * mon-fri'
    cron: String,
    /// Payload of each task, as text
    #[arg(default_value = "")]
    payload: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Time zone of the cron expression
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// Parse the payload as JSON and store it as JSON
    #[arg(long, help_heading = "Task options")]
    payload_json: bool,
    /// Priority of each task, from 0 to 9 [default: 5]
    #[arg(long, value_name = "N", help_heading = "Task options")]
    priority: Option<u8>,
    /// Maximum duration of one attempt [default: setting of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Task options")]
    attempt_timeout: Option<Duration>,
    /// Number of attempts before a task becomes a dead letter [default: setting of the queue]
    #[arg(long, value_name = "N", help_heading = "Task options")]
    max_attempts: Option<u32>,
    /// Metadata stored with the tasks, to find them by; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = metadata, help_heading = "Task options")]
    metadata: Vec<(String, String)>,
}

/// Delete a schedule
#[derive(Debug, Args)]
#[command(after_help = "Tasks that the schedule has submitted are kept.\n\n\
    Examples:\n  tenure schedule delete mails report --yes")]
struct Delete {
    /// Queue name
    queue: String,
    /// Schedule name
    #[arg(value_name = "SCHEDULE")]
    name: String,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ScheduleCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::List(action) => action.run(config).await,
            Action::Put(action) => action.run(config).await,
            Action::Delete(action) => action.run(config).await,
        }
    }
}

impl List {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let now = queue.now().await?;
        let headings = [
            "SCHEDULE",
            "CRON",
            "TIME ZONE",
            "NEXT",
            "#SUBMITTED",
            "#MISSED",
        ];
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
                schedule.spec.time_zone.clone(),
                next.map(|next| next.to_string()).unwrap_or_default(),
                schedule.submitted.to_string(),
                schedule.missed.to_string(),
            ]);
        }
        if !self.json {
            stdout::text(&table.render(usize::MAX));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl PutCommand {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let payload = match self.payload_json {
            false => Payload::bytes(self.payload.clone()),
            true => {
                let value = serde_json::from_str(&self.payload);
                let value = value.map_err(|e| Exit::usage(format!("payload is not JSON: {e}")))?;
                Payload::Json(value)
            }
        };
        let queue = open(config, &self.queue).await?;
        let mut spec = ScheduleSpec::new(&self.cron, payload).zone(&self.time_zone);
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.attempt_timeout = self.attempt_timeout;
        spec.retry = self.max_attempts.map(|attempts| RetryPolicy {
            max_attempts: attempts,
            ..queue.settings().retry
        });
        spec.metadata = self.metadata.iter().cloned().collect();
        let schedule = queue.schedule(&self.name, spec).await?;
        let next = schedule.spec.next(queue.now().await?)?;
        let shown = next.map(|next| next.to_string());
        eprintln!(
            "schedule {} saved: next tick {}",
            self.name,
            shown.as_deref().unwrap_or("never")
        );
        if self.json {
            stdout::json(&json!({ "schedule": schedule, "next": next }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Delete {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        let known = queue.schedules().await?;
        // A schedule that cannot be read is not listed, and can be deleted all the same.
        if known.iter().any(|known| known.name.as_str() == self.name) {
            let question = format!(
                "schedule {} of queue {} will be deleted",
                self.name, self.queue
            );
            confirm(self.yes, &question)?;
        } else if !self.yes {
            return Err(QueueError::NoSchedule(self.name.clone()).into());
        }
        queue.unschedule(&self.name).await?;
        eprintln!("schedule {} deleted", self.name);
        if self.json {
            stdout::json(&json!({ "queue": self.queue, "schedule": self.name }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
