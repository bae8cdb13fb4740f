//! Named shards: created, attached to, assigned, deleted and created again (C6).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::admin::{MAX_META, NewShard};
use tenure::{
    AdminClient, Epoch, Handler, Named, Node, RejectReason, Result, Seal, Shard, ShardName,
};
use tenure_core::ids::KeyspaceName;

use crate::test_cluster::*;

/// A shard and what is attached to it.
type Attached = (String, Option<String>);

/// A handler that writes down what is attached to what it loads, and what it seals.
#[derive(Clone, Default)]
struct Topics {
    loads: Arc<Mutex<Vec<Attached>>>,
    seals: Journal,
}

impl Handler for Topics {
    type State = Epoch;

    async fn load(&self, shard: &Shard) -> Result<Epoch> {
        let attached = (shard.name().to_string(), shard.meta().map(str::to_owned));
        self.loads.lock().unwrap().push(attached);
        Ok(shard.epoch())
    }

    async fn seal(&self, shard: &Shard, _: &mut Epoch) -> Result<Seal> {
        self.seals.write(shard.name().as_str());
        Ok(Seal::default())
    }
}

fn topics() -> KeyspaceName {
    KeyspaceName::new("topics").unwrap()
}

fn names(names: &[&str]) -> Vec<ShardName> {
    names.iter().map(|n| ShardName::new(*n).unwrap()).collect()
}

fn new(name: &str, meta: Option<&str>) -> NewShard {
    NewShard {
        name: ShardName::new(name).unwrap(),
        meta: meta.map(str::to_owned),
    }
}

fn admin(world: &TestCluster) -> AdminClient {
    AdminClient::new(world.store.clone(), world.cluster.clone())
}

async fn node(world: &TestCluster, name: &str, handler: &Topics) -> Node {
    let (builder, _) = world.bare(name);
    let builder = builder.address("grpc", format!("grpc://{name}")).keyspace(
        "topics",
        Named,
        handler.clone(),
    );
    started(builder).await.unwrap()
}

async fn epoch(node: &Node, shard: &str) -> Epoch {
    let entered = node.enter::<Topics>("topics", shard).unwrap();
    entered.run(async |epoch, _| *epoch).await.unwrap()
}

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_named_shard_is_created_loaded_with_what_is_attached_deleted_and_goes_on_above_its_epochs()
 {
    let world = TestCluster::new();
    let handler = Topics::default();
    let node = node(&world, "a", &handler).await;
    let admin = admin(&world);
    let odd = ["eu/payments", "Zürich", ".hidden", "state", "a=b"];
    let all: Vec<NewShard> = odd.iter().map(|n| new(n, Some("{\"n\":1}"))).collect();
    let work = admin.create_shards(&topics(), all.clone(), |_| ()).await;
    assert_eq!(work.unwrap().done, odd.len());
    owns(&node, odd.len()).await;
    for name in odd {
        let attached = (name.to_owned(), Some("{\"n\":1}".to_owned()));
        assert!(handler.loads.lock().unwrap().contains(&attached), "{name}");
    }
    let again = admin.create_shards(&topics(), all, |_| ()).await.unwrap();
    assert_eq!((again.done, again.same), (0, odd.len()), "twice is once");
    let first = epoch(&node, "eu/payments").await;

    let gone = names(&["eu/payments", "never there"]);
    let deleted = admin
        .delete_shards(&topics(), gone, TIMEOUT, |_| ())
        .await
        .unwrap();
    assert_eq!((deleted.done, deleted.same), (1, 1));
    assert_eq!(
        handler.seals.lines(),
        ["eu/payments"],
        "its owner sealed it"
    );
    let refused = node.enter::<Topics>("topics", "eu/payments").err().unwrap();
    assert_ne!(refused.reason, RejectReason::NotReady, "{refused}");
    assert_eq!(admin.shards(&topics()).await.unwrap().len(), odd.len() - 1);

    let again = vec![new("eu/payments", None)];
    admin.create_shards(&topics(), again, |_| ()).await.unwrap();
    owns(&node, odd.len()).await;
    assert!(epoch(&node, "eu/payments").await > first);
    let last = handler.loads.lock().unwrap().last().cloned();
    assert_eq!(last, Some(("eu/payments".to_owned(), None)));
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_created_is_named_with_the_way_out() {
    let world = TestCluster::new();
    let node = node(&world, "a", &Topics::default()).await;
    let admin = admin(&world);
    let create = async |keyspace: &str, shard: NewShard| {
        let keyspace = KeyspaceName::new(keyspace).unwrap();
        let made = admin.create_shards(&keyspace, vec![shard], |_| ()).await;
        made.map(|work| work.done).map_err(|e| e.to_string())
    };
    assert_eq!(create("topics", new("a", Some("x"))).await, Ok(1));
    let long = "x".repeat(MAX_META);
    assert_eq!(create("topics", new("b", Some(&long))).await, Ok(1));
    for (keyspace, shard, said) in [
        ("topics", new("c", Some(&format!("{long}x"))), "4097 bytes"),
        ("topics", new("a", Some("y")), "different metadata"),
        ("topic", new("a", None), "existing keyspaces: topics"),
    ] {
        let error = create(keyspace, shard).await.unwrap_err();
        assert!(error.contains(said), "{said}: {error}");
    }
    assert!(ShardName::new("ü".repeat(100)).is_ok(), "200 bytes");
    assert!(ShardName::new("ü".repeat(101)).is_err());
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shard_is_deleted_once_nobody_has_it_although_its_owner_is_dead() {
    let world = TestCluster::new();
    let handler = Topics::default();
    let dead = node(&world, "a", &handler).await;
    let admin = admin(&world);
    let made = vec![new("x", None), new("y", None)];
    admin.create_shards(&topics(), made, |_| ()).await.unwrap();
    owns(&dead, 2).await;
    drop(dead);
    let limit = TTL / 2;
    let keyspace = topics();
    let early = admin.delete_shards(&keyspace, names(&["x"]), limit, |_| ());
    assert!(early.await.is_err(), "its owner may still be at work");
    let alive = node(&world, "b", &handler).await;
    let late = admin.delete_shards(&keyspace, names(&["x"]), TIMEOUT, |_| ());
    late.await.unwrap();
    owns(&alive, 1).await;
    alive.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_shards_are_given_to_all_and_drained_and_deleted() {
    const MANY: usize = 300;
    let world = TestCluster::new();
    let handler = Topics::default();
    let nodes = [
        node(&world, "a", &handler).await,
        node(&world, "b", &handler).await,
        node(&world, "c", &handler).await,
    ];
    let admin = admin(&world);
    let many: Vec<NewShard> = (0..MANY).map(|n| new(&format!("t/{n}"), None)).collect();
    let told = std::cell::Cell::new(0);
    let work = admin
        .create_shards(&topics(), many.clone(), |_| told.set(told.get() + 1))
        .await;
    assert_eq!(work.unwrap().done, MANY);
    assert!(told.get() > 0, "progress is told");
    for node in &nodes {
        owns(node, MANY / 3).await;
    }
    let elsewhere = nodes[1].owned()[0].clone();
    let refused = nodes[0].enter_shard::<Topics>(&elsewhere).err().unwrap();
    let owner = refused.owner.expect("it is known who has it");
    for kind in ["http", "grpc"] {
        assert_eq!(owner.addresses[kind], format!("{kind}://b"));
    }
    let name = nodes[0].name().clone();
    admin.drain(&name).await.unwrap();
    admin
        .wait_until_drained(&name, Duration::from_secs(600), |_| ())
        .await
        .unwrap();
    owns(&nodes[1], MANY / 2).await;
    assert!(nodes[0].owned().is_empty());
    let all = many.into_iter().map(|new| new.name).collect();
    let keyspace = topics();
    let work = admin.delete_shards(&keyspace, all, Duration::from_secs(600), |_| ());
    assert_eq!(work.await.unwrap().done, MANY);
    for node in nodes {
        owns(&node, 0).await;
        node.stop().await.unwrap();
    }
}
