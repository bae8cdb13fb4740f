//! Processes that stand still.

use std::thread;

use rustix::process::Signal;

use crate::test_cluster::{LONG_TTL, TTL, TestCluster, between};
use crate::worker::now;

// A1, A6
#[test]
fn an_owner_that_wakes_after_its_lease_writes_nothing_and_takes_part_again() {
    let site = TestCluster::new(8);
    let (a, _b) = (site.start("a"), site.start("b"));
    let before = site.await_settled(&["a", "b"]);
    site.pause(&a);
    let paused = now();
    let without = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    println!(
        "from SIGSTOP to a new owner: {:?}",
        between(paused, without.last_start())
    );
    thread::sleep(TTL / 2);
    let woken = now();
    a.signal(Signal::CONT);
    let after = site.await_settled(&["a", "b"]);
    println!(
        "from SIGCONT to settled: {:?}",
        between(woken, after.last_start())
    );
    assert!(
        after.sessions("a").is_disjoint(&before.sessions("a")),
        "{after:?}"
    );
    // As many as before; which ones is the leader's choice.
    let share = before.of("a").len();
    assert_eq!(after.of("a").len(), share, "{}", site.scene());
    for shard in before.of("a") {
        let epochs = [&before, &without, &after].map(|held| held.0[&shard].epoch);
        assert!(
            epochs[0] < epochs[1] && epochs.is_sorted(),
            "{shard}: {epochs:?}"
        );
    }
    let late = site.look(|logs| {
        let of_a = |l: &&crate::logs::Line| before.sessions("a").contains(l.session.as_str());
        logs.lines
            .iter()
            .filter(of_a)
            .filter(|l| l.t > paused)
            .count()
    });
    assert_eq!(
        late,
        0,
        "lines of the lost session after the pause\n{}",
        site.scene()
    );
    site.assert_clean();
}

// C1
#[test]
fn a_pause_shorter_than_the_lease_changes_no_owner_and_no_epoch() {
    let site = TestCluster::new(8).with_ttl(LONG_TTL);
    let (a, _b) = (site.start("a"), site.start("b"));
    let before = site.await_settled(&["a", "b"]);
    // The lease is as old as a renewal interval, a sixth of the ttl, when the pause begins; the margin is a quarter.
    for part in [0.2, 0.4, 0.55] {
        site.pause(&a);
        thread::sleep(LONG_TTL.mul_f64(part));
        a.signal(Signal::CONT);
        let woken = now();
        let after = site.await_served("a goes on", |held| held.0.values().all(|h| h.last > woken));
        assert_eq!(after.owners(), before.owners(), "{part}\n{}", site.scene());
    }
    let after = site.await_settled(&["a", "b"]);
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    site.assert_clean();
}
