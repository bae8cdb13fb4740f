//! Ten thousand named shards on five nodes: create, drain one node, delete all. Prints times and what was asked of the store.
//!
//! `cargo run --release --example named_shards --features etcd -- [URL] [SHARDS]`
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenure::admin::NewShard;
use tenure::store::observed_store::{CountReader, ObservedStore};
use tenure::{
    AdminClient, Handler, Named, Node, NodeName, PlanningSettings, Result, Shard, ShardName,
};

struct Topics;
impl Handler for Topics {
    type State = ();
    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }
}

const NODES: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(900);

fn told(what: &str, begun: Instant, before: &(u64, u64), observer: &CountReader) -> (u64, u64) {
    let counts = observer.snapshot();
    let now = (counts.writes(), counts.reads());
    let took = begun.elapsed().as_secs_f64();
    let (writes, reads) = (now.0 - before.0, now.1 - before.1);
    println!("{what:<34} {took:7.2} s  {writes:7} writes  {reads:7} reads");
    now
}

async fn until_owned(nodes: &[Node], wanted: usize) {
    while nodes.iter().map(|n| n.owned().len()).sum::<usize>() != wanted {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("tenure-named-{}", std::process::id()));
    let mut args = std::env::args().skip(1);
    let file = format!("sqlite:{}", dir.join("store.db").display());
    let url = args.next().unwrap_or(file);
    let many: usize = args.next().map_or(Ok(10_000), |n| n.parse())?;
    std::fs::create_dir_all(&dir)?;
    let (store, observer) = ObservedStore::new(tenure::store::open(&url).await?);
    let store: Arc<dyn tenure::store::Store> = Arc::new(store);
    // As many moves at a time as the nodes can carry, and no waiting for things to come to rest.
    let plan = PlanningSettings {
        settle_time: Some(Duration::from_millis(250)),
        budgets: Some(tenure::plan::Budgets::UNLIMITED),
        ..PlanningSettings::default()
    };
    let mut nodes = Vec::new();
    for n in 0..NODES {
        let builder = Node::builder(&url, "named").store(store.clone());
        let builder = builder.name(format!("n{n}")).ttl(Duration::from_secs(5));
        let node = builder.plan(plan.clone()).keyspace("topics", Named, Topics);
        nodes.push(node.start().await?);
    }
    let admin = AdminClient::new(store, "named".parse()?);
    let keyspace = "topics".parse()?;
    let mut shards = Vec::new();
    for n in 0..many {
        let name = ShardName::new(format!("tenant/{n}"))?;
        shards.push(NewShard { name, meta: None });
    }
    println!(
        "{many} shards on {NODES} nodes, {}",
        tenure::store::redacted(&url)
    );
    let (begun, start) = (
        Instant::now(),
        (observer.snapshot().writes(), observer.snapshot().reads()),
    );
    admin
        .create_shards(&keyspace, shards.clone(), |_| ())
        .await?;
    let made = told("created", begun, &start, &observer);
    until_owned(&nodes, many).await;
    let served = told("  … and served", begun, &made, &observer);
    let first = NodeName::new("n0")?;
    let begun = Instant::now();
    admin.drain(&first).await?;
    admin.wait_until_drained(&first, TIMEOUT, |_| ()).await?;
    let left = told("one node drained", begun, &served, &observer);
    let (begun, all) = (Instant::now(), shards.into_iter().map(|s| s.name).collect());
    admin.delete_shards(&keyspace, all, TIMEOUT, |_| ()).await?;
    until_owned(&nodes, 0).await;
    told("all deleted", begun, &left, &observer);
    for node in nodes {
        node.stop().await?;
    }
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
