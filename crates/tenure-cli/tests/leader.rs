//! `tenure planner`: a real process that plans for nodes and owns nothing, stopped in every way. Names in comments are
//! acceptance cases.

mod test_cluster;

use std::fs::File;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure::{Handler, Hashed, Node};
use tenure_store::servers::etcd::{Etcd, EtcdRelease};
use test_cluster::{Ran, TestCluster, has, tenure};

/// What a stop may take, whatever the store does.
const LIMIT: Duration = Duration::from_secs(5);

/// A running `tenure planner`. Killed when dropped.
struct Leader {
    child: Child,
    log: std::path::PathBuf,
}

impl Leader {
    fn start(shop: &TestCluster, store: &str, name: &str) -> Self {
        let log = shop.dir.path().join(format!("{name}.err"));
        let child = tenure(&["planner", "--node", name, "--log", "info", "--ttl", "2s"])
            .args(["--store", store, "--cluster", "shop"])
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Tells it to stop, and waits for its end: how, and how long that took.
    fn stop(&mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        self.signal(Signal::TERM);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, begun.elapsed());
            }
            assert!(begun.elapsed() < LIMIT * 4, "{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leads(status: &Value, name: &str) -> bool {
    let leader = &status["leader"];
    leader["node"] == name && leader["state"] == "leading"
}

// E6
#[test]
fn a_leader_alone_plans_for_nodes_and_its_standby_takes_over_when_it_is_stopped() {
    let shop = TestCluster::with_lively_orders(8);
    let mut first = Leader::start(&shop, &shop.url(), "p1");
    let status = shop.until(|status| leads(status, "p1"));
    assert_eq!(status["nodes"][0]["mode"], "planner");
    let term = status["leader"]["term"].as_u64().unwrap();
    let _second = Leader::start(&shop, &shop.url(), "p2");
    shop.until(|status| status["nodes"].as_array().unwrap().len() == 2);
    let _nodes = ["a", "b"].map(|name| shop.node_with(name, 8, |b| b));
    let status = shop.until(|status| has(status, "a") == 4 && has(status, "b") == 4);
    assert!(leads(&status, "p1"), "{status:#}");
    let text = shop.run(&["status"]).with(0).out;
    assert!(
        text.contains(&format!("leader p1, term {term}, plan ")),
        "{text}"
    );
    let before = shop.store_keys();
    let (ended, took) = first.stop();
    assert!(ended.success(), "{}", first.said());
    println!("stopped within {took:?}");
    assert!(took < LIMIT, "{took:?}");
    let status =
        shop.until(|status| !leads(status, "p1") && status["leader"]["state"] == "leading");
    assert_eq!(status["leader"]["term"], term + 1);
    let gone: Vec<_> = before.difference(&shop.store_keys()).cloned().collect();
    assert_eq!(
        gone,
        Vec::<String>::new(),
        "a stopping leader deletes nothing"
    );
    for line in [
        "planner started",
        "leadership acquired",
        "plan published",
        "leadership lost",
    ] {
        assert!(first.said().contains(line), "{line}: {}", first.said());
    }
}

// E6
#[test]
fn a_leader_whose_store_is_locked_is_gone_within_five_seconds() {
    let shop = TestCluster::with_lively_orders(2);
    let mut leader = Leader::start(&shop, &shop.url(), "p1");
    shop.until(|status| leads(status, "p1"));
    let holder = rusqlite::Connection::open(shop.file()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (_, took) = leader.stop();
    println!("stopped within {took:?}");
    assert!(took < LIMIT, "{took:?}: {}", leader.said());
}

// E6
#[test]
fn a_leader_whose_server_stands_still_is_gone_within_five_seconds() {
    let shop = TestCluster::new();
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let url = format!("etcd://127.0.0.1:{}/test", etcd.port(0));
    let run = |args: &[&str]| {
        let output = tenure(&[&["--store", &url, "--cluster", "shop"], args].concat()).output();
        Ran::from(output.unwrap())
    };
    run(&["keyspace", "create", "orders", "--shards", "2"]).with(0);
    let mut leader = Leader::start(&shop, &url, "p1");
    let begun = Instant::now();
    while !leads(&run(&["status", "--json"]).with(0).json(), "p1") {
        assert!(begun.elapsed() < LIMIT * 4, "{}", leader.said());
    }
    etcd.freeze(0);
    let (ended, took) = leader.stop();
    etcd.thaw(0);
    println!("stopped within {took:?}");
    assert!(took < LIMIT, "{took:?}: {}", leader.said());
    assert_eq!(ended.code(), Some(1));
    assert!(
        leader.said().contains("a standby takes over after the ttl"),
        "{}",
        leader.said()
    );
}

#[test]
fn one_that_only_leads_takes_no_flags_of_owners_and_no_keyspaces() {
    struct NoopHandler;
    impl Handler for NoopHandler {
        type State = ();
        async fn load(&self, _: &tenure::Shard) -> tenure::Result<()> {
            Ok(())
        }
    }
    let help = test_cluster::ran(&["planner", "--help"]).with(0).out;
    for flag in [
        "--weight",
        "--zone",
        "--capacity",
        "--labels",
        "--policy",
        "--drain-timeout",
    ] {
        assert!(!help.contains(flag), "{flag}");
        test_cluster::ran(&["planner", flag, "1"]).with(2);
    }
    let shop = TestCluster::new();
    let both =
        Node::builder(shop.url(), "shop")
            .planner_only()
            .keyspace("orders", Hashed(2), NoopHandler);
    let Err(error) = shop.runtime.block_on(both.start()) else {
        panic!("it started");
    };
    assert!(
        error.to_string().contains("leave out its keyspaces"),
        "{error}"
    );
}
