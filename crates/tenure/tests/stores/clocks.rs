//! Nodes whose wall clocks are wrong: no promise hangs on them.

use std::process::Command;
use std::time::{Duration, SystemTime};

use tenure_store::servers::binary;

use crate::backend::Backend;
use crate::place::{SHARDS, measured};
use crate::test_cluster::{SLACK, TestCluster, between};
use crate::worker::now;

/// Where `.ci/servers` puts the library unless told otherwise.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers");

crate::on_each_store! {
    etcd {
    } long {
        nodes_whose_wall_clocks_are_hours_apart_keep_and_take_over_shards_as_ever
    }
    nats {
        nodes_whose_wall_clocks_are_hours_apart_keep_and_take_over_shards_as_ever
    } long {
    }
    postgres {
    } long {
        nodes_whose_wall_clocks_are_hours_apart_keep_and_take_over_shards_as_ever
    }
    s3 {
    } long {
        nodes_whose_wall_clocks_are_hours_apart_keep_and_take_over_shards_as_ever
    }
}

/// Variables that shift a process's wall clock and leave the others alone.
fn shifted(by: &str) -> Vec<(&'static str, String)> {
    let arch = std::env::consts::ARCH;
    let library = format!("faketime/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
    let library = binary(&[&library], &[FETCHED]);
    vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME", by.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// How far the wall clock of a process with these variables is from ours.
fn distance(variables: &[(&'static str, String)]) -> Duration {
    let said = Command::new("date")
        .arg("+%s")
        .envs(variables.iter().cloned())
        .output();
    let said = String::from_utf8(said.expect("date runs").stdout).expect("a number");
    let theirs: u64 = said.trim().parse().expect("a number");
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Duration::from_secs(theirs.abs_diff(ours.expect("after 1970").as_secs()))
}

// B6
fn nodes_whose_wall_clocks_are_hours_apart_keep_and_take_over_shards_as_ever<B: Backend>() {
    let server = B::launch();
    let mut site = TestCluster::new(SHARDS).with_ttl(B::TTL);
    let url = server.url(server.address().port());
    let mut nodes = [("a", "+5h"), ("b", "-7h")].map(|(node, by)| {
        site.variables = shifted(by);
        assert!(distance(&site.variables) > Duration::from_secs(4 * 3600));
        site.launch(node, node, &url)
    });
    let before = site.await_settled(&["a", "b"]);
    for node in &nodes {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", node.pid()));
        assert!(maps.expect("a process").contains("libfaketime"));
    }
    std::thread::sleep(B::TTL * 2);
    let still = site.await_settled(&["a", "b"]);
    assert_eq!(still.owners(), before.owners(), "{}", site.scene());
    let killed = now();
    nodes[0].kill();
    let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let took = between(killed, after.last_start());
    measured::<B>(
        "wall clocks twelve hours apart: from SIGKILL to a new owner",
        took,
    );
    let promised = B::TTL.mul_f64(1.2) + B::LATE;
    assert!(took <= promised + SLACK, "{took:?}\n{}", site.scene());
    site.assert_clean();
}
