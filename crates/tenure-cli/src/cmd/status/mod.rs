//! `tenure status`: who owns what, and what is wrong.

mod problems;
mod report;
mod text;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_core::keys;
use tenure_store::{Revision, Watch};

use crate::cluster_client::{ClusterClient, within};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;
use report::Report;

/// What passes without anything being written, such as a lease running out, is noticed this late.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Show who owns what, and what is wrong
#[derive(Debug, Args)]
#[command(
    after_help = "The summary comes first; of the shards only those that are not simply served are listed.\n\
    States: serving, loading, free, restored (waiting until nobody claims to own it), warming, freezing,\n\
    sealed, orphaned (its owner's session is over), quarantined, damaged, missing, and troubled: served, but\n\
    its owner's application says that something is wrong (in JSON: serving, with trouble).\n\n\
    Examples:\n  tenure --store sqlite:shop.db status\n  tenure --store sqlite:shop.db status --watch\n  \
    tenure --store sqlite:shop.db status --json | jq '.shards[] | select(.state != \"serving\")'"
)]
pub(crate) struct Status {
    /// Print JSON; with --watch one document per line
    #[arg(long)]
    json: bool,
    /// List every shard
    #[arg(long)]
    shards: bool,
    /// Show it again whenever it changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// The least time between two showings
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration::parse, requires = "watch")]
    interval: Duration,
}

impl Status {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let place = ClusterClient::look(config).await?;
        if self.watch {
            tokio::select! {
                ended = self.watch(&place) => return ended,
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            }
        }
        let (report, _) = look(&place).await?;
        match self.json {
            true => stdout::json(&report),
            false => stdout::text(&text::render(&report, self.shards)),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Shows the report now and whenever it changes.
    async fn watch(&self, place: &ClusterClient) -> Result<ExitCode, Exit> {
        let mut shown = None;
        let mut changes: Option<Watch> = None;
        let (mut report, mut revision) = look(place).await?;
        loop {
            if shown.as_ref() != Some(&report) {
                self.show(&report, shown.is_some());
                shown = Some(report.clone());
            }
            tokio::time::sleep(self.interval).await;
            if changes.is_none() {
                let prefix = keys::prefix(&place.cluster);
                changes = match within("watching", place.store.watch(&prefix, revision)).await {
                    Ok(Ok(watch)) => Some(watch),
                    Ok(Err(e)) => complain(&e),
                    Err(e) => complain(&e),
                };
            }
            if let Some(watch) = &mut changes {
                let heard = tokio::time::timeout(LOOK_AGAIN, watch.next()).await;
                if matches!(heard, Ok(Err(_))) {
                    changes = None;
                }
            } else {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            match look(place).await {
                Ok((new, at)) => (report, revision) = (new, at),
                Err(e) => drop(complain::<()>(&e)),
            }
        }
    }

    fn show(&self, report: &Report, again: bool) {
        if self.json {
            return stdout::json_line(report);
        }
        let text = text::render(report, self.shards);
        if io::stdout().is_terminal() {
            // Clear the screen and begin at its top.
            stdout::text(&format!("\x1b[H\x1b[2J{text}"));
        } else {
            stdout::text(&format!("{}{text}", if again { "\n" } else { "" }));
        }
    }
}

async fn look(place: &ClusterClient) -> Result<(Report, Revision), Exit> {
    let snapshot = place.existing().await?;
    let store = &place.store.info().url;
    let report = Report::new(&place.cluster, store, &snapshot);
    Ok((report, snapshot.view.revision))
}

/// The store is away: say so, and try again.
fn complain<T>(error: &impl std::fmt::Display) -> Option<T> {
    eprintln!("warning: {error}; trying again");
    None
}
