//! `tenure status`: ownership and problems of a cluster.

mod problems;
mod report;
pub(crate) mod text;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::AdminClient;
use tenure_core::ids::{KeyspaceName, NodeName};
use tenure_core::keys;
use tenure_store::{Revision, Watch};

use crate::config::{Config, duration};
use crate::connect::{self, within};
use crate::exit::Exit;
use crate::stdout;
pub(crate) use report::StatusReport;

/// Interval of the checks for changes without a write, such as an expired lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Show nodes, keyspaces, shards that are not served, and problems
#[derive(Debug, Args)]
#[command(
    after_help = "Lists a summary, then nodes and keyspaces, then the shards that are not served or are moving, then problems.\n\n\
    States:\n  \
    serving      the owner serves the shard\n  \
    troubled     served, but its application reports a problem (in JSON: serving, with trouble)\n  \
    loading      the owner loads the shard\n  \
    free         no node owns the shard\n  \
    restored     the record was lost and written again; claimed when every live session has confirmed not to own it\n  \
    warming      move: the target loads the shard while the owner serves it\n  \
    freezing     move: the owner finishes running requests\n  \
    sealed       move: the owner has stopped, the target takes the shard\n  \
    orphaned     the session of the owner has ended; no node has claimed the shard yet\n  \
    quarantined  several nodes failed to load the shard; no node claims it before tenure shard repair\n  \
    unreadable   the record is corrupt or of a newer format\n  \
    missing      the record does not exist\n  \
    deleted      the named shard was deleted\n\n\
    Examples:\n  tenure status\n  tenure status --watch\n  tenure status --node n1 --shards\n  \
    tenure status --keyspace orders --state free\n  \
    tenure status --json | jq '.shards[] | select(.state != \"serving\")'"
)]
pub(crate) struct StatusCommand {
    /// Only this keyspace and its shards
    #[arg(short = 'k', long, value_name = "NAME")]
    keyspace: Option<KeyspaceName>,
    /// Only this node and the shards that it owns or that move to it
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// Only shards in this state; the states are listed below
    #[arg(long, value_name = "STATE", value_parser = clap::builder::PossibleValuesParser::new(STATES))]
    state: Option<String>,
    /// List every shard
    #[arg(long)]
    shards: bool,
    /// Print again after every change, until Ctrl-C
    #[arg(short = 'w', long)]
    watch: bool,
    /// Print JSON; with --watch one document per line
    #[arg(long)]
    json: bool,
    /// Minimum time between two outputs of --watch
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration::parse, requires = "watch")]
    interval: Duration,
}

/// States of a shard, as `--state` takes them.
const STATES: [&str; 13] = [
    "serving",
    "troubled",
    "loading",
    "free",
    "restored",
    "warming",
    "freezing",
    "sealed",
    "orphaned",
    "quarantined",
    "unreadable",
    "missing",
    "deleted",
];

impl StatusCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let admin = connect::open_to_read(config).await?;
        if self.watch {
            tokio::select! {
                ended = self.watch(&admin) => return ended,
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            }
        }
        let (report, _) = self.look(&admin).await?;
        match self.json {
            true => stdout::json(&report),
            false => stdout::text(&text::render(&report, self.lists_shards())),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the report now and after every change.
    async fn watch(&self, admin: &AdminClient) -> Result<ExitCode, Exit> {
        let mut shown = None;
        let mut changes: Option<Watch> = None;
        let (mut report, mut revision) = self.look(admin).await?;
        loop {
            if shown.as_ref() != Some(&report) {
                self.show(&report, shown.is_some());
                shown = Some(report.clone());
            }
            tokio::time::sleep(self.interval).await;
            if changes.is_none() {
                let prefix = keys::prefix(admin.cluster());
                changes = match within("starting a watch", admin.store().watch(&prefix, revision))
                    .await
                {
                    Ok(Ok(watch)) => Some(watch),
                    Ok(Err(e)) => complain(&e),
                    Err(e) => complain(&e),
                };
            }
            if let Some(watch) = &mut changes {
                let heard = tokio::time::timeout(POLL_INTERVAL, watch.next()).await;
                if matches!(heard, Ok(Err(_))) {
                    changes = None;
                }
            } else {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            match self.look(admin).await {
                Ok((new, at)) => (report, revision) = (new, at),
                Err(e) => drop(complain::<()>(&e)),
            }
        }
    }

    /// True if every remaining shard is listed, not only those that need attention.
    fn lists_shards(&self) -> bool {
        self.shards || self.state.is_some()
    }

    /// The report after the filters of the command.
    async fn look(&self, admin: &AdminClient) -> Result<(StatusReport, Revision), Exit> {
        let (mut report, revision) = look(admin).await?;
        if let Some(name) = &self.keyspace {
            report.retain_keyspace(name);
        }
        if let Some(name) = &self.node {
            report.retain_node(name);
        }
        if let Some(state) = &self.state {
            report.shards.retain(|shard| text::state(shard) == state);
        }
        Ok((report, revision))
    }

    fn show(&self, report: &StatusReport, again: bool) {
        if self.json {
            return stdout::json_line(report);
        }
        let text = text::render(report, self.lists_shards());
        if io::stdout().is_terminal() {
            // Move the cursor to the top and clear the screen.
            stdout::text(&format!("\x1b[H\x1b[2J{text}"));
        } else {
            stdout::text(&format!("{}{text}", if again { "\n" } else { "" }));
        }
    }
}

/// The unfiltered report of the cluster that the configuration names.
pub(crate) async fn report(config: &Config) -> Result<StatusReport, Exit> {
    let admin = connect::open_to_read(config).await?;
    Ok(look(&admin).await?.0)
}

async fn look(admin: &AdminClient) -> Result<(StatusReport, Revision), Exit> {
    let snapshot = admin.existing_snapshot().await?;
    let store = &admin.store().info().url;
    let report = StatusReport::new(admin.cluster(), store, &snapshot);
    Ok((report, snapshot.view.revision))
}

/// Warns that the store is unreachable.
fn complain<T>(error: &impl std::fmt::Display) -> Option<T> {
    eprintln!("warning: {error}; retrying");
    None
}
