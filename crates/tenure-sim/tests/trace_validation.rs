//! `tenure-sim validate` on the traces of a real `tenure up`: as they are, and corrupted.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tenure_console::program;

fn validate(options: &[&str], files: &[&Path]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-sim"));
    command.arg("validate").args(options).args(files);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn the_traces_of_up_are_sound_and_a_spoilt_one_is_found_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let traces = dir.path().join("traces");
    let up = Command::new(program::tenure(None).unwrap())
        .args([
            "up",
            "--library",
            "--nodes",
            "2",
            "--shards",
            "8",
            "--duration",
            "3s",
            "--trace",
        ])
        .arg(&traces)
        .env_remove("TENURE_STORE")
        .output()
        .unwrap();
    assert!(up.status.success(), "{up:?}");
    let (n1, n2) = (traces.join("n1.jsonl"), traces.join("n2.jsonl"));
    let (code, out, err) = validate(&[], &[&n1, &n2]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("of 2 processes of 2 nodes") && out.ends_with("\n0 violations\n"),
        "{out}"
    );
    let (code, out, _) = validate(&["--json"], &[&n1, &n2]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, report["violations"].as_u64()), (0, Some(0)));
    assert_eq!(report["steps"], report["replayed"]);
    assert_eq!(report["cut_off"], 0);
    assert!(
        report["transitions"]["serving"].as_u64() >= Some(8),
        "{out}"
    );

    let text = fs::read_to_string(&n1).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(3);
    let spoilt = dir.path().join("spoilt.jsonl");
    fs::write(&spoilt, lines.join("\n") + "\n").unwrap();
    let (code, out, _) = validate(&[], &[&spoilt, &n2]);
    let found = format!("{}:4: trace: step 4 follows step 2", spoilt.display());
    assert!(code == 1 && out.contains(&found), "{out}");
}

#[test]
fn what_cannot_be_read_or_is_no_trace_is_bad_input() {
    let dir = tempfile::tempdir().unwrap();
    let (none, empty) = (dir.path().join("none"), dir.path().join("empty"));
    fs::write(&none, "hello\n").unwrap();
    fs::write(&empty, "").unwrap();
    for (file, says) in [
        (none.as_path(), ":1: not a trace line"),
        (&empty, "the trace files are empty"),
        (&dir.path().join("nowhere"), "No such file"),
        (dir.path(), "Is a directory"),
    ] {
        let (code, out, err) = validate(&[], &[file]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(says), "{err}");
    }
}
