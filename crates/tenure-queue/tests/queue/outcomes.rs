//! How attempts end: failures, panics, time running out, cancellation, and the worker's own stop.

use tenure_queue::task::{TaskEventKind, TaskState};
use tenure_queue::{
    Outcome, Payload, QueueError, RetryPolicy, Task, TaskFailure, TaskHandler, TaskStatus, Worker,
    typed,
};

use crate::test_cluster::*;

async fn one(world: &TestCluster, hand: impl TaskHandler) -> (tenure_queue::Queue, Worker) {
    let queue = world.queue(settings(2)).await;
    let worker = world.worker(&queue, "w").start(hand).await.unwrap();
    (queue, worker)
}

fn reason(task: &Task) -> String {
    match &task.state {
        TaskState::Dead { reason, .. } => reason.clone(),
        state => panic!("{state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_with_growing_waits_and_becomes_a_dead_letter() {
    let world = TestCluster::new();
    let hand = Hand::default();
    let (queue, worker) = one(&world, hand.clone()).await;
    let id = submitted(&queue, text("fail").attempts(4)).await;
    let task = ended(&queue, &id).await;
    assert_eq!(
        (task.status(), task.attempts, reason(&task)),
        (TaskStatus::Dead, 4, "it failed".to_owned())
    );
    let claims: Vec<_> = task
        .history
        .iter()
        .filter(|event| event.event == TaskEventKind::Claimed)
        .map(|event| event.at)
        .collect();
    for (n, pair) in claims.windows(2).enumerate() {
        let (wait, middle) = (pair[1].since(pair[0]), ms(400) * 2u32.pow(n as u32));
        assert!(
            wait >= middle * 3 / 4 && wait < middle * 5 / 4 + ms(300),
            "{n}: {wait:?}"
        );
    }
    assert_eq!(hand.0.lines().len(), 4);
    assert_eq!(
        (count(&queue, "failed_total"), count(&queue, "dead_total")),
        (4, 1)
    );
    // Somebody looks at it and wants it tried again.
    queue.retry(&id, Some("anna")).await.unwrap();
    let task = ended(&queue, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Dead, 4));
    assert_eq!(hand.0.lines().len(), 8);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn panics_hangs_and_failures_for_good_are_told_apart() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let hang = text("hang").timeout(secs(3)).retry(RetryPolicy::never());
    for (submit, attempts, what) in [
        (
            text("panic").attempts(2),
            2,
            "the handler panicked: it panicked",
        ),
        (text("doom"), 1, "it can never be"),
        (hang, 1, "the attempt took longer than 3s"),
    ] {
        let id = submitted(&queue, submit).await;
        let task = ended(&queue, &id).await;
        assert_eq!((task.attempts, reason(&task)), (attempts, what.to_owned()));
    }
    assert_eq!(count(&queue, "panicked_total"), 2);
    assert_eq!(count(&queue, "timed_out_total"), 1);
    let id = submitted(&queue, text("fine")).await;
    assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Done);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_a_failure_that_says_so() {
    let world = TestCluster::new();
    let large = typed(async |_: String, _| Ok("x".repeat(20_000)));
    let (queue, worker) = one(&world, large).await;
    let id = submitted(&queue, tenure_queue::NewTask::json(&"go").unwrap()).await;
    let task = ended(&queue, &id).await;
    assert!(reason(&task).contains("20002 bytes") && reason(&task).contains("reference"));
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_put_a_task_off_without_failing() {
    struct Later;
    impl TaskHandler for Later {
        async fn handle(&self, job: tenure_queue::Job) -> Result<Outcome, TaskFailure> {
            if job.task().history.len() > 4 {
                return Ok(Outcome::Done(Payload::none()));
            }
            let at = tenure_queue::RetryAt::In(secs(100));
            let note = Some("too early".to_owned());
            Ok(Outcome::Reschedule { at, note })
        }
    }
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Later).await;
    let id = submitted(&queue, text("x").attempts(1)).await;
    let task = ended(&queue, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    let took = task.ended().unwrap().since(task.created);
    assert!(took >= secs(200) && took < secs(203), "{took:?}");
    assert_eq!(count(&queue, "rescheduled_total"), 2);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_give_a_task_back_and_that_is_no_attempt() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let id = submitted(&queue, text("back").attempts(1)).await;
    let task = ended(&queue, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    let events: Vec<TaskEventKind> = task.history.iter().map(|e| e.event).collect();
    use TaskEventKind::{Claimed, Finished, Released, Submitted};
    assert_eq!(events, [Submitted, Claimed, Released, Claimed, Finished]);
    let took = task.ended().unwrap().since(task.created);
    assert!(took < secs(1), "due at once: {took:?}");
    assert_eq!(count(&queue, "released_total"), 1);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancelling_reaches_the_handler_and_what_nobody_works_on_at_once() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let later = submitted(&queue, text("x").delay(secs(500))).await;
    assert_eq!(
        queue.cancel(&later, Some("anna")).await,
        Ok(TaskStatus::Cancelled)
    );
    assert_eq!(queue.cancel(&later, None).await, Ok(TaskStatus::Cancelled));

    for payload in ["wait", "hang"] {
        let id = submitted(&queue, text(payload)).await;
        until("it is running", async || {
            queue.get(&id).await.unwrap().status() == TaskStatus::Running
        })
        .await;
        assert_eq!(queue.cancel(&id, None).await, Ok(TaskStatus::Running));
        assert_eq!(queue.cancel(&id, None).await, Ok(TaskStatus::Running));
        let task = ended(&queue, &id).await;
        assert_eq!(task.status(), TaskStatus::Cancelled, "{payload}");
        let took = task.ended().unwrap().since(task.created);
        assert!(took < LEASE / 3 + secs(6), "{payload}: {took:?}");
    }
    assert_eq!(count(&queue, "cancelled_total"), 3);
    let done = submitted(&queue, text("quick")).await;
    ended(&queue, &done).await;
    let e = queue.cancel(&done, None).await.unwrap_err();
    assert!(matches!(e, QueueError::Refused { .. }), "{e}");
    // A cancelled one may be tried again.
    queue.retry(&later, None).await.unwrap();
    assert_eq!(ended(&queue, &later).await.status(), TaskStatus::Done);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn progress_stands_in_the_task_while_it_runs() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let id = submitted(&queue, text("wait")).await;
    let mut seen = None;
    until("progress is told", async || {
        let task = queue.get(&id).await.unwrap();
        seen = task.running().and_then(|running| running.progress.clone());
        seen.is_some()
    })
    .await;
    let seen = seen.unwrap();
    assert_eq!((seen.permille, &*seen.note), (Some(250), "waiting"));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_worker_finishes_what_it_can_and_gives_back_the_rest() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    let hand = Hand::default();
    let worker = world.worker(&queue, "w").stop_limit(secs(5));
    let worker = worker.start(hand.clone()).await.unwrap();
    let quick = submitted(&queue, text("sleep:4000")).await;
    let slow = submitted(&queue, text("sleep:60000")).await;
    until("both are running", async || worker.running() == 2).await;
    let begun = tokio::time::Instant::now();
    let late = queue.clone();
    let stopping = tokio::spawn(worker.stop());
    tokio::time::sleep(secs(1)).await;
    let unseen = submitted(&late, text("after the stop")).await;
    stopping.await.unwrap().unwrap();
    assert!(begun.elapsed() < secs(8), "{:?}", begun.elapsed());
    assert_eq!(queue.get(&quick).await.unwrap().status(), TaskStatus::Done);
    let back = queue.get(&slow).await.unwrap();
    assert_eq!((back.status(), back.attempts), (TaskStatus::Ready, 0));
    assert_eq!(back.history.last().unwrap().event, TaskEventKind::Released);
    assert_eq!(
        queue.get(&unseen).await.unwrap().status(),
        TaskStatus::Ready,
        "nothing was claimed after the stop"
    );
    assert_eq!(count(&queue, "released_total"), 1);
    // It is due at once for whoever is there.
    let next = world
        .worker(&queue, "next")
        .start(hand.clone())
        .await
        .unwrap();
    until("it runs again", async || {
        queue.get(&slow).await.unwrap().status() == TaskStatus::Running
    })
    .await;
    ended(&queue, &unseen).await;
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_claims_nothing_until_it_is_resumed() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let operator = world.queue(settings(2)).await;
    let running = submitted(&queue, text("sleep:20000")).await;
    until("it is running", async || worker.running() == 1).await;
    operator.pause().await.unwrap();
    tokio::time::sleep(secs(8)).await;
    let id = submitted(&operator, text("x")).await;
    assert_eq!(
        ended(&queue, &running).await.status(),
        TaskStatus::Done,
        "what is running goes on"
    );
    tokio::time::sleep(secs(30)).await;
    assert_eq!(queue.get(&id).await.unwrap().status(), TaskStatus::Ready);
    assert!(operator.stats().await.unwrap().paused);
    operator.resume().await.unwrap();
    assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Done);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_task_does_not_say_its_queue_does() {
    let world = TestCluster::new();
    let (queue, worker) = one(&world, Hand::default()).await;
    let change = |s: &mut tenure_queue::QueueSettings| {
        s.attempt_timeout = Some(secs(2));
        s.retry = RetryPolicy::never();
        s.result_max = 10;
        s.claim_timeout = secs(9);
    };
    queue.configure(change).await.unwrap();
    let slow = submitted(&queue, text("hang")).await;
    let task = ended(&queue, &slow).await;
    assert_eq!((task.attempts, task.claim_timeout), (1, secs(9)));
    assert_eq!(reason(&task), "the attempt took longer than 2s");
    let own = text("sleep:3000").timeout(secs(5)).lease(secs(4));
    let own = submitted(&queue, own).await;
    let task = ended(&queue, &own).await;
    assert_eq!(
        (task.status(), task.claim_timeout),
        (TaskStatus::Done, secs(4))
    );
    let large = submitted(&queue, text("a result of its own length")).await;
    assert!(reason(&ended(&queue, &large).await).contains("limit is 10"));
    worker.stop().await.unwrap();
}
