//! The report as text: the summary first, then only what is out of the ordinary, in 80 columns.

use std::fmt::Write as _;

use super::report::{KeyspaceSummary, LeaderSummary, NodeSummary, ShardSummary, StatusReport};
use crate::config::duration;
use crate::table::{Table, WIDTH, cut, wrap};

/// How many lines of a kind are shown before "and so many more".
const MOST: usize = 20;

/// The whole report; every shard is listed if `all_shards`, else those that are not simply served.
pub(crate) fn render(report: &StatusReport, all_shards: bool) -> String {
    let mut text = summary(report);
    if !report.nodes.is_empty() {
        text.push('\n');
        text.push_str(&nodes(&report.nodes));
    }
    if !report.keyspaces.is_empty() {
        text.push('\n');
        text.push_str(&keyspaces(&report.keyspaces));
    }
    let listed = if all_shards {
        every(&report.shards)
    } else {
        exceptions(&report.shards)
    };
    if !listed.is_empty() {
        text.push('\n');
        text.push_str(&listed);
    }
    let pinned = pins(&report.shards);
    if !pinned.is_empty() {
        text.push('\n');
        text.push_str(&pinned);
    }
    if !report.problems.is_empty() {
        text.push('\n');
        text.push_str(&problems(report));
    }
    text
}

fn summary(report: &StatusReport) -> String {
    let sum =
        |which: fn(&KeyspaceSummary) -> usize| report.keyspaces.iter().map(which).sum::<usize>();
    let gone = report.nodes.iter().filter(|n| n.mode == "gone").count();
    let mut text = String::new();
    let head = format!("cluster {} in {}", report.cluster, report.store);
    let _ = writeln!(text, "{}", cut(&head, WIDTH));
    let counts = format!(
        "{}{}, {}, {}: {} owned, {} unowned, {} loading, {} moving; {}",
        count(report.nodes.len() - gone, "node"),
        if gone > 0 {
            format!(" ({gone} gone)")
        } else {
            String::new()
        },
        count(report.keyspaces.len(), "keyspace"),
        count(sum(|k| k.shards), "shard"),
        sum(|k| k.owned),
        sum(|k| k.unowned),
        sum(|k| k.loading),
        sum(|k| k.moving),
        count(report.problems.len(), "problem"),
    );
    text.push_str(&wrap(&counts, ""));
    if let Some(pause) = &report.moves_paused {
        let lasts = match pause.lasts {
            Some(lasts) => format!(" (for {})", duration::show(lasts)),
            None => String::new(),
        };
        text.push_str(&wrap(&format!("moves paused{lasts}: {}", pause.reason), ""));
    }
    if let Some(LeaderSummary {
        node,
        term,
        state,
        plan,
        ..
    }) = &report.leader
    {
        let told = format!("leader {node}, term {term}, plan {plan}: {state}");
        let _ = writeln!(text, "{}", cut(&told, WIDTH));
    }
    text
}

fn count(n: usize, what: &str) -> String {
    let many = if n == 1 { "" } else { "s" };
    format!("{n} {what}{many}")
}

/// Table of nodes.
pub(crate) fn nodes(nodes: &[NodeSummary]) -> String {
    let mut table = Table::new(&[
        "NODE",
        "MODE",
        "LEASE",
        "ZONE",
        "#WEIGHT",
        "#SHARDS",
        "ADDRESSES",
    ]);
    let mut gone = 0;
    for node in nodes {
        gone += usize::from(node.mode == "gone");
        if gone > MOST {
            continue;
        }
        let addresses: Vec<String> = node
            .addresses
            .iter()
            .map(|(kind, at)| format!("{kind}={at}"))
            .collect();
        table.row(vec![
            node.name.to_string(),
            match &node.reason {
                Some(reason) => format!("{}({reason})", node.mode),
                None => node.mode.to_owned(),
            },
            node.lease.clone(),
            node.zone.clone().unwrap_or_else(|| "-".to_owned()),
            node.weight
                .map_or_else(|| "-".to_owned(), |w| w.to_string()),
            node.shards.to_string(),
            addresses.join(" "),
        ]);
    }
    let mut text = table.render(WIDTH);
    more(&mut text, gone, "departed nodes");
    text
}

fn keyspaces(keyspaces: &[KeyspaceSummary]) -> String {
    let mut table = Table::new(&[
        "KEYSPACE",
        "KIND",
        "ASSIGNED BY",
        "#SHARDS",
        "#OWNED",
        "#UNOWNED",
        "#LOADING",
        "#MOVING",
    ]);
    for keyspace in keyspaces {
        table.row(vec![
            keyspace.name.to_string(),
            if keyspace.deleted {
                "deleted"
            } else {
                keyspace.kind
            }
            .to_owned(),
            keyspace.assigned_by.clone(),
            keyspace.shards.to_string(),
            keyspace.owned.to_string(),
            keyspace.unowned.to_string(),
            keyspace.loading.to_string(),
            keyspace.moving.to_string(),
        ]);
    }
    table.render(WIDTH)
}

fn shard_table() -> Table {
    Table::new(&[
        "SHARD",
        "STATE",
        "#FOR",
        "OWNER",
        "EPOCH",
        "TARGET",
        "WAITS FOR",
    ])
}

/// An age in the largest unit that it fills.
fn age(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms}ms"),
        s @ 1..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}min", s / 60),
        s => format!("{}h", s / 3600),
    }
}

/// State of a shard: `troubled` if it is served and its application reports a problem.
pub(crate) fn state(shard: &ShardSummary) -> &'static str {
    match shard.trouble {
        Some(_) if shard.state == "serving" => "troubled",
        _ => shard.state,
    }
}

fn shard_row(name: String, shard: &ShardSummary, epoch: String) -> Vec<String> {
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        name,
        state(shard).to_owned(),
        dash(shard.phase_age_ms.map(age)),
        dash(shard.owner.as_ref().map(ToString::to_string)),
        epoch,
        dash(shard.target.as_ref().map(ToString::to_string)),
        dash(shard.waits_for.clone()),
    ]
}

/// Table of all given shards.
pub(crate) fn every(shards: &[ShardSummary]) -> String {
    if shards.is_empty() {
        return String::new();
    }
    let mut table = shard_table();
    for shard in shards {
        let epoch = shard
            .epoch
            .map_or_else(|| "-".to_owned(), |e| e.to_string());
        table.row(shard_row(
            format!("{}/{}", shard.keyspace, shard.shard),
            shard,
            epoch,
        ));
    }
    table.render(WIDTH)
}

/// Shards that are not simply served; neighbours that are alike share a line.
fn exceptions(shards: &[ShardSummary]) -> String {
    let usual = |s: &&ShardSummary| state(s) == "serving" && s.target.is_none();
    let unusual: Vec<&ShardSummary> = shards.iter().filter(|s| !usual(s)).collect();
    if unusual.is_empty() {
        return String::new();
    }
    let mut table = shard_table();
    let mut shown = 0;
    let mut lines = 0;
    for run in unusual.chunk_by(|a, b| alike(a, b)) {
        lines += 1;
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        if lines > MOST {
            continue;
        }
        shown += run.len();
        let range = match run.len() {
            1 => format!("{}/{}", first.keyspace, first.shard),
            _ => format!("{}/{}..{}", first.keyspace, first.shard, last.shard),
        };
        let epoch = match (first.epoch, run.len()) {
            (Some(epoch), 1) => epoch.to_string(),
            _ => "-".to_owned(),
        };
        table.row(shard_row(range, first, epoch));
    }
    let mut text = table.render(WIDTH);
    if shown < unusual.len() {
        let rest = unusual.len() - shown;
        let _ = writeln!(
            text,
            "… and {} more; --shards lists all",
            count(rest, "shard")
        );
    }
    text
}

/// Shards that an operator wants in one place, in the order of their numbers.
fn pins(shards: &[ShardSummary]) -> String {
    let pinned: Vec<&ShardSummary> = shards.iter().filter(|s| s.pin.is_some()).collect();
    if pinned.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["PINNED SHARD", "NODE", "OWNER"]);
    let dash = |name: &Option<_>| match name {
        Some(name) => format!("{name}"),
        None::<tenure_core::ids::NodeName> => "-".to_owned(),
    };
    for shard in pinned.iter().take(MOST) {
        table.row(vec![
            format!("{}/{}", shard.keyspace, shard.shard),
            dash(&shard.pin),
            dash(&shard.owner),
        ]);
    }
    let mut text = table.render(WIDTH);
    more(&mut text, pinned.len(), "pinned shards; --json lists all");
    text
}

/// Whether two shards follow each other and differ in nothing but their number and epoch.
fn alike(a: &ShardSummary, b: &ShardSummary) -> bool {
    let number = |shard: &ShardSummary| shard.shard.as_str().parse::<u64>().ok();
    let follows = matches!((number(a), number(b)), (Some(a), Some(b)) if a + 1 == b);
    follows
        && a.keyspace == b.keyspace
        && state(a) == state(b)
        && a.owner == b.owner
        && a.target == b.target
        && a.waits_for == b.waits_for
}

fn problems(report: &StatusReport) -> String {
    let mut text = "PROBLEMS\n".to_owned();
    for problem in report.problems.iter().take(MOST) {
        let key = cut(&problem.key, WIDTH - 1);
        text.push_str(&wrap(&format!("{key}: {}", problem.problem), ""));
        text.push_str(&wrap(&format!("→ {}", problem.help), "  "));
    }
    more(
        &mut text,
        report.problems.len(),
        "problems; --json lists all",
    );
    text
}

fn more(text: &mut String, all: usize, what: &str) {
    if all > MOST {
        let _ = writeln!(text, "… and {} more {what}", all - MOST);
    }
}
