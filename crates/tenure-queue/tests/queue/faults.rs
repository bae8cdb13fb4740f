//! Stores that fail, hang, and lose their answers.

use tenure_queue::task::TaskEventKind;
use tenure_queue::{Filter, TaskStatus};
use tenure_store::fault::FaultConfig;

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn an_outcome_waits_for_the_store_to_come_back() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(2)).await;
    let hand = Hand::default();
    let worker = world.worker(&queue, "w").start(hand.clone()).await.unwrap();
    let watcher = world.queue(settings(2)).await;
    let id = submitted(&watcher, text("sleep:1000")).await;
    until("it is running", async || worker.running() == 1).await;
    faults.outage();
    tokio::time::sleep(secs(3)).await;
    assert_eq!(
        watcher.get(&id).await.unwrap().status(),
        TaskStatus::Running
    );
    faults.heal();
    let task = ended(&watcher, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 1));
    assert!(count(&queue, "store_failures_total") > 0);
    assert_eq!(hand.0.lines().len(), 1);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_worker_cut_off_for_longer_than_the_lease_stops_its_attempt_and_cannot_finish_it() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let (hand, other) = (Hand::default(), world.queue(settings(1)).await);
    let cut = world
        .worker(&queue, "cut")
        .start(hand.clone())
        .await
        .unwrap();
    let id = submitted(&other, text("sleep:10000")).await;
    until("it is running", async || cut.running() == 1).await;
    faults.hang();
    let second = world
        .worker(&other, "second")
        .start(hand.clone())
        .await
        .unwrap();
    until("the attempt is dropped", async || cut.running() == 0).await;
    let task = ended(&other, &id).await;
    assert_eq!((task.status(), task.attempts), (TaskStatus::Done, 2));
    assert_eq!(task.history.last().unwrap().by.as_deref(), Some("second"));
    faults.heal();
    tokio::time::sleep(secs(30)).await;
    assert_eq!(
        other.get(&id).await.unwrap(),
        task,
        "what lands late changes nothing"
    );
    assert_eq!(count(&queue, "claims_lost_total"), 1);
    drop((cut, second));
}

#[tokio::test(start_paused = true)]
async fn lost_answers_are_read_back_and_count_once() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(2)).await;
    faults.lose_replies(300);
    let mut ids = Vec::new();
    for n in 0..60 {
        match queue
            .submit(text(format!("{n}")).key(format!("k{n}")))
            .await
        {
            Ok(submitted) => ids.push(submitted.id),
            // Not known to be there; with a key it is safe to say it again.
            Err(_) => ids.push(
                queue
                    .submit(text(format!("{n}")).key(format!("k{n}")))
                    .await
                    .unwrap()
                    .id,
            ),
        }
    }
    let hand = Hand::default();
    let worker = world.worker(&queue, "w").start(hand.clone()).await.unwrap();
    let watcher = world.queue(settings(2)).await;
    for id in &ids {
        let task = ended(&watcher, id).await;
        assert_eq!(task.status(), TaskStatus::Done);
        let finished = task
            .history
            .iter()
            .filter(|e| e.event == TaskEventKind::Finished)
            .count();
        assert_eq!(finished, 1);
    }
    let there = watcher
        .list(&Filter::default(), 1000, None)
        .await
        .unwrap()
        .tasks;
    assert_eq!(there.len(), 60);
    drop(worker);
}

/// Everything at once: three workers behind stores that fail by chance, killed and replaced now and then.
async fn chaos(seed: u64) {
    let world = TestCluster::new();
    let producer = world.queue(settings(4)).await;
    let hand = Hand::default();
    let mut ids = Vec::new();
    let mut workers = Vec::new();
    for n in 0..3u64 {
        let (queue, faults) = world.faulty(settings(4)).await;
        let name = format!("w{n}");
        let worker = match n {
            2 => world.sweeper(&queue, &name),
            _ => world.worker(&queue, &name),
        };
        workers.push((worker.start(hand.clone()).await.unwrap(), faults, queue));
        workers[n as usize].1.random(FaultConfig {
            seed: seed * 10 + n,
            unavailable_permille: 60,
            lost_reply_permille: 60,
            delay_permille: 200,
            delay_max: ms(300),
            watch_cut_permille: 20,
        });
    }
    for n in 0..120u64 {
        let payload = match n % 6 {
            0 => format!("sleep:{}", 700 + n * 40),
            1 => format!("fail:{n}"),
            _ => format!("task:{n}"),
        };
        ids.push(submitted(&producer, text(payload).attempts(6).lease(secs(4))).await);
        tokio::time::sleep(ms(120)).await;
        if n % 40 == 25 {
            let victim = ((seed + n) % 2) as usize;
            let (queue, faults) = world.faulty(settings(4)).await;
            let worker = world.worker(&queue, &format!("x{n}"));
            let worker = worker.start(hand.clone()).await.unwrap();
            workers[victim] = (worker, faults, queue);
        }
    }
    tokio::time::sleep(secs(20)).await;
    for (_, faults, _) in &workers {
        faults.heal();
    }
    let runs = hand.0.counts();
    for id in ids {
        let task = ended(&producer, &id).await;
        let payload = String::from_utf8(task.payload.to_bytes()).unwrap();
        let count = |what| task.history.iter().filter(|e| e.event == what).count();
        let (claimed, over) = (
            count(TaskEventKind::Claimed),
            count(TaskEventKind::Expired) + count(TaskEventKind::Failed),
        );
        assert_eq!(
            claimed - over,
            count(TaskEventKind::Finished),
            "seed {seed}: {task:?}"
        );
        match payload.starts_with("fail") {
            true => assert_eq!(
                (task.status(), task.attempts),
                (TaskStatus::Dead, 6),
                "seed {seed}"
            ),
            false => assert_eq!(task.status(), TaskStatus::Done, "seed {seed}: {task:?}"),
        }
        let ran = hand.0.counts()[&payload];
        assert!(
            ran >= 1 && ran <= claimed,
            "seed {seed}: {ran} runs of {claimed} claims"
        );
    }
    drop((runs, workers));
    let rebuilt = producer.rebuild_index().await.unwrap();
    assert!(rebuilt.corrupt.is_empty(), "{rebuilt:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_every_task_ends_and_none_is_finished_twice() {
    for seed in 0..12 {
        chaos(seed).await;
    }
}
