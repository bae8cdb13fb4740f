//! `tenure cluster`: what a store holds, and taking a whole cluster away.

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

/// How often sessions are looked at while it is decided whether they are live.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// List or remove clusters
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tenure --store sqlite:shop.db cluster ls\n  \
    tenure --store sqlite:shop.db cluster rm shop --yes"
)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all clusters of the store
    #[command(after_help = "Examples:\n  tenure --store sqlite:shop.db cluster ls --json")]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete everything that the store holds of a cluster
    #[command(
        after_help = "Epochs begin anew if a cluster of this name is created later: only for clusters whose epochs no\n\
        resource remembers. Refused while a session is live, that is, while any of them changes during its ttl.\n\n\
        Examples:\n  tenure --store sqlite:shop.db cluster rm shop --yes"
    )]
    Rm(Rm),
}

#[derive(Debug, Args)]
struct Rm {
    /// The cluster's name
    name: ClusterName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Even while nodes are live: they stop serving as soon as they notice
    #[arg(long)]
    force: bool,
}

impl Cluster {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Ls { json } => ls(config, *json).await,
            Action::Rm(rm) => rm.run(config).await,
        }
    }
}

async fn ls(config: &Config, as_json: bool) -> Result<ExitCode, Exit> {
    let store = open_store(config).await?;
    let names = clusters(&*store).await?;
    let mut shown = Vec::new();
    for name in &names {
        let prefix = keys::prefix(name);
        let listing = within("listing", store.list(&prefix)).await??;
        let identity = within("asking for the identity", store.identity()).await??;
        let snapshot = Snapshot::new(name, &listing, identity);
        let live = live_sessions(&snapshot).len();
        let keyspaces = snapshot
            .view
            .keyspaces
            .iter()
            .filter(|(_, k)| !k.record.removed)
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

impl Rm {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        if config
            .text("cluster")
            .is_some_and(|given| given != name.as_str())
        {
            return Err(Exit::usage(format!(
                "--cluster (or TENURE_CLUSTER) names another cluster than {name}; name one"
            )));
        }
        let place = ClusterClient::open_named(config, name.clone()).await?;
        let snapshot = place.existing().await?;
        let records = snapshot.view.present_keys().len();
        confirm(
            self.yes,
            &format!("all {records} records of cluster {name} will be deleted"),
        )?;
        if !self.force {
            self.refuse_if_live(&place, &snapshot, config).await?;
        }
        let deleted = delete_all(&place).await?;
        eprintln!("deleted {deleted} records of cluster {name}");
        Ok(ExitCode::SUCCESS)
    }

    /// Watches the sessions for as long as the longest of their leases: one that changes meanwhile is live.
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
            "watching {} session(s) for {} to see whether any is live",
            before.len(),
            duration::show(proof)
        );
        let clock = Clock::boot();
        let until = clock.now() + proof;
        while clock.now() < until {
            clock.sleep(LOOK_AGAIN).await;
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

/// Deletes what is there until nothing is; whoever writes meanwhile is deleted too.
async fn delete_all(place: &ClusterClient) -> Result<usize, Exit> {
    let prefix = keys::prefix(&place.cluster);
    let mut deleted = 0;
    for _ in 0..5 {
        let listing = within("listing", place.store.list(&prefix)).await??;
        if listing.entries.is_empty() {
            return Ok(deleted);
        }
        let deletes: Vec<DeleteIf> = listing
            .entries
            .iter()
            .map(|entry| DeleteIf::new(&entry.key, entry.version.clone()))
            .collect();
        for answer in within("deleting", place.store.delete_many(deletes)).await? {
            deleted += usize::from(answer? == tenure_store::Delete::Won);
        }
    }
    Err(Exit::failed(format!(
        "{deleted} records were deleted, but somebody keeps writing new ones; stop the nodes of cluster {} and run the \
         command again",
        place.cluster
    )))
}
