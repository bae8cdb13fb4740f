//! `tenure config`: effective settings with their sources, and validation.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::cli::Global;
use crate::config::{Config, EffectiveSetting, SettingValue};
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Show and validate the configuration
#[derive(Debug, Args)]
#[command(
    after_help = "Precedence: flag or --set, environment, ./tenure.toml, the user's tenure/config.toml, default. --config or\n\
    TENURE_CONFIG replace both files; an empty name stands for no file.\n\
    The setting renew_interval is renew_interval in a file, TENURE_RENEW_INTERVAL in the environment and\n\
    --set renew_interval=1s on the command line; common settings also have a flag.\n\n\
    Examples:\n  \
    tenure --config shop.toml config validate\n  \
    TENURE_TTL=5s tenure config show --json"
)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Validate the configuration and report all problems at once
    #[command(
        after_help = "Examples:\n  tenure --config shop.toml config validate\n  \
        tenure config validate --set ttl=5s --json"
    )]
    Validate(Settings),
    /// Show every setting with its value and source
    #[command(
        after_help = "Examples:\n  tenure config show\n  tenure config show --set ttl=5s --json"
    )]
    Show(Settings),
}

#[derive(Debug, Args)]
struct Settings {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ConfigCommand {
    pub(crate) fn run(&self, global: &Global) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Validate(settings) => validate(global, settings),
            Action::Show(settings) => show(global, settings),
        }
    }
}

/// All effective settings, or all problems.
fn effective(global: &Global) -> Result<Vec<EffectiveSetting>, Vec<String>> {
    let sources = global.sources(Default::default());
    let (config, timing) = Config::check(&sources.map_err(|e| vec![e.message])?)?;
    Ok(config.effective(&timing))
}

fn validate(global: &Global, settings: &Settings) -> Result<ExitCode, Exit> {
    let problems = effective(global).err().unwrap_or_default();
    if settings.json {
        stdout::json(&json!({ "ok": problems.is_empty(), "problems": problems }));
    } else if problems.is_empty() {
        stdout::line("the configuration is valid");
    }
    match problems.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Exit::usage(problems.join("\n"))),
    }
}

fn show(global: &Global, settings: &Settings) -> Result<ExitCode, Exit> {
    let effective = effective(global).map_err(|all| Exit::usage(all.join("\n")))?;
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
    /// The flag of processes that take one.
    flag: Option<String>,
}

impl Shown {
    fn of(setting: &EffectiveSetting) -> Self {
        let value = match &setting.value {
            None => serde_json::Value::Null,
            Some(SettingValue::Count(count)) => json!(count),
            Some(SettingValue::Switch(switch)) => json!(switch),
            Some(other) => json!(other.to_string()),
        };
        Self {
            name: setting.knob.name,
            value,
            source: setting.source.to_string(),
            env: setting.knob.env(),
            flag: setting
                .knob
                .is_common()
                .then(|| format!("--{}", setting.knob.flag())),
        }
    }
}
