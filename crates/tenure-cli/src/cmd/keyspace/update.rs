//! `tenure keyspace set`: how a leader plans for a keyspace from now on.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::node::plan_without_effect;
use tenure_core::record::{KeyspaceRecord, PlanningSettings, Record};
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::flags::PlanFlags;
use crate::config::{Config, planning};
use crate::exit::Exit;
use crate::stdout;

/// How often a race against other writers is run again.
const ROUNDS: usize = 20;

/// Change how a leader plans for a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "Only what is given as a flag changes; --unset makes a setting the usual one again. Everything is checked\n\
    together before anything is written, and the leader plans by it at once.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop keyspace set orders --zones spread:40 --cool-down 5m\n  \
    tenure --store sqlite:shop.db --cluster shop keyspace set orders --unset zones --unset cool_down"
)]
pub(crate) struct Set {
    /// The keyspace's name
    name: KeyspaceName,
    /// A setting that is to be the usual one again
    #[arg(long, value_name = "SETTING")]
    unset: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) flags: PlanFlags,
}

impl Set {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        self.check()?;
        let name = &self.name;
        let mut place = ClusterClient::open(config).await?;
        let key = Key::Keyspace(name.clone());
        for _ in 0..ROUNDS {
            let snapshot = place.existing().await?;
            let old = snapshot.keyspace(name)?;
            let plan = self.applied(config, old.plan.clone())?;
            if let Some(problem) = plan_without_effect(old.mode, &plan) {
                return Err(Exit::usage(format!("keyspace {name}: {problem}")));
            }
            let changed = plan != old.plan;
            if changed {
                let Some(seen) = snapshot.view.keyspaces.seen(name) else {
                    continue;
                };
                let new = KeyspaceRecord {
                    head: old.head.next(place.nonce()),
                    plan: plan.clone(),
                    ..old.clone()
                };
                let expect = Expect::Version(seen.version.clone());
                let record = Record::Keyspace(Arc::new(new));
                if place.put(&key, expect, &record).await? == CasResult::Lost {
                    continue;
                }
            }
            match changed {
                true => eprintln!("keyspace {name} is planned anew"),
                false => eprintln!("keyspace {name} is planned like this already"),
            }
            planning::warn_of_load(&plan);
            match self.json {
                true => {
                    stdout::json(&json!({ "keyspace": name, "changed": changed, "plan": plan }))
                }
                false => show(&plan),
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(Exit::failed(format!(
            "others keep changing keyspace {name}; run the command again"
        )))
    }

    fn check(&self) -> Result<(), Exit> {
        if self.flags.0.is_empty() && self.unset.is_empty() {
            return Err(Exit::usage(
                "nothing to change is given; name a setting such as --cool-down 5m, or --unset SETTING",
            ));
        }
        let both = |name: &&String| self.flags.0.contains_key(name.as_str());
        match self.unset.iter().find(both) {
            Some(name) => Err(Exit::usage(format!("{name} is both given and unset"))),
            None => Ok(()),
        }
    }

    fn applied(
        &self,
        config: &Config,
        mut plan: PlanningSettings,
    ) -> Result<PlanningSettings, Exit> {
        let mut problems = Vec::new();
        for name in &self.unset {
            if planning::unset(&mut plan, &name.replace('-', "_")).is_none() {
                problems.push(format!(
                    "--unset {name}: there is no such setting of planning; `tenure keyspace set --help` lists them"
                ));
            }
        }
        match config.plan_by_flags(plan) {
            Ok(plan) if problems.is_empty() => Ok(plan),
            Ok(_) => Err(Exit::usage(problems.join("\n"))),
            Err(others) => {
                problems.extend(others);
                Err(Exit::usage(problems.join("\n")))
            }
        }
    }
}

/// What differs from the usual, one setting per line.
pub(super) fn show(plan: &PlanningSettings) {
    for (name, value) in planning::shown(plan) {
        stdout::line(format!("{name:<18} {value}"));
    }
}
