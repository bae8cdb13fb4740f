//! `tenure exec` and `tenure grant check` as a person or a script meets them.

mod exec_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use exec_support::*;
use rustix::process::Signal;

/// `tenure exec` with a shell script as its command; its output goes to `NODE.out`.
fn shell(site: &TestCluster, options: &[&str], script: &str) -> Exec {
    let mut command = site.command("a");
    let out = fs::File::options()
        .create(true)
        .append(true)
        .open(site.path("a.out"))
        .unwrap();
    command
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdout(out);
    site.spawn("a", command)
}

fn output(site: &TestCluster) -> String {
    fs::read_to_string(site.path("a.out")).unwrap_or_default()
}

#[test]
fn a_child_knows_whose_shard_it_has_and_may_ask_whether_it_still_does() {
    let site = TestCluster::new(2);
    let script = format!(
        "trap '' TERM; echo \"$TENURE_CLUSTER $TENURE_KEYSPACE/$TENURE_SHARD $TENURE_NODE $TENURE_EPOCH\"; \
         {TENURE} grant check && echo granted-$TENURE_SHARD; TENURE_EPOCH=7 {TENURE} grant check; echo other-epoch-$?; \
         while :; do sleep 0.05; cat $TENURE_GRANT >/dev/null && {TENURE} grant check && echo still-$TENURE_SHARD; done"
    );
    let mut exec = shell(&site, &["--drain-timeout", "200ms"], &script);
    for expected in [
        "c k/0 a 4294967297",
        "c k/1 a 4294967297",
        "granted-0",
        "granted-1",
        "other-epoch-1",
        "still-0",
    ] {
        until(expected, || output(&site).contains(expected));
    }
    assert!(
        site.said("a").contains("epoch 7 has ended"),
        "{}",
        site.said("a")
    );
    assert!(exec.terminate().success());
    let after = output(&site);
    pass(Duration::from_millis(300));
    assert_eq!(output(&site), after, "a child outlives its exec");
}

#[test]
fn check_says_why_there_is_no_grant() {
    let dir = tempfile::tempdir().unwrap();
    let check = |grant: &str| {
        let path = dir.path().join("grant");
        fs::write(&path, grant).unwrap();
        let mut command = Command::new(TENURE);
        command.args(["grant", "check"]).arg("--grant").arg(&path);
        run(command.env_remove("TENURE_EPOCH"))
    };
    let boot = tenure_store::machine_identity::boot_id().unwrap();
    let grant = |boot: &str, closes: u64| {
        format!(
            r#"{{"cluster":"c","keyspace":"k","shard":"0","node":"n","epoch":1,"boot_id":"{boot}","stop_time_ns":{closes},"deadline_ns":{closes}}}"#
        )
    };
    assert_eq!(check(&grant(&boot, u64::MAX)).0, 0);
    for (text, code, reason) in [
        (grant(&boot, 1), 1, "the grant ended"),
        (grant("other", u64::MAX), 1, "another boot"),
        ("{".to_owned(), 2, "cannot be read"),
    ] {
        let (found, _, error) = check(&text);
        assert_eq!(found, code, "{error}");
        assert!(error.contains(reason), "{error}");
    }
    let mut gone = Command::new(TENURE);
    gone.args(["grant", "check", "--grant", "/nonexistent/grant"]);
    let (code, _, error) = run(&mut gone);
    assert!(code == 1 && error.contains("does not exist"), "{error}");
    let (code, _, error) = run(Command::new(TENURE)
        .args(["grant", "check"])
        .env_remove("TENURE_GRANT"));
    assert!(
        code == 2 && error.contains("TENURE_GRANT is not set"),
        "{error}"
    );
}

#[test]
fn output_is_passed_through_and_marked_with_the_shard_when_asked() {
    let site = TestCluster::new(2);
    let script = "echo out; echo err >&2; printf 'half a line'; exec sleep 1000";
    let mut exec = shell(&site, &["--prefix"], script);
    let (out, err) = (|| output(&site), || site.said("a"));
    until("marked output", || {
        out().contains("[k/0] out\n") && out().contains("[k/1] out\n")
    });
    until("marked errors", || err().contains("[k/0] err\n"));
    assert!(exec.terminate().success());
    until("the rest of the output", || {
        out().contains("[k/1] half a line\n")
    });
}

#[test]
fn a_child_that_ends_at_once_is_started_again_with_growing_waits_and_a_clear_word() {
    let site = TestCluster::new(1);
    let _exec = shell(&site, &[], "echo again; exit 3");
    until("a few starts", || output(&site).lines().count() >= 4);
    until("a few words", || {
        site.said("a").matches("exited with code 3").count() >= 3
    });
    let said = site.said("a");
    for wait in ["100ms", "200ms", "400ms"] {
        let mut lines = said.lines();
        let restarting =
            |line: &str| line.contains("child process ended, restarting") && line.contains(wait);
        assert!(lines.any(restarting), "{wait}: {said}");
    }
}

#[test]
fn a_crash_loop_is_a_problem_in_status_until_a_child_lives() {
    let site = TestCluster::new(2);
    let status = |more: &[&str]| {
        let mut command = Command::new(TENURE);
        command.args(["--store", &site.store(), "--cluster", "c", "status"]);
        run(command.args(more)).1
    };
    let json = || serde_json::from_str::<serde_json::Value>(&status(&["--json"])).ok();
    let cured = site.path("cured");
    let script = format!(
        "test $TENURE_SHARD = 0 || test -e {} || exit 3; exec sleep 1000",
        cured.display()
    );
    let _exec = shell(&site, &[], &script);
    let mut seen = serde_json::Value::Null;
    until("status tells of the crashes", || {
        seen = json().unwrap_or_default();
        seen["problems"][0]["kind"] == "troubled"
    });
    assert_eq!(seen["problems"].as_array().unwrap().len(), 1);
    assert_eq!(seen["problems"][0]["key"], "shards/k/1");
    let shards = &seen["shards"];
    assert!(shards[0]["trouble"].is_null(), "{shards}");
    assert_eq!(shards[1]["state"], "serving");
    let said = shards[1]["trouble"].as_str().unwrap();
    assert!(
        said.starts_with("the command restarts in ")
            && said.ends_with(" crashes: the last run exited with code 3"),
        "{said}"
    );
    assert_eq!(seen["problems"][0]["problem"], said);
    let text = status(&[]);
    assert!(text.contains("1 problem"), "{text}");
    assert!(
        text.contains("k/1    troubled") && !text.contains("k/0"),
        "{text}"
    );
    fs::write(cured, "").unwrap();
    until("a child that lives takes it back", || {
        json().is_some_and(|s| s["problems"] == serde_json::json!([]))
    });
}

#[test]
fn a_child_is_started_again_only_as_the_policy_says() {
    for (policy, script, again) in [
        ("on-failure", "echo ran; exit 0", false),
        ("on-failure", "echo ran; exit 1", true),
        ("never", "echo ran; exit 1", false),
        ("always", "echo ran; exit 0", true),
    ] {
        let site = TestCluster::new(1);
        let mut exec = shell(&site, &["--restart", policy], script);
        if again {
            until("a second run", || output(&site).lines().count() >= 2);
        } else {
            until("a run", || output(&site).lines().count() == 1);
            pass(Duration::from_millis(500));
            assert_eq!(output(&site), "ran\n", "{policy}");
        }
        assert!(exec.terminate().success());
    }
}

#[test]
fn a_command_that_signals_its_own_group_hurts_nobody_else() {
    let site = TestCluster::new(1);
    let script = "trap '' HUP INT USR1 USR2; for s in HUP INT USR1 USR2; do kill -$s 0; done; echo survived; \
                  trap 'exit 7' TERM; kill 0; sleep 1000";
    let _exec = shell(&site, &[], script);
    until("it goes on", || output(&site).contains("survived"));
    until("its end is seen", || {
        site.said("a").contains("exited with code 7")
    });
}

#[test]
fn a_second_signal_kills_children_that_take_their_time() {
    let site = TestCluster::new(1);
    let mut exec = shell(
        &site,
        &["--drain-timeout", "1h"],
        "trap '' TERM; echo ready; while :; do sleep 0.1; done",
    );
    until("the child is ready", || output(&site).contains("ready"));
    exec.signal(Signal::TERM);
    pass(Duration::from_millis(600));
    assert_eq!(
        exec.process.try_wait().unwrap(),
        None,
        "it did not wait for its child"
    );
    exec.signal(Signal::TERM);
    assert!(exec.wait().success());
}

#[test]
fn an_observer_says_what_it_would_do_and_starts_nothing() {
    let site = TestCluster::new(2);
    let mut command = Command::new(TENURE);
    let out = fs::File::create(site.path("a.out")).unwrap();
    command
        .args(["exec", "--cluster", "c", "--keyspace", "k", "--node", "a"])
        .args(["--store", &site.store(), "--shards", "2", "--shadow"])
        .args(["--assigned-by", "rendezvous", "--log", "info", "--"])
        .args(["sh", "-c", "echo started; sleep 100"])
        .stdin(Stdio::null())
        .stdout(out);
    let mut exec = site.spawn("a", command);
    until("what it would do", || {
        site.said("a")
            .contains("shard transition not executed, node is in shadow mode")
    });
    assert!(exec.terminate().success());
    assert_eq!(output(&site), "");
}

#[test]
fn a_singleton_runs_once_in_the_fleet() {
    let site = TestCluster::new(1);
    let single = |node: &str| {
        let mut command = Command::new(TENURE);
        command
            .args([
                "exec",
                "--cluster",
                "c",
                "--singleton",
                "k",
                "--node",
                node,
                "--ttl",
                "1500ms",
            ])
            .args(["--store", &site.store()])
            .arg("--data-dir")
            .arg(site.path(node))
            .arg("--trace")
            .arg(site.trace(node))
            .arg("--")
            .arg(beat_program())
            .arg(site.logs())
            .stdin(Stdio::null());
        site.spawn(node, command)
    };
    let mut execs = [single("a"), single("b"), single("c")];
    site.await_covered();
    until("one child is alive", || site.alive().len() == 1);
    let holder = |site: &TestCluster| {
        let lines = site.lines();
        let last = lines.iter().max_by_key(|line| line["t"].as_u64()).unwrap();
        last["node"].as_str().unwrap().to_owned()
    };
    let first = holder(&site);
    execs.iter_mut().find(|e| e.node == first).unwrap().kill();
    until("another has it", || holder(&site) != first);
    site.await_covered();
    site.assert_clean();
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_owned() {
    let site = TestCluster::new(2);
    let plain = site.path("plain.sh");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let plain = plain.to_str().unwrap();
    let dir = site.logs();
    for (command, reason) in [
        (vec!["--", "no-such-command-here"], "is not found in PATH"),
        (vec!["--", "./no/such/command"], "does not exist"),
        (vec!["--", plain], "is not executable; run `chmod +x`"),
        (vec!["--", dir.to_str().unwrap()], "is a directory"),
        (vec!["sleep", "1"], "-- <COMMAND>"),
        (
            vec!["--set", "kill_grace=1m", "--", "true"],
            "raise the margin or lower kill_grace",
        ),
        (vec!["--restart", "sometimes", "--", "true"], "on-failure"),
    ] {
        let (code, _, error) = run(site.command("a").args(&command));
        assert_eq!(code, 2, "{command:?}: {error}");
        assert!(error.contains(reason), "{command:?}: {error}");
    }
    assert!(!site.path("store.db").exists());
}

#[test]
fn a_data_directory_in_use_and_a_shard_count_that_differs_are_refused() {
    let site = TestCluster::new(2);
    let exec = site.beating("a", &[], &[]);
    site.await_covered();
    let (code, _, error) = run(site.command("a").args(["--", "true"]));
    assert_eq!(code, 1);
    let pid = format!("in use by process {}", exec.pid());
    assert!(error.contains(&pid), "{error}");
    let mut other = Command::new(TENURE);
    other
        .args(["exec", "--cluster", "c", "--keyspace", "k", "--shards", "3"])
        .args(["--store", &site.store(), "--", "true"]);
    let (code, _, error) = run(&mut other);
    assert_eq!(code, 1);
    assert!(
        error.contains("hashed(2)") && error.contains("hashed(3)"),
        "{error}"
    );
    site.assert_clean();
}

#[test]
fn a_trace_file_that_cannot_be_written_is_bad_input() {
    let dir = tempfile::tempdir().unwrap();
    let exec = |trace: &std::path::Path| {
        let mut exec = Command::new(TENURE);
        exec.args(["exec", "--cluster", "c", "--singleton", "s", "--store"])
            .arg(format!("sqlite:{}", dir.path().join("s.db").display()))
            .arg("--trace")
            .arg(trace)
            .args(["--", "true"]);
        let output = exec.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, said) = exec(dir.path());
    assert!(
        code == Some(2) && said.contains("is a directory; give a file"),
        "{said}"
    );
    let (code, said) = exec("/nowhere/trace".as_ref());
    assert!(
        code == Some(2) && said.contains("trace file /nowhere/trace"),
        "{said}"
    );
}
