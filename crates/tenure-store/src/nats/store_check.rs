//! What `tenure store check` wants to know of a NATS bucket.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::NatsStore;
use super::call::NatsRequest;
use super::jetstream::{self, AccountInfo, Replica, StreamConfig, Varz, VarzConfig};
use crate::error::StoreError;
use crate::store_check::Finding;

/// How long the monitoring port may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const LARGEST: u64 = 4 << 20;
/// What the server does unless it is told otherwise.
const USUAL_SYNC: Duration = Duration::from_secs(120);

/// Looks at everything.
pub(super) async fn examine(store: &NatsStore) -> Result<Vec<Finding>, StoreError> {
    let link = store.client.link().await?;
    let info = store.stream_info().await?;
    let question = NatsRequest::reads(jetstream::ACCOUNT.to_owned(), &json!({}));
    let account: AccountInfo = store.client.demand(question).await?;
    let version = link.client.server_info().version;
    let replicas = info.cluster.map(|c| c.replicas).unwrap_or_default();
    let sync = match &store.client.cluster.settings.monitor {
        None => None,
        Some(monitor) => Some(varz(monitor).await.map_err(|e| {
            format!(
                "reading the monitoring port {monitor} failed: \
            {e}"
            )
        })),
    };
    Ok(vec![
        Finding::ok("server version", format!("NATS {version}")),
        storage(&info.config),
        copies(info.config.num_replicas, &replicas),
        direct(&info.config),
        fsync(sync, info.config.num_replicas),
        room(&account),
    ])
}

fn storage(config: &StreamConfig) -> Finding {
    if config.storage == "file" {
        return Finding::ok("storage", "on disk");
    }
    Finding::fail(
        "storage",
        format!("in {}", config.storage),
        "a restart of the servers loses all records, including the epochs: create a bucket with file storage",
    )
}

fn copies(count: usize, replicas: &[Replica]) -> Finding {
    let behind: Vec<&str> = replicas
        .iter()
        .filter(|r| !r.current || r.offline)
        .map(|r| &*r.name)
        .collect();
    let found = format!("{count}");
    match count {
        0 | 1 => Finding::warn(
            "copies",
            found,
            "while the server of the only copy is down, no lease can be renewed and all work stops; run three servers and set replicas=3 in \
             production",
        ),
        n if n % 2 == 0 => Finding::warn(
            "copies",
            found,
            "an even number of copies tolerates no more failures than one copy fewer; use three or five",
        ),
        _ if !behind.is_empty() => Finding::warn(
            "copies",
            format!("{count}, not up to date: {}", behind.join(", ")),
            "check these servers; one more failure may stop all work",
        ),
        _ => Finding::ok("copies", found),
    }
}

fn direct(config: &StreamConfig) -> Finding {
    if config.allow_direct {
        Finding::ok(
            "reads",
            "answered by the leader; direct gets are enabled but not used",
        )
    } else {
        Finding::ok("reads", "answered by the leader")
    }
}

/// When a confirmed write is on disk.
fn fsync(told: Option<Result<VarzConfig, String>>, copies: usize) -> Finding {
    let about = "fsync";
    let unknown = |found: String| {
        Finding::warn(
            about,
            found,
            "with the default sync_interval a confirmed write reaches the disk only after two minutes; set `sync_interval: \
             always`, and give monitor=HOST:PORT in the store URL to have it checked",
        )
    };
    let config = match told {
        None => return unknown("unknown: only the monitoring port reports it".to_owned()),
        Some(Err(reason)) => return unknown(format!("unknown: {reason}")),
        Some(Ok(config)) => config,
    };
    if config.sync_always {
        return Finding::ok(about, "before a write is confirmed");
    }
    let every = match config.sync_interval {
        0 => USUAL_SYNC,
        nanos => Duration::from_nanos(nanos),
    };
    let lost = if copies > 1 {
        "a simultaneous power failure of most servers"
    } else {
        "a power failure"
    };
    Finding::warn(
        about,
        format!("every {every:?}"),
        format!(
            "{lost} loses confirmed writes, including epochs; set `sync_interval: always`, or run `tenure keyspace \
             bump-generation --all` after it"
        ),
    )
}

fn room(account: &AccountInfo) -> Finding {
    let mib = |bytes: u64| bytes / (1 << 20);
    let used = format!("{} MiB in use", mib(account.storage));
    let Ok(most) = u64::try_from(account.limits.max_storage) else {
        return Finding::ok("room", format!("{used}, no limit for the account"));
    };
    let found = format!("{used} of {} MiB", mib(most));
    if account.storage < most / 10 * 8 {
        return Finding::ok("room", found);
    }
    Finding::warn(
        "room",
        found,
        "above 80 % of the account's limit: raise it; at the limit all writes fail",
    )
}

/// Asks a monitoring port. It speaks plain HTTP, and one request needs no library.
async fn varz(monitor: &str) -> Result<VarzConfig, String> {
    let asking = async {
        let mut stream = TcpStream::connect(monitor).await?;
        let request = format!("GET /varz HTTP/1.0\r\nHost: {monitor}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LARGEST).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(CALL_TIMEOUT, asking).await;
    let answer = answer
        .map_err(|_| "no answer")?
        .map_err(|e| e.to_string())?;
    let body = answer
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map(|at| &answer[at + 4..])
        .ok_or("no HTTP response")?;
    let varz: Varz = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    varz.jetstream
        .config
        .ok_or_else(|| "this server has no JetStream".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_check::Level;

    #[test]
    fn when_a_write_is_on_disk_is_told_as_far_as_it_is_known() {
        assert_eq!(fsync(None, 1).level, Level::Warn);
        let told = |sync_interval, sync_always| {
            let config = VarzConfig {
                sync_interval,
                sync_always,
            };
            fsync(Some(Ok(config)), 3)
        };
        assert_eq!(told(0, true).level, Level::Ok);
        let usual = told(120_000_000_000, false);
        assert_eq!(usual.level, Level::Warn);
        assert_eq!(usual.found, "every 120s");
        let failed = fsync(Some(Err("h:1: no answer".to_owned())), 1);
        assert!(failed.found.contains("h:1: no answer"));
    }

    #[test]
    fn what_loses_everything_is_a_failure_and_what_may_stop_work_a_warning() {
        let in_memory = StreamConfig {
            storage: "memory".to_owned(),
            ..StreamConfig::default()
        };
        assert_eq!(storage(&in_memory).level, Level::Fail);
        let replica = |current| Replica {
            name: "n2".to_owned(),
            current,
            ..Replica::default()
        };
        assert_eq!(copies(1, &[]).level, Level::Warn);
        assert_eq!(copies(2, &[replica(true)]).level, Level::Warn);
        assert_eq!(copies(3, &[replica(true), replica(true)]).level, Level::Ok);
        let behind = copies(3, &[replica(true), replica(false)]);
        assert!(behind.level == Level::Warn && behind.found.contains("n2"));
        let account = |storage, max_storage| AccountInfo {
            storage,
            limits: jetstream::AccountLimits { max_storage },
        };
        assert_eq!(room(&account(5 << 30, -1)).level, Level::Ok);
        assert_eq!(room(&account(1 << 20, 1 << 30)).level, Level::Ok);
        assert_eq!(room(&account(1 << 30, 1 << 30)).level, Level::Warn);
    }
}
