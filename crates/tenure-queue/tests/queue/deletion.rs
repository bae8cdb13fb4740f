//! Queues that are deleted: completely, beside producers and workers, and after an interruption.

use tenure_queue::{
    NewTask, Payload, Queue, QueueError, QueueSettings, ScheduleSpec, delete, delete_all,
};
use tenure_store::Store;
use tokio::time::Instant;

use crate::test_cluster::*;

/// The keys of all queues.
async fn keys(store: &dyn Store) -> Vec<String> {
    let listing = store.list("=queues/").await.unwrap();
    listing.entries.into_iter().map(|e| e.key).collect()
}

async fn open(world: &TestCluster, name: &str) -> Result<Queue, QueueError> {
    Queue::open(world.store.clone(), "shop", name).await
}

#[tokio::test(start_paused = true)]
async fn a_deleted_queue_leaves_nothing_and_others_keep_everything() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let other = Queue::create(
        world.store.clone(),
        "shop",
        "jobs2",
        QueueSettings::default(),
    );
    let kept = submitted(&other.await.unwrap(), text("kept")).await;
    let before = keys(&*world.store).await.len();
    for n in 0..450 {
        submitted(&queue, text(format!("{n}")).delay(secs(n % 3 * 100))).await;
    }
    let spec = ScheduleSpec::new("0 3 * * *", Payload::bytes("x"));
    queue.schedule("nightly", spec).await.unwrap();
    assert!(keys(&*world.store).await.len() > before + 900);
    let deleted = delete(world.store.clone(), "shop", "jobs").await.unwrap();
    assert_eq!((deleted.tasks, deleted.schedules), (450, 1));
    let left = keys(&*world.store).await;
    assert!(
        left.iter()
            .all(|key| key.starts_with("=queues/shop/jobs2/")),
        "{left:?}"
    );
    let other = open(&world, "jobs2").await.unwrap();
    assert_eq!(other.get(&kept).await.unwrap().id, kept);
    let e = delete(world.store.clone(), "shop", "jobs").await;
    assert!(matches!(e, Err(QueueError::NoQueue { .. })), "{e:?}");
    // Another one of the same name is a new queue.
    let again = world.queue(settings(2)).await;
    assert_eq!(again.stats().await.unwrap().ready, 0);
}

#[tokio::test(start_paused = true)]
async fn producers_that_have_it_open_are_rejected_and_what_they_were_writing_is_deleted() {
    let world = TestCluster::new();
    let producers: Vec<Queue> = {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(world.queue(settings(4)).await);
        }
        all
    };
    let deletion = tokio::spawn(delete(world.store.clone(), "shop", "jobs"));
    let mut running = Vec::new();
    for queue in producers {
        running.push(tokio::spawn(async move {
            for n in 0u64.. {
                match queue.submit(text(format!("{n}"))).await {
                    Ok(_) => tokio::time::sleep(ms(37)).await,
                    Err(e) => return (queue, n, e),
                }
            }
            unreachable!()
        }));
    }
    let mut accepted = 0;
    for producer in running {
        let (queue, n, e) = producer.await.unwrap();
        assert!(matches!(e, QueueError::Deleted(_)), "{e}");
        assert!(queue.is_deleted());
        accepted += n;
    }
    let deleted = deletion.await.unwrap().unwrap();
    assert!(accepted > 0);
    assert_eq!(deleted.tasks, accepted);
    assert_eq!(keys(&*world.store).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_was_idle_does_not_submit_into_a_queue_that_replaced_its_own() {
    let world = TestCluster::new();
    let old = world.queue(settings(4)).await;
    delete(world.store.clone(), "shop", "jobs").await.unwrap();
    let new = world.queue(settings(8)).await;
    let e = old.submit(text("x")).await.unwrap_err();
    assert!(matches!(e, QueueError::Deleted(_)), "{e}");
    assert_eq!(new.stats().await.unwrap().ready, 0);
}

#[tokio::test(start_paused = true)]
async fn a_handle_to_a_queue_that_was_created_again_alike_knows_its_new_record() {
    let world = TestCluster::new();
    let old = world.queue(settings(4)).await;
    for _ in 0..5 {
        old.configure(|s| s.payload_max += 1).await.unwrap();
    }
    delete(world.store.clone(), "shop", "jobs").await.unwrap();
    let new = world.queue(settings(4)).await;
    new.pause().await.unwrap();
    old.submit(text("x")).await.unwrap();
    assert!(old.is_paused());
    assert_eq!(old.settings(), new.settings());
}

#[tokio::test(start_paused = true)]
async fn workers_end_and_their_attempts_are_cancelled() {
    for leasing in [true, false] {
        let world = TestCluster::new();
        let (queue, producer) = (
            world.queue(settings(4)).await,
            world.queue(settings(4)).await,
        );
        let hand = Hand::default();
        let builder = match leasing {
            true => world.worker(&queue, "w"),
            false => world.sweeper(&queue, "w"),
        };
        let worker = builder.start(hand.clone()).await.unwrap();
        submitted(&producer, text("wait:1")).await;
        until("the attempt runs", async || worker.running() == 1).await;
        for n in 0..20 {
            submitted(&producer, text(format!("late:{n}")).delay(secs(4))).await;
        }
        let begun = Instant::now();
        let deletion = tokio::spawn(delete(world.store.clone(), "shop", "jobs"));
        let e = worker.ended().await;
        assert!(matches!(e, QueueError::Deleted(_)), "{e}");
        assert!(begun.elapsed() < secs(10));
        until("the attempt ends", async || worker.running() == 0).await;
        worker.stop().await.unwrap();
        deletion.await.unwrap().unwrap();
        // What was under way at the end is found by another deletion, if anything is.
        assert_eq!(keys(&*world.store).await, [""; 0]);
        assert_eq!(hand.0.lines(), ["wait:1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_broke_off_anywhere_is_finished_by_the_next() {
    for moment in 0..30 {
        let world = TestCluster::new();
        let queue = world.queue(settings(2)).await;
        for n in 0..3 {
            submitted(&queue, text(format!("{n}"))).await;
        }
        let deletion = delete(world.store.clone(), "shop", "jobs");
        let broken = tokio::time::timeout(ms(moment * 200), deletion).await;
        if broken.is_ok() {
            assert_eq!(keys(&*world.store).await, [""; 0]);
            continue;
        }
        // Nobody can open what is half deleted, nor create it.
        for e in [
            open(&world, "jobs").await,
            Queue::create(world.store.clone(), "shop", "jobs", settings(2)).await,
        ] {
            assert!(matches!(e, Err(QueueError::Deleted(_))), "{e:?}");
        }
        let names = Queue::names(&*world.store, "shop").await.unwrap();
        assert!(names.is_empty(), "{names:?}");
        delete(world.store.clone(), "shop", "jobs").await.unwrap();
        assert_eq!(keys(&*world.store).await, [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn several_deletions_at_once_spare_a_queue_that_is_created_meanwhile() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    for n in 0..50 {
        submitted(&queue, text(format!("{n}"))).await;
    }
    let mut deletions = Vec::new();
    for n in 0..4 {
        let store = world.store.clone();
        deletions.push(tokio::spawn(async move {
            tokio::time::sleep(ms(n * 1300)).await;
            delete(store, "shop", "jobs").await
        }));
    }
    let mut new = None;
    until("the queue can be created again", async || {
        let created = Queue::create(world.store.clone(), "shop", "jobs", settings(2)).await;
        new = created.ok().filter(|queue| !queue.is_deleted());
        // Before the first deletion marks it, the old queue is opened.
        let old = match &new {
            Some(queue) => queue.stats().await.is_ok_and(|stats| stats.ready > 0),
            None => false,
        };
        new.is_some() && !old
    })
    .await;
    let new = new.unwrap();
    let id = submitted(&new, text("kept").key("kept")).await;
    for deletion in deletions {
        deletion.await.unwrap().unwrap();
    }
    assert_eq!(new.get(&id).await.unwrap().id, id);
    assert_eq!(
        open(&world, "jobs")
            .await
            .unwrap()
            .stats()
            .await
            .unwrap()
            .ready,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn all_queues_of_a_cluster_are_deleted_in_the_time_of_one() {
    let world = TestCluster::new();
    for name in ["a", "b/c", "d"] {
        let created =
            Queue::create(world.store.clone(), "shop", name, QueueSettings::default()).await;
        submitted(&created.unwrap(), NewTask::new(Payload::bytes("x"))).await;
    }
    let elsewhere = Queue::create(world.store.clone(), "shop2", "a", QueueSettings::default());
    submitted(&elsewhere.await.unwrap(), text("kept")).await;
    let begun = Instant::now();
    assert_eq!(delete_all(world.store.clone(), "shop").await, Ok(3));
    assert!(begun.elapsed() < secs(8), "{:?}", begun.elapsed());
    let left = keys(&*world.store).await;
    assert!(
        left.iter().all(|key| key.starts_with("=queues/shop2/")),
        "{left:?}"
    );
    assert_eq!(left.len(), 3);
    assert_eq!(delete_all(world.store.clone(), "shop").await, Ok(0));
}
