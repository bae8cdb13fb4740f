//! What the node promises, with real processes on stores that are servers: etcd, NATS, PostgreSQL and S3.
//!
//! Nodes are killed, stopped and cut off; servers are stopped, killed and restarted; records are deleted by hand. The workers
//! and the judge are those of `tests/processes`. Most faults are the same on every store, so a scenario is one function and
//! each store is a [`backend::Backend`]. Every node comes to the server through a proxy of its own.
//!
//! Comments above functions name acceptance cases. By default each of these cases runs on at least one server; the tests in
//! modules named `long` run with `./test --full`.
#![cfg(target_os = "linux")]

mod backend;
mod clocks;
mod deleted_records;
mod dropped_packets;
mod idle_cost;
mod leading;
mod life;
mod moving;
mod nodes;
mod only_etcd;
mod only_nats;
mod only_postgres;
mod partitions;
mod place;
mod server;

// The other test has uses for all of this.
#[allow(dead_code)]
#[path = "../processes/leading/books.rs"]
mod books;
#[allow(dead_code)]
#[path = "../processes/moving/clients.rs"]
mod clients;
#[allow(dead_code)]
#[path = "../processes/life/scenes.rs"]
mod life_scenes;
#[allow(dead_code)]
#[path = "../processes/logs.rs"]
mod logs;
#[allow(dead_code)]
#[path = "../processes/moving/scenes.rs"]
mod moving_scenes;
#[allow(dead_code)]
#[path = "../processes/life/operator.rs"]
mod operator;
#[allow(dead_code)]
#[path = "../processes/leading/placing.rs"]
mod placing;
#[allow(dead_code)]
#[path = "../processes/process.rs"]
mod process;
#[allow(dead_code)]
#[path = "../processes/leading/scenes.rs"]
mod scenes;
#[allow(dead_code)]
#[path = "../processes/test_cluster.rs"]
mod test_cluster;
#[allow(dead_code, unused_imports)]
#[path = "../processes/worker/mod.rs"]
mod worker;

/// Where every worker begins.
#[test]
fn this_binary_is_its_own_worker_and_refuses_a_role_that_it_does_not_know() {
    if let Some(role) = worker::role() {
        worker::become_worker(&role);
    }
    let site = test_cluster::TestCluster::new(1);
    let mut worker = site.spawn("a", "{\"role\":\"juggler\"}".to_owned());
    assert_eq!(worker.wait().code(), Some(worker::BAD_ROLE));
}

/// Makes a test per store of each scenario. Those under `long` are left out of the default run (`.config/nextest.toml`).
macro_rules! on_each_store {
    ($($store:ident { $($quick:ident)* } long { $($long:ident)* })*) => {
        $(mod $store {
            $(#[test] fn $quick() { super::$quick::<crate::backend::by_name::$store>(); })*
            mod long {
                $(#[test] fn $long() { super::super::$long::<crate::backend::by_name::$store>(); })*
            }
        })*
    };
}
pub(crate) use on_each_store;
