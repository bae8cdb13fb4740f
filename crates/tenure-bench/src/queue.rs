//! `tenure-bench queue`: tasks per second, requests per task, and delay of a claim; and the cost of idle workers, beside
//! the designs that Tenure's grew out of.
//!
//! All workers run in this process, each with a connection to the store of its own, at which its requests are counted. A
//! request is what a bucket would charge for: a key that is read, written or removed, or a page of a list.

mod idle;
mod setup;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tenure_queue::{NewTask, OwnershipSettings, Payload, Queue, Task};

use super::measure::ReportRow;
use super::{Machine, print_rows, put_out};
use crate::duration;
use crate::exit::Exit;
use setup::BenchQueue;

/// How many tasks are submitted together.
const BATCH: usize = 500;
/// How many tasks are submitted one by one to see how soon they are claimed.
const SINGLES: usize = 100;
/// Far beyond what anything should take.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Measure queues under load and with idle workers
#[derive(Debug, Args)]
#[command(
    after_help = "Without --store, each case uses a new SQLite file. With --store, each case uses a new cluster in that store, which is\n\
    deleted at the end. Idle workers have leases of 30 s, renewed every 10 s. They are compared with two other designs,\n\
    whose costs are computed: one lease per shard needs a lease write and a clock read for each shard every 10 s, and a\n\
    list of each shard per poll interval of an idle worker; without leases, every worker lists every shard.\n\n\
    Examples:\n  tenure-bench queue\n  tenure-bench queue --workers 1 --workers 16 --tasks 20000\n  \
    tenure-bench queue --store 's3://bucket/bench?endpoint=http://127.0.0.1:9000' --tasks 2000 --idle 60s"
)]
pub(crate) struct QueueBench {
    /// Store to measure; default: a new SQLite file for each case
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Number of workers that share the queue; repeat for one measurement per value; default: 1, 4, 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: Vec<u32>,
    /// Number of tasks
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: u32,
    /// Number of shards of the queue
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    shards: u32,
    /// Number of concurrent tasks of each worker
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Time to measure idle workers; 0s: do not measure them
    #[arg(long, default_value = "20s", value_name = "DURATION", value_parser = duration::parse)]
    idle: Duration,
    /// Numbers of idle workers and shards, such as 16x256; repeatable; default: 1x16, 16x256, 17x256
    #[arg(long, value_name = "WORKERSxSHARDS", value_parser = case)]
    idle_case: Vec<(u32, u32)>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

fn case(text: &str) -> Result<(u32, u32), String> {
    let parse = |part: &str| part.parse().ok().filter(|n| (1..=4096).contains(n));
    let parts = text.split_once('x');
    let numbers = parts.and_then(|(workers, shards)| Some((parse(workers)?, parse(shards)?)));
    numbers.ok_or_else(|| format!("{text:?} is not a case; write WORKERSxSHARDS, such as 16x256"))
}

#[derive(Debug, Serialize)]
struct Report {
    machine: Machine,
    store: String,
    tasks: u32,
    shards: u32,
    rows: Vec<ReportRow>,
}

impl QueueBench {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let machine = Machine::this();
        machine.warn();
        let mut rows = Vec::new();
        let workers = match self.workers.is_empty() {
            true => vec![1, 4, 16],
            false => self.workers.clone(),
        };
        for count in workers {
            eprintln!("measuring {count} workers …");
            rows.extend(self.load(count).await?);
        }
        if !self.idle.is_zero() {
            let cases = match self.idle_case.is_empty() {
                true => vec![(1, 16), (16, 256), (17, 256)],
                false => self.idle_case.clone(),
            };
            for (workers, shards) in cases {
                eprintln!("measuring {workers} idle workers on {shards} shards …");
                let store = self.store.as_deref();
                rows.extend(idle::measure(store, workers, shards, self.idle).await?);
            }
        }
        let report = Report {
            machine,
            store: tenure_store::redacted(self.store.as_deref().unwrap_or("sqlite")),
            tasks: self.tasks,
            shards: self.shards,
            rows,
        };
        put_out(self.json, &report, |out| report.print(out))
    }

    async fn load(&self, workers: u32) -> Result<Vec<ReportRow>, Exit> {
        let field = BenchQueue::new(self.store.as_deref(), self.shards).await?;
        let usual = OwnershipSettings::default();
        let concurrency = self.concurrency as usize;
        let crew = field.workers(workers, concurrency, &usual).await?;
        let before = field.requests();
        let begun = Instant::now();
        let mut left = self.tasks as usize;
        while left > 0 {
            let batch = vec![NewTask::new(Payload::none()); left.min(BATCH)];
            left -= batch.len();
            for answer in field.queue.submit_many(batch).await {
                answer?;
            }
        }
        field.until_finished(u64::from(self.tasks), TIMEOUT).await?;
        let took = begun.elapsed().as_secs_f64();
        let requests = field.requests().since(before);
        let delays = claim_delays(&field.queue).await?;
        setup::stop(crew).await?;
        field.remove().await;
        let case = |what: &str| format!("{what}, {workers} workers");
        let tasks = f64::from(self.tasks);
        let row =
            |what: &str, unit, value| ReportRow::plain("queue", case(what), unit, vec![value]);
        Ok(vec![
            row("tasks", "/s", tasks / took),
            row("writes per task", "", requests.writes as f64 / tasks),
            row("reads per task", "", requests.reads as f64 / tasks),
            row("submitted → claimed, p50", "ms", at(&delays, 50)),
            row("submitted → claimed, p99", "ms", at(&delays, 99)),
        ])
    }
}

/// How long tasks that are submitted one by one wait for their claim, in milliseconds of the store's time, sorted.
async fn claim_delays(queue: &Queue) -> Result<Vec<f64>, Exit> {
    let mut delays = Vec::new();
    for _ in 0..SINGLES {
        let submitted = queue.submit(NewTask::new(Payload::none())).await?;
        let task = queue.wait(&submitted.id, Duration::from_secs(60)).await?;
        delays.extend(delay(&task));
    }
    delays.sort_by(f64::total_cmp);
    Ok(delays)
}

fn delay(task: &Task) -> Option<f64> {
    let claimed = task.history.iter().find(|e| e.claim.is_some())?;
    Some(claimed.at.since(task.created).as_secs_f64() * 1000.0)
}

fn at(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).copied().unwrap_or(0.0)
}

impl Report {
    fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        self.machine.print(out)?;
        writeln!(
            out,
            "{} tasks, {} shards, store {}\n",
            self.tasks, self.shards, self.store
        )?;
        print_rows(&self.rows, out)
    }
}
