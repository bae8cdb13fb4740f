//! Puts events, actions and records into words, one line each.

use tenure_core::keys::Key;
use tenure_core::machine::{Action, Event, Expect, Found, Reply, Request};
use tenure_core::record::{Ownership, Record, ShardRecord};
use tenure_core::telemetry::NodeEvent;

/// The last four digits of a session: enough to tell the sessions of one run apart.
pub(crate) fn short(session: tenure_core::ids::SessionId) -> String {
    format!("{:08x}", (session.0 >> 96) as u32) + &format!("+{}", session.0 & 0xffff)
}

pub(crate) fn event(event: &Event) -> String {
    match event {
        Event::Reply { op, reply } => format!("<- {} {}", op.0, self::reply(reply)),
        Event::Changed { changes, upto } => {
            let told: Vec<String> = changes
                .iter()
                .map(|(key, found)| stored(key, found.as_ref()))
                .collect();
            format!("<- watch upto {}: {}", upto.0, told.join("; "))
        }
        other => format!("<- {other:?}"),
    }
}

fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Listed(listed) => format!(
            "listed {} keys at {}",
            listed.entries.len(),
            listed.revision.0
        ),
        Reply::Got(Some(found)) => format!("got {}", value(found)),
        Reply::Got(None) => "got nothing".to_owned(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn action(action: &Action) -> String {
    match action {
        Action::Store { op, request, .. } => format!("-> {} {}", op.0, self::request(request)),
        Action::Lease {
            session,
            stop_time,
            deadline,
        } => {
            format!(
                "-> lease of {} stops at {stop_time}, deadline {deadline}",
                short(*session)
            )
        }
        Action::Load {
            activation,
            shard,
            epoch,
            session,
            ..
        } => {
            format!(
                "-> load {shard} epoch {epoch} activation {} session {}",
                activation.0,
                short(*session)
            )
        }
        Action::Remember(session) => format!("-> remember {}", short(*session)),
        Action::Seen {
            shard,
            owner,
            epoch,
            serving,
            ..
        } => {
            let owner = owner.as_ref().map_or("nobody".to_owned(), |o| {
                format!("{} ({})", o.node, short(o.session))
            });
            format!("-> seen {shard} epoch {epoch} owner {owner} serving {serving}")
        }
        other => format!("-> {other:?}"),
    }
}

fn request(request: &Request) -> String {
    match request {
        Request::Put {
            key,
            expect,
            record,
        } => {
            let expect = match expect {
                Expect::Absent => "absent".to_owned(),
                Expect::Version(version) => format!("{version:?}"),
            };
            format!(
                "put {} if {expect}: {}",
                key_words(key),
                record_words(record)
            )
        }
        Request::Get(key) => format!("get {}", key_words(key)),
        other => format!("{other:?}"),
    }
}

pub(crate) fn stored(key: &Key, found: Option<&Found>) -> String {
    match found {
        Some(found) => format!("{} = {}", key_words(key), value(found)),
        None => format!("{} deleted", key_words(key)),
    }
}

fn key_words(key: &Key) -> String {
    match key {
        Key::Session(id) => format!("sessions/{}", short(*id)),
        other => other.to_string(),
    }
}

fn value(found: &Found) -> String {
    match &found.record {
        Ok(record) => format!("{:?} {}", found.version, record_words(record)),
        Err(damage) => format!("{:?} {damage}", found.version),
    }
}

fn record_words(record: &Record) -> String {
    match record {
        Record::Shard(shard) => shard_words(shard),
        Record::Session(s) => {
            let ended = s.ended.map_or(String::new(), |e| {
                format!(" ended ({}, by {})", e.reason, short(e.by))
            });
            format!(
                "rev {} {} renewals {}{ended}",
                s.head.rev, s.node, s.renewals
            )
        }
        Record::Node(n) => format!("rev {} session {} {}", n.head.rev, short(n.session), n.mode),
        Record::Keyspace(k) => format!(
            "rev {} {} {} generation {}",
            k.head.rev, k.kind, k.assigned_by, k.generation
        ),
        Record::Cluster(c) => format!("rev {} boot {}", c.head.rev, c.boot),
        Record::Leader(l) => format!(
            "rev {} term {} session {}",
            l.head.rev,
            l.term,
            short(l.session)
        ),
        Record::Placeholder(head) => format!("rev {} placeholder", head.rev),
    }
}

fn shard_words(shard: &ShardRecord) -> String {
    let who = match (&shard.ownership, shard.owner()) {
        (
            Ownership::Free {
                awaiting_disclaimers,
            },
            _,
        ) if !awaiting_disclaimers.is_empty() => {
            let all: Vec<String> = awaiting_disclaimers.iter().map(|w| short(*w)).collect();
            format!(" awaiting disclaimers of {}", all.join(","))
        }
        (_, Some(owner)) => format!(" {} ({})", owner.node, short(owner.session)),
        _ => String::new(),
    };
    let quarantine = if shard.quarantine.is_some() {
        " quarantined"
    } else {
        ""
    };
    let failures = if shard.failures.is_empty() {
        String::new()
    } else {
        format!(" failures {}", shard.failures.len())
    };
    format!(
        "rev {} epoch {} {}{who}{failures}{quarantine}",
        shard.head.rev,
        shard.epoch,
        shard.ownership.name()
    )
}

pub(crate) fn note(note: &NodeEvent) -> String {
    match note {
        NodeEvent::Shard(t) => format!("{} {} epoch {} ({})", t.step, t.shard, t.epoch, t.reason),
        NodeEvent::Lease { from, to } => format!("lease {} -> {}", from.as_str(), to.as_str()),
        NodeEvent::Registered { session, mode } => {
            format!("registered as {} {mode}", short(*session))
        }
        NodeEvent::Renewed { took, left } => format!("renewed in {took:?}, {left:?} left"),
        NodeEvent::SessionEnded {
            session,
            node,
            reason,
        } => {
            format!("ended session {} of {node}: {reason}", short(*session))
        }
        NodeEvent::SessionLost { session, reason } => {
            format!("lost session {}: {reason}", short(*session))
        }
        NodeEvent::WaitingForName { session, at_most } => {
            format!("waits for {} at most {at_most:?}", short(*session))
        }
        other => format!("{other:?}"),
    }
}
