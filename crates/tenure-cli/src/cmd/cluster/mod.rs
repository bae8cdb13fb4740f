//! `tenure cluster`: clusters of a store, pause of moves, garbage collection and repair of records.

mod gc;
mod pause_moves;
mod repair_record;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::admin::{ClusterName, ClusterSummary, StoppedCluster, cluster_summaries};

use crate::cmd::confirm::confirm;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

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
    let store = connect::open_store(config).await?;
    let clusters = cluster_summaries(&store).await?;
    if as_json {
        let all: Vec<_> = clusters
            .iter()
            .map(|cluster| {
                let ClusterSummary {
                    name,
                    sessions,
                    keyspaces,
                    records,
                } = cluster;
                json!({ "name": name, "sessions": sessions, "keyspaces": keyspaces, "records": records })
            })
            .collect();
        stdout::json(&json!({ "store": store.info().url, "clusters": all }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["CLUSTER", "#SESSIONS", "#KEYSPACES", "#RECORDS"]);
    for cluster in clusters {
        table.row(vec![
            cluster.name.to_string(),
            cluster.sessions.to_string(),
            cluster.keyspaces.to_string(),
            cluster.records.to_string(),
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
        let admin = connect::open_named(config, name.clone()).await?;
        let snapshot = admin.existing_snapshot().await?;
        let records = snapshot.view.present_keys().len();
        confirm(
            self.yes,
            &format!(
                "all {records} records of cluster {name} and all of its queues will be deleted"
            ),
        )?;
        let watching = |sessions: usize, time: Duration| {
            eprintln!(
                "watching {sessions} session(s) for {} to check whether any is live",
                duration::show(time)
            );
        };
        let stopped = match self.force {
            true => StoppedCluster::unchecked(name.clone()),
            false => admin.prove_stopped(watching).await?,
        };
        let queues = tenure_queue::delete_all(admin.store().clone(), name.as_str())
            .await
            .map_err(|e| Exit::failed(e.to_string()))?;
        let deleted = admin.delete_cluster(stopped).await?;
        eprintln!("deleted {deleted} records and {queues} queues of cluster {name}");
        if self.json {
            stdout::json(&json!({ "cluster": name, "deleted": deleted, "queues": queues }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
