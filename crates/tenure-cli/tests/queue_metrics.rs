//! Metrics and probes of a worker, with real processes.

mod queue_support;

use std::io::Write as _;
use std::process::Stdio;

use queue_support::*;

/// Long enough that nothing expires by itself.
const LEASED: &[&str] = &["TENURE_WORKER_OWNERSHIP_TTL_SECS=6"];

/// The value of a metric of queue `q`.
fn value(port: u16, name: &str) -> Option<u64> {
    let (_, text) = served(port, "/metrics")?;
    let start = format!("tenure_queue_{name}{{queue=\"q\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.parse().unwrap())
}

fn status(port: u16, path: &str) -> Option<u16> {
    served(port, path).map(|(status, _)| status)
}

#[test]
fn a_worker_serves_its_metrics_beside_those_of_its_node_and_probes() {
    let site = TestCluster::new().with_queue(&[]);
    let port = free_port();
    let address = format!(":{port}");
    let options = [LEASED, &["--admin-addr", &address]].concat();
    let mut worker = site.worker("w", &options, "cat");
    until("it is ready", || status(port, "/readyz") == Some(200));
    until("it has all shards", || value(port, "shards") == Some(16));
    let (_, text) = served(port, "/metrics").unwrap();
    assert!(text.contains("\ntenure_detached 0\n"), "{text}");
    assert_eq!(value(port, "finished_total"), Some(0));
    site.ended(&site.submit(&["x"]));
    until("it is counted", || value(port, "finished_total") == Some(1));
    assert_eq!(status(port, "/other"), Some(404));
    // Nobody can renew while somebody else holds the store's only lock.
    let lock = rusqlite::Connection::open(site.file().unwrap()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    until("it is not ready", || status(port, "/readyz") == Some(503));
    assert_eq!(status(port, "/livez"), Some(200), "it comes back by itself");
    lock.execute_batch("ROLLBACK").unwrap();
    until("it is ready again", || status(port, "/readyz") == Some(200));
    assert!(worker.terminate().success());
    assert_eq!(served(port, "/livez"), None);
}

#[test]
fn a_sweeper_serves_the_metrics_of_the_queue_alone() {
    let site = TestCluster::new().with_queue(&[]);
    let port = free_port();
    let mut command = site.worker_command("w", &["TENURE_WORKER_OWNERSHIP=false"]);
    command.env("TENURE_ADMIN_ADDR", format!("127.0.0.1:{port}"));
    let mut worker = Process::spawn(command.args(["--", "cat"]));
    until("it is ready", || status(port, "/readyz") == Some(200));
    site.ended(&site.submit(&["x"]));
    until("it is counted", || value(port, "finished_total") == Some(1));
    let (_, text) = served(port, "/metrics").unwrap();
    let other = text
        .lines()
        .find(|line| !line.starts_with('#') && !line.starts_with("tenure_queue_"));
    assert_eq!(other, None, "there is no node");
    assert!(worker.terminate().success());
}

#[test]
fn an_address_that_cannot_be_used_is_named_before_anything_is_claimed() {
    let site = TestCluster::new().with_queue(&[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let id = site.submit(&["x"]);
    site.run(&["worker", "q", "--admin-addr", &address, "--", "cat"])
        .with(2)
        .telling(&[&address]);
    assert_eq!(events(&site.task(&id)), ["submitted"]);
    assert!(site.owners().is_empty());
}

#[test]
fn a_pipe_serves_metrics_while_it_has_a_worker() {
    let site = TestCluster::new().with_queue(&[]);
    let port = free_port();
    let address = format!(":{port}");
    let mut command = site.command(&["queue", "pipe", "q", "--admin-addr", &address]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    add_options(&mut command, LEASED);
    let mut pipe = Process::spawn(&mut command);
    let mut stdin = pipe.0.stdin.take().unwrap();
    assert_eq!(served(port, "/livez"), None);
    stdin.write_all(b"{\"id\": 1, \"op\": \"work\"}\n").unwrap();
    until("it is ready", || status(port, "/readyz") == Some(200));
    until("it has all shards", || value(port, "shards") == Some(16));
    stdin.write_all(b"{\"id\": 2, \"op\": \"stop\"}\n").unwrap();
    until("nobody listens", || served(port, "/livez").is_none());
    drop(stdin);
    assert!(pipe.wait().success());
}
