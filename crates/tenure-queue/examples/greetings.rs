//! A queue in a file: one producer, two workers, typed input and output.
//!
//! `cargo run -p tenure-queue --example greetings`; the file is gone afterwards.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_queue::{Job, NewTask, Queue, QueueError, QueueSettings, TaskFailure, Worker, typed};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    text: String,
    attempt: u32,
}

/// The work. It fails at first now and then, and is tried again.
async fn greet(input: Greet, job: Job) -> Result<Greeting, TaskFailure> {
    if input.name.len() % 2 == 1 && job.attempt() == 1 {
        return Err(TaskFailure::new("the pen is dry").again_after(Duration::from_millis(50)));
    }
    Ok(Greeting {
        text: format!("hello, {}", input.name),
        attempt: job.attempt(),
    })
}

#[tokio::main]
async fn main() -> Result<(), QueueError> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let url = format!("sqlite:{}", dir.path().join("greetings.db").display());
    let store = tenure_store::open(&url).await?;
    let queue = Queue::create(store, "example", "greetings", QueueSettings::default()).await?;

    let mut workers = Vec::new();
    for name in ["one", "two"] {
        let queue = Queue::open(tenure_store::open(&url).await?, "example", "greetings").await?;
        workers.push(
            Worker::builder(&queue)
                .name(name)
                .start(typed(greet))
                .await?,
        );
    }

    for name in ["anna", "bjorn", "chioma"] {
        let task = NewTask::json(&Greet { name: name.into() })?.key(format!("greet {name}"));
        let id = queue.submit(task).await?.id;
        let greeting: Greeting = queue.result(&id, Duration::from_secs(30)).await?;
        println!("{} (attempt {})", greeting.text, greeting.attempt);
    }
    for worker in workers {
        worker.stop().await?;
    }
    Ok(())
}
