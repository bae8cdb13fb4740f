//! `tenure doctor`: whether a store is fit to be relied on, and what to do if it is not.

mod probe;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use tenure_store::diagnose::Finding;
use tenure_store::{Store, StoreError};

use crate::cluster_client::{store_url, within};
use crate::config::{Config, duration};
use crate::exit::Exit;

use probe::Probe;
use report::Report;

/// Check a store: whether it answers, how fast, and whether its settings keep its promises
#[derive(Debug, Args)]
#[command(
    after_help = "Reads, and writes a key of its own (beginning with `=doctor/`, which is no cluster's), which it deletes \
    again. Each finding is ok, warn or fail; exits with 1 if any failed.\n\n\
    Examples:\n  tenure doctor --store sqlite:shop.db\n  \
    tenure doctor --store nats://nats.example/shop?monitor=nats.example:8222\n  \
    tenure doctor --store postgres://shop@db.example/app --json\n  \
    tenure doctor --create --store 's3://bucket/shop?region=eu-west-1'\n  \
    tenure doctor --create --store postgres://owner@db.example/app"
)]
pub(crate) struct Doctor {
    /// Make the store's tables or file first if they are not there
    #[arg(long)]
    create: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let url = store_url(config)?;
        let mut report = Report::new(tenure_store::redacted(url));
        let begun = Instant::now();
        match self.open(url).await? {
            Err(e) => report.add(unreachable(&e)),
            Ok(store) => {
                let took = report::shown(begun.elapsed());
                report.add(Finding::ok("reachable", format!("opened within {took}")));
                examine(&store, config, &mut report).await?;
            }
        }
        match self.json {
            true => report.print_json(),
            false => report.print_text(),
        }
        Ok(match report.failed() {
            true => ExitCode::from(1),
            false => ExitCode::SUCCESS,
        })
    }

    async fn open(&self, url: &str) -> Result<Result<Arc<dyn Store>, StoreError>, Exit> {
        if self.create {
            return within("opening", tenure_store::open(url)).await;
        }
        within("opening", tenure_store::open_existing(url)).await
    }
}

fn unreachable(e: &StoreError) -> Finding {
    let advice = match e {
        StoreError::Denied { .. } => "change what it names; trying again will not help",
        _ => "see that the server is up and can be reached from here, then try again",
    };
    Finding::fail("reachable", e.to_string(), advice)
}

/// Everything about a store that is open.
async fn examine(store: &Arc<dyn Store>, config: &Config, report: &mut Report) -> Result<(), Exit> {
    let info = store.info().clone();
    report.open(&info);
    let ttl = config.settings().ttl;
    let mut lease = format!(
        "{} here; at least {}, {} unless set",
        duration::show(ttl),
        duration::show(info.min_ttl),
        duration::show(info.default_ttl)
    );
    if store.leases().is_none() {
        lease.push_str("; kept by the nodes, in their session records");
    }
    report.add(if ttl < info.min_ttl {
        Finding::fail("ttl", lease, "no node will start with it: raise ttl")
    } else {
        Finding::ok("ttl", lease)
    });
    match within("asking for the identity", store.identity()).await? {
        Ok(identity) => report.identity(identity),
        Err(e) => report.add(Finding::fail(
            "identity",
            e.to_string(),
            "no node can start without",
        )),
    }
    Probe::new(store.clone(), ttl).run(report).await?;
    match within("examining", store.examine()).await? {
        Ok(findings) => findings.into_iter().for_each(|f| report.add(f)),
        Err(e) => report.add(Finding::warn(
            "settings",
            e.to_string(),
            "let a user look who may, or look by hand",
        )),
    }
    Ok(())
}
