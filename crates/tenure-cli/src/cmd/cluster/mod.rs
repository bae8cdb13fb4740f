//! `tenure cluster`: clusters of a store, pause of moves, garbage collection and repair of records.

mod gc;
mod pause_moves;
mod repair_record;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::Clock;
use tenure_core::ids::{ClusterName, SessionId, Version};
use tenure_core::keys;
use tenure_core::view::KeyState;
use tenure_store::DeleteIf;

use crate::cluster_client::{ClusterClient, clusters, open_store, within};
use crate::cmd::confirm::confirm;
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Poll interval while checking whether sessions are live.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// List, delete and maintain clusters
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure cluster list\n  \
    tenure cluster pause-moves --reason 'incident 42'\n  \
    tenure cluster delete shop --yes")]
pub(crate) struct ClusterCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all clusters of the store
    #[command(after_help = "Examples:\n  tenure cluster list\n  tenure cluster list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete all records of a cluster, including its queues
    #[command(
        after_help = "Epochs start again at 1 if a cluster of this name is created later. Delete only clusters whose epochs no\n\
        external resource checks. The command is rejected while a session is live: it watches all sessions for the\n\
        longest ttl first.\n\n\
        Examples:\n  tenure cluster delete shop --yes"
    )]
    Delete(Delete),
    PauseMoves(pause_moves::PauseMoves),
    ResumeMoves(pause_moves::ResumeMoves),
    Gc(gc::Gc),
    RepairRecord(repair_record::RepairRecord),
}

#[derive(Debug, Args)]
struct Delete {
    /// Cluster name
    name: ClusterName,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Delete even while nodes are live; they stop serving as soon as they notice
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ClusterCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::List { json } => list(config, *json).await,
            Action::Delete(action) => action.run(config).await,
            Action::PauseMoves(action) => action.run(config).await,
            Action::ResumeMoves(action) => action.run(config).await,
            Action::Gc(action) => action.run(config).await,
            Action::RepairRecord(action) => action.run(config).await,
        }
    }
}

async fn list(config: &Config, as_json: bool) -> Result<ExitCode, Exit> {
    let store = open_store(config).await?;
    let names = clusters(&*store).await?;
    let mut shown = Vec::new();
    for name in &names {
        let prefix = keys::prefix(name);
        let listing = within("listing records", store.list(&prefix)).await??;
        let identity = within("reading its identity", store.identity()).await??;
        let snapshot = Snapshot::new(name, &listing, identity);
        let live = live_sessions(&snapshot).len();
        let keyspaces = snapshot
            .view
            .keyspaces
            .iter()
            .filter(|(_, k)| !k.record.deleted)
            .count();
        shown.push((name, live, keyspaces, listing.entries.len()));
    }
    if as_json {
        let all: Vec<_> = shown
            .iter()
            .map(|(name, sessions, keyspaces, records)| {
                json!({ "name": name, "sessions": sessions, "keyspaces": keyspaces, "records": records })
            })
            .collect();
        stdout::json(&json!({ "store": store.info().url, "clusters": all }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["CLUSTER", "#SESSIONS", "#KEYSPACES", "#RECORDS"]);
    for (name, sessions, keyspaces, records) in shown {
        table.row(vec![
            name.to_string(),
            sessions.to_string(),
            keyspaces.to_string(),
            records.to_string(),
        ]);
    }
    stdout::text(&table.render(WIDTH));
    Ok(ExitCode::SUCCESS)
}

impl Delete {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        if config
            .text("cluster")
            .is_some_and(|given| given != name.as_str())
        {
            return Err(Exit::usage(format!(
                "--cluster (or TENURE_CLUSTER) and the argument {name} name different clusters; pass only one"
            )));
        }
        let place = ClusterClient::open_named(config, name.clone()).await?;
        let snapshot = place.existing().await?;
        let records = snapshot.view.present_keys().len();
        confirm(
            self.yes,
            &format!(
                "all {records} records of cluster {name} and all of its queues will be deleted"
            ),
        )?;
        if !self.force {
            self.refuse_if_live(&place, &snapshot, config).await?;
        }
        let queues = tenure_queue::delete_all(place.store.clone(), name.as_str())
            .await
            .map_err(|e| Exit::failed(e.to_string()))?;
        let deleted = delete_all(&place).await?;
        eprintln!("deleted {deleted} records and {queues} queues of cluster {name}");
        if self.json {
            stdout::json(&json!({ "cluster": name, "deleted": deleted, "queues": queues }));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Watches all sessions for the longest of their leases. A session that changes meanwhile is live.
    async fn refuse_if_live(
        &self,
        place: &ClusterClient,
        snapshot: &Snapshot,
        config: &Config,
    ) -> Result<(), Exit> {
        let before = live_sessions(snapshot);
        if before.is_empty() {
            return Ok(());
        }
        let settings = config.settings();
        let proof = snapshot.proof(Duration::ZERO, settings.clock_drift_max_permille);
        eprintln!(
            "watching {} session(s) for {} to check whether any is live",
            before.len(),
            duration::show(proof)
        );
        let clock = Clock::boot();
        let until = clock.now() + proof;
        while clock.now() < until {
            clock.sleep(POLL_INTERVAL).await;
            let now = place.snapshot().await?;
            for (session, version) in live_sessions(&now) {
                if before.get(&session) != Some(&version) {
                    let node = now.view.sessions.get(&session).map(|s| s.node.to_string());
                    return Err(Exit::failed(format!(
                        "session {session} of node {} is live; stop the nodes of cluster {} first, or pass --force",
                        node.unwrap_or_default(),
                        self.name
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Sessions without a tombstone, readable or not.
fn live_sessions(snapshot: &Snapshot) -> BTreeMap<SessionId, Version> {
    let all = snapshot.view.sessions.cells();
    all.filter_map(|(id, cell)| match cell {
        KeyState::Present(seen) if seen.record.is_live() => Some((*id, seen.version.clone())),
        KeyState::Damaged { version, .. } => Some((*id, version.clone())),
        _ => None,
    })
    .collect()
}

/// Deletes all records of the cluster, including those written meanwhile.
async fn delete_all(place: &ClusterClient) -> Result<usize, Exit> {
    let prefix = keys::prefix(&place.cluster);
    let mut deleted = 0;
    for _ in 0..5 {
        let listing = within("listing records", place.store.list(&prefix)).await??;
        if listing.entries.is_empty() {
            return Ok(deleted);
        }
        let deletes: Vec<DeleteIf> = listing
            .entries
            .iter()
            .map(|entry| DeleteIf::new(&entry.key, entry.version.clone()))
            .collect();
        for answer in within("deleting records", place.store.delete_many(deletes)).await? {
            deleted += usize::from(answer? == tenure_store::Delete::Won);
        }
    }
    Err(Exit::failed(format!(
        "{deleted} records were deleted, but other processes keep writing new ones; stop the nodes of cluster {} and run \
         the command again",
        place.cluster
    )))
}
