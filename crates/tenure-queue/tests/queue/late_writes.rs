//! Writes that land long after they were sent, and readers that act on what they read long ago.

use tenure_queue::keys::{IndexEntry, IndexKind};
use tenure_queue::{Purge, Queue, TaskId, TaskStatus};

use crate::recurring::{every_minute, ticks};
use crate::test_cluster::*;

/// Everything that has ended, however young.
const ALL: Purge = Purge {
    done: Some(std::time::Duration::ZERO),
    dead: Some(std::time::Duration::ZERO),
};

/// Waits until a minute has just begun: the next tick is far then.
async fn next_minute(queue: &Queue) {
    let now = queue.now().await.unwrap();
    let tick = every_minute().next(now).unwrap().unwrap();
    tokio::time::sleep(tick.since(now) + secs(1)).await;
}

async fn ready(queue: &Queue) -> usize {
    let prefix = queue.layout().whole_index(IndexKind::Ready);
    queue.store().list(&prefix).await.unwrap().entries.len()
}

/// A dead letter that somebody has begun to retry: its entry is there, and the write of the task is on its way for so long
/// that the entry is taken for a stray.
async fn a_retry_that_takes_long(
    world: &TestCluster,
    clear: impl AsyncFnOnce(&Queue),
) -> (Queue, TaskId) {
    let queue = world.queue(settings(1)).await;
    let worker = world.worker(&queue, "first").start(Hand::default()).await;
    let id = submitted(&queue, text("fail").attempts(1)).await;
    assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Dead);
    worker.unwrap().stop().await.unwrap();

    let (operator, faults) = world.faulty(settings(1)).await;
    faults.slow(ms(100));
    let asked = id.clone();
    let retrying = tokio::spawn(async move { operator.retry(&asked, None).await });
    until("the entry is there", async || ready(&queue).await == 1).await;
    faults.hang();
    clear(&queue).await;
    assert_eq!(ready(&queue).await, 0, "it was taken for a stray");
    // The operator is gone; what it has sent arrives.
    retrying.abort();
    faults.heal();
    tokio::time::sleep(secs(1)).await;
    (queue, id)
}

/// What is ready is led to, and what is not is not.
async fn is_led_to(queue: &Queue, id: &TaskId) {
    let task = queue.get(id).await.unwrap();
    let key = queue.layout().entry(&IndexEntry::of(&task));
    let entry = queue.store().get(&key).await.unwrap();
    assert!(entry.is_some(), "nothing leads to {task:?}");
    assert_eq!(
        ready(queue).await,
        usize::from(task.status() == TaskStatus::Ready)
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_lands_after_its_entry_was_cleared_away_leaves_no_task_that_nothing_leads_to()
{
    let world = TestCluster::new();
    let (queue, id) = a_retry_that_takes_long(&world, async |queue| {
        let owner = world.worker(queue, "owner").start(Hand::default()).await;
        until("the entry is gone", async || ready(queue).await == 0).await;
        owner.unwrap().stop().await.unwrap();
    })
    .await;
    is_led_to(&queue, &id).await;
    // Whoever tries again in good time succeeds.
    queue.retry(&id, None).await.unwrap();
    is_led_to(&queue, &id).await;
}

#[tokio::test(start_paused = true)]
async fn who_rebuilds_the_index_meanwhile_leaves_none_either() {
    let world = TestCluster::new();
    let (queue, id) = a_retry_that_takes_long(&world, async |queue| {
        tokio::time::sleep(secs(70)).await;
        let rebuilt = queue.rebuild_index().await.unwrap();
        assert_eq!((rebuilt.added, rebuilt.removed), (0, 1));
    })
    .await;
    is_led_to(&queue, &id).await;
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_not_submitted_again_by_who_read_of_it_before_its_task_was_purged() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    for name in ["a", "b"] {
        queue.schedule(name, every_minute()).await.unwrap();
    }
    next_minute(&queue).await;
    // The slow one has read both, and is busy with the first.
    let (slow, faults) = world.faulty(settings(1)).await;
    faults.slow(secs(2));
    let ticking = tokio::spawn(async move { slow.tick().await });
    until("the first is submitted", async || {
        ticks(&queue).await.len() == 1
    })
    .await;
    queue.tick().await.unwrap();
    let submitted = ticks(&queue).await;
    assert_eq!(submitted.len(), 2);
    for id in &submitted {
        queue.cancel(&TaskId::new(id).unwrap(), None).await.unwrap();
    }
    tokio::time::sleep(ms(10)).await;
    assert_eq!(queue.purge(&ALL).await, Ok(2));
    ticking.await.unwrap().unwrap();
    assert_eq!(ticks(&queue).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_task_of_a_tick_stays_until_its_schedule_remembers_the_tick() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    queue.schedule("m", every_minute()).await.unwrap();
    next_minute(&queue).await;
    let (dying, faults) = world.faulty(settings(1)).await;
    faults.fail_where(|op, key| op == tenure_store::Op::Put && key.contains("/schedules/"));
    dying.tick().await.unwrap();
    let id = TaskId::new(&ticks(&queue).await[0]).unwrap();
    queue.cancel(&id, None).await.unwrap();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(queue.purge(&ALL).await, Ok(0), "it is all that tells");
    queue.tick().await.unwrap();
    assert_eq!(ticks(&queue).await, [id.to_string()], "no second one");
    assert_eq!(queue.purge(&ALL).await, Ok(1));
    queue.tick().await.unwrap();
    assert_eq!(ticks(&queue).await, [""; 0]);
    // A schedule that is gone awaits nothing.
    next_minute(&queue).await;
    dying.tick().await.unwrap();
    let id = TaskId::new(&ticks(&queue).await[0]).unwrap();
    queue.cancel(&id, None).await.unwrap();
    queue.unschedule("m").await.unwrap();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(queue.purge(&ALL).await, Ok(1));
}
