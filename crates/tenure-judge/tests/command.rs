//! The command as it is called: files, exit codes, what it prints.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const CLEAN: &str = "\
{\"t\":1000000,\"pid\":1,\"shard\":\"k/0\",\"epoch\":1,\"ev\":\"start\",\"node\":\"a\"}
{\"t\":2000000,\"pid\":1,\"shard\":\"k/0\",\"epoch\":1,\"ev\":\"effect\",\"node\":\"a\"}
";
const NEXT: &str = "\
{\"t\":3000000,\"pid\":2,\"shard\":\"k/0\",\"epoch\":2,\"ev\":\"start\",\"node\":\"b\"}
{\"t\":5000000,\"pid\":2,\"shard\":\"k/0\",\"epoch\":2,\"ev\":\"end\",\"node\":\"b\"}
";
/// A late line of the first owner, while the second one is alive.
const LATE: &str =
    "{\"t\":4000000,\"pid\":1,\"shard\":\"k/0\",\"epoch\":1,\"ev\":\"beat\",\"node\":\"a\"}\n";

fn logs(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn run(dir: &Path, line: &str) -> Output {
    let words = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_tenure-judge"))
        .args(words)
        .current_dir(dir)
        .output()
        .unwrap()
}

/// Checks exit code and that all the parts are printed: to stderr for 2, else to stdout.
fn check(dir: &TempDir, line: &str, code: i32, parts: &[&str]) {
    let output = run(dir.path(), line);
    let text = String::from_utf8(if code == 2 {
        output.stderr
    } else {
        output.stdout
    })
    .unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line}: no `{part}` in:\n{text}");
    }
}

#[test]
fn a_clean_run_exits_with_0() {
    let dir = logs(&[("a.jsonl", CLEAN), ("b.jsonl", NEXT)]);
    check(
        &dir,
        "a.jsonl b.jsonl",
        0,
        &[
            "checked 4 lines of 2 file(s)",
            "over 4.000 ms",
            "longest gap: k/0 for 1.000 ms",
            "verdict: clean\n",
        ],
    );
}

#[test]
fn an_overlap_exits_with_1_and_names_both_works() {
    let dir = logs(&[("a.jsonl", &format!("{CLEAN}{LATE}")), ("b.jsonl", NEXT)]);
    let both = "overlap: k/0: epoch 1 (pid 1, a) [1000000..4000000] and epoch 2 (pid 2, b) [3000000..5000000], both for 1.000 ms";
    check(&dir, ".", 1, &[both, "verdict: violations: 1 overlaps\n"]);
}

#[test]
fn an_expected_overlap_exits_with_0_and_its_absence_with_1() {
    let dir = logs(&[
        ("bad/a.jsonl", &format!("{CLEAN}{LATE}{NEXT}")),
        ("good/b.jsonl", CLEAN),
    ]);
    check(
        &dir,
        "--expect-overlap bad",
        0,
        &["verdict: 1 overlap(s) found, as expected"],
    );
    check(
        &dir,
        "--expect-overlap good",
        1,
        &["verdict: no overlap found, but one was expected"],
    );
}

#[test]
fn every_kind_of_finding_is_printed_in_words() {
    let line = |t, pid, shard, epoch, ev| {
        format!(
            "{{\"t\":{t},\"pid\":{pid},\"shard\":\"{shard}\",\"epoch\":{epoch},\"ev\":\"{ev}\",\"node\":\"n\"}}\n"
        )
    };
    let story = [
        line(1, 1, "k/0", 5, "start"),
        line(2, 2, "k/0", 4, "start"),
        line(3, 2, "k/0", 4, "effect"),
        line(4, 1, "k/0", 5, "end"),
        line(5, 3, "k/0", 5, "beat"),
        line(90, 1, "k/7", 1, "start"),
    ];
    let dir = logs(&[("a.jsonl", &story.concat())]);
    let parts = [
        "overlap: k/0",
        "decreasing epoch: k/0: epoch 4 (pid 2, n) began at 2 after epoch 5 (pid 1, n) at 1",
        "epoch shared: k/0: epoch 5 by pids [1, 3]",
        "stale effects: k/0: 1 of epoch 4 (pid 2, n), the first 2 ns after",
        "outside start and end: k/0: beat of epoch 5 (pid 3, n) at 5",
        "never served: k/1",
        "unexpected: k/7",
        "gap: k/0: 85 ns from 5",
        "not served at the end: k/0",
        "longest gap: k/1 for 89 ns from 1 (allowed: 10 ns)",
    ];
    check(
        &dir,
        "--shards 2 --keyspace k --max-gap 10 --covered-by 20ns .",
        1,
        &parts,
    );
}

#[test]
fn long_lists_are_cut_with_the_number_left_out() {
    let dir = logs(&[("a.jsonl", CLEAN)]);
    check(
        &dir,
        "--shards 12 --keyspace k .",
        1,
        &["… and 6 more like the last", "11 shards never served"],
    );
}

#[test]
fn json_has_the_verdict_and_the_findings() {
    let dir = logs(&[("a.jsonl", &format!("{CLEAN}{LATE}{NEXT}{{\"t\":"))]);
    let output = run(dir.path(), "--json .");
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["passed"], false);
    assert_eq!(json["against"][0], "overlaps");
    assert_eq!((&json["lines"], &json["truncated"]), (&5.into(), &1.into()));
    assert_eq!(json["overlaps"]["count"], 1);
    assert_eq!(json["overlaps"]["listed"][0]["both"]["from"], 3_000_000);
    assert_eq!(json["overlaps"]["listed"][0]["later"]["node"], "b");
}

#[test]
fn half_a_line_at_the_end_is_tolerated_wherever_it_was_cut() {
    for cut in 1..LATE.len() - 1 {
        let dir = logs(&[
            ("a.jsonl", &format!("{CLEAN}{}", &LATE[..cut])),
            ("b.jsonl", NEXT),
        ]);
        check(
            &dir,
            ".",
            0,
            &["1 file(s) end in an incomplete line", "verdict: clean"],
        );
    }
}

#[test]
fn a_whole_line_that_only_lacks_its_line_end_counts() {
    let dir = logs(&[
        ("a.jsonl", &format!("{CLEAN}{}", LATE.trim_end())),
        ("b.jsonl", NEXT),
    ]);
    check(&dir, ".", 1, &["1 overlaps"]);
}

#[test]
fn garbage_in_the_middle_is_named_by_file_and_line() {
    let cases = [
        (format!("{CLEAN}{{\"t\":12{NEXT}"), "not a log line"),
        (format!("{CLEAN}\n{NEXT}"), "EOF"),
        (
            format!("{CLEAN}{}\n", LATE.trim_end().replace("beat", "bead")),
            "unknown variant `bead`",
        ),
        (
            format!("{CLEAN}{}", "x".repeat(70_000)),
            "longer than 65536 bytes",
        ),
    ];
    for (text, reason) in cases {
        let dir = logs(&[("ok.jsonl", NEXT), ("sub/bad.jsonl", &text)]);
        check(&dir, ".", 2, &["sub/bad.jsonl:3: ", reason]);
    }
}

#[test]
fn bytes_that_are_no_text_are_garbage_in_the_middle_and_tolerated_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("a.jsonl"),
        [CLEAN.as_bytes(), b"\xff\xfe"].concat(),
    )
    .unwrap();
    check(&dir, ".", 0, &["incomplete line"]);
    fs::write(
        dir.path().join("a.jsonl"),
        [CLEAN.as_bytes(), b"\xff\xfe\n"].concat(),
    )
    .unwrap();
    check(&dir, ".", 2, &["a.jsonl:3: "]);
}

#[test]
fn directories_are_searched_for_jsonl_and_each_file_is_read_once() {
    let dir = logs(&[
        ("a.jsonl", CLEAN),
        ("deep/er/b.jsonl", NEXT),
        ("server.log", "not ours"),
    ]);
    check(
        &dir,
        ". a.jsonl ./deep/../a.jsonl deep",
        0,
        &["checked 4 lines of 2 file(s)"],
    );
    check(&dir, "server.log", 2, &["nothing to check"]);
}

#[test]
fn input_that_cannot_be_judged_exits_with_2_and_says_what_to_do() {
    let dir = logs(&[("a.jsonl", CLEAN), ("empty.jsonl", ""), ("none/x.log", "")]);
    check(&dir, "", 2, &["FILE|DIR"]);
    check(
        &dir,
        "gone.jsonl",
        2,
        &["cannot read gone.jsonl: No such file"],
    );
    check(
        &dir,
        "none",
        2,
        &["no *.jsonl file under none; name the files"],
    );
    check(
        &dir,
        "empty.jsonl",
        2,
        &["nothing to check: no complete line in 1 file(s)"],
    );
    check(
        &dir,
        "--max-gap 5parsecs a.jsonl",
        2,
        &["`5parsecs` is not a duration"],
    );
    check(&dir, "--shards 5 a.jsonl", 2, &["--keyspace"]);
    check(
        &dir,
        "--shards 5 --keyspace k --shard k/1 a.jsonl",
        2,
        &["cannot be used with"],
    );
    check(
        &dir,
        "--from 99999999 a.jsonl",
        2,
        &["the window from 99999999 to 2000000 is empty"],
    );
}

#[test]
fn demands_change_the_exit_code() {
    let dir = logs(&[("a.jsonl", CLEAN), ("b.jsonl", NEXT)]);
    check(&dir, "--max-gap 1ms .", 0, &["(allowed: 1.000 ms)"]);
    check(
        &dir,
        "--max-gap 999us .",
        1,
        &["1 shards with a gap above the limit"],
    );
    check(&dir, "--max-gap 999us --from 3000000 .", 0, &[]);
    check(
        &dir,
        "--covered-by 1ms --until 7000000 .",
        1,
        &["not served at the end: k/0"],
    );
    check(&dir, "--covered-by 2000000 --until 7000000 .", 0, &[]);
    check(&dir, "--shard k/0 .", 0, &[]);
    check(
        &dir,
        "--shard k/1 .",
        1,
        &["never served: k/1", "unexpected: k/0"],
    );
    let restarted = CLEAN
        .replace("\"pid\":1", "\"pid\":9")
        .replace("000000,", "500000,");
    fs::write(dir.path().join("c.jsonl"), &restarted).unwrap();
    let first = CLEAN.lines().next().unwrap();
    fs::write(dir.path().join("a.jsonl"), format!("{first}\n")).unwrap();
    check(&dir, "a.jsonl c.jsonl", 1, &["epoch shared"]);
    check(&dir, "--allow-restarts a.jsonl c.jsonl", 0, &[]);
}

#[test]
fn help_shows_examples_and_the_format() {
    let dir = logs(&[]);
    check(
        &dir,
        "--help",
        0,
        &[
            "Examples:",
            "--expect-overlap",
            "CLOCK_BOOTTIME",
            "Exit code:",
        ],
    );
}
