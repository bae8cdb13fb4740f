//! `tenure keyspace update`: planning settings of a keyspace.

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

/// Attempts of a conditional write against concurrent writers.
const CAS_ATTEMPTS: usize = 20;

/// Change the planning settings of a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "Changes only the given settings; --unset restores a default. All settings are checked together before the write.\n\
    The leader applies them immediately.\n\n\
    Examples:\n  tenure keyspace update orders --zones spread:40 --cool-down 5m\n  \
    tenure keyspace update orders --unset zones --unset cool_down"
)]
pub(crate) struct Update {
    /// Keyspace name
    name: KeyspaceName,
    /// Setting to reset to its default; repeatable
    #[arg(long, value_name = "SETTING")]
    unset: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) flags: PlanFlags,
}

impl Update {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        self.check()?;
        let name = &self.name;
        let mut place = ClusterClient::open(config).await?;
        let key = Key::Keyspace(name.clone());
        for _ in 0..CAS_ATTEMPTS {
            let snapshot = place.existing().await?;
            let old = snapshot.keyspace(name)?;
            let plan = self.applied(config, old.planning.clone())?;
            if let Some(problem) = plan_without_effect(old.assigned_by, &plan) {
                return Err(Exit::usage(format!("keyspace {name}: {problem}")));
            }
            let changed = plan != old.planning;
            if changed {
                let Some(seen) = snapshot.view.keyspaces.seen(name) else {
                    continue;
                };
                let new = KeyspaceRecord {
                    head: old.head.next(place.nonce()),
                    planning: plan.clone(),
                    ..old.clone()
                };
                let expect = Expect::Version(seen.version.clone());
                let record = Record::Keyspace(Arc::new(new));
                if place.put(&key, expect, &record).await? == CasResult::Lost {
                    continue;
                }
            }
            match changed {
                true => eprintln!("updated keyspace {name}"),
                false => eprintln!("keyspace {name} already has these settings"),
            }
            planning::warn_of_load(&plan);
            match self.json {
                true => {
                    stdout::json(&json!({ "keyspace": name, "changed": changed, "planning": plan }))
                }
                false => show(&plan),
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(Exit::failed(format!(
            "keyspace {name} keeps changing concurrently; run the command again"
        )))
    }

    fn check(&self) -> Result<(), Exit> {
        if self.flags.0.is_empty() && self.unset.is_empty() {
            return Err(Exit::usage(
                "no setting is given; pass one such as --cool-down 5m, or --unset SETTING",
            ));
        }
        let both = |name: &&String| self.flags.0.contains_key(name.as_str());
        match self.unset.iter().find(both) {
            Some(name) => Err(Exit::usage(format!(
                "{name} is given and also passed to --unset; choose one"
            ))),
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
                    "--unset {name}: unknown planning setting; `tenure keyspace update --help` lists them"
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

/// Prints the settings that differ from the defaults, one per line.
pub(super) fn show(plan: &PlanningSettings) {
    for (name, value) in planning::shown(plan) {
        stdout::line(format!("{name:<18} {value}"));
    }
}
