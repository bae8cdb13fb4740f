//! Wrong input is refused, whole and with the way out; damaged objects cost nobody else anything.

use tenure_queue::{Filter, NewTask, Payload, Queue, QueueError, QueueSettings, TaskStatus};
use tenure_store::{PutIf, Store, StoreError};

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn an_unknown_queue_is_named_with_its_place() {
    let world = TestCluster::new();
    let e = Queue::open(world.store.clone(), "shop", "nope")
        .await
        .unwrap_err();
    let text = e.to_string();
    assert!(
        text.contains("nope") && text.contains("shop") && text.contains("create"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn reads_that_time_out_report_an_unavailable_store() {
    let world = TestCluster::new();
    let (queue, faults) = world.faulty(settings(1)).await;
    let id = submitted(&queue, text("x")).await;
    faults.hang();
    let read = queue.get(&id).await.unwrap_err();
    let unavailable =
        |e: &QueueError| matches!(e, QueueError::Store(StoreError::Unavailable { .. }));
    assert!(unavailable(&read), "{read:?}");
    let list = queue.list(&Filter::default(), 10, None).await.unwrap_err();
    assert!(unavailable(&list), "{list:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_created_once_and_its_shards_stay() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let again = world
        .queue(QueueSettings {
            payload_max: 1,
            ..settings(4)
        })
        .await;
    assert_eq!(
        again.settings(),
        queue.settings(),
        "those who come later find what is there"
    );
    let other = Queue::create(world.store.clone(), "shop", "jobs", settings(5)).await;
    assert!(matches!(other, Err(QueueError::Exists(_))), "{other:?}");
    let e = queue.configure(|s| s.shards = 9).await.unwrap_err();
    assert!(e.to_string().contains("shards"), "{e}");
    queue.configure(|s| s.payload_max = 10).await.unwrap();
    again.refresh().await.unwrap();
    assert_eq!(again.settings().payload_max, 10);
    let names = Queue::names(&*world.store, "shop").await.unwrap();
    assert_eq!(names, [queue.name().clone()]);
}

#[tokio::test(start_paused = true)]
async fn all_queues_of_a_cluster_are_found_whatever_they_are_called() {
    let world = TestCluster::new();
    for name in ["a", "a/b", "a-", "a0", "ä", "A"] {
        let queue = Queue::create(world.store.clone(), "shop", name, settings(1)).await;
        submitted(&queue.unwrap(), text("x")).await;
    }
    let other = Queue::create(world.store.clone(), "shop2", "b", settings(1)).await;
    other.unwrap();
    let names = Queue::names(&*world.store, "shop").await.unwrap();
    let mut names: Vec<&str> = names.iter().map(|n| n.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "a", "a-", "a/b", "a0", "ä"]);
}

#[tokio::test(start_paused = true)]
async fn everything_wrong_with_a_submission_is_told_at_once() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let bad = text("x".repeat(40_000))
        .priority(10)
        .lease(ms(1))
        .timeout(ms(0))
        .attempts(0)
        .key("k\n")
        .meta("m", "x".repeat(5000));
    let answers = queue.submit_many(vec![text("fine"), bad]).await;
    assert!(answers[0].is_ok(), "one's mistake is not another's");
    let told = answers[1].as_ref().unwrap_err().to_string();
    for word in [
        "40000 bytes",
        "reference",
        "priority",
        "claim timeout",
        "attempt timeout",
        "attempts",
        "key",
        "metadata",
    ] {
        assert!(told.contains(word), "{word} is missing: {told}");
    }
    // What grows when it is written counts as it is written: no text is larger in the store than the queue says.
    let most = queue.settings().payload_max;
    let fits = queue.submit(text("x".repeat(most))).await;
    assert!(fits.is_ok(), "{fits:?}");
    let grows = text("\u{1}".repeat(most / 6 + 1));
    let told = queue.submit(grows).await.unwrap_err().to_string();
    assert!(told.contains("bytes"), "{told}");
    let reference = NewTask::new(Payload::Ref("s3://bucket/large".to_owned()));
    assert!(queue.submit(reference).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn damaged_objects_are_named_and_passed_over_and_everything_else_goes_on() {
    let world = TestCluster::new();
    let queue = world.queue(settings(1)).await;
    let broken = submitted(&queue, text("broken")).await;
    let wrong = submitted(&queue, text("wrong")).await;
    overwrite(&*world.store, &queue.layout().task(&broken), b"{ no json").await;
    let other = world
        .store
        .get(&queue.layout().task(&wrong))
        .await
        .unwrap()
        .unwrap();
    let renamed = String::from_utf8(other.value.to_vec()).unwrap();
    let renamed = renamed.replace(wrong.as_str(), "somebody-else");
    overwrite(
        &*world.store,
        &queue.layout().task(&wrong),
        renamed.as_bytes(),
    )
    .await;
    for key in [
        "ready/0/5/soon/x",
        "ready/0/zzz",
        "lease/0/then/x.1",
        "tasks/0/odd",
    ] {
        let key = format!("{}{key}", queue.layout().root());
        world.store.put_if(PutIf::create(key, *b"?")).await.unwrap();
    }
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    for n in 0..20 {
        let id = submitted(&queue, text(format!("task {n}"))).await;
        assert_eq!(ended(&queue, &id).await.status(), TaskStatus::Done);
    }
    assert!(count(&queue, "unreadable_objects_total") >= 2);
    worker.stop().await.unwrap();

    let page = queue.list(&Filter::default(), 100, None).await.unwrap();
    assert_eq!((page.tasks.len(), page.corrupt.len()), (20, 2));
    let rebuilt = queue.rebuild_index().await.unwrap();
    let named: Vec<&String> = rebuilt.corrupt.iter().map(|(key, _)| key).collect();
    assert!(
        named.contains(&&queue.layout().task(&broken)),
        "{rebuilt:?}"
    );
    assert_eq!(
        (rebuilt.tasks, rebuilt.corrupt.len(), rebuilt.foreign.len()),
        (20, 2, 1)
    );
    assert_eq!(rebuilt.removed, 3, "what is no entry is gone: {rebuilt:?}");
    let e = queue.get(&broken).await.unwrap_err();
    assert!(e.to_string().contains(&queue.layout().task(&broken)), "{e}");
    // What was damaged is put right by hand, and runs.
    let key = queue.layout().task(&wrong);
    let value = String::from_utf8(world.store.get(&key).await.unwrap().unwrap().value.to_vec());
    let value = value.unwrap().replace("somebody-else", wrong.as_str());
    overwrite(&*world.store, &key, value.as_bytes()).await;
    let worker = world
        .worker(&queue, "v")
        .start(Hand::default())
        .await
        .unwrap();
    assert_eq!(ended(&queue, &wrong).await.status(), TaskStatus::Done);
    worker.stop().await.unwrap();
}

pub(crate) async fn overwrite(store: &dyn Store, key: &str, value: &[u8]) {
    let entry = store.get(key).await.unwrap().unwrap();
    let put = PutIf::update(key, value, entry.version);
    store.put_if(put).await.unwrap();
}
