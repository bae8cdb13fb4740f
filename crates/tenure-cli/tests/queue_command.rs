//! `tenure queue`, `task`, `schedule` and `worker` on SQLite, with real processes.

mod queue_support;

use std::fs;
use std::time::{Duration, Instant};

use queue_support::*;
use rustix::process::Signal;
use tenure_store::servers::s3::{OPERATOR, S3Service, S3ServiceKind};

/// A short lease, but longer than a disk that is busy elsewhere may take.
const QUICK: &[&str] = &["TENURE_WORKER_OWNERSHIP_TTL_SECS=4"];

#[test]
fn payloads_come_from_arguments_files_and_standard_input_and_results_go_to_standard_output() {
    let site = TestCluster::new().with_queue(&[]);
    let _worker = site.worker("w", QUICK, "printf 'got '; cat");
    let wait = ["--wait-timeout", "60s"];
    let ran = site.run(&[&["task", "submit", "q", "hello"], &wait[..]].concat());
    assert_eq!(ran.with(0).out, "got hello\n");
    fs::write(site.path("payload"), "from a file").unwrap();
    let path = site.path("payload").display().to_string();
    let ran = site.run(&[&["task", "submit", "q", "--payload-file", &path], &wait[..]].concat());
    assert_eq!(ran.with(0).out, "got from a file\n");
    let ran = site.run_fed(
        &[&["task", "submit", "q", "--payload-file", "-"], &wait[..]].concat(),
        b"piped",
    );
    assert_eq!(ran.with(0).out, "got piped\n");
    let json = ["task", "submit", "q", "{\"a\": 1}", "--payload-json"];
    let ran = site.run(&[&json[..], &wait].concat());
    assert_eq!(ran.with(0).out, "got {\"a\":1}\n");
    let ran = site.run(
        &[
            &["task", "submit", "q", "--payload-ref", "s3://b/k"],
            &wait[..],
        ]
        .concat(),
    );
    assert_eq!(ran.with(0).out, "got s3://b/k\n");
    site.run(&["task", "submit", "q", "{", "--payload-json"])
        .with(2)
        .telling(&["not JSON"]);
    site.run(&["task", "submit", "q"])
        .with(2)
        .telling(&["--batch"]);
}

#[test]
fn many_lines_are_submitted_and_every_bad_one_is_named() {
    let site = TestCluster::new().with_queue(&[]);
    let lines =
        b"{\"payload\": 1, \"key\": \"a\"}\n\n{\"priority\": 12}\nnonsense\n{\"text\": \"b\"}\n";
    let ran = site
        .run_fed(&["task", "submit", "q", "--batch", "-"], lines)
        .with(1)
        .telling(&[
            "line 3: priority is 12",
            "line 4: ",
            "2 tasks were not submitted",
        ]);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    assert!(ran.out.starts_with("k-a\n"), "{}", ran.out);
    let again = b"{\"payload\": 2, \"key\": \"a\"}\n";
    let ran = site
        .run_fed(&["task", "submit", "q", "--batch", "-", "--json"], again)
        .with(0)
        .telling(&["different payload"]);
    let told = &ran.json_lines()[0];
    assert_eq!(
        (&told["created"], &told["differs"]),
        (&false.into(), &true.into())
    );
}

#[test]
fn the_exit_code_of_a_program_decides() {
    let site = TestCluster::new().with_queue(&["--max-attempts", "2"]);
    let options = [QUICK, &["--reschedule-delay", "100ms"]].concat();
    // The payload is the exit code; 75 only the first time.
    let script = r#"read code; echo "was $code" >&2
        if [ "$code" = 75 ]; then [ -e "$MARK" ] && exit 0; touch "$MARK"; exit 75; fi
        if [ "$code" = kill ]; then kill -9 $$; fi
        exit "$code""#;
    let mut command = site.worker_command("w", &options);
    command.env("MARK", site.path("mark"));
    let _worker = Process::spawn(command.args(["--", "sh", "-c", script]));
    let submit = |code: &str| site.ended(&site.submit(&[code]));
    let done = submit("0");
    assert_eq!((state(&done), &done["attempts"]), ("done", &1.into()));
    let later = submit("75");
    assert_eq!((state(&later), &later["attempts"]), ("done", &1.into()));
    assert!(events(&later).contains(&"rescheduled"), "{later:#}");
    let hopeless = submit("65");
    assert_eq!(
        (state(&hopeless), &hopeless["attempts"]),
        ("dead", &1.into())
    );
    let failed = submit("3");
    assert_eq!((state(&failed), &failed["attempts"]), ("dead", &2.into()));
    let reason = failed["state"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("code 3") && reason.contains("was 3"),
        "{reason}"
    );
    let killed = submit("kill");
    assert_eq!((state(&killed), &killed["attempts"]), ("dead", &2.into()));
    let reason = killed["state"]["reason"].as_str().unwrap();
    assert!(reason.contains("signal 9"), "{reason}");
    assert!(site.said("w").contains("was kill"));
    site.run(&["task", "submit", "q", "65", "--wait-timeout", "60s"])
        .with(1)
        .telling(&["dead letter", "code 65"]);
    // A dead letter is tried again from the beginning, alone or with all others.
    let id = failed["id"].as_str().unwrap();
    site.run(&["task", "retry", "q", id]).with(0);
    assert!(events(&site.ended(id)).contains(&"retried"));
    site.run(&["task", "retry", "q", "--dead"]).with(0);
    site.run(&["task", "retry", "q", later["id"].as_str().unwrap()])
        .with(1)
        .telling(&["the task is done"]);
}

#[test]
fn a_program_finds_its_task_in_the_environment_and_its_result_has_a_limit() {
    let site = TestCluster::new().with_queue(&["--result-max", "400"]);
    let script =
        r#"case "$(cat)" in big) head -c 100000 /dev/zero;; *) env | grep ^TENURE_ | sort;; esac"#;
    let _worker = site.worker("w", QUICK, script);
    let id = site.submit(&[
        "x",
        "--idempotency-key",
        "a",
        "--attempt-timeout",
        "1m",
        "--metadata",
        "user=42",
    ]);
    let task = site.ended(&id);
    let result = task["state"]["result"]["text"].as_str().unwrap();
    let claim = task["state"]["claim"].as_str().unwrap();
    for line in [
        "TENURE_CLUSTER=shop",
        "TENURE_QUEUE=q",
        "TENURE_TASK_ATTEMPT=1",
        &format!("TENURE_TASK_CLAIM={claim}"),
        "TENURE_TASK_DEADLINE=2",
        "TENURE_TASK_DEADLINE_MS=",
        "TENURE_TASK_ID=k-a",
        "TENURE_TASK_META={\"user\":\"42\"}",
    ] {
        assert!(result.contains(line), "{line} is not in {result}");
    }
    let big = site.ended(&site.submit(&["big"]));
    let reason = big["state"]["reason"].as_str().unwrap();
    assert!(reason.contains("100000 bytes"), "{reason}");
}

#[test]
fn tasks_can_be_listed_shown_cancelled_paused_and_purged() {
    let site = TestCluster::new().with_queue(&[]);
    let (a, b) = (
        site.submit(&[
            "a",
            "--idempotency-key",
            "a",
            "--metadata",
            "user=1",
            "--priority",
            "9",
        ]),
        site.submit(&["b", "--idempotency-key", "b", "--delay", "1h"]),
    );
    let names = site.queue(&["list"]).with(0).out;
    assert!(names.contains("q ") && names.contains("16"), "{names}");
    let table = site.run(&["task", "list", "q"]).with(0).out;
    assert!(table.contains("k-a") && table.contains("in 59m"), "{table}");
    let found = site
        .run(&["task", "list", "q", "--metadata", "user=1", "--json"])
        .with(0);
    assert_eq!(found.json_lines().len(), 1, "{}", found.out);
    let ready = site.run(&[
        "task", "list", "q", "--state", "ready", "--limit", "1", "--json",
    ]);
    let ready = ready.with(0).telling(&["--all"]);
    assert_eq!(ready.json_lines().len(), 1);
    site.run(&["task", "list", "q", "--state", "odd"])
        .with(2)
        .telling(&["expected one of ready, running"]);
    let stats = site.stats();
    assert_eq!((&stats["ready"], &stats["delayed"]), (&1.into(), &1.into()));
    let shown = site.run(&["task", "show", "q", &a]).with(0).out;
    for part in ["k-a", "ready, due", "user=1", "submitted"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    site.run(&["task", "cancel", "q", &b, "k-none"])
        .with(1)
        .telling(&["task k-b is cancelled", "k-none"]);
    site.queue(&["pause", "q"]).with(0);
    assert_eq!(site.stats()["paused"], true);
    let _worker = site.worker("w", QUICK, "echo done");
    // Nothing is claimed although there is a worker: this is about time that passes.
    pass(Duration::from_secs(2));
    assert_eq!(state(&site.task(&a)), "ready");
    site.queue(&["resume", "q"]).with(0);
    assert_eq!(state(&site.ended(&a)), "done");
    let ran = site.run(&["task", "show", "q", &a, "--result"]).with(0);
    assert_eq!(ran.out, "done\n");
    site.queue(&["purge", "q", "--yes"])
        .with(0)
        .telling(&["0 tasks"]);
    let purged = site
        .queue(&["purge", "q", "--yes", "--done", "0s", "--json"])
        .with(0);
    assert_eq!(purged.json()["removed"], 2);
    site.run(&["task", "show", "q", &a])
        .with(1)
        .telling(&["purged"]);
}

#[test]
fn what_happens_can_be_followed() {
    let site = TestCluster::new().with_queue(&[]);
    let tail = fs::File::create(site.path("tail")).unwrap();
    let err = fs::File::create(site.path("tail.err")).unwrap();
    let mut command = site.command(&["task", "watch", "q", "--json"]);
    let mut tail = Process::spawn(command.stdout(tail).stderr(err));
    until("tail follows", || !site.marks("tail.err").is_empty());
    let _worker = site.worker("w", QUICK, "cat");
    let id = site.submit(&["x"]);
    site.ended(&id);
    until("the end is told", || {
        site.marks("tail")
            .iter()
            .any(|line| line.contains("finished"))
    });
    let told: Vec<serde_json::Value> = site
        .marks("tail")
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = told.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["submitted", "claimed", "finished"]);
    assert!(told.iter().all(|e| e["task"] == id.as_str()));
    assert!(tail.terminate().success());
}

#[test]
fn schedules_submit_by_the_clock() {
    let site = TestCluster::new().with_queue(&[]);
    let _worker = site.worker("w", QUICK, "cat");
    site.run(&["schedule", "put", "q", "s", "61 * * * *", "x"])
        .with(2)
        .telling(&["61"]);
    site.run(&[
        "schedule",
        "put",
        "q",
        "s",
        "* * * * *",
        "--time-zone",
        "Moon/Crater",
    ])
    .with(2)
    .telling(&["Moon/Crater"]);
    site.run(&["schedule", "put", "q", "s", "* * * * *", "tick"])
        .with(0)
        .telling(&["next "]);
    let listed = site.run(&["schedule", "list", "q"]).with(0).out;
    assert!(listed.contains("* * * * *"), "{listed}");
    until("a tick is submitted and done", || {
        let ran = site.run(&["task", "list", "q", "--metadata", "schedule=s", "--json"]);
        ran.json_lines().iter().any(|task| state(task) == "done")
    });
    site.run(&["schedule", "delete", "q", "s", "--yes"]).with(0);
    site.run(&["schedule", "delete", "q", "s", "--yes"])
        .with(1)
        .telling(&["no schedule"]);
}

#[test]
fn cancellation_and_timeouts_reach_the_program_also_if_it_does_not_listen() {
    let site = TestCluster::new().with_queue(&["--claim-timeout", "4s", "--max-attempts", "1"]);
    let script = r#"case "$(cat)" in
        polite) trap 'echo "told $TENURE_TASK_ID" >> "$MARKS"; exit 1' TERM; echo "begun $TENURE_TASK_ID" >> "$MARKS"; sleep 600 & wait;;
        deaf) trap '' TERM; echo "begun $$" >> "$MARKS"; while :; do sleep 600; done;;
    esac"#;
    let mut command = site.worker_command("w", QUICK);
    command.env("MARKS", site.path("marks"));
    let _worker = Process::spawn(command.args(["--", "sh", "-c", script]));
    let begun = |n: usize| {
        until("the program has begun", || site.marks("marks").len() >= n);
    };
    let polite = site.submit(&["polite", "--idempotency-key", "p"]);
    begun(1);
    site.run(&["task", "cancel", "q", &polite])
        .with(0)
        .telling(&["cancellation requested"]);
    assert_eq!(state(&site.ended(&polite)), "cancelled");
    assert!(site.marks("marks").contains(&"told k-p".to_owned()));
    let deaf = site.submit(&["deaf", "--attempt-timeout", "500ms"]);
    let task = site.ended(&deaf);
    let reason = task["state"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("longer than"), "{task:#}");
    let marks = site.marks("marks");
    let pid = marks.last().unwrap().strip_prefix("begun ").unwrap();
    let pid = pid.parse().unwrap();
    until("the deaf program is dead", || !is_alive(pid));
}

#[test]
fn a_worker_that_is_asked_to_stop_finishes_what_runs_and_one_that_is_asked_twice_gives_it_back() {
    let site = TestCluster::new().with_queue(&["--claim-timeout", "30s"]);
    let script = r#"echo "$$ $TENURE_TASK_ID" >> "$MARKS"; sleep "$(cat)"; echo slept"#;
    let start = |name: &str, marks: &str| {
        let mut command = site.worker_command(name, QUICK);
        command.env("MARKS", site.path(marks));
        Process::spawn(command.args(["--", "sh", "-c", script]))
    };
    let mut worker = start("a", "a");
    let first = site.submit(&["1"]);
    until("the program has begun", || !site.marks("a").is_empty());
    assert!(worker.terminate().success(), "{}", site.said("a"));
    let task = site.task(&first);
    assert_eq!(state(&task), "done", "{task:#}");

    let mut worker = start("b", "b");
    let long = site.submit(&["600"]);
    until("the program has begun", || !site.marks("b").is_empty());
    let pid: i32 = site.marks("b")[0]
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    worker.signal(Signal::TERM);
    until("it says that it stops", || {
        site.said("b").contains("stopping")
    });
    assert!(is_alive(pid));
    // Two signals within a moment are one wish: this is about that time.
    pass(Duration::from_millis(400));
    let asked = Instant::now();
    assert!(worker.terminate().success(), "{}", site.said("b"));
    assert!(asked.elapsed() < Duration::from_secs(15));
    assert!(!is_alive(pid));
    let task = site.task(&long);
    assert_eq!((state(&task), &task["attempts"]), ("ready", &0.into()));
}

#[test]
fn no_program_outlives_a_worker_that_is_killed_nor_does_what_it_forked() {
    let site = TestCluster::new().with_queue(&["--claim-timeout", "2s"]);
    let script = r#"setsid sleep 600 & echo $! >> "$MARKS"; echo $$ >> "$MARKS"; sleep 600"#;
    let mut command = site.worker_command("w", QUICK);
    command.env("MARKS", site.path("marks"));
    let mut worker = Process::spawn(command.args(["--", "sh", "-c", script]));
    site.submit(&["x"]);
    until("the program has begun", || site.marks("marks").len() == 2);
    worker.kill();
    for pid in site.marks("marks") {
        let pid = pid.parse().unwrap();
        until("the program is dead", || !is_alive(pid));
    }
}

#[test]
fn what_cannot_be_right_is_refused_with_the_way_out() {
    let site = TestCluster::new().with_queue(&["--payload-max", "10"]);
    site.run(&["task", "submit", "nope", "x"])
        .with(1)
        .telling(&["no queue \"nope\"", "tenure queue create nope"]);
    site.run(&["worker", "nope", "--", "true"])
        .with(1)
        .telling(&["no queue \"nope\""]);
    site.run(&["task", "submit", "q", "more than ten"])
        .with(2)
        .telling(&["13 bytes", "limit is 10", "reference"]);
    site.run(&[
        "task",
        "submit",
        "q",
        "x",
        "--priority",
        "12",
        "--max-attempts",
        "0",
    ])
    .with(2)
    .telling(&["priority is 12", "attempts is 0"]);
    site.queue(&["create", "q", "--shards", "7"])
        .with(1)
        .telling(&["16 shards, not 7"]);
    site.queue(&["create", "r", "--shards", "0", "--claim-timeout", "1ms"])
        .with(2)
        .telling(&["shards is 0", "claim timeout is 1ms"]);
    site.queue(&["create", ""]).with(2).telling(&["is empty"]);
    site.run(&["worker", "q", "--", "no-such-program"])
        .with(2)
        .telling(&["not found in PATH"]);
    site.run(&["worker", "q", "--concurrency", "0", "--", "true"])
        .with(2)
        .telling(&["concurrency is 0"]);
    site.run(&["task", "show", "q", "k-none"])
        .with(1)
        .telling(&["no task"]);
    site.queue(&["update", "q", "--max-attempts", "0"])
        .with(2)
        .telling(&["attempts is 0"]);
    let set = site
        .queue(&["update", "q", "--max-attempts", "7", "--json"])
        .with(0);
    assert_eq!(set.json()["settings"]["retry"]["max_attempts"], 7);
}

#[test]
fn a_bucket_without_conditional_writes_is_refused_before_anything_is_in_it() {
    let s3 = S3Service::start_with(S3ServiceKind::Rclone, &[OPERATOR]);
    let site = TestCluster::on(&s3.url("queue"));
    site.queue(&["create", "q"])
        .with(2)
        .telling(&["If-None-Match", "docs/stores/s3.md"]);
    for args in [
        &["task", "submit", "q", "x"][..],
        &["worker", "q", "--", "cat"],
    ] {
        let ran = site.run(args);
        assert_ne!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn a_corrupt_task_or_entry_is_named_and_blocks_nothing() {
    let site = TestCluster::new().with_queue(&["--shards", "1"]);
    let bad = site.submit(&["bad", "--idempotency-key", "bad"]);
    let lay = |key: &str, value: &str| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let store = tenure_store::open(&site.store).await.unwrap();
            let put = match store.get(key).await.unwrap() {
                Some(entry) => tenure_store::PutIf::update(key, value.as_bytes(), entry.version),
                None => tenure_store::PutIf::create(key, value.as_bytes()),
            };
            let put = store.put_if(put).await.unwrap();
            assert!(matches!(put, tenure_store::Put::Won(_)));
        });
    };
    let name = tenure_queue::QueueName::new("q").unwrap();
    let layout = tenure_queue::keys::QueueKeys::new(CLUSTER, &name, 1);
    let key = layout.task(&tenure_queue::TaskId::new(&bad).unwrap());
    lay(&key, "{ no task");
    lay(
        &format!(
            "{}rubbish",
            layout.index(tenure_queue::keys::IndexKind::Ready, 0)
        ),
        "",
    );
    let _worker = site.worker("w", QUICK, "cat");
    let good: Vec<String> = (0..5).map(|n| site.submit(&[&n.to_string()])).collect();
    for id in &good {
        assert_eq!(state(&site.ended(id)), "done");
    }
    site.run(&["task", "show", "q", &bad])
        .with(1)
        .telling(&[&key, "corrupt"]);
    site.run(&["task", "list", "q"]).with(1).telling(&[&key]);
    let rebuilt = site.queue(&["repair-index", "q", "--yes", "--json"]);
    let rebuilt = rebuilt.with(1).telling(&[&key, "corrupt"]);
    assert_eq!(rebuilt.json()["corrupt"][0][0], key);
    assert_eq!(site.stats()["odd"], 0);
}

#[test]
fn a_queue_is_deleted_with_its_tasks_and_its_workers_stop() {
    let site = TestCluster::new().with_queue(&[]);
    let mut worker = site.worker("w", QUICK, "sleep 600");
    let running = site.submit(&["x"]);
    site.until_state(&running, "running");
    for n in 0..30 {
        site.submit(&[&n.to_string(), "--delay", "1h"]);
    }
    site.run(&["schedule", "put", "q", "s", "0 3 * * *", "x"])
        .with(0);
    // Nothing is deleted without a word.
    site.queue(&["delete", "q"])
        .with(2)
        .telling(&["31 tasks (31 not finished)", "--yes"]);
    assert_eq!(site.stats()["delayed"], 30);
    let deleted = site.queue(&["delete", "q", "--yes", "--json"]).with(0);
    let wanted = serde_json::json!({ "queue": "q", "tasks": 31, "schedules": 1 });
    assert_eq!(deleted.json(), wanted);
    assert_eq!(worker.wait().code(), Some(1));
    assert!(site.said("w").contains("queue deleted"));
    let left = records(&site).into_iter().map(|(key, _)| key);
    let left: Vec<String> = left.filter(|key| key.starts_with("=queues/")).collect();
    assert!(left.is_empty(), "{left:?}");
    site.queue(&["delete", "q", "--yes"])
        .with(1)
        .telling(&["no queue \"q\""]);
    site.run(&["task", "submit", "q", "x"])
        .with(1)
        .telling(&["tenure queue create q"]);
    let status = site.run(&["status", "--json"]).json();
    let problems = status["problems"].as_array().cloned();
    assert!(problems.unwrap_or_default().is_empty(), "{status:#}");
    // A queue of the same name begins empty, also with other shards.
    let site = site.with_queue(&["--shards", "5"]);
    assert_eq!(site.stats()["delayed"], 0);
    let _worker = site.worker("v", QUICK, "cat");
    assert_eq!(state(&site.ended(&site.submit(&["y"]))), "done");
}

#[test]
fn destructive_commands_ask_first_and_every_command_prints_json() {
    let site = TestCluster::new().with_queue(&["--retain-done", "24h"]);
    site.run(&["schedule", "put", "q", "s", "0 3 * * *", "x"])
        .with(0);
    for args in [
        &["queue", "delete", "q"][..],
        &["queue", "purge", "q"],
        &["queue", "repair-index", "q"],
        &["schedule", "delete", "q", "s"],
    ] {
        site.run(args).with(2).telling(&["pass --yes"]);
    }
    let id = site.submit(&["x"]);
    for args in [
        &["queue", "list"][..],
        &["queue", "show", "q"],
        &["queue", "create", "q"],
        &["queue", "update", "q"],
        &["queue", "stats", "q"],
        &["queue", "pause", "q"],
        &["queue", "resume", "q"],
        &["queue", "purge", "q", "--yes"],
        &["queue", "repair-index", "q", "--yes"],
        &["task", "submit", "q", "y"],
        &["task", "list", "q", "--limit", "1"],
        &["task", "show", "q", &id],
        &["task", "cancel", "q", &id],
        &["task", "retry", "q", &id],
        &["schedule", "list", "q"],
        &["schedule", "put", "q", "s", "0 4 * * *"],
        &["schedule", "delete", "q", "s", "--yes"],
        &["queue", "delete", "q", "--yes"],
    ] {
        let ran = site.run(&[args, &["--json"]].concat()).with(0);
        assert!(ran.json().is_object(), "{args:?}: {}", ran.out);
    }
}

#[test]
fn a_task_is_waited_for_and_a_limit_of_zero_does_not_wait() {
    let site = TestCluster::new().with_queue(&[]);
    let id = site.submit(&["x"]);
    site.run(&["task", "wait", "q", &id, "--wait-timeout", "0s"])
        .with(1)
        .telling(&["has not ended", "ready"]);
    site.run(&["task", "wait", "q", &id, "--wait-timeout", "300ms"])
        .with(1)
        .telling(&["still ready"]);
    let _worker = site.worker("w", QUICK, "echo result");
    let ran = site.run(&["task", "wait", "q", &id]).with(0);
    assert_eq!(ran.out, "result\n");
    let ran = site.run(&["task", "wait", "q", &id, "--json"]).with(0);
    assert_eq!(state(&ran.json()), "done");
}

#[test]
fn a_pipe_answers_what_was_asked_before_its_input_ended() {
    let site = TestCluster::new().with_queue(&[]);
    let asked =
        b"{\"id\": 1, \"op\": \"stats\"}\n{\"id\": 2, \"op\": \"submit\", \"tasks\": [{}]}\n";
    let ran = site.run_fed(&["queue", "pipe", "q"], asked).with(0);
    let mut answers = ran.json_lines().split_off(1);
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers[0]["ok"]["shards"], 16);
    assert_eq!(answers[1]["ok"][0]["created"], true);
}
