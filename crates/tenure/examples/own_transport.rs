//! A transport of one's own: requests go over channels to the tasks of nodes, and wait here while a shard changes hands.
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use tenure::router::{
    DrainedReport, FlushAmount, HoldReason, OwnerDirectory, Route, Router, SendResult, Transport,
};
use tenure::{Handler, Hashed, Node, Result, Shard, ShardId};
use tokio::sync::{mpsc, oneshot};

struct Orders;
impl Handler for Orders {
    type State = ();
    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }
}
/// A request: its number, and where its answer goes.
type Job = (u64, oneshot::Sender<String>);
/// A shard: what is kept of it, in order, and how many of its requests are under way.
#[derive(Default)]
struct Lane {
    to: Option<Route>,
    open: bool,
    kept: VecDeque<Job>,
    flying: usize,
    drained: Option<DrainedReport>,
}
#[derive(Default)]
struct Channels {
    lanes: Mutex<HashMap<ShardId, Lane>>,
    wire: OnceLock<mpsc::UnboundedSender<(Route, Job)>>, // to the only node that there is
    directory: OnceLock<OwnerDirectory>,
}
impl Channels {
    fn change(&self, shard: &ShardId, change: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lanes.lock().unwrap();
        let lane = lanes.entry(shard.clone()).or_default();
        change(lane);
        while lane.open
            && let (Some(to), Some(job)) = (lane.to.clone(), lane.kept.pop_front())
        {
            lane.flying += 1;
            let _ = self.wire.wait().send((to, job));
        }
        if lane.flying == 0 {
            lane.drained
                .take()
                .into_iter()
                .for_each(DrainedReport::report);
        }
    }
    /// The task of a node. What it refuses goes back to its place, and the router hears of it.
    async fn serve(self: Arc<Self>, node: Node, mut wire: mpsc::UnboundedReceiver<(Route, Job)>) {
        while let Some((route, (n, reply))) = wire.recv().await {
            let entered = node.enter_shard_at::<Orders>(&route.shard, route.epoch);
            let refused = entered.err().map(SendResult::<()>::from);
            if let Some(answer) = &refused {
                let _ = self.directory.wait().refused(&route, answer, true).await;
            }
            self.change(&route.shard, |lane| {
                lane.flying -= 1;
                let at = lane.kept.partition_point(|job| job.0 < n);
                match refused {
                    Some(_) => lane.kept.insert(at, (n, reply)),
                    None => drop(reply.send(format!("{} at {}", route.shard, node.name()))),
                }
            });
        }
    }
}
#[rustfmt::skip]
impl Transport for Channels {
    fn hold(&self, shard: &ShardId, _: HoldReason) { self.change(shard, |lane| lane.open = false) }
    fn drain(&self, shard: &ShardId, it: DrainedReport) { self.change(shard, |lane| lane.drained = Some(it)) }
    fn switch(&self, shard: &ShardId, to: &Route) { self.change(shard, |lane| lane.to = Some(to.clone())) }
    fn flush(&self, shard: &ShardId, how: FlushAmount) {
        self.change(shard, |lane| lane.open = true);
        // It has sent all; a gentler one sends the first and waits for what becomes of it.
        if let FlushAmount::One(trial) = how { trial.answered() }
    }
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(())) // whoever stops this one has all its answers
    }
}
#[tokio::main]
async fn main() -> Result<()> {
    let node = Node::builder("memory:own", "shop").name("a");
    let node = node.keyspace("orders", Hashed(2), Orders).start().await?;
    let (wire, received) = mpsc::unbounded_channel();
    let channels = Arc::<Channels>::default();
    let _ = channels.wire.set(wire);
    tokio::spawn(channels.clone().serve(node, received));
    let router = Router::builder("memory:own", "shop").name("router");
    let directory = router.start_with(channels.clone()).await?;
    let _ = channels.directory.set(directory.clone());
    for n in 0..3 {
        let (reply, answer) = oneshot::channel();
        channels.change(&"orders/1".parse()?, |lane| lane.kept.push_back((n, reply)));
        println!("request {n}: {}", answer.await?);
    }
    Ok(directory.stop().await?)
}
