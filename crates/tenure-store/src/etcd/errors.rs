//! What etcd's answers mean to the caller of a store.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::error::StoreError;

/// Context of a failed call, for its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext<'a> {
    /// The endpoint that was asked.
    pub(super) endpoint: &'a str,
    /// The key or prefix on the server, empty if the call is not about one.
    pub(super) key: &'a str,
    /// Whether the call may have changed something.
    pub(super) writes: bool,
}

/// Whether it was the way to the server that failed, and not the server that answered.
pub(super) fn is_transport(status: &Status) -> bool {
    status.source().is_some() || (status.code() != Code::Ok && !is_etcds(status))
}

fn is_etcds(status: &Status) -> bool {
    status.message().starts_with("etcdserver:") || status.message().starts_with("auth:")
}

/// Whether a new token may help: the server refused the one that it was shown, before it did anything.
pub(super) fn wants_token(status: &Status) -> bool {
    is_etcds(status)
        && [
            "invalid auth token",
            "revision of auth store is old",
            "user name is empty",
        ]
        .iter()
        .any(|said| status.message().contains(said))
}

/// Whether another member may do better.
pub(super) fn blames_member(status: &Status) -> bool {
    let said = status.message();
    is_transport(status)
        || ["no leader", "server stopped", "timed out", "learner"]
            .iter()
            .any(|blame| said.contains(blame))
}

/// The error as the caller of a store sees it.
///
/// Writes that may have been applied are `Unknown`. Refused before anything was applied are only: what fails a check of the
/// request itself, what a member without a leader is asked, and what could not be sent because there was no connection.
pub(super) fn explain(about: CallContext<'_>, status: &Status) -> StoreError {
    let said = status.message();
    let has = |part: &str| said.contains(part);
    let etcd = format!("etcd at {}", about.endpoint);
    let key = about.key;
    if never_sent(status) {
        return StoreError::unavailable(format!("{etcd} cannot be reached: {}", causes(status)));
    }
    if !is_etcds(status) {
        return match status.code() {
            Code::ResourceExhausted if has("larger than max") => too_large(&etcd, key),
            _ => uncertain(about, format!("{etcd}: {}", causes(status))),
        };
    }
    match status.code() {
        Code::PermissionDenied => StoreError::denied(denied(&etcd, about)),
        Code::InvalidArgument if has("request is too large") => too_large(&etcd, key),
        Code::InvalidArgument if has("user name is empty") => StoreError::denied(format!(
            "{etcd} requires a user; put USER:PASSWORD@ into the store URL, or set ETCDCTL_USER and ETCDCTL_PASSWORD"
        )),
        Code::InvalidArgument if has("authentication failed") => StoreError::denied(format!(
            "{etcd} rejects this user and password; check the store URL, or ETCDCTL_USER and ETCDCTL_PASSWORD"
        )),
        Code::NotFound if has("requested lease not found") => StoreError::denied(format!(
            "key {key:?} was not written: its lease does not exist in {etcd}, or has expired"
        )),
        Code::FailedPrecondition if has("lease already exists") => {
            StoreError::denied(format!("{etcd} already has a lease with this id"))
        }
        Code::OutOfRange if has("too large lease TTL") => StoreError::denied(format!(
            "{etcd} grants no lease that long; choose a shorter ttl"
        )),
        // The write that crosses the limit is applied and refused in one.
        Code::ResourceExhausted if has("space exceeded") => uncertain(
            about,
            format!(
                "{etcd} has no space left (NOSPACE alarm); compact and defragment it or raise --quota-backend-bytes, then \
                 `etcdctl alarm disarm`"
            ),
        ),
        Code::ResourceExhausted if has("too many requests") => {
            StoreError::unavailable(format!("{etcd} is overloaded; retry later"))
        }
        // Asked with `hasleader`, which is looked at first.
        Code::Unavailable if has("no leader") => StoreError::unavailable(format!(
            "{etcd} has no leader: too few members of the cluster are up and connected"
        )),
        Code::Unavailable if has("learner") => StoreError::unavailable(format!(
            "{etcd} is a learner; use the endpoint of a voting member"
        )),
        _ => uncertain(about, format!("{etcd}: {said}")),
    }
}

/// Whether it is certain that no byte of the request left: there was no connection, and none could be made.
fn never_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(e) = cause {
        if e.is::<tonic::ConnectError>() {
            return true;
        }
        cause = e.source();
    }
    false
}

fn uncertain(about: CallContext<'_>, reason: String) -> StoreError {
    if about.writes {
        StoreError::unknown(reason)
    } else {
        StoreError::unavailable(reason)
    }
}

fn too_large(etcd: &str, key: &str) -> StoreError {
    StoreError::denied(format!(
        "{etcd} rejects the value of key {key:?}: it is too large; make it smaller, or raise --max-request-bytes"
    ))
}

fn denied(etcd: &str, about: CallContext<'_>) -> String {
    let right = if about.writes { "readwrite" } else { "read" };
    format!(
        "{etcd} denies {right} of {:?}; grant it: etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/",
        about.key
    )
}

/// The message with its causes, each once.
pub(super) fn causes(e: &dyn std::error::Error) -> String {
    let first = e.source();
    let mut told = String::new();
    let mut cause = first;
    while let Some(e) = cause {
        let text = e.to_string();
        if !told.contains(&text) {
            if !told.is_empty() {
                told.push_str(": ");
            }
            told.push_str(&text);
        }
        cause = e.source();
    }
    if told.is_empty() { e.to_string() } else { told }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(writes: bool) -> CallContext<'static> {
        CallContext {
            endpoint: "h:1",
            key: "shop/k",
            writes,
        }
    }

    fn wrote(code: Code, message: &str) -> StoreError {
        explain(about(true), &Status::new(code, message))
    }

    #[test]
    fn a_write_whose_answer_is_in_doubt_is_unknown_and_a_read_is_not() {
        for (code, said) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "connection error"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::Internal, "h2 protocol error"),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
            ),
        ] {
            let e = wrote(code, said);
            assert!(matches!(e, StoreError::Unknown { .. }), "{said}: {e:?}");
            let e = explain(about(false), &Status::new(code, said));
            assert!(matches!(e, StoreError::Unavailable { .. }), "{said}: {e:?}");
        }
    }

    #[test]
    fn a_write_that_was_refused_before_it_was_applied_wrote_nothing() {
        for (code, said) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
        ] {
            let e = wrote(code, said);
            assert!(matches!(e, StoreError::Unavailable { .. }), "{said}: {e:?}");
        }
        for (code, said, way_out) in [
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                "grant-permission",
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                "--max-request-bytes",
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                "ETCDCTL_USER",
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                "lease",
            ),
        ] {
            let e = wrote(code, said);
            assert!(matches!(e, StoreError::Denied { .. }), "{said}: {e:?}");
            assert!(e.to_string().contains(way_out), "{e}");
        }
    }

    #[test]
    fn only_a_refused_token_is_asked_for_anew() {
        let token = Status::unauthenticated("etcdserver: invalid auth token");
        assert!(wants_token(&token));
        let wrong = "etcdserver: authentication failed, invalid user ID or password";
        assert!(!wants_token(&Status::invalid_argument(wrong)));
    }
}
