//! `tenure up` as a new user meets it, with a node paused and another killed.

mod exec_support;

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use exec_support::*;
use rustix::process::Signal;

/// A running `tenure up`, and what it has printed.
struct Up {
    process: Child,
    dir: tempfile::TempDir,
}

impl Up {
    fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let out = File::create(dir.path().join("out")).unwrap();
        let mut command = Command::new(TENURE);
        command
            .args([
                "up",
                "--library",
                "--shards",
                "16",
                "--ttl",
                "1500ms",
                "--data-dir",
            ])
            .arg(dir.path().join("data"))
            .args(options)
            .env_remove("TENURE_STORE")
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        let process = command.spawn().unwrap();
        Self { process, dir }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.dir.path().join("out")).unwrap()
    }

    fn await_output(&self, what: &str) {
        until(what, || self.output().contains(what));
    }

    /// How many shards a node has by the last line that says so.
    fn owned(&self, node: &str) -> u32 {
        let output = self.output();
        let line = output.lines().rfind(|line| line.contains("changes/s"));
        let shown = line.and_then(|line| line.split_once(&format!("{node}: ")));
        let digits = |rest: &str| {
            rest.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        };
        shown.map_or(0, |(_, rest)| digits(rest).parse().unwrap_or(0))
    }

    /// The processes of the nodes, in the order of their names.
    fn nodes(&self) -> Vec<i32> {
        let mut nodes: Vec<i32> = children_of(self.pid())
            .into_iter()
            .filter(|pid| cmdline(*pid).contains("__up-node"))
            .collect();
        nodes.sort_by_key(|pid| cmdline(*pid));
        nodes
    }

    fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn late_writes_of_a_paused_node_are_refused_and_a_killed_node_comes_back() {
    let mut up = Up::start(&["--nodes", "3"]);
    up.await_output("kill -STOP");
    up.await_output("changes/s");
    until("three nodes", || up.nodes().len() == 3);
    let refused = || {
        up.output()
            .contains("stale writes rejected by the resource")
    };
    // A pause that hits a moment without any write on its way, or one in the middle of a transaction, which locks the others
    // out, shows nothing: it is repeated.
    for _ in 0..6 {
        until("n1 has shards", || up.owned("n1") > 0);
        let paused = up.nodes()[0];
        let taken = || up.output().matches(" from n1 (").count();
        let before = taken();
        send(paused, Signal::STOP);
        within(TTL * 4, || taken() > before);
        send(paused, Signal::CONT);
        if within(TTL * 2, refused) {
            break;
        }
    }
    assert!(refused(), "no late write in six pauses: {}", up.output());
    send(up.nodes()[1], Signal::KILL);
    up.await_output("was killed; restarting in");
    up.await_output(" from n2 (");
    up.await_output("n2 restarted as process");
    let nodes = up.nodes();
    send(up.pid(), Signal::INT);
    until("it ends", || up.process.try_wait().unwrap().is_some());
    let output = up.output();
    assert!(up.process.wait().unwrap().success(), "{output}");
    assert!(
        output.contains(" 0 of them after a newer epoch, 0 counters"),
        "{output}"
    );
    assert!(!output.contains(" 0 changes made"), "{output}");
    assert!(nodes.iter().all(|pid| !is_alive(*pid)), "nodes outlive it");
}

#[test]
fn it_ends_by_itself_and_its_nodes_end_with_it_even_if_it_is_killed() {
    let mut up = Up::start(&["--nodes", "2", "--duration", "1500ms"]);
    until("it ends", || up.process.try_wait().unwrap().is_some());
    assert!(up.process.wait().unwrap().success());
    assert!(up.output().contains("changes made"), "{}", up.output());

    let mut up = Up::start(&["--nodes", "2"]);
    until("two nodes", || up.nodes().len() == 2);
    let nodes = up.nodes();
    up.process.kill().unwrap();
    up.process.wait().unwrap();
    until("its nodes end", || nodes.iter().all(|pid| !is_alive(*pid)));
}
