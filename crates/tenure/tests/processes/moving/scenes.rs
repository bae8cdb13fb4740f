//! What happens while shards move. Each scene is played on every store.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::record::MovePhase;

use super::clients::{Clients, audit};
use crate::books::{await_books, books, drain};
use crate::process::Process;
use crate::test_cluster::TestCluster;
use crate::worker::{Journal, Own, Role};

pub(crate) const SHARDS: u32 = 4;
const CLIENTS: usize = 6;
/// Long enough for a fault to fall into a phase.
const LONG: Duration = Duration::from_millis(1500);

/// Who it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Owner,
    Target,
    Leader,
    Router,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL, and another process in its place a while later.
    Killed,
    /// SIGSTOP for twice the ttl.
    Paused,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Warming,
    Freezing,
}

/// Every participant, fault and phase, crossed with each other.
pub(crate) fn crossings() -> impl Iterator<Item = (Who, Fault, Phase)> {
    let who = [Who::Owner, Who::Target, Who::Leader, Who::Router];
    who.into_iter().flat_map(|who| {
        let faults = [Fault::Killed, Fault::Paused].into_iter();
        faults.flat_map(move |fault| {
            let phases = [Phase::Warming, Phase::Freezing].into_iter();
            phases.map(move |phase| (who, fault, phase))
        })
    })
}

pub(crate) fn router(site: &TestCluster, name: &str) -> Process {
    site.start_in(Role::Gateway, name, Own::default())
}

/// A node joins, another is drained and comes back, and all of them are restarted, one after the other, in good order.
pub(crate) fn planned(site: &TestCluster) {
    let (mut a, mut b) = (site.start("a"), site.start("b"));
    site.await_settled(&["a", "b"]);
    let _routers = ["r1", "r2"].map(|name| router(site, name));
    let clients = Clients::begin(site, &["r1", "r2"], CLIENTS);
    clients.go_on(20);
    let mut c = site.start("c");
    site.await_settled(&["a", "b", "c"]);
    drain(site, "b", true);
    site.await_settled(&["a", "c"]);
    drain(site, "b", false);
    site.await_settled(&["a", "b", "c"]);
    for (name, process) in [("a", &mut a), ("b", &mut b), ("c", &mut c)] {
        process.signal(Signal::TERM);
        assert_eq!(process.wait().code(), Some(0), "{}", site.said(name));
        *process = site.start(name);
        site.await_settled(&["a", "b", "c"]);
    }
    clients.go_on(20);
    let seen = clients.end();
    for client in &seen {
        assert!(
            client.failures.is_empty(),
            "{:?}\n{}",
            client.failures,
            site.scene()
        );
    }
    audit(site, &seen);
    site.assert_clean();
}

/// Something happens to somebody in the middle of a move.
pub(crate) fn crossing(site: &TestCluster, who: Who, fault: Fault, phase: Phase) {
    let leads_only = Own {
        leads_only: true,
        ..Own::default()
    };
    let slow = Own {
        load_time: if phase == Phase::Warming {
            LONG
        } else {
            Duration::ZERO
        },
        seal_time: if phase == Phase::Freezing {
            LONG
        } else {
            Duration::ZERO
        },
        ..Own::default()
    };
    let a = site.start_as("a", slow.clone());
    site.await_start("a", 1);
    let p = site.start_as("p", leads_only);
    let (r1, r2) = (router(site, "r1"), router(site, "r2"));
    let clients = Clients::begin(site, &["r1", "r2"], CLIENTS);
    clients.go_on(5);
    let b = site.start_as("b", slow.clone());
    let wanted = match phase {
        Phase::Warming => MovePhase::Warming,
        Phase::Freezing => MovePhase::Freezing,
    };
    await_books(site, &format!("a shard is {wanted:?}"), |books| {
        let mut shards = books.shards.values();
        shards.any(|(_, record)| record.ownership.moving().map(|m| m.1) == Some(wanted))
    });
    let leader = books(site).leader().unwrap_or("p").to_owned();
    let mut cast = [("a", a), ("b", b), ("p", p), ("r1", r1), ("r2", r2)];
    let name = match who {
        Who::Owner => "a",
        Who::Target => "b",
        Who::Leader => leader.as_str(),
        Who::Router => "r1",
    };
    let victim = cast.iter_mut().find(|(n, _)| *n == name);
    let (name, process) = victim.expect("one of them");
    match fault {
        Fault::Killed => {
            process.kill();
            thread::sleep(site.ttl() / 2);
            *process = match *name {
                "r1" => router(site, "r1"),
                "p" => site.start_as(
                    "p",
                    Own {
                        leads_only: true,
                        ..Own::default()
                    },
                ),
                node => site.start_as(node, slow),
            };
        }
        Fault::Paused => {
            pause(site, process);
            thread::sleep(site.ttl() * 2);
            process.signal(Signal::CONT);
        }
    }
    site.await_settled(&["a", "b"]);
    clients.go_on(10);
    let seen = clients.end();
    audit(site, &seen);
    site.assert_clean();
}

/// Stops a process that is in the middle of no write: neither to the store nor to the journal.
fn pause(site: &TestCluster, process: &Process) {
    let mut journal = Journal::open(&site.path("")).expect("the journal");
    for _ in 0..100 {
        site.pause(process);
        if journal.is_free() {
            return;
        }
        process.signal(Signal::CONT);
        thread::sleep(Duration::from_millis(7));
    }
    panic!("{} is always writing", process.node);
}
