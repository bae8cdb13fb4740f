//! `tenure queue create` and `update`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_queue::{Queue, QueueSettings};

use super::list::described;
use super::open;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Create a queue
#[derive(Debug, Args)]
#[command(
    after_help = "Creating an existing queue with the same number of shards changes nothing; `tenure queue update` changes its settings.\n\
    The number of shards limits the number of workers that can share the queue and cannot be changed later.\n\n\
    Defaults: claim timeout 30s, no attempt timeout, 5 attempts with delays of 1s to 5m, payloads up to 32768 and results\n\
    up to 16384 bytes, done tasks retained for 168h and dead letters for 720h.\n\n\
    Examples:\n  tenure queue create mails\n  \
    tenure queue create films --shards 256 --claim-timeout 2m --max-attempts 3"
)]
pub(super) struct Create {
    /// Queue name
    queue: String,
    /// Number of shards, 1 to 4096 [default: 16]
    #[arg(long, value_name = "N")]
    shards: Option<u32>,
    #[command(flatten)]
    settings: SettingFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Change the settings of a queue
#[derive(Debug, Args)]
#[command(
    after_help = "Settings that are not given stay unchanged. Workers apply changes within seconds. Existing tasks keep the\n\
    timeouts and retries they were submitted with.\n\n\
    Examples:\n  tenure queue update mails --max-attempts 10 --retain-done 24h"
)]
pub(super) struct Update {
    /// Queue name
    queue: String,
    #[command(flatten)]
    settings: SettingFlags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Settings of a queue, unchanged where absent.
#[derive(Clone, Debug, Args)]
struct SettingFlags {
    /// Time after which a task is claimed again if its worker has died
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Task defaults")]
    claim_timeout: Option<Duration>,
    /// Maximum duration of one attempt
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Task defaults")]
    attempt_timeout: Option<Duration>,
    /// Number of attempts before a task becomes a dead letter
    #[arg(long, value_name = "N", help_heading = "Task defaults")]
    max_attempts: Option<u32>,
    /// Delay after the first failed attempt, doubled after each further one
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Task defaults")]
    retry_delay: Option<Duration>,
    /// Maximum delay after a failed attempt
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Task defaults")]
    retry_delay_max: Option<Duration>,
    /// Maximum payload size of a task, in bytes
    #[arg(long, value_name = "BYTES", help_heading = "Limits and retention")]
    payload_max: Option<usize>,
    /// Maximum result size of a task, in bytes
    #[arg(long, value_name = "BYTES", help_heading = "Limits and retention")]
    result_max: Option<usize>,
    /// Time to keep done and cancelled tasks
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Limits and retention")]
    retain_done: Option<Duration>,
    /// Time to keep dead letters
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Limits and retention")]
    retain_dead: Option<Duration>,
}

impl SettingFlags {
    fn apply(&self, settings: &mut QueueSettings) {
        fn set<T: Copy>(field: &mut T, given: Option<T>) {
            *field = given.unwrap_or(*field);
        }
        set(&mut settings.claim_timeout, self.claim_timeout);
        settings.attempt_timeout = self.attempt_timeout.or(settings.attempt_timeout);
        set(&mut settings.retry.max_attempts, self.max_attempts);
        set(&mut settings.retry.delay, self.retry_delay);
        set(&mut settings.retry.delay_max, self.retry_delay_max);
        set(&mut settings.payload_max, self.payload_max);
        set(&mut settings.result_max, self.result_max);
        set(&mut settings.retain_done, self.retain_done);
        set(&mut settings.retain_dead, self.retain_dead);
    }
}

fn report(queue: &Queue, json: bool, done: &str) {
    let shards = queue.layout().shards();
    eprintln!("queue {} {done} ({shards} shards)", queue.name());
    if json {
        stdout::json(&described(queue));
    }
}

impl Create {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut settings = QueueSettings::default();
        if let Some(shards) = self.shards {
            settings.shards = shards;
        }
        self.settings.apply(&mut settings);
        settings.check()?;
        let client = connect::open_or_create(config).await?;
        let (store, cluster) = (client.store().clone(), client.cluster().as_str());
        let queue = Queue::create(store, cluster, &self.queue, settings).await?;
        report(&queue, self.json, "exists");
        Ok(ExitCode::SUCCESS)
    }
}

impl Update {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        queue
            .configure(|settings| self.settings.apply(settings))
            .await?;
        report(&queue, self.json, "updated");
        Ok(ExitCode::SUCCESS)
    }
}
