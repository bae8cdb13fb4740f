//! The program `tenure-sim`: help, exit codes, and long runs that are interrupted and continued.

use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Exit code and output of one call.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

fn tenure_sim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-sim"));
    command.args(args).stdin(Stdio::null());
    command
}

fn ran(args: &[&str]) -> Ran {
    let output = tenure_sim(args).output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in [
        None,
        Some("run"),
        Some("replay"),
        Some("validate"),
        Some("model"),
    ] {
        let args: Vec<&str> = command.into_iter().chain(["--help"]).collect();
        let help = ran(&args);
        assert_eq!(help.code, 0, "{args:?}\n{}", help.err);
        assert!(help.out.contains("Example"), "{args:?}\n{}", help.out);
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = format!("tenure-sim {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(ran(&["--version"]).out, version);
}

#[test]
fn usage_errors_exit_with_2_and_print_nothing_on_stdout() {
    for args in [
        &["frobnicate"][..],
        &[],
        &["run"],
        &["run", "--seeds", "0"],
        &["replay", "x"],
        &["model", "--scope", "frobnicate"],
    ] {
        let ran = ran(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}");
    }
}

#[test]
fn a_simulation_is_summed_up_resumed_and_replayed_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("sim.json");
    let state = state.to_str().unwrap();
    let run = |seeds: &str| {
        let ran = ran(&[
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

    let story = |seed: &str| ran(&["replay", seed]);
    let (a, b) = (story("100"), story("100"));
    assert!(a.out.starts_with("# seed 100:"), "{}", a.out);
    assert_eq!((a.code, &a.out), (b.code, &b.out));
}

#[test]
fn a_simulation_that_was_killed_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("sim.json");
    let mut child = tenure_sim(&["run", "--seeds", "100000000", "--threads", "1"])
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
    let summary = ran(&["run", "--seeds", "10", "--state", state, "--json"]).json();
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
    let mut child = tenure_sim(&["run", "--seeds", "100000000", "--json"])
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
    let ran = ran(&["run", "--seeds", "1", "--state", path.to_str().unwrap()]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("notes.txt is not a state file"),
        "{}",
        ran.err
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary");
}
