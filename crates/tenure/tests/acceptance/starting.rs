//! Bad input: every problem at once, with its name and the way out.

use tenure::{Hashed, Node, Refusal, Settings, StartError};

use crate::test_cluster::*;

fn text(error: Option<StartError>) -> String {
    error.expect("the start must fail").to_string()
}

#[tokio::test(start_paused = true)]
async fn every_bad_name_is_reported_at_once() {
    let world = TestCluster::new();
    let builder = Node::builder("memory:", "")
        .name("\n")
        .clock(world.clock.clone())
        .keyspace("", Hashed(4), Counter::default())
        .keyspace("twice", Hashed(4), Counter::default())
        .keyspace("twice", Hashed(4), Counter::default())
        .keyspace("none", Hashed(0), Counter::default());
    let text = text(started(builder).await.err());
    for problem in [
        "cluster name",
        "node name",
        "keyspace name",
        "\"twice\"",
        "\"none\"",
    ] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_bad_setting_is_reported_at_once() {
    let world = TestCluster::new();
    let (builder, _) = world.node("a", &Counter::default());
    let settings = Settings {
        release_batch: 0,
        load_attempts: 0,
        ..settings()
    };
    let text = text(started(builder.settings(settings).ttl(ms(1))).await.err());
    for problem in ["ttl: ", "release_batch: ", "load_attempts: "] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
}

#[tokio::test]
async fn a_bad_url_is_named() {
    let error = Node::builder("reddis://x", "shop").start().await.err();
    let text = text(error);
    assert!(text.contains("reddis://x"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_keyspace_of_another_size_is_refused() {
    let world = TestCluster::new();
    let (first, _) = world.start("a", &Counter::default()).await;
    let (builder, _) = world.bare("b");
    let error = started(builder.keyspace("orders", Hashed(8), Counter::default()))
        .await
        .err();
    assert!(
        matches!(
            error,
            Some(StartError::Refused(Refusal::KeyspaceDiffers { .. }))
        ),
        "{error:?}"
    );
    assert_eq!(first.owned().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_default_name_says_where_the_node_runs() {
    let world = TestCluster::new();
    let builder = |name: Option<&str>| {
        let mut builder = Node::builder("memory:", "shop").clock(world.clock.clone());
        if let Some(dir) = name {
            builder = builder.data_dir(dir);
        }
        builder.keyspace("orders", Hashed(1), Counter::default())
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("orders-7.d");
    let named = started(builder(path.to_str())).await.unwrap();
    assert!(
        named.name().as_str().ends_with("-orders-7.d"),
        "{}",
        named.name()
    );
    let one = started(builder(None)).await.unwrap();
    let two = started(builder(None)).await.unwrap();
    assert_ne!(one.name(), two.name());
}
