//! `tenure node list` and `show`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure_core::ids::NodeName;

use crate::cmd::status::{self, StatusReport, text};
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// List the nodes of the cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure node list\n  tenure node list --json")]
pub(crate) struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show a node with its shards
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tenure node show n1\n  tenure node show n1 --json")]
pub(crate) struct Show {
    /// Node name
    #[arg(value_name = "NODE")]
    name: NodeName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let report = status::report(config).await?;
        match self.json {
            true => stdout::json(&json!({ "nodes": report.nodes })),
            false => stdout::text(&text::nodes(&report.nodes)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut report = status::report(config).await?;
        let names: Vec<String> = report.nodes.iter().map(|n| n.name.to_string()).collect();
        report.retain_node(&self.name);
        let StatusReport { nodes, shards, .. } = report;
        let Some(node) = nodes.first() else {
            return Err(Exit::failed(format!(
                "there is no node {}; existing nodes: {}",
                self.name,
                match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                }
            )));
        };
        if self.json {
            stdout::json(&json!({ "node": node, "shards": shards }));
            return Ok(ExitCode::SUCCESS);
        }
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let labels: Vec<String> = node
            .labels
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        let mut lines = vec![
            ("node", node.name.to_string()),
            (
                "mode",
                match &node.reason {
                    Some(reason) => format!("{} ({reason})", node.mode),
                    None => node.mode.to_owned(),
                },
            ),
            ("cordoned", node.cordoned.to_string()),
            ("session", node.session.to_string()),
            ("lease", node.lease.clone()),
            ("zone", dash(node.zone.clone())),
            ("weight", dash(node.weight.map(|w| w.to_string()))),
            ("capacity", dash(node.capacity.map(|c| c.to_string()))),
            (
                "labels",
                dash((!labels.is_empty()).then(|| labels.join(","))),
            ),
            ("version", dash(node.version.clone())),
            ("shards", node.shards.to_string()),
        ];
        for (kind, address) in &node.addresses {
            lines.push(("address", format!("{kind} {address}")));
        }
        for (name, value) in lines {
            stdout::line(format!("{name:<9} {value}"));
        }
        if !shards.is_empty() {
            stdout::text(&format!("\n{}", text::every(&shards)));
        }
        Ok(ExitCode::SUCCESS)
    }
}
