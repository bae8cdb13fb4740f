//! `tenure store check` and `init`: findings about a store, with advice.

mod probe;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, Subcommand};
use tenure_store::store_check::Finding;
use tenure_store::{Store, StoreError};

use crate::config::{Config, duration};
use crate::connect::{store_url, within};
use crate::exit::Exit;

use probe::Probe;
use report::Report;

/// Check and initialize stores
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure store check -s sqlite:shop.db\n  \
    tenure store init -s postgres://owner@db.example/app")]
pub(crate) struct StoreCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check that a store is reachable, fast enough and configured safely
    #[command(
        after_help = "Reads, and writes a temporary key (`=doctor/…`, outside of every cluster), which it deletes again. Each finding\n\
        is ok, warn or fail; exits with 1 if any failed.\n\n\
        Examples:\n  tenure store check -s sqlite:shop.db\n  \
        tenure store check -s nats://nats.example/shop?monitor=nats.example:8222\n  \
        tenure store check -s postgres://shop@db.example/app --json"
    )]
    Check(Output),
    /// Create the tables, bucket or file of a store if they do not exist, then check it
    #[command(
        after_help = "Existing data is not changed. Repeating the command changes nothing.\n\n\
        Examples:\n  tenure store init -s 's3://bucket/shop?region=eu-west-1'\n  \
        tenure store init -s postgres://owner@db.example/app"
    )]
    Init(Output),
}

#[derive(Debug, Args)]
struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl StoreCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (create, output) = match &self.action {
            Action::Check(output) => (false, output),
            Action::Init(output) => (true, output),
        };
        let url = store_url(config)?;
        let mut report = Report::new(tenure_store::redacted(url));
        let begun = Instant::now();
        match open(url, create).await? {
            Err(e) => report.add(unreachable(&e)),
            Ok(store) => {
                let took = report::shown(begun.elapsed());
                report.add(Finding::ok("reachable", format!("opened in {took}")));
                examine(&store, config, &mut report).await?;
            }
        }
        match output.json {
            true => report.print_json(),
            false => report.print_text(),
        }
        Ok(match report.failed() {
            true => ExitCode::from(1),
            false => ExitCode::SUCCESS,
        })
    }
}

async fn open(url: &str, create: bool) -> Result<Result<Arc<dyn Store>, StoreError>, Exit> {
    if create {
        return within("opening the store", tenure_store::open(url)).await;
    }
    within("opening the store", tenure_store::open_existing(url)).await
}

fn unreachable(e: &StoreError) -> Finding {
    let advice = match e {
        StoreError::Denied { .. } => "fix what the message names; a retry does not help",
        _ => "check that the server is running and reachable from here, then retry",
    };
    Finding::fail("reachable", e.to_string(), advice)
}

/// Everything about a store that is open.
async fn examine(store: &Arc<dyn Store>, config: &Config, report: &mut Report) -> Result<(), Exit> {
    let info = store.info().clone();
    report.open(&info);
    let ttl = config.settings().ttl;
    let mut lease = format!(
        "{}; minimum {}, default {}",
        duration::show(ttl),
        duration::show(info.min_ttl),
        duration::show(info.default_ttl)
    );
    if store.leases().is_none() {
        lease.push_str("; leases are kept in the session records of the nodes");
    }
    report.add(if ttl < info.min_ttl {
        Finding::fail("ttl", lease, "nodes do not start with this ttl; raise it")
    } else {
        Finding::ok("ttl", lease)
    });
    match within("reading its identity", store.identity()).await? {
        Ok(identity) => report.identity(identity),
        Err(e) => report.add(Finding::fail(
            "identity",
            e.to_string(),
            "nodes do not start without an identity",
        )),
    }
    Probe::new(store.clone(), ttl).run(report).await?;
    match within("reading its settings", store.examine()).await? {
        Ok(findings) => findings.into_iter().for_each(|f| report.add(f)),
        Err(e) => report.add(Finding::warn(
            "settings",
            e.to_string(),
            "run the command as a user who may read the settings, or check them manually",
        )),
    }
    Ok(())
}
