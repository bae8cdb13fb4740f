//! The examples of all crates do what they say. They are built with the tests of the whole workspace.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The example beside this test. Without it there is nothing to test, which is reported.
fn example(name: &str) -> Option<Command> {
    let this = std::env::current_exe().unwrap();
    let built: PathBuf = this.ancestors().nth(2).unwrap().join("examples").join(name);
    if !built.is_file() {
        tenure_store::servers::skipped("the example is not built (run the whole workspace)");
        return None;
    }
    let mut command = Command::new(built);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    Some(command)
}

/// Runs an example and returns its output. The example must succeed.
fn printed(name: &str, args: &[&str]) -> Option<String> {
    let output = example(name)?.args(args).output().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    Some(out.into_owned())
}

#[track_caller]
fn assert_prints(name: &str, args: &[&str], wanted: &[&str]) {
    if let Some(out) = printed(name, args) {
        for line in wanted {
            assert!(out.contains(line), "{line:?} is not in:\n{out}");
        }
    }
}

// D10
#[test]
fn a_transport_of_ones_own_carries_requests() {
    let answers = [0, 1, 2].map(|n| format!("request {n}: orders/1 at a\n"));
    assert_prints(
        "own_transport",
        &[],
        &answers.each_ref().map(String::as_str),
    );
}

// D10
#[test]
fn a_policy_of_ones_own_keeps_topics_in_their_zone() {
    let Some(out) = printed("own_policy", &[]) else {
        return;
    };
    let to = |topic: &str| {
        let line = out.lines().find(|line| line.contains(topic));
        line.unwrap_or_default().to_owned()
    };
    for topic in ["us.orders", "us.payments"] {
        assert!(to(topic).contains("n3"), "{topic}:\n{out}");
    }
    assert!(!out.contains("refused"), "{out}");
}

#[test]
fn greetings_are_made_by_two_workers_and_tried_again_where_they_fail() {
    let wanted = [
        "hello, anna (attempt 1)\n",
        "hello, bjorn (attempt 2)\n",
        "hello, chioma (attempt 1)\n",
    ];
    assert_prints("greetings", &[], &wanted);
}

// C6
#[test]
fn named_shards_are_created_served_drained_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("named.db").display());
    let wanted = [
        "50 shards on 5 nodes",
        "and served",
        "drained",
        "all deleted",
    ];
    assert_prints("named_shards", &[&url, "50"], &wanted);
}

#[test]
fn the_kit_passes_the_right_counter_and_catches_the_hasty_one() {
    let wanted = ["the right one: all went well", "the hasty one: Some("];
    assert_prints("kit_counter", &["3"], &wanted);
}

/// Asks a server for something: the body of its answer, if it answers.
fn ask(port: u16, method: &str, path: &str) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    answer.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

#[test]
fn the_axum_service_counts_and_stops_in_good_order() {
    let Some(mut command) = example("axum_counter") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let port = tenure_store::servers::free_port();
    let mut service = command.args([&url, &port.to_string()]).spawn().unwrap();
    let begun = Instant::now();
    let first = loop {
        if let Some(answer) = ask(port, "POST", "/apples") {
            break answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(first.starts_with("1 at epoch "), "{first}");
    let second = ask(port, "POST", "/apples").unwrap();
    assert!(second.starts_with("2 at epoch "), "{second}");
    assert_eq!(ask(port, "GET", "/apples").as_deref(), Some("2\n"));
    assert_eq!(ask(port, "GET", "/pears").as_deref(), Some("0\n"));
    kill_process(Pid::from_child(&service), Signal::INT).unwrap();
    assert!(service.wait().unwrap().success());
}
