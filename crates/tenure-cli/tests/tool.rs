//! The command as a tool: help, completions, exit codes, the simulator.

mod test_cluster;

use std::io::Read as _;
use std::process::Stdio;

use test_cluster::{TestCluster, ran, tenure};

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
        "sim run",
        "sim replay",
        "sim model",
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

#[test]
fn a_simulation_is_summed_up_resumed_and_replayed_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("sim.json");
    let state = state.to_str().unwrap();
    let run = |seeds: &str| {
        let ran = ran(&[
            "sim",
            "run",
            "--first-seed",
            "100",
            "--seeds",
            seeds,
            "--state",
            state,
            "--threads",
            "2",
            "--json",
        ]);
        // Whether these seeds keep the promises is the simulator's own concern; the code must say what the summary says.
        let summary = ran.json();
        assert_eq!(ran.code, i32::from(summary["failed"] != 0), "{summary}");
        summary
    };
    let first = run("20");
    assert_eq!(
        (&first["seeds"], &first["resumed"], &first["threads"]),
        (&20.into(), &0.into(), &2.into())
    );
    assert!(first["seeds_per_second"].as_f64().unwrap() > 0.0);
    assert!(first["coverage"]["events"].as_u64().unwrap() > 0);
    let second = run("30");
    assert_eq!(
        (&second["seeds"], &second["resumed"]),
        (&30.into(), &20.into())
    );
    assert_eq!(second["program"], first["program"]);
    let again = run("30");
    assert_eq!(
        (&again["resumed"], &again["failed"]),
        (&30.into(), &second["failed"])
    );

    let story = |seed: &str| ran(&["sim", "replay", seed]);
    let (a, b) = (story("100"), story("100"));
    assert!(a.out.starts_with("# seed 100:"), "{}", a.out);
    assert_eq!((a.code, &a.out), (b.code, &b.out));
}

#[test]
fn a_simulation_that_was_killed_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("sim.json");
    let mut child = tenure(&["sim", "run", "--seeds", "100000000", "--threads", "1"])
        .args(["--state".as_ref(), state.as_os_str()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Progress is told after what was run is written down.
    let mut first = [0];
    let stderr = child.stderr.as_mut().unwrap();
    stderr.read_exact(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let state = state.to_str().unwrap();
    let summary = ran(&["sim", "run", "--seeds", "10", "--state", state, "--json"]).json();
    assert_eq!(
        (&summary["resumed"], &summary["seeds"]),
        (&10.into(), &10.into())
    );
    if let Some(commit) = summary["commit"].as_str() {
        assert!(
            commit.len() >= 7 && commit.bytes().all(|b| b.is_ascii_hexdigit()),
            "{commit}"
        );
    }
}

#[test]
fn an_interrupted_simulation_tells_what_there_is() {
    let mut child = tenure(&["sim", "run", "--seeds", "100000000", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first words on stderr come with the first progress: by then the signal is waited for.
    let mut first = [0];
    child
        .stderr
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["interrupted"], true);
    assert!(summary["seeds"].as_u64().unwrap() > 0);
    let code = if summary["failed"] == 0 { 130 } else { 1 };
    assert_eq!(output.status.code(), Some(code));
}

#[test]
fn a_state_file_that_is_none_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(&path, "dear diary").unwrap();
    ran(&[
        "sim",
        "run",
        "--seeds",
        "1",
        "--state",
        path.to_str().unwrap(),
    ])
    .with(2)
    .telling(&["notes.txt is not a state file"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary");
}
