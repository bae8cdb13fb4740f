//! `tenure keyspace plan`: result of the planner on the present records, or on hypothetical ones.
//!
//! Nothing is written. The output shows the final result, without the waits and budgets that spread changes over time.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tenure::admin::Snapshot;
use tenure_core::ids::KeyspaceName;
use tenure_core::plan::{NoMemory, PlanReport, PlanRules, PlanView, plan, what_if};
use tenure_core::record::{AssignedBy, KeyspaceRecord};
use tenure_core::time::Time;

use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Show the shard moves that the leader would plan next, optionally under hypothetical changes
#[derive(Debug, Args)]
#[command(
    after_help = "Shows moves with their reasons, and the balance before and after. The output is the final result: it ignores\n\
    settle time, cool-down and budgets. Nothing is changed. A custom policy is unknown to this command; it uses\n\
    `sticky` instead.\n\n\
    Changes for --what-if: remove NODE, add COUNT, add NODE, weight NODE=N, capacity NODE=N, zone NODE=ZONE,\n\
    cordon NODE, drain NODE, resume NODE, pin KEYSPACE/SHARD=NODE, unpin KEYSPACE/SHARD,\n\
    cost KEYSPACE/SHARD=N; several separated by semicolons, or by more --what-if.\n\n\
    Examples:\n  tenure keyspace plan\n  \
    tenure keyspace plan orders --what-if 'remove n3; add 2'\n  \
    tenure keyspace plan orders --what-if 'weight n1=200' --json | jq '.keyspaces[].what_if.plan.balance'"
)]
pub(crate) struct PlanCommand {
    /// Keyspace; default: all
    keyspace: Option<KeyspaceName>,
    /// Change to assume, such as 'remove n3' or 'add 2'; repeatable
    #[arg(long, value_name = "CHANGE")]
    what_if: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Plan of one keyspace.
#[derive(Serialize)]
struct Planned {
    keyspace: KeyspaceName,
    assigned_by: String,
    /// True if the leader executes the plan.
    executed_by_leader: bool,
    plan: PlanReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<Otherwise>,
}

/// Plan under hypothetical changes.
#[derive(Serialize)]
struct Otherwise {
    /// Changes as given by `--what-if`.
    question: String,
    plan: PlanReport,
}

impl PlanCommand {
    /// The plan for things as they are.
    pub(crate) fn of(keyspace: Option<KeyspaceName>, json: bool) -> Self {
        Self {
            keyspace,
            what_if: Vec::new(),
            json,
        }
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let question = self.what_if.join("; ");
        let changes = match self.what_if.is_empty() {
            true => Vec::new(),
            false => what_if::parse(&question).map_err(|e| Exit::usage(e.to_string()))?,
        };
        let snapshot = connect::read_existing(config).await?;
        let mut all = Vec::new();
        for (name, record) in self.keyspaces(&snapshot)? {
            let view = view(&snapshot, &name)?;
            let rules = rules(&name, &record)?;
            all.push((name, record, view, rules));
        }
        let otherwise = ask(&snapshot, &all, &changes)?;
        let planned: Vec<Planned> = all
            .into_iter()
            .zip(otherwise)
            .map(|((keyspace, record, view, rules), otherwise)| Planned {
                keyspace,
                assigned_by: record.assigned_by.to_string(),
                executed_by_leader: record.assigned_by == AssignedBy::Leader,
                plan: report(&view, &rules),
                what_if: otherwise.map(|view| Otherwise {
                    question: question.clone(),
                    plan: report(&view, &rules),
                }),
            })
            .collect();
        match self.json {
            true => stdout::json(&serde_json::json!({ "keyspaces": planned })),
            false => planned.iter().for_each(show),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn keyspaces(&self, snapshot: &Snapshot) -> Result<Vec<(KeyspaceName, KeyspaceRecord)>, Exit> {
        if let Some(name) = &self.keyspace {
            return Ok(vec![(name.clone(), snapshot.keyspace(name)?.clone())]);
        }
        let all = snapshot.view.keyspaces.iter();
        let there: Vec<_> = all
            .filter(|(_, seen)| !seen.record.deleted)
            .map(|(name, seen)| (name.clone(), (*seen.record).clone()))
            .collect();
        match there.is_empty() {
            true => Err(Exit::failed(
                "the cluster has no keyspace; create one with `tenure keyspace create`",
            )),
            false => Ok(there),
        }
    }
}

fn view(snapshot: &Snapshot, name: &KeyspaceName) -> Result<PlanView, Exit> {
    let view = snapshot.live(|live| live.plan_view(name, &mut NoMemory));
    view.map_err(|problems| {
        let all: Vec<String> = problems.iter().map(|p| format!("{p:?}")).collect();
        Exit::failed(format!(
            "keyspace {name} cannot be planned: {}",
            all.join("; ")
        ))
    })
}

fn rules(name: &KeyspaceName, record: &KeyspaceRecord) -> Result<PlanRules, Exit> {
    let checked = record.planning.settings().check();
    checked.map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Exit::failed(format!(
            "keyspace {name} is not planned because its settings are invalid: {}; `tenure keyspace update {name}` \
             changes them",
            all.join("; ")
        ))
    })
}

fn report(view: &PlanView, rules: &PlanRules) -> PlanReport {
    PlanReport::new(view, &plan(view, &rules.at_once(), Time::ZERO))
}

/// The views with the changes, for those keyspaces that they concern. They must concern one.
fn ask(
    snapshot: &Snapshot,
    all: &[(KeyspaceName, KeyspaceRecord, PlanView, PlanRules)],
    changes: &[what_if::WhatIfChange],
) -> Result<Vec<Option<PlanView>>, Exit> {
    if changes.is_empty() {
        return Ok(all.iter().map(|_| None).collect());
    }
    let mut answers = Vec::new();
    let mut unclear = None;
    for (.., view, _) in all {
        match what_if::apply(view, changes, Time::ZERO) {
            Ok(changed) => answers.push(Some(changed)),
            Err(reason) => {
                unclear.get_or_insert(reason);
                answers.push(None);
            }
        }
    }
    match unclear {
        Some(reason) if answers.iter().all(Option::is_none) => Err(Exit::usage(format!(
            "{reason} ({})",
            snapshot.existing_nodes()
        ))),
        _ => Ok(answers),
    }
}

fn show(planned: &Planned) {
    if !planned.executed_by_leader {
        stdout::line(format!(
            "keyspace {} has assigned_by = {}: no leader executes this plan",
            planned.keyspace, planned.assigned_by
        ));
    }
    stdout::text(&planned.plan.to_string());
    if let Some(Otherwise { question, plan }) = &planned.what_if {
        stdout::line(format!("\nwhat if {question}"));
        stdout::text(&plan.to_string());
    }
    stdout::line("");
}
