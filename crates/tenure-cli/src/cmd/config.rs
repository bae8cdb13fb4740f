//! `tenure config`: what is configured, by whom, and whether it fits together.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::cli::Global;
use crate::config::flags::AllFlags;
use crate::config::{Config, Effective, Value};
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Check or show the configuration
#[derive(Debug, Args)]
#[command(
    after_help = "A flag goes before an environment variable, that before the file, that before the default.\n\
    renew_interval in the file is --renew-interval as a flag and TENURE_RENEW_INTERVAL in the environment.\n\n\
    Examples:\n  \
    tenure --config shop.toml config check\n  \
    TENURE_TTL=5s tenure config show --json"
)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check everything, and name every problem at once
    #[command(after_help = "Examples:\n  tenure --config shop.toml config check")]
    Check(Settings),
    /// Show every setting with its value and where that comes from
    #[command(
        after_help = "Examples:\n  tenure --config shop.toml config show\n  tenure config show --ttl 5s --json"
    )]
    Show(Settings),
}

#[derive(Debug, Args)]
struct Settings {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: AllFlags,
}

impl ConfigCommand {
    pub(crate) fn run(&self, global: &Global) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Check(settings) => check(global, settings),
            Action::Show(settings) => show(global, settings),
        }
    }
}

/// Everything that is effective, or everything that is wrong.
fn effective(global: &Global, settings: &Settings) -> Result<Vec<Effective>, Vec<String>> {
    let (config, timing) = Config::check(&global.sources(settings.flags.0.clone()))?;
    Ok(config.effective(&timing))
}

fn check(global: &Global, settings: &Settings) -> Result<ExitCode, Exit> {
    let problems = effective(global, settings).err().unwrap_or_default();
    if settings.json {
        stdout::json(&json!({ "ok": problems.is_empty(), "problems": problems }));
    } else if problems.is_empty() {
        stdout::line("the configuration is in order");
    }
    match problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Exit::usage(problems.join("\n"))),
    }
}

fn show(global: &Global, settings: &Settings) -> Result<ExitCode, Exit> {
    let effective = effective(global, settings).map_err(|all| Exit::usage(all.join("\n")))?;
    if settings.json {
        let shown: Vec<Shown> = effective.iter().map(Shown::of).collect();
        stdout::json(&json!({ "settings": shown }));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for setting in &effective {
        let value = setting.value.as_ref();
        table.row(vec![
            setting.knob.name.to_owned(),
            value.map_or_else(|| "-".to_owned(), ToString::to_string),
            setting.source.to_string(),
        ]);
    }
    stdout::text(&table.render(WIDTH));
    Ok(ExitCode::SUCCESS)
}

/// A setting as JSON shows it.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    value: serde_json::Value,
    source: String,
    env: String,
    flag: String,
}

impl Shown {
    fn of(setting: &Effective) -> Self {
        let value = match &setting.value {
            None => serde_json::Value::Null,
            Some(Value::Count(count)) => json!(count),
            Some(Value::Switch(switch)) => json!(switch),
            Some(other) => json!(other.to_string()),
        };
        Self {
            name: setting.knob.name,
            value,
            source: setting.source.to_string(),
            env: setting.knob.env(),
            flag: format!("--{}", setting.knob.flag()),
        }
    }
}
