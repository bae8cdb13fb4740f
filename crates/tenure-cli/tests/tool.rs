//! The command as a tool: help, completions, exit codes.

mod test_cluster;

use std::io::Read as _;
use std::process::Stdio;

use test_cluster::{TestCluster, ran};

/// Every command that a person may type, by walking through the help.
fn commands(path: Vec<String>, all: &mut Vec<Vec<String>>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let help = ran(&args).with(0).out;
    // The top level groups its commands under headings before "Global options".
    let listed = match path.is_empty() {
        true => help.split("Global options:").next().unwrap_or_default(),
        false => help.split("Commands:\n").nth(1).unwrap_or_default(),
    };
    let ends = |line: &&str| path.is_empty() || line.starts_with("  ");
    for line in listed.lines().take_while(ends) {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name != "help" && line.starts_with("  ") && !line.starts_with("   ") {
            let mut path = path.clone();
            path.push(name.to_owned());
            commands(path, all);
        }
    }
    all.push(path);
}

#[test]
fn every_command_has_help_with_examples() {
    let mut all = Vec::new();
    commands(Vec::new(), &mut all);
    let names: Vec<String> = all.iter().map(|path| path.join(" ")).collect();
    for wanted in [
        "up",
        "exec",
        "sidecar",
        "router",
        "planner",
        "status",
        "cluster list",
        "cluster delete",
        "cluster pause-moves",
        "cluster resume-moves",
        "cluster gc",
        "cluster repair-record",
        "node list",
        "node show",
        "node drain",
        "node resume",
        "node cordon",
        "node uncordon",
        "node stop",
        "keyspace list",
        "keyspace show",
        "keyspace create",
        "keyspace update",
        "keyspace delete",
        "keyspace plan",
        "keyspace rebalance",
        "keyspace bump-generation",
        "shard list",
        "shard show",
        "shard lookup",
        "shard create",
        "shard delete",
        "shard move",
        "shard pin",
        "shard unpin",
        "shard repair",
        "worker",
        "queue list",
        "queue show",
        "queue create",
        "queue update",
        "queue delete",
        "queue stats",
        "queue pause",
        "queue resume",
        "queue purge",
        "queue repair-index",
        "queue pipe",
        "task list",
        "task show",
        "task submit",
        "task wait",
        "task cancel",
        "task retry",
        "task watch",
        "schedule list",
        "schedule put",
        "schedule delete",
        "store check",
        "store init",
        "grant check",
        "config validate",
        "config show",
        "completion",
    ] {
        assert!(
            names.iter().any(|name| name == wanted),
            "{wanted} is not in {names:?}"
        );
    }
    for path in &all {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = ran(&args).with(0).out;
        assert!(help.contains("Example"), "{path:?}\n{help}");
    }
}

#[test]
fn completions_are_there_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ran(&["completion", shell]).with(0).out;
        for word in ["keyspace", "repair", "completion"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    ran(&["completion", "cmd"]).with(2);
    let script = ran(&["completion", "bash"]).with(0).out;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenure.bash");
    std::fs::write(&file, script).unwrap();
    let checked = std::process::Command::new("bash")
        .arg("-n")
        .arg(&file)
        .status();
    assert!(checked.unwrap().success());
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(
        ran(&["--version"]).with(0).out,
        format!("tenure {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn usage_errors_exit_with_2_and_say_nothing_on_stdout() {
    for args in [
        &["frobnicate"][..],
        &[],
        &["status", "--frobnicate"],
        &["shard", "lookup"],
        &["status", "--interval", "3"],
    ] {
        let ran = ran(args).with(2);
        assert_eq!(ran.out, "", "{args:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_program_quietly() {
    let shop = TestCluster::with_orders(5000);
    let mut child = shop
        .command(&["status", "--shards"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

#[test]
fn what_is_logged_goes_to_stderr_and_data_stays_clean() {
    let shop = TestCluster::with_orders(2);
    let ran = shop.run(&["--log", "trace", "status", "--json"]).with(0);
    assert_eq!(ran.json()["cluster"], "shop");
}
