//! Requests that concern the queue alone.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_queue::{Filter, Queue};

use super::messages::{ListOperation, Operation, WireError};
use crate::cmd::queue::caller;
use crate::cmd::task::task_json::TaskJson;

/// How many tasks a page has unless the client says otherwise.
const PAGE: usize = 100;

/// Does what the client wants.
pub(super) async fn answer(queue: &Queue, order: Operation) -> Result<Value, WireError> {
    match order {
        Operation::Submit { tasks } => submit(queue, tasks).await,
        Operation::Wait { task, timeout_ms } => {
            let limit = Duration::from_millis(timeout_ms);
            Ok(json!(queue.wait(&task, limit).await?))
        }
        Operation::Get { task } => Ok(json!(queue.get(&task).await?)),
        Operation::List(list) => self::list(queue, *list).await,
        Operation::Cancel { task } => {
            let is = queue.cancel(&task, Some(&caller())).await?;
            Ok(json!({ "state": is }))
        }
        Operation::Retry { task } => {
            queue.retry(&task, Some(&caller())).await?;
            Ok(json!({ "state": "ready" }))
        }
        Operation::Stats {} => Ok(json!(queue.stats().await?)),
        order => Err(WireError::new(
            "invalid",
            format!(
                "{order:?} is not valid as a request; send this message only for a task that is running"
            ),
        )),
    }
}

async fn submit(queue: &Queue, tasks: Vec<TaskJson>) -> Result<Value, WireError> {
    let (mut answers, mut fit) = (Vec::new(), Vec::new());
    for spec in tasks {
        match spec.submit(queue.settings().retry) {
            Ok(submit) => {
                answers.push(Value::Null);
                fit.push(submit);
            }
            Err(reason) => answers.push(json!({ "error": WireError::new("invalid", reason) })),
        }
    }
    let mut submitted = queue.submit_many(fit).await.into_iter();
    for answer in answers.iter_mut().filter(|answer| answer.is_null()) {
        *answer = match submitted.next() {
            Some(Ok(task)) => {
                json!({ "id": task.id, "created": task.created, "differs": task.differs })
            }
            Some(Err(e)) => json!({ "error": WireError::from(e) }),
            None => Value::Null,
        };
    }
    Ok(Value::Array(answers))
}

async fn list(queue: &Queue, order: ListOperation) -> Result<Value, WireError> {
    let filter = Filter {
        states: order.states,
        metadata: order.meta,
        created_from: order.since,
        created_before: order.before,
    };
    let limit = order.limit.unwrap_or(PAGE);
    let page = queue.list(&filter, limit, order.from.as_deref()).await?;
    Ok(json!({ "tasks": page.tasks, "corrupt": page.corrupt, "next": page.next }))
}
