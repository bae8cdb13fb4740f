//! A task queue on any store: nothing but a bucket, or a file, is needed.
//!
//! - A **task** is one object for its whole life, readable JSON with its history inside. What becomes of it is one
//!   conditional write after the other ([`transitions`]): a worker that lost its claim cannot finish a task.
//! - **Indexes** lead to tasks that are due, claimed, done or dead ([`keys`]). They are hints, and can be rebuilt.
//! - **Workers** own shards of the queue through [`tenure`], each its fair share, and look only into what they own. Who dies
//!   is replaced: its shards by its lease, its tasks by theirs. Leasing can be switched off, for some workers or all.
//! - A task is handled **at least once** and finished **exactly once**. All times are the store's.
//!
//! ```
//! use std::time::Duration;
//! use tenure_queue::{Queue, QueueSettings, NewTask, Worker, typed};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure_store::open("memory:").await?;
//! let queue = Queue::create(store, "shop", "sums", QueueSettings::default()).await?;
//! let worker = Worker::builder(&queue)
//!     .concurrency(8)
//!     .start(typed(async |numbers: Vec<u64>, _job| Ok(numbers.iter().sum::<u64>())))
//!     .await?;
//! let task = queue.submit(NewTask::json(&[1, 2, 3])?).await?;
//! let sum: u64 = queue.result(&task.id, Duration::from_secs(10)).await?;
//! assert_eq!(sum, 6);
//! worker.stop().await?;
//! # Ok(())
//! # }
//! ```

mod delete;
mod error;
mod handler;
mod ids;
pub mod keys;
mod list;
pub mod metrics;
mod ownership;
mod payload;
mod queue;
mod queue_record;
#[cfg(test)]
mod record_format_tests;
mod repair;
mod retry;
mod rng;
mod schedule;
mod store_clock;
mod store_time;
mod submit;
pub mod task;
mod task_store;
pub mod transitions;
mod wakeups;
mod worker;
mod write_batcher;

pub use delete::{DeletionResult, delete, delete_all};
pub use error::QueueError;
pub use handler::{Job, Outcome, RetryAt, TaskFailure, TaskHandler, Typed, typed};
pub use ids::{BadName, ClaimId, NAME_MAX, Nonce, QueueName, ScheduleName, TaskId, WorkerName};
pub use list::{Filter, Stats, TaskPage};
pub use metrics::Metrics;
pub use ownership::{
    CheckedOwnership, ENV_ENABLED, ENV_RENEW, ENV_SHARDS, ENV_TTL, OwnershipSettings,
};
pub use payload::Payload;
pub use queue::Queue;
pub use queue_record::{PAYLOAD_LIMIT, QueueRecord, QueueSettings, SHARDS_MAX};
pub use repair::{Purge, RebuildResult};
pub use retry::RetryPolicy;
pub use schedule::{Cron, Schedule, ScheduleSpec};
pub use store_time::StoreTime;
pub use submit::{METADATA_MAX, NewTask, SubmittedTask};
pub use task::{Task, TaskState, TaskStatus};
pub use worker::{Worker, WorkerBuilder, WorkerHealth, WorkerSettings};
