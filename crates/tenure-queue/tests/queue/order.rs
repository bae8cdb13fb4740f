//! Which task comes first, and when.

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn urgent_tasks_come_first_and_older_ones_before_younger() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    let hand = Hand::default();
    for (name, priority) in [("c", 5), ("e", 0), ("b", 7), ("d", 5), ("a", 9)] {
        submitted(&queue, text(name).priority(priority)).await;
        tokio::time::sleep(ms(5)).await;
    }
    let worker = world.worker(&queue, "w").concurrency(1);
    let worker = worker.start(hand.clone()).await.unwrap();
    until("all are done", async || hand.0.lines().len() == 5).await;
    assert_eq!(hand.0.lines(), ["a", "b", "c", "d", "e"]);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn urgent_tasks_are_found_behind_a_thousand_that_are_not_due() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    let later = (0..2500).map(|n| text(format!("later {n}")).priority(9).delay(secs(9000)));
    for answer in queue.submit_many(later.collect()).await {
        answer.unwrap();
    }
    let hand = Hand::default();
    let id = submitted(&queue, text("now").priority(0)).await;
    let worker = world.worker(&queue, "w").start(hand.clone()).await.unwrap();
    ended(&queue, &id).await;
    assert_eq!(hand.0.lines(), ["now"]);
    let stats = queue.stats().await.unwrap();
    assert_eq!(stats.delayed, 2500);
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_delayed_task_comes_at_its_time_and_not_before() {
    let world = TestCluster::new();
    let (queue, producer) = (
        world.queue(settings(4)).await,
        world.queue(settings(4)).await,
    );
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    let now = producer.now().await.unwrap();
    let soon = submitted(&producer, text("soon").delay(secs(90))).await;
    let at = submitted(&producer, text("at").at(now.plus(secs(200)))).await;
    for (id, wait) in [(soon, 90), (at, 200)] {
        let task = ended(&producer, &id).await;
        let waited = task.history[1].at.since(task.created);
        assert!(
            waited >= secs(wait) && waited < secs(wait) + ms(1300),
            "{waited:?}"
        );
    }
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_submission_elsewhere_is_noticed_at_once_where_changes_are_followed() {
    for (follow, soonest, latest) in [(true, ms(0), ms(20)), (false, ms(60), ms(1300))] {
        let world = TestCluster::new();
        let (queue, producer) = (
            world.queue(settings(4)).await,
            world.queue(settings(4)).await,
        );
        let mut set = tenure_queue::WorkerSettings::for_store("memory");
        set.follow = follow;
        let worker = world.worker(&queue, "w").settings(set);
        let worker = worker.start(Hand::default()).await.unwrap();
        // Long idle: it looks once a second.
        tokio::time::sleep(secs(20)).await;
        let mut waits = Vec::new();
        for n in 0..8 {
            let id = submitted(&producer, text(format!("{n}"))).await;
            let task = ended(&producer, &id).await;
            waits.push(task.history[1].at.since(task.created));
            tokio::time::sleep(secs(10)).await;
        }
        let longest = waits.iter().max().unwrap();
        assert!(
            *longest >= soonest && *longest <= latest,
            "{follow}: {waits:?}"
        );
        worker.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_submission_in_the_same_process_is_noticed_at_once() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let mut set = tenure_queue::WorkerSettings::for_store("memory");
    set.follow = false;
    let worker = world.worker(&queue, "w").settings(set);
    let worker = worker.start(Hand::default()).await.unwrap();
    tokio::time::sleep(secs(20)).await;
    let id = submitted(&queue, text("x")).await;
    let task = ended(&queue, &id).await;
    let waited = task.history[1].at.since(task.created);
    assert!(waited < ms(5), "{waited:?}");
    worker.stop().await.unwrap();
}

/// How often a worker that has just started looks within the first second, and how late it finds a task after a long rest.
async fn looks_and_wait(
    first: std::time::Duration,
    latest: std::time::Duration,
) -> (u64, std::time::Duration) {
    let world = TestCluster::new();
    let (queue, producer) = (
        world.queue(settings(2)).await,
        world.queue(settings(2)).await,
    );
    let mut set = tenure_queue::WorkerSettings::for_store("memory");
    (set.poll_first, set.poll_latest, set.follow) = (first, latest, false);
    let worker = world.worker(&queue, "w").settings(set);
    let worker = worker.start(Hand::default()).await.unwrap();
    let before = count(&queue, "polls_total");
    tokio::time::sleep(secs(1)).await;
    let looks = count(&queue, "polls_total") - before;
    let mut longest = ms(0);
    for n in 0..5 {
        tokio::time::sleep(secs(60) + ms(700 * n)).await;
        let id = submitted(&producer, text(format!("{n}"))).await;
        let task = ended(&producer, &id).await;
        longest = longest.max(task.history[1].at.since(task.created));
    }
    worker.stop().await.unwrap();
    (looks, longest)
}

#[tokio::test(start_paused = true)]
async fn how_often_a_worker_looks_is_as_it_was_told() {
    let (many, soon) = looks_and_wait(ms(10), ms(100)).await;
    let (few, late) = looks_and_wait(ms(800), secs(9)).await;
    assert!(many >= 8 && few <= 2, "{many} and {few} looks");
    assert!(soon <= ms(130), "{soon:?}");
    assert!(late > secs(1) && late <= secs(12), "{late:?}");
}
