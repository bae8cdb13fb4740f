//! `tenure keyspace list` and `show`.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tenure::admin::Snapshot;
use tenure_core::ids::KeyspaceName;
use tenure_core::record::{KeyspaceKind, KeyspaceRecord, PlanningSettings};
use tenure_core::view::KeyState;

use super::update;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// List the keyspaces of the cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure keyspace list\n  tenure keyspace list --json")]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show a keyspace with its settings
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure keyspace show orders\n  tenure keyspace show orders --json"
)]
pub(crate) struct Show {
    /// Keyspace name
    name: KeyspaceName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    name: KeyspaceName,
    /// `unreadable` if the record cannot be read.
    kind: &'static str,
    shards: usize,
    owned: usize,
    assigned_by: Option<String>,
    /// Planning settings that differ from the defaults.
    planning: Option<PlanningSettings>,
    generation: Option<u32>,
    min_generation: Option<u32>,
    deleted: bool,
}

impl Shown {
    fn new(snapshot: &Snapshot, name: &KeyspaceName, record: Option<&KeyspaceRecord>) -> Self {
        Self {
            name: name.clone(),
            kind: match record.map(|r| r.kind) {
                Some(KeyspaceKind::Hashed(_)) => "hashed",
                Some(KeyspaceKind::Named) => "named",
                None => "unreadable",
            },
            shards: match record.map(|r| r.kind) {
                Some(KeyspaceKind::Hashed(n)) => n as usize,
                _ => snapshot
                    .recorded(name)
                    .filter(|(_, cell)| exists(cell))
                    .count(),
            },
            owned: snapshot.owned(name),
            assigned_by: record.map(|r| r.assigned_by.to_string()),
            planning: record.map(|r| r.planning.clone()),
            generation: record.map(|r| r.generation),
            min_generation: record.map(|r| r.min_generation),
            deleted: record.is_some_and(|r| r.deleted),
        }
    }
}

impl Shown {
    /// The policy, where a leader plans.
    fn policy(&self) -> Option<String> {
        let plan = self
            .planning
            .as_ref()
            .filter(|_| self.assigned_by.as_deref() == Some("leader"));
        plan.map(|plan| plan.settings().policy.to_string())
    }
}

/// Whether a named shard is there: a deleted one leaves its record behind.
fn exists(cell: &KeyState<tenure_core::record::ShardRecord>) -> bool {
    !matches!(cell, KeyState::Present(seen) if seen.record.ownership == tenure_core::record::Ownership::Deleted)
}

impl List {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let snapshot = connect::read_existing(config).await?;
        let shown: Vec<Shown> = snapshot
            .view
            .keyspaces
            .cells()
            .map(|(name, _)| Shown::new(&snapshot, name, snapshot.view.keyspaces.get(name)))
            .collect();
        if self.json {
            stdout::json(&json!({ "keyspaces": shown }));
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = Table::new(&[
            "KEYSPACE",
            "KIND",
            "MODE",
            "POLICY",
            "#SHARDS",
            "#OWNED",
            "#GENERATION",
            "STATE",
        ]);
        for keyspace in &shown {
            let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            table.row(vec![
                keyspace.name.to_string(),
                keyspace.kind.to_owned(),
                dash(keyspace.assigned_by.clone()),
                dash(keyspace.policy()),
                keyspace.shards.to_string(),
                keyspace.owned.to_string(),
                dash(keyspace.generation.map(|g| g.to_string())),
                if keyspace.deleted { "removed" } else { "" }.to_owned(),
            ]);
        }
        stdout::text(&table.render(WIDTH));
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let snapshot = connect::read_existing(config).await?;
        let record = snapshot.keyspace(&self.name)?;
        let shown = Shown::new(&snapshot, &self.name, Some(record));
        if self.json {
            stdout::json(&shown);
            return Ok(ExitCode::SUCCESS);
        }
        for (name, value) in [
            ("keyspace", self.name.to_string()),
            ("kind", record.kind.to_string()),
            ("assigned by", record.assigned_by.to_string()),
            (
                "shards",
                format!("{} ({} owned)", shown.shards, shown.owned),
            ),
            ("generation", record.generation.to_string()),
            ("minimum generation", record.min_generation.to_string()),
        ] {
            stdout::line(format!("{name:<18} {value}"));
        }
        update::show(&record.planning);
        Ok(ExitCode::SUCCESS)
    }
}
