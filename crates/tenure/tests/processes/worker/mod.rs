//! What a worker process does: the side of the tests that is killed and paused.

mod accounts;
mod effects;
mod gateway;
mod journal;
mod ledger;
mod naive;
mod node;
mod record;

pub(crate) use effects::Effects;
pub(crate) use journal::{Journal, Written};
pub(crate) use ledger::Reply;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tenure::{PlanningSettings, RejoinMode};

/// The environment variable that makes a worker of this binary.
pub(crate) const ROLE: &str = "TENURE_TEST_ROLE";

/// The exit code of a worker whose role cannot be read.
pub(crate) const BAD_ROLE: i32 = 64;

/// The exit code of a worker whose node was not started.
pub(crate) const NOT_STARTED: i32 = 3;

/// The exit code of a worker whose node did not stop in good order.
pub(crate) const NOT_STOPPED: i32 = 4;

/// The cluster of every test.
pub(crate) const CLUSTER: &str = "shop";

/// The keyspace of every test.
pub(crate) const KEYSPACE: &str = "orders";

/// How long between two signs of life of one shard.
const BEAT: Duration = Duration::from_millis(5);

/// Opens a database that other processes open at the same time. SQLite does not apply its busy timeout while a database
/// changes its journal mode, so the whole attempt is repeated.
fn until_unlocked<T>(open: impl Fn() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match open() {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) role: Role,
    pub(crate) node: String,
    /// Where the logs and the effects are.
    pub(crate) site: PathBuf,
    /// The URL of the store.
    pub(crate) store: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) shards: u32,
    pub(crate) ttl: Duration,
    /// Whether it also changes a resource that checks epochs.
    pub(crate) effects: bool,
    /// How its keyspace is planned, should it have to create it.
    pub(crate) plan: PlanningSettings,
    pub(crate) own: Own,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Own {
    pub(crate) weight: Option<u32>,
    pub(crate) zone: Option<String>,
    pub(crate) capacity: Option<u32>,
    /// It plans for the others and owns nothing.
    pub(crate) leads_only: bool,
    /// How long it loads a shard that another node serves, and how long it takes to seal one.
    pub(crate) load_time: Duration,
    pub(crate) seal_time: Duration,
    #[serde(default)]
    pub(crate) rejoin: Option<RejoinMode>,
    /// Its first start only joins.
    #[serde(default)]
    pub(crate) join: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// A `tenure::Node`.
    Node,
    /// One that keeps a journal for those who send it writes.
    Ledger,
    /// A node whose keyspace consists of entities.
    Accounts,
    /// A `tenure::Router`.
    Gateway,
    /// A lease as it is often written: a row with a time, and an owner that trusts what it was last told.
    Naive,
}

/// The role that this process was started for, if it was started for one.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Does what the role says. The process ends with it.
pub(crate) fn become_worker(role: &str) -> ! {
    // A test that is itself killed must leave nobody behind.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let code = match serde_json::from_str::<Work>(role) {
        Ok(work) => match work.role {
            Role::Node => node::serve(work),
            Role::Ledger if work.own.leads_only => node::serve(work),
            Role::Ledger => ledger::serve(work),
            Role::Accounts => accounts::serve(work),
            Role::Gateway => gateway::serve(work),
            Role::Naive => naive::serve(&work),
        },
        Err(error) => {
            eprintln!("a worker cannot read its role: {error}");
            BAD_ROLE
        }
    };
    std::process::exit(code)
}

/// Nanoseconds of the machine's boot-time clock, read without any code under test.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
