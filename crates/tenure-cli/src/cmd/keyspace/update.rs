//! `tenure keyspace update`: planning settings of a keyspace.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::AdminError;
use tenure::admin::PlanningUpdate;
use tenure_core::ids::KeyspaceName;
use tenure_core::record::PlanningSettings;

use crate::config::flags::PlanFlags;
use crate::config::{Config, planning};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

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
        let admin = connect::open_existing(config).await?;
        let change = |old| self.applied(config, old);
        let PlanningUpdate {
            planning: plan,
            changed,
        } = admin.update_planning(name, change).await?;
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
        Ok(ExitCode::SUCCESS)
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
    ) -> Result<PlanningSettings, AdminError> {
        let mut problems = Vec::new();
        for name in &self.unset {
            if planning::unset(&mut plan, &name.replace('-', "_")).is_none() {
                problems.push(format!(
                    "--unset {name}: unknown planning setting; `tenure keyspace update --help` lists them"
                ));
            }
        }
        let plan = match config.plan_by_flags(plan) {
            Ok(plan) => Some(plan),
            Err(others) => {
                problems.extend(others);
                None
            }
        };
        plan.filter(|_| problems.is_empty())
            .ok_or_else(|| AdminError::Invalid(problems.join("\n")))
    }
}

/// Prints the settings that differ from the defaults, one per line.
pub(super) fn show(plan: &PlanningSettings) {
    for (name, value) in planning::shown(plan) {
        stdout::line(format!("{name:<18} {value}"));
    }
}
