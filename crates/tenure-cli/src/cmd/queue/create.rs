//! `tenure queue create` and `set`: what a queue is like.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_queue::{Queue, QueueSettings};

use super::open;
use crate::cluster_client::ClusterClient;
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Create a queue
#[derive(Debug, Args)]
#[command(
    after_help = "Doing it twice changes nothing: what a queue is like is changed by `tenure queue set`. The number of shards is\n\
    the most workers that can share the queue, and cannot be changed later.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue create mails\n  \
    tenure --store sqlite:shop.db --cluster shop queue create films --shards 256 --lease 2m --attempts 3"
)]
pub(super) struct Create {
    /// The queue
    queue: String,
    /// How many shards it has; default: 16
    #[arg(long, value_name = "N")]
    shards: Option<u32>,
    #[command(flatten)]
    traits: Traits,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Change what a queue is like; workers notice within seconds
#[derive(Debug, Args)]
#[command(
    after_help = "Tasks that are there keep what they were submitted with.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue set mails --attempts 10 --keep-done 24h"
)]
pub(super) struct Set {
    /// The queue
    queue: String,
    #[command(flatten)]
    traits: Traits,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What tasks of the queue are like unless they say otherwise, and how long they are kept.
#[derive(Clone, Debug, Args)]
struct Traits {
    /// How long a claim is good without being extended: how soon a dead worker's task is tried again
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// How long one attempt may take
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How often a task is tried before it is a dead letter
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// The wait after the first failure; it doubles with each
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_first: Option<Duration>,
    /// The longest wait after a failure
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    retry_longest: Option<Duration>,
    /// The most that a task may carry by value, in bytes
    #[arg(long, value_name = "BYTES")]
    payload_max: Option<usize>,
    /// The most that a result may take, in bytes
    #[arg(long, value_name = "BYTES")]
    result_max: Option<usize>,
    /// For how long tasks that are done or cancelled are kept
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep_done: Option<Duration>,
    /// For how long dead letters are kept
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep_dead: Option<Duration>,
}

impl Traits {
    fn apply(&self, settings: &mut QueueSettings) {
        fn set<T: Copy>(field: &mut T, given: Option<T>) {
            *field = given.unwrap_or(*field);
        }
        set(&mut settings.lease, self.lease);
        settings.timeout = self.timeout.or(settings.timeout);
        set(&mut settings.retry.attempts, self.attempts);
        set(&mut settings.retry.first, self.retry_first);
        set(&mut settings.retry.longest, self.retry_longest);
        set(&mut settings.payload_max, self.payload_max);
        set(&mut settings.result_max, self.result_max);
        set(&mut settings.keep_done, self.keep_done);
        set(&mut settings.keep_dead, self.keep_dead);
    }
}

fn tell(queue: &Queue, json: bool, what: &str) {
    let settings = queue.settings();
    eprintln!(
        "queue {} {what}: {} shards",
        queue.name(),
        queue.layout().shards()
    );
    if json {
        stdout::json(
            &json!({ "queue": queue.name(), "settings": settings, "paused": queue.is_paused() }),
        );
    }
}

impl Create {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut settings = QueueSettings::default();
        if let Some(shards) = self.shards {
            settings.shards = shards;
        }
        self.traits.apply(&mut settings);
        settings.check()?;
        let place = ClusterClient::open_or_make(config).await?;
        let store = place.store.clone();
        let queue = Queue::create(store, place.cluster.as_str(), &self.queue, settings).await?;
        tell(&queue, self.json, "is there");
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let queue = open(config, &self.queue).await?;
        queue
            .configure(|settings| self.traits.apply(settings))
            .await?;
        tell(&queue, self.json, "is set");
        Ok(ExitCode::SUCCESS)
    }
}
