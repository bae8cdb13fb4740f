//! Whoever is stopped or killed, the children of `tenure exec` are dead before anybody else has their shard (P1).

mod exec_support;

use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use exec_support::*;
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process_group};

#[test]
fn children_of_a_stopped_exec_are_dead_before_another_has_their_shards() {
    let site = TestCluster::new(8);
    let a = site.beating("a", &[], &[]);
    let _b = site.beating("b", &[], &[]);
    site.await_covered();
    site.await_both();
    let since = now();
    site.stop(&a);
    until("b has all shards", || {
        site.starts("a", 0).is_subset(&site.starts("b", 0))
    });
    site.await_covered();
    pass(TTL);
    a.signal(Signal::CONT);
    until("a has shards again", || !site.starts("a", since).is_empty());
    site.await_covered();
    site.assert_clean();
}

#[test]
fn ctrl_z_stops_exec_alone_and_its_children_are_ended_in_time() {
    let site = TestCluster::new(4);
    // The foreground process group of a terminal, as far as signals go.
    let mut command = site.command("a");
    command
        .arg("--")
        .arg(beat_program())
        .arg(site.logs())
        .process_group(0);
    let a = site.spawn("a", command);
    site.await_covered();
    let group = Pid::from_raw(a.pid()).unwrap();
    kill_process_group(group, Signal::TSTP).unwrap();
    until("exec is stopped", || is_stopped(a.pid()));
    assert!(!is_stopped(a.await_watchdog()));
    site.stop(&a);
    let _b = site.beating("b", &[], &[]);
    site.await_starts("b", 4);
    kill_process_group(group, Signal::CONT).unwrap();
    site.await_covered();
    site.assert_clean();
}

#[test]
fn children_of_a_killed_exec_end_at_once_and_its_successor_takes_them_back() {
    let site = TestCluster::new(4);
    let mut a = site.beating("a", &[], &["--grandchild", "--ignore-term"]);
    site.await_covered();
    until("grandchildren are there", || site.alive().len() == 8);
    a.kill();
    // The same data directory: no wait for the ttl, but for the death of the last child.
    let since = now();
    let _again = site.beating("a", &[], &["--grandchild", "--ignore-term"]);
    until("a is back", || site.starts("a", since).len() == 8);
    site.await_covered();
    site.assert_clean();
}

#[test]
fn a_killed_watchdog_takes_its_children_along_and_a_new_one_starts_them_again() {
    let site = TestCluster::new(4);
    let a = site.beating("a", &[], &["--grandchild", "--ignore-term"]);
    site.await_covered();
    until("grandchildren are there", || site.alive().len() == 8);
    let before = site.alive();
    let since = now();
    send(a.await_watchdog(), Signal::KILL);
    until("new children begin", || site.starts("a", since).len() == 8);
    assert!(site.alive().is_disjoint(&before));
    site.await_covered();
    site.assert_clean();
    assert!(
        site.said("a").contains("watchdog process exited"),
        "{}",
        site.said("a")
    );
}

#[test]
fn nothing_survives_when_exec_and_watchdog_are_killed_together() {
    let site = TestCluster::new(4);
    let mut a = site.beating("a", &[], &["--grandchild", "--ignore-term"]);
    site.await_covered();
    until("grandchildren are there", || site.alive().len() == 8);
    let watchdog = a.await_watchdog();
    a.signal(Signal::STOP);
    send(watchdog, Signal::STOP);
    // Both are stopped, so neither sees the other die.
    a.signal(Signal::KILL);
    send(watchdog, Signal::KILL);
    let _ = a.process.wait();
    until("all children are dead", || site.alive().is_empty());
    let since = now();
    let _b = site.beating("b", &[], &["--grandchild"]);
    until("b has all", || site.starts("b", since).len() == 8);
    site.assert_clean();
}

#[test]
fn a_stopped_watchdog_is_killed_by_exec_before_the_lease_is_over() {
    let site = TestCluster::new(4);
    let a = site.beating("a", &["--drain-timeout", "1s"], &[]);
    site.await_covered();
    let watchdog = a.await_watchdog();
    send(watchdog, Signal::STOP);
    let _b = site.beating("b", &[], &[]);
    // Balance asks for some of a's shards, and a's watchdog does not answer.
    site.await_starts("b", 1);
    until("the stopped watchdog is dead", || !is_alive(watchdog));
    site.await_covered();
    site.assert_clean();
}

#[test]
fn keepers_kill_when_exec_and_watchdog_are_both_stopped() {
    let site = TestCluster::new(4);
    let a = site.beating("a", &[], &["--ignore-term"]);
    site.await_covered();
    let watchdog = a.await_watchdog();
    site.stop(&a);
    send(watchdog, Signal::STOP);
    let _b = site.beating("b", &[], &[]);
    site.await_starts("b", 4);
    a.signal(Signal::CONT);
    send(watchdog, Signal::CONT);
    site.await_covered();
    site.assert_clean();
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_after_the_drain_timeout() {
    let site = TestCluster::new(4);
    let mut a = site.beating("a", &["--drain-timeout", "500ms"], &["--ignore-term"]);
    let _b = site.beating("b", &["--drain-timeout", "500ms"], &["--ignore-term"]);
    site.await_covered();
    site.await_both();
    let since = now();
    assert!(a.terminate().success());
    until("b has all", || {
        site.starts("a", 0).is_subset(&site.starts("b", 0))
    });
    site.await_covered();
    assert!(site.starts("a", since).is_empty());
    site.assert_clean();
}

#[test]
fn what_a_child_forked_does_not_outlive_it() {
    let site = TestCluster::new(1);
    let script = format!(
        "{} {} --own-session --ignore-term & sleep 0.2; exit 1",
        beat_program().display(),
        site.logs().display()
    );
    let mut command = site.command("a");
    command.args(["--", "sh", "-c", &script]);
    let _a = site.spawn("a", command);
    let starts = || site.lines().iter().filter(|l| l["ev"] == "start").count();
    until("it was started again twice", || starts() >= 3);
    site.assert_clean();
}

#[test]
fn a_store_that_is_locked_for_long_ends_the_children_in_time_and_they_come_back() {
    let site = TestCluster::new(8);
    let _a = site.beating("a", &[], &[]);
    let _b = site.beating("b", &[], &[]);
    let mut c = site.beating("c", &["--drain-timeout", "1s"], &[]);
    until("c has shards", || !site.starts("c", 0).is_empty());
    site.await_covered();
    let store = Connection::open(site.path("store.db")).unwrap();
    store.busy_timeout(TIMEOUT).unwrap();
    store.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let held = if full() {
        Duration::from_secs(20)
    } else {
        TTL * 3
    };
    pass(held);
    assert!(site.alive().is_empty(), "children outlive the lease");
    // Asked to stop, it does so although it cannot release anything.
    c.terminate();
    store.execute_batch("ROLLBACK").unwrap();
    site.await_covered();
    site.assert_clean();
}

#[test]
fn kill_grace_is_how_long_the_children_of_a_killed_exec_have_after_sigterm() {
    // The default would be 1 s.
    for (grace, least, most) in [(100, 0, 900), (1800, 1600, 6000)] {
        let site = TestCluster::new(1);
        let mut command = site.command_on("a", &site.store());
        command
            .args(["--ttl", "8s", "--set", &format!("kill_grace={grace}ms")])
            .arg("--")
            .arg(beat_program())
            .arg(site.logs())
            .arg("--ignore-term");
        let mut a = site.spawn("a", command);
        until("the child is there", || site.alive().len() == 1);
        a.kill();
        let killed = Instant::now();
        until("the child is dead", || site.alive().is_empty());
        let took = killed.elapsed().as_millis();
        println!("dead {took} ms after SIGKILL of exec, kill_grace {grace} ms");
        assert!((least..most).contains(&took), "{grace}: {took} ms");
    }
}
