//! `tenure queue` on SQLite: what people type, what programs see, and what becomes of both.

mod queue_support;

use std::fs;
use std::time::{Duration, Instant};

use queue_support::*;
use rustix::process::Signal;
use tenure_store::servers::s3::{Kind, OPERATOR, S3};

/// A short lease, but longer than a disk that is busy elsewhere may take.
const QUICK: &[&str] = &["--shard-leasing-ttl-secs", "4"];

#[test]
fn payloads_come_from_arguments_files_and_standard_input_and_results_go_to_standard_output() {
    let site = Site::new().with_queue(&[]);
    let _worker = site.worker("w", QUICK, "printf 'got '; cat");
    let wait = ["--wait", "60s"];
    let ran = site.queue(&[&["submit", "q", "hello"], &wait[..]].concat());
    assert_eq!(ran.with(0).out, "got hello\n");
    fs::write(site.path("payload"), "from a file").unwrap();
    let path = site.path("payload").display().to_string();
    let ran = site.queue(&[&["submit", "q", "--file", &path], &wait[..]].concat());
    assert_eq!(ran.with(0).out, "got from a file\n");
    let ran = site.queue_fed(
        &[&["submit", "q", "--file", "-"], &wait[..]].concat(),
        b"piped",
    );
    assert_eq!(ran.with(0).out, "got piped\n");
    let json = ["submit", "q", "{\"a\": 1}", "--as-json"];
    let ran = site.queue(&[&json[..], &wait].concat());
    assert_eq!(ran.with(0).out, "got {\"a\":1}\n");
    let ran = site.queue(&[&["submit", "q", "--ref", "s3://b/k"], &wait[..]].concat());
    assert_eq!(ran.with(0).out, "got s3://b/k\n");
    site.queue(&["submit", "q", "{", "--as-json"])
        .with(2)
        .telling(&["no JSON"]);
    site.queue(&["submit", "q"]).with(2).telling(&["--from"]);
}

#[test]
fn many_lines_are_submitted_and_every_bad_one_is_named() {
    let site = Site::new().with_queue(&[]);
    let lines =
        b"{\"payload\": 1, \"key\": \"a\"}\n\n{\"priority\": 12}\nnonsense\n{\"text\": \"b\"}\n";
    let ran = site
        .queue_fed(&["submit", "q", "--from", "-"], lines)
        .with(1)
        .telling(&[
            "line 3: the priority is 12",
            "line 4: ",
            "2 tasks are not submitted",
        ]);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    assert!(ran.out.starts_with("k-a\n"), "{}", ran.out);
    let again = b"{\"payload\": 2, \"key\": \"a\"}\n";
    let ran = site
        .queue_fed(&["submit", "q", "--from", "-", "--json"], again)
        .with(0)
        .telling(&["carries something else"]);
    let told = &ran.json_lines()[0];
    assert_eq!(
        (&told["created"], &told["differs"]),
        (&false.into(), &true.into())
    );
}

#[test]
fn the_exit_code_of_a_program_decides() {
    let site = Site::new().with_queue(&["--attempts", "2"]);
    let options = [QUICK, &["--later", "100ms"]].concat();
    // The payload is the exit code; 75 only the first time.
    let script = r#"read code; echo "was $code" >&2
        if [ "$code" = 75 ]; then [ -e "$MARK" ] && exit 0; touch "$MARK"; exit 75; fi
        if [ "$code" = kill ]; then kill -9 $$; fi
        exit "$code""#;
    let mut command = site.worker_command("w", &options);
    command.env("MARK", site.path("mark"));
    let _worker = Process::spawn(command.args(["--exec", "sh", "-c", script]));
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
    let why = failed["state"]["why"].as_str().unwrap();
    assert!(why.contains("code 3") && why.contains("was 3"), "{why}");
    let killed = submit("kill");
    assert_eq!((state(&killed), &killed["attempts"]), ("dead", &2.into()));
    let why = killed["state"]["why"].as_str().unwrap();
    assert!(why.contains("signal 9"), "{why}");
    assert!(site.said("w").contains("was kill"));
    site.queue(&["submit", "q", "65", "--wait", "60s"])
        .with(1)
        .telling(&["dead letter", "code 65"]);
    // A dead letter is tried again from the beginning, alone or with all others.
    let id = failed["id"].as_str().unwrap();
    site.queue(&["retry", "q", id]).with(0);
    assert!(events(&site.ended(id)).contains(&"retried"));
    site.queue(&["retry", "q", "--dead"]).with(0);
    site.queue(&["retry", "q", later["id"].as_str().unwrap()])
        .with(1)
        .telling(&["the task is done"]);
}

#[test]
fn a_program_finds_its_task_in_the_environment_and_its_result_has_a_limit() {
    let site = Site::new().with_queue(&["--result-max", "400"]);
    let script =
        r#"case "$(cat)" in big) head -c 100000 /dev/zero;; *) env | grep ^TENURE_ | sort;; esac"#;
    let _worker = site.worker("w", QUICK, script);
    let id = site.submit(&["x", "--key", "a", "--timeout", "1m", "--meta", "user=42"]);
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
    let why = big["state"]["why"].as_str().unwrap();
    assert!(why.contains("100000 bytes"), "{why}");
}

#[test]
fn tasks_can_be_listed_shown_cancelled_paused_and_purged() {
    let site = Site::new().with_queue(&[]);
    let (a, b) = (
        site.submit(&["a", "--key", "a", "--meta", "user=1", "--priority", "9"]),
        site.submit(&["b", "--key", "b", "--delay", "1h"]),
    );
    let names = site.queue(&["ls"]).with(0).out;
    assert_eq!(names, "q\n");
    let table = site.queue(&["ls", "q"]).with(0).out;
    assert!(table.contains("k-a") && table.contains("in 59m"), "{table}");
    let found = site
        .queue(&["ls", "q", "--meta", "user=1", "--json"])
        .with(0);
    assert_eq!(found.json_lines().len(), 1, "{}", found.out);
    let ready = site.queue(&["ls", "q", "--state", "ready", "--limit", "1", "--json"]);
    let ready = ready.with(0).telling(&["--all"]);
    assert_eq!(ready.json_lines().len(), 1);
    site.queue(&["ls", "q", "--state", "odd"])
        .with(2)
        .telling(&["known are ready, running"]);
    let stats = site.stats();
    assert_eq!((&stats["ready"], &stats["delayed"]), (&1.into(), &1.into()));
    let shown = site.queue(&["show", "q", &a]).with(0).out;
    for part in ["k-a", "ready, due", "user=1", "submitted"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    site.queue(&["cancel", "q", &b, "k-none"])
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
    let ran = site.queue(&["show", "q", &a, "--result"]).with(0);
    assert_eq!(ran.out, "done\n");
    site.queue(&["purge", "q"]).with(0).telling(&["0 tasks"]);
    let purged = site
        .queue(&["purge", "q", "--done", "0s", "--json"])
        .with(0);
    assert_eq!(purged.json()["removed"], 2);
    site.queue(&["show", "q", &a]).with(1).telling(&["purged"]);
}

#[test]
fn what_happens_can_be_followed() {
    let site = Site::new().with_queue(&[]);
    let tail = fs::File::create(site.path("tail")).unwrap();
    let err = fs::File::create(site.path("tail.err")).unwrap();
    let mut command = site.command(&["queue", "tail", "q", "--json"]);
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
    let site = Site::new().with_queue(&[]);
    let _worker = site.worker("w", QUICK, "cat");
    site.queue(&["schedule", "set", "q", "s", "61 * * * *", "x"])
        .with(2)
        .telling(&["61"]);
    site.queue(&[
        "schedule",
        "set",
        "q",
        "s",
        "* * * * *",
        "--zone",
        "Moon/Crater",
    ])
    .with(2)
    .telling(&["Moon/Crater"]);
    site.queue(&["schedule", "set", "q", "s", "* * * * *", "tick"])
        .with(0)
        .telling(&["next "]);
    let listed = site.queue(&["schedule", "ls", "q"]).with(0).out;
    assert!(listed.contains("* * * * *"), "{listed}");
    until("a tick is submitted and done", || {
        let ran = site.queue(&["ls", "q", "--meta", "schedule=s", "--json"]);
        ran.json_lines().iter().any(|task| state(task) == "done")
    });
    site.queue(&["schedule", "rm", "q", "s"]).with(0);
    site.queue(&["schedule", "rm", "q", "s"])
        .with(1)
        .telling(&["no schedule"]);
}

#[test]
fn cancellation_and_timeouts_reach_the_program_also_if_it_does_not_listen() {
    let site = Site::new().with_queue(&["--lease", "4s", "--attempts", "1"]);
    let script = r#"case "$(cat)" in
        polite) trap 'echo "told $TENURE_TASK_ID" >> "$MARKS"; exit 1' TERM; echo "begun $TENURE_TASK_ID" >> "$MARKS"; sleep 600 & wait;;
        deaf) trap '' TERM; echo "begun $$" >> "$MARKS"; while :; do sleep 600; done;;
    esac"#;
    let mut command = site.worker_command("w", QUICK);
    command.env("MARKS", site.path("marks"));
    let _worker = Process::spawn(command.args(["--exec", "sh", "-c", script]));
    let begun = |n: usize| {
        until("the program has begun", || site.marks("marks").len() >= n);
    };
    let polite = site.submit(&["polite", "--key", "p"]);
    begun(1);
    site.queue(&["cancel", "q", &polite])
        .with(0)
        .telling(&["told to stop"]);
    assert_eq!(state(&site.ended(&polite)), "cancelled");
    assert!(site.marks("marks").contains(&"told k-p".to_owned()));
    let deaf = site.submit(&["deaf", "--timeout", "500ms"]);
    let task = site.ended(&deaf);
    let why = task["state"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("longer than"), "{task:#}");
    let marks = site.marks("marks");
    let pid = marks.last().unwrap().strip_prefix("begun ").unwrap();
    let pid = pid.parse().unwrap();
    until("the deaf program is dead", || !is_alive(pid));
}

#[test]
fn a_worker_that_is_asked_to_stop_finishes_what_runs_and_one_that_is_asked_twice_gives_it_back() {
    let site = Site::new().with_queue(&["--lease", "30s"]);
    let script = r#"echo "$$ $TENURE_TASK_ID" >> "$MARKS"; sleep "$(cat)"; echo slept"#;
    let start = |name: &str, marks: &str| {
        let mut command = site.worker_command(name, QUICK);
        command.env("MARKS", site.path(marks));
        Process::spawn(command.args(["--exec", "sh", "-c", script]))
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
    let site = Site::new().with_queue(&["--lease", "2s"]);
    let script = r#"setsid sleep 600 & echo $! >> "$MARKS"; echo $$ >> "$MARKS"; sleep 600"#;
    let mut command = site.worker_command("w", QUICK);
    command.env("MARKS", site.path("marks"));
    let mut worker = Process::spawn(command.args(["--exec", "sh", "-c", script]));
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
    let site = Site::new().with_queue(&["--payload-max", "10"]);
    site.queue(&["submit", "nope", "x"])
        .with(1)
        .telling(&["no queue \"nope\"", "tenure queue create nope"]);
    site.queue(&["work", "nope", "--exec", "true"])
        .with(1)
        .telling(&["no queue \"nope\""]);
    site.queue(&["submit", "q", "more than ten"])
        .with(2)
        .telling(&["13 bytes", "up to 10", "reference"]);
    site.queue(&["submit", "q", "x", "--priority", "12", "--attempts", "0"])
        .with(2)
        .telling(&["priority is 12", "attempts is 0"]);
    site.queue(&["create", "q", "--shards", "7"])
        .with(1)
        .telling(&["16 shards, not 7"]);
    site.queue(&["create", "r", "--shards", "0", "--lease", "1ms"])
        .with(2)
        .telling(&["shards is 0", "the lease is 1ms"]);
    site.queue(&["create", ""]).with(2).telling(&["is empty"]);
    site.queue(&["work", "q", "--exec", "no-such-program"])
        .with(2)
        .telling(&["not found in PATH"]);
    site.queue(&["work", "q", "--concurrency", "0", "--exec", "true"])
        .with(2)
        .telling(&["concurrency is 0"]);
    site.queue(&["show", "q", "k-none"])
        .with(1)
        .telling(&["no task"]);
    site.queue(&["set", "q", "--attempts", "0"])
        .with(2)
        .telling(&["attempts is 0"]);
    let set = site
        .queue(&["set", "q", "--attempts", "7", "--json"])
        .with(0);
    assert_eq!(set.json()["settings"]["retry"]["attempts"], 7);
}

#[test]
fn a_bucket_without_conditional_writes_is_refused_before_anything_is_in_it() {
    let s3 = S3::start_with(Kind::Rclone, &[OPERATOR]);
    let site = Site::on(&s3.url("queue"));
    site.queue(&["create", "q"])
        .with(2)
        .telling(&["If-None-Match", "docs/stores/s3.md"]);
    for args in [&["submit", "q", "x"][..], &["work", "q", "--exec", "cat"]] {
        let ran = site.queue(args);
        assert_ne!(ran.code, 0, "{ran:?}");
    }
}

#[test]
fn a_corrupt_task_or_entry_is_named_and_blocks_nothing() {
    let site = Site::new().with_queue(&["--shards", "1"]);
    let bad = site.submit(&["bad", "--key", "bad"]);
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
    let layout = tenure_queue::keys::Layout::new(CLUSTER, &name, 1);
    let key = layout.task(&tenure_queue::TaskId::new(&bad).unwrap());
    lay(&key, "{ no task");
    lay(
        &format!(
            "{}rubbish",
            layout.index(tenure_queue::keys::Index::Ready, 0)
        ),
        "",
    );
    let _worker = site.worker("w", QUICK, "cat");
    let good: Vec<String> = (0..5).map(|n| site.submit(&[&n.to_string()])).collect();
    for id in &good {
        assert_eq!(state(&site.ended(id)), "done");
    }
    site.queue(&["show", "q", &bad])
        .with(1)
        .telling(&[&key, "corrupt"]);
    site.queue(&["ls", "q"]).with(1).telling(&[&key]);
    let rebuilt = site.queue(&["rebuild-index", "q", "--json"]);
    let rebuilt = rebuilt.with(1).telling(&[&key, "corrupt"]);
    assert_eq!(rebuilt.json()["corrupt"][0][0], key);
    assert_eq!(site.stats()["odd"], 0);
}
