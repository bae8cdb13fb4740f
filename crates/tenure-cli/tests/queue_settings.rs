//! What a worker is told by file and environment makes a difference: B10, with real processes.

mod queue_support;

use std::fs;
use std::process::Command;

use queue_support::*;
use tenure_queue::keys::QueueKeys;
use tenure_queue::{QueueName, TaskId};

/// A setting: its name in the file and in the environment.
type Setting = (&'static str, &'static str);

const ENABLED: Setting = ("enabled", "TENURE_WORKER_OWNERSHIP");
const SHARDS: Setting = (
    "shards_per_worker",
    "TENURE_WORKER_OWNERSHIP_SHARDS_PER_WORKER",
);
const TTL: Setting = ("ttl_secs", "TENURE_WORKER_OWNERSHIP_TTL_SECS");
const RENEW: Setting = ("renew_interval_secs", "TENURE_WORKER_OWNERSHIP_RENEW_SECS");

const SOURCES: [&str; 2] = ["file", "env"];

/// The command of a worker that is told these settings by one source, up to `--`.
fn told(site: &TestCluster, name: &str, source: &str, settings: &[(Setting, &str)]) -> Command {
    let mut command = site.worker_command(name, &[]);
    if source == "file" {
        let lines = settings
            .iter()
            .map(|((key, ..), v)| format!("{key} = {v}\n"));
        let text = format!("[worker.ownership]\n{}", lines.collect::<String>());
        let path = site.path(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        command.arg("--config").arg(path);
    } else {
        command.envs(settings.iter().map(|((_, env), value)| (env, value)));
    }
    command
}

/// Starts it, and waits until it has begun.
fn started(site: &TestCluster, name: &str, source: &str, settings: &[(Setting, &str)]) -> Process {
    let mut command = told(site, name, source, settings);
    let worker = Process::spawn(command.args(["--", "cat"]));
    until(&format!("worker {name} has begun"), || {
        site.said(name).contains("started on queue")
    });
    worker
}

#[test]
fn every_setting_of_leasing_is_refused_where_it_is_wrong_whoever_says_it() {
    let site = TestCluster::new().with_queue(&[]);
    for source in SOURCES {
        for (setting, value, wanted) in [
            (ENABLED, "7", "7"),
            (SHARDS, "0", "shards_per_worker is 0"),
            (TTL, "0.01", "ttl_secs"),
            (RENEW, "3600", "renew_interval_secs"),
        ] {
            let name = format!("{source}-{}", setting.0);
            let mut command = told(&site, &name, source, &[(setting, value)]);
            let ran = ran(command.args(["--", "cat"]));
            let said = site.said(&name);
            assert_eq!(ran.code, 2, "{said}");
            assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}");
        }
    }
    let odd = site.path("odd.toml");
    fs::write(&odd, "[worker.ownership]\nenable = true\n").unwrap();
    let path = odd.display().to_string();
    site.run(&["--config", &path, "queue", "list"])
        .with(2)
        .telling(&["worker.ownership.enable", "did you mean \"enabled\"?"]);
}

#[test]
fn a_worker_owns_shards_unless_leasing_is_switched_off_whoever_says_it() {
    let site = TestCluster::new().with_queue(&[]);
    let mut workers = Vec::new();
    for source in SOURCES {
        workers.push(started(&site, source, source, &[(ENABLED, "false")]));
    }
    // They work, and nobody owns anything.
    let id = site.submit(&["x"]);
    assert_eq!(state(&site.ended(&id)), "done");
    for source in SOURCES {
        assert!(sessions(&site, source).is_empty(), "{source}");
    }
    for source in SOURCES {
        let name = format!("on-{source}");
        workers.push(started(
            &site,
            &name,
            source,
            &[(ENABLED, "true"), (TTL, "40")],
        ));
        assert_eq!(sessions(&site, &name).len(), 1, "{source}");
    }
    until("those who lease own everything", || {
        let owners = site.owners();
        owners.len() == 16 && owners.iter().flatten().all(|o| o.starts_with("on-"))
    });
}

#[test]
fn a_lease_is_as_long_and_renewed_as_often_as_said_whoever_says_it() {
    let site = TestCluster::new().with_queue(&[]);
    let slow = started(&site, "slow", "env", &[(TTL, "40")]);
    let renewals = |name: &str| sessions(&site, name)[0]["renewals"].as_u64().unwrap();
    for (source, ttl) in SOURCES.into_iter().zip(["41", "42.5"]) {
        let said = [(TTL, ttl), (RENEW, "0.1")];
        let quick = started(&site, source, source, &said);
        let ms = ttl.parse::<f64>().unwrap() * 1000.0;
        assert_eq!(sessions(&site, source)[0]["ttl_ms"], ms as u64, "{source}");
        // Who was told nothing renews every sixth of its ttl, which is 6.7 s.
        let before = [renewals(source), renewals("slow")];
        until("one is renewed twenty times", || {
            renewals(source) >= before[0] + 20
        });
        let slowly = renewals("slow") - before[1];
        assert!(slowly < 20, "{source}: the other one {slowly} times");
        drop(quick);
    }
    drop(slow);
}

/// How many shards a worker has looked into when it claims for the first time.
///
/// Each of 16 shards has one urgent task and many that are not, more than one look shows. So whoever looks into some of them
/// before it claims 16 tasks gets the urgent ones of those, and what is not urgent for the rest.
fn looks_into(source: &str, settings: &[(Setting, &str)]) -> usize {
    let site = TestCluster::new().with_queue(&[]);
    let layout = QueueKeys::new(CLUSTER, &QueueName::new("q").unwrap(), 16);
    let shard_of = |key: &str| layout.shard_of(&TaskId::of_key(key).unwrap());
    let urgent_in = |shard: u32| {
        let mut keys = (0..).map(|n| format!("urgent-{n}"));
        keys.find(|key| shard_of(key) == shard).unwrap()
    };
    let mut lines = String::new();
    for shard in 0..16 {
        let key = urgent_in(shard);
        lines += &format!("{{\"key\": \"{key}\", \"priority\": 9}}\n");
    }
    for n in 0..1200 {
        lines += &format!("{{\"key\": \"usual-{n}\", \"priority\": 1}}\n");
    }
    // While it is paused nothing is looked at: the first round comes when the worker owns all shards.
    site.queue(&["pause", "q"]).with(0);
    site.run_fed(&["task", "submit", "q", "--batch", "-"], lines.as_bytes())
        .with(0);
    let mut command = told(&site, "w", source, &[&[(TTL, "40")], settings].concat());
    let _w = Process::spawn(command.args(["--concurrency", "16", "--", "sleep", "600"]));
    until("it has all shards", || site.shares(&["w"]) == [16]);
    site.queue(&["resume", "q"]).with(0);
    let mut running = Vec::new();
    until("it has claimed what it can", || {
        let ran = site.run(&["task", "list", "q", "--state", "running", "--json"]);
        running = ran.with(0).json_lines();
        running.len() == 16
    });
    let ids = running.iter().map(|task| task["id"].as_str().unwrap());
    ids.filter(|id| id.starts_with("k-urgent-")).count()
}

#[test]
fn a_worker_looks_into_sixteen_shards_in_one_round() {
    assert_eq!(looks_into("env", &[]), 16);
}

#[test]
fn a_worker_looks_into_as_many_shards_in_one_round_as_a_file_says() {
    assert_eq!(looks_into("file", &[(SHARDS, "2")]), 2);
}

#[test]
fn a_worker_looks_into_as_many_shards_in_one_round_as_the_environment_says() {
    assert_eq!(looks_into("env", &[(SHARDS, "5")]), 5);
}
