//! Configuration: flag > environment > file > default, checked whole, with every problem at once.
//!
//! What each setting is stands in [`settings_table`]; a command asks [`Config`] for values and for the checked-together
//! [`Settings`] of a node.

pub(crate) mod flags;
pub(crate) mod planning;
pub(crate) mod settings_table;
mod suggest;
mod value;
pub(crate) mod worker_ownership;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use tenure_console::duration;
use tenure_core::settings::{SettingProblem, Settings, Timing};
use tenure_store::StoreInfo;

use settings_table::{KNOBS, SettingDefinition, SettingKind};
pub(crate) use value::SettingValue;

/// What every environment variable of ours begins with.
pub(crate) const ENV_PREFIX: &str = "TENURE_";
/// The environment variable that names the file.
pub(crate) const ENV_FILE: &str = "TENURE_CONFIG";
/// Variables of ours that are not settings.
const ENV_OTHERS: [&str; 14] = [
    ENV_FILE,
    "TENURE_BIN",
    "TENURE_QUEUE",
    "TENURE_TASK_ID",
    "TENURE_TASK_ATTEMPT",
    "TENURE_TASK_CLAIM",
    "TENURE_TASK_DEADLINE",
    "TENURE_TASK_DEADLINE_MS",
    "TENURE_TASK_META",
    "TENURE_KEYSPACE",
    "TENURE_SHARD",
    "TENURE_EPOCH",
    "TENURE_GRANT",
    "TENURE_META",
];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Flag,
    Env,
    File,
    Default,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Env => "env",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// Everything that the configuration is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigSources {
    /// Flags by the name of their setting.
    pub(crate) flags: BTreeMap<&'static str, String>,
    /// Those of `flags` that were given by `--set`.
    pub(crate) set: BTreeSet<&'static str>,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// Configuration files, lowest precedence first.
    pub(crate) files: Vec<PathBuf>,
}

impl ConfigSources {
    /// Sources with the configuration files that apply: the file of the flag, else that of `TENURE_CONFIG`, else the
    /// user's `tenure/config.toml` and `./tenure.toml`, as far as they exist. An empty name stands for no file.
    pub(crate) fn new(
        flags: BTreeMap<&'static str, String>,
        set: BTreeSet<&'static str>,
        env: Vec<(String, String)>,
        file: Option<PathBuf>,
    ) -> Self {
        let of = |wanted: &str| {
            let found = env.iter().find(|(name, _)| name == wanted);
            found.map(|(_, text)| PathBuf::from(text))
        };
        let files = match file.or_else(|| of(ENV_FILE)) {
            Some(file) if file.as_os_str().is_empty() => Vec::new(),
            Some(file) => vec![file],
            None => {
                let absolute = |dir: &PathBuf| dir.is_absolute();
                let user = of("XDG_CONFIG_HOME")
                    .filter(absolute)
                    .or_else(|| Some(of("HOME").filter(absolute)?.join(".config")));
                let user = user.map(|dir| dir.join("tenure/config.toml"));
                let local = Some(PathBuf::from("tenure.toml"));
                let all = [user, local].into_iter().flatten();
                all.filter(|path| path.exists()).collect()
            }
        };
        Self {
            flags,
            set,
            env,
            files,
        }
    }
}

/// The configuration. Each value fits its setting; whether they fit together, [`Config::timing`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    given: BTreeMap<&'static str, (SettingValue, ValueSource)>,
    /// Answer of the store itself, if it was asked.
    asked: OnceLock<StoreInfo>,
}

/// A setting as `config show` shows it.
pub(crate) struct EffectiveSetting {
    pub(crate) knob: &'static SettingDefinition,
    pub(crate) value: Option<SettingValue>,
    pub(crate) source: ValueSource,
}

impl Config {
    /// Reads all sources; reports every problem of every source.
    pub(crate) fn load(sources: &ConfigSources) -> Result<Self, Vec<String>> {
        match Self::read(sources) {
            (config, problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(problems),
        }
    }

    /// As [`Config::load`], and in addition everything that does not fit together, as far as it can be read.
    pub(crate) fn check(sources: &ConfigSources) -> Result<(Self, Timing), Vec<String>> {
        let (config, mut problems) = Self::read(sources);
        problems.extend(config.plan().err().unwrap_or_default());
        match config.fit() {
            Ok(timing) if problems.is_empty() => Ok((config, timing)),
            Ok(_) => Err(problems),
            Err(unfit) => {
                // Where something could not be read, only what is said about a value that could be is of use.
                let all = problems.is_empty();
                let told = unfit
                    .iter()
                    .filter(|p| all || config.given.contains_key(p.setting));
                let told: Vec<String> = told.map(|p| config.told(p)).collect();
                problems.extend(told);
                Err(problems)
            }
        }
    }

    fn read(sources: &ConfigSources) -> (Self, Vec<String>) {
        let mut config = Self::default();
        let mut problems = Vec::new();
        for path in &sources.files {
            config.read_file(path, &mut problems);
        }
        config.read_env(&sources.env, &mut problems);
        for (name, text) in &sources.flags {
            if let Some(knob) = settings_table::find(name) {
                let at = match sources.set.contains(name) {
                    true => format!("--set {name}"),
                    false => format!("--{}", knob.flag()),
                };
                let value = value::from_text(knob, text);
                config.take(knob, value, ValueSource::Flag, &at, &mut problems);
            }
        }
        (config, problems)
    }

    fn take(
        &mut self,
        knob: &'static SettingDefinition,
        value: Result<SettingValue, String>,
        source: ValueSource,
        at: &str,
        problems: &mut Vec<String>,
    ) {
        match value {
            Ok(value) => drop(self.given.insert(knob.name, (value, source))),
            Err(problem) => problems.push(format!("{at}: {problem}")),
        }
    }

    fn read_file(&mut self, path: &std::path::Path, problems: &mut Vec<String>) {
        let shown = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) => {
                return problems.push(format!("configuration file {shown} cannot be read: {e}"));
            }
        };
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(e) => return problems.push(format!("{shown} is not TOML: {e}")),
        };
        for (key, value) in &table {
            if key == worker_ownership::SECTION {
                self.read_worker(&shown.to_string(), value, problems);
                continue;
            }
            match settings_table::find(key) {
                Some(knob) => {
                    let at = format!("{shown}: {key}");
                    self.take(
                        knob,
                        value::from_toml(knob, value),
                        ValueSource::File,
                        &at,
                        problems,
                    );
                }
                None => problems.push(format!("{shown}: unknown key {key:?}{}", meant(key))),
            }
        }
    }

    /// A variable with our prefix that is close to a setting is a slip; any other one may be somebody else's.
    fn read_env(&mut self, env: &[(String, String)], problems: &mut Vec<String>) {
        for (name, text) in env {
            let Some(key) = name.strip_prefix(ENV_PREFIX) else {
                continue;
            };
            match settings_table::find(&key.to_lowercase()).filter(|knob| knob.env() == *name) {
                Some(_) if text.is_empty() => {}
                Some(knob) => {
                    self.take(
                        knob,
                        value::from_text(knob, text),
                        ValueSource::Env,
                        name,
                        problems,
                    );
                }
                None if ENV_OTHERS.contains(&name.as_str()) => {}
                None => {
                    if let Some(knob) = nearest(key).and_then(settings_table::find) {
                        let meant = knob.env();
                        problems.push(format!(
                            "unknown environment variable {name}; did you mean {meant}?"
                        ));
                    }
                }
            }
        }
    }

    /// The text of a setting that is one.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.given.get(name) {
            Some((SettingValue::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    /// The value of a setting that was given.
    pub(crate) fn value(&self, name: &str) -> Option<&SettingValue> {
        self.given.get(name).map(|(value, _)| value)
    }

    /// Returns `true` if no ttl is given and the default cannot be read from the URL.
    pub(crate) fn must_ask_for_ttl(&self) -> bool {
        let is_nats = |info: StoreInfo| info.kind == "nats";
        self.value("ttl").is_none() && self.store_info().is_some_and(is_nats)
    }

    /// Replaces the properties that follow from the URL by those of the opened store.
    pub(crate) fn take_store_info(&self, info: StoreInfo) {
        let _ = self.asked.set(info);
    }

    /// Properties of the store: those of the opened store if it was asked, else those that follow from its URL.
    pub(crate) fn store_info(&self) -> Option<StoreInfo> {
        if let Some(asked) = self.asked.get() {
            return Some(asked.clone());
        }
        tenure_store::describe(self.text("store")?).ok()
    }

    /// The times and limits of a node, not yet checked against each other. Without a ttl, that of the store.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let Some(info) = self.store_info() {
            settings.ttl = info.default_ttl;
        }
        for knob in KNOBS {
            match (&knob.kind, self.given.get(knob.name).map(|(v, _)| v)) {
                (SettingKind::Time(set, _), Some(SettingValue::Time(time))) => {
                    set(&mut settings, *time)
                }
                (SettingKind::Count(set, _), Some(SettingValue::Count(count))) => {
                    set(&mut settings, *count)
                }
                (SettingKind::Switch(set, _), Some(SettingValue::Switch(switch))) => {
                    set(&mut settings, *switch)
                }
                _ => {}
            }
        }
        settings
    }

    /// The settings, checked against each other and against the store's shortest ttl.
    pub(crate) fn timing(&self) -> Result<Timing, Vec<String>> {
        let told = |all: Vec<SettingProblem>| all.iter().map(|p| self.told(p)).collect();
        self.fit().map_err(told)
    }

    fn fit(&self) -> Result<Timing, Vec<SettingProblem>> {
        let min_ttl = self
            .store_info()
            .map_or(Duration::ZERO, |info| info.min_ttl);
        self.settings().check(min_ttl)
    }

    /// A problem together with who set the value.
    fn told(&self, problem: &SettingProblem) -> String {
        match self.given.get(problem.setting) {
            Some((_, source)) => format!("{problem} (from {source})"),
            None => problem.to_string(),
        }
    }

    /// Every setting with its value and where that comes from. Secrets are left out.
    pub(crate) fn effective(&self, timing: &Timing) -> Vec<EffectiveSetting> {
        KNOBS
            .iter()
            .map(|knob| {
                let (value, source) = match self.given.get(knob.name) {
                    Some((value, source)) => (Some(value.clone()), source.clone()),
                    None => (default_of(knob, timing), ValueSource::Default),
                };
                let value = match (&knob.kind, value) {
                    (SettingKind::Url, Some(SettingValue::Text(url))) => {
                        Some(SettingValue::Text(tenure_store::redacted(&url)))
                    }
                    (_, value) => value,
                };
                EffectiveSetting {
                    knob,
                    value,
                    source,
                }
            })
            .collect()
    }
}

fn default_of(knob: &SettingDefinition, timing: &Timing) -> Option<SettingValue> {
    Some(match knob.kind {
        SettingKind::Time(_, get) => SettingValue::Time(get(timing)),
        SettingKind::Count(_, get) => SettingValue::Count(get(timing)),
        SettingKind::Switch(_, get) => SettingValue::Switch(get(timing)),
        _ => value::from_text(knob, knob.default_text()?).ok()?,
    })
}

fn nearest(key: &str) -> Option<&'static str> {
    suggest::nearest(key, KNOBS.iter().map(|knob| knob.name))
}

/// Suggestion for a setting name that does not exist.
pub(crate) fn meant(key: &str) -> String {
    match nearest(key) {
        Some(name) => format!("; did you mean {name:?}?"),
        None => "; `tenure config show` lists all settings".to_owned(),
    }
}

#[cfg(test)]
mod tests;
