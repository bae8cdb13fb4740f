//! What `tenure store check` wants to know of an etcd cluster.

use super::EtcdStore;
use super::proto::{
    MEMBERS, MemberListRequest, MemberListResponse, STATUS, StatusRequest, StatusResponse,
};
use crate::error::StoreError;
use crate::store_check::Finding;

/// Where a server that was set up without a quota of its own stops taking writes.
const DEFAULT_QUOTA: i64 = 2 << 30;

/// Looks at everything.
pub(super) async fn examine(store: &EtcdStore) -> Result<Vec<Finding>, StoreError> {
    let asked = &store.keys.root;
    let status: StatusResponse = store.client.ask(STATUS, asked, StatusRequest {}).await?;
    let members: Result<MemberListResponse, StoreError> =
        store.client.ask(MEMBERS, asked, MemberListRequest {}).await;
    Ok(vec![
        version(&status.version),
        alarms(&status.errors),
        size(status.db_size, status.db_size_in_use),
        match members {
            Ok(list) => voters(list.members.iter().filter(|m| !m.is_learner).count()),
            Err(reason) => Finding::warn(
                "members",
                format!("unknown: {reason}"),
                "let this user list the members, or run `etcdctl member list`",
            ),
        },
    ])
}

/// Before these, a leader that was deposed went on answering keep-alives for long.
fn version(version: &str) -> Finding {
    let mut parts = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let parts = [(); 3].map(|()| parts.next().unwrap_or(0));
    let found = format!("etcd {version}");
    if parts < [3, 4, 0] {
        return Finding::fail("server version", found, "use etcd 3.4 or later");
    }
    let fixed = match parts {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        _ => true,
    };
    if fixed {
        return Finding::ok("server version", found);
    }
    Finding::warn(
        "server version",
        found,
        "a member that lost leadership may confirm keep-alives for tens of seconds; tenure detects this, but other \
         users of leases do not: use 3.4.31, 3.5.13 or later",
    )
}

fn alarms(errors: &[String]) -> Finding {
    if errors.is_empty() {
        return Finding::ok("alarms", "none");
    }
    Finding::fail(
        "alarms",
        errors.join("; "),
        "out of space: compact and defragment (`etcdctl compact`, `etcdctl defrag`), raise --quota-backend-bytes if \
         need be, then `etcdctl alarm disarm`; all writes fail until then",
    )
}

fn size(all: i64, used: i64) -> Finding {
    let mib = |bytes: i64| bytes / (1 << 20);
    let found = format!("{} MiB on disk, {} MiB in use", mib(all), mib(used));
    if all < DEFAULT_QUOTA / 10 * 8 {
        return Finding::ok("database size", found);
    }
    Finding::warn(
        "database size",
        found,
        "above 80 % of the default quota of 2 GiB: compact and defragment, or raise --quota-backend-bytes; at the quota etcd \
         rejects writes",
    )
}

fn voters(count: usize) -> Finding {
    let found = format!("{count} voting");
    match count {
        0 | 1 => Finding::warn(
            "members",
            found,
            "while the only member is down, no lease can be renewed and all work stops; run three members in production",
        ),
        n if n % 2 == 0 => Finding::warn(
            "members",
            found,
            "an even number of members tolerates no more failures than one member fewer; use three or five",
        ),
        _ => Finding::ok("members", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_check::Level;

    #[test]
    fn versions_whose_deposed_leaders_answer_are_told_apart() {
        let level = |v: &str| version(v).level;
        assert_eq!(level("3.3.27"), Level::Fail);
        assert_eq!(level("3.4.23"), Level::Warn);
        assert_eq!(level("3.4.31"), Level::Ok);
        assert_eq!(level("3.5.12"), Level::Warn);
        assert_eq!(level("3.5.16"), Level::Ok);
        assert_eq!(level("3.6.0"), Level::Ok);
    }

    #[test]
    fn what_stops_writes_is_a_failure_and_what_may_is_a_warning() {
        assert_eq!(alarms(&[]).level, Level::Ok);
        assert_eq!(alarms(&["alarm:NOSPACE".to_owned()]).level, Level::Fail);
        assert_eq!(size(10 << 20, 1 << 20).level, Level::Ok);
        assert_eq!(size(DEFAULT_QUOTA - 1, 1 << 20).level, Level::Warn);
        assert_eq!(voters(1).level, Level::Warn);
        assert_eq!(voters(3).level, Level::Ok);
        assert_eq!(voters(4).level, Level::Warn);
    }
}
