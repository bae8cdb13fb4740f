//! Schedules: one task per tick, whoever is there.

use tenure_queue::{Filter, Payload, Queue, QueueError, ScheduleSpec};

use crate::test_cluster::*;

pub(crate) fn every_minute() -> ScheduleSpec {
    ScheduleSpec::new("* * * * *", Payload::bytes("tick"))
}

pub(crate) async fn ticks(queue: &Queue) -> Vec<String> {
    let page = queue.list(&Filter::default(), 1000, None).await.unwrap();
    let mut ids: Vec<String> = page.tasks.iter().map(|t| t.id.to_string()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(start_paused = true)]
async fn every_tick_is_submitted_once_however_many_workers_there_are() {
    let world = TestCluster::new();
    let hand = Hand::default();
    let mut workers = Vec::new();
    for n in 0..3 {
        let queue = world.queue(settings(2)).await;
        let (owns, sweeps) = (
            world.worker(&queue, &format!("w{n}")),
            world.sweeper(&queue, &format!("s{n}")),
        );
        workers.push(owns.start(hand.clone()).await.unwrap());
        workers.push(sweeps.start(hand.clone()).await.unwrap());
    }
    let queue = world.queue(settings(2)).await;
    queue.schedule("m", every_minute()).await.unwrap();
    tokio::time::sleep(secs(600)).await;
    let schedule = queue.schedules().await.unwrap().pop().unwrap();
    let runs = hand.0.lines().len();
    assert!((9..=10).contains(&runs), "{runs} runs in ten minutes");
    assert_eq!((schedule.submitted, schedule.missed), (runs as u64, 0));
    let ids = ticks(&queue).await;
    assert_eq!(ids.len(), runs);
    assert!(
        ids.iter()
            .all(|id| id.starts_with("s-m-") && id.ends_with("00.000Z")),
        "{ids:?}"
    );
    queue.unschedule("m").await.unwrap();
    tokio::time::sleep(secs(300)).await;
    assert_eq!(hand.0.lines().len(), runs);
    let e = queue.unschedule("m").await.unwrap_err();
    assert!(matches!(e, QueueError::NoSchedule(_)), "{e}");
    drop(workers);
}

#[tokio::test(start_paused = true)]
async fn a_tick_comes_in_time_once_the_schedule_is_known() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    let worker = world.worker(&queue, "w");
    let worker = worker.start(Hand::default()).await.unwrap();
    let made = queue.schedule("m", every_minute()).await.unwrap();
    tokio::time::sleep(secs(300)).await;
    let page = queue.list(&Filter::default(), 1000, None).await.unwrap();
    assert!(page.tasks.len() >= 4);
    for task in page.tasks {
        // A new schedule is noticed within ten seconds.
        let most = match task.created.since(made.upto) < secs(12) {
            true => 10_500,
            false => 100,
        };
        let late = task.created.as_millis() % 60_000;
        assert!(late < most, "{late} ms late");
    }
    worker.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
pub(crate) async fn ticks_that_nobody_was_there_for_are_counted_and_the_last_one_is_made_up_for() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    queue.schedule("m", every_minute()).await.unwrap();
    tokio::time::sleep(secs(600)).await;
    queue.tick().await.unwrap();
    queue.tick().await.unwrap();
    let schedule = queue.schedules().await.unwrap().pop().unwrap();
    assert_eq!(schedule.submitted, 1);
    assert!((8..=9).contains(&schedule.missed), "{schedule:?}");
    assert_eq!(ticks(&queue).await.len(), 1);
    assert_eq!(count(&queue, "scheduled_total"), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_dies_between_a_ticks_task_and_its_note_makes_no_second_one() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(2)).await;
    queue.schedule("m", every_minute()).await.unwrap();
    tokio::time::sleep(secs(61)).await;
    faults.fail_where(|op, key| op == tenure_store::Op::Put && key.contains("/schedules/"));
    queue.tick().await.unwrap();
    assert_eq!(ticks(&queue).await.len(), 1);
    let other = world.queue(settings(2)).await;
    other.tick().await.unwrap();
    assert_eq!(ticks(&other).await.len(), 1);
    let schedule = other.schedules().await.unwrap().pop().unwrap();
    assert!(
        schedule.upto
            > schedule
                .spec
                .next(schedule.upto.minus(secs(70)))
                .unwrap()
                .unwrap()
                .minus(secs(60))
    );
}

#[tokio::test(start_paused = true)]
async fn wrong_schedules_are_refused_and_a_changed_one_goes_by_its_new_times() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    let bad = ScheduleSpec::new("61 * * * *", Payload::none()).zone("Mars/Olympus");
    let e = queue.schedule("s", bad).await.unwrap_err().to_string();
    assert!(e.contains("61") && e.contains("Mars/Olympus"), "{e}");
    let never = ScheduleSpec::new("0 0 30 2 *", Payload::none());
    let e = queue.schedule("s", never).await.unwrap_err().to_string();
    assert!(e.contains("never matches"), "{e}");
    let first = queue.schedule("s", every_minute()).await.unwrap();
    let hourly = ScheduleSpec::new("@hourly", Payload::none()).zone("Europe/Berlin");
    let second = queue.schedule("s", hourly.clone()).await.unwrap();
    assert_eq!((second.rev, &second.spec), (first.rev + 1, &hourly));
    tokio::time::sleep(secs(3700)).await;
    queue.tick().await.unwrap();
    assert_eq!(ticks(&queue).await.len(), 1);
}
