//! Shard ownership of queue workers: the section `[worker.ownership]` of the file, and what all sources make of it.

use tenure_queue::OwnershipSettings;

use super::{Config, SettingValue, ValueSource, settings_table, suggest, value};

/// What the names of these settings begin with.
pub(super) const PREFIX: &str = "worker_ownership";
/// Table of the file that contains the section.
pub(super) const SECTION: &str = "worker";
/// Name of the section.
const TABLE: &str = "ownership";

/// Names within the section, and of the settings that they stand for.
const KEYS: [(&str, &str); 4] = [
    ("enabled", "worker_ownership"),
    ("shards_per_worker", "worker_ownership_shards_per_worker"),
    ("ttl_secs", "worker_ownership_ttl_secs"),
    ("renew_interval_secs", "worker_ownership_renew_secs"),
];

impl Config {
    /// Takes what stands in `[worker.ownership]`.
    pub(super) fn read_worker(
        &mut self,
        file: &str,
        section: &toml::Value,
        problems: &mut Vec<String>,
    ) {
        let known = format!("[{SECTION}.{TABLE}]");
        let Some(table) = section.as_table() else {
            return problems.push(format!("{file}: {SECTION:?} is not a table; write {known}"));
        };
        for (key, inner) in table {
            match inner.as_table() {
                Some(inner) if key == TABLE => self.read_section(file, inner, problems),
                _ => problems.push(format!(
                    "{file}: unknown key \"{SECTION}.{key}\"; expected {known}"
                )),
            }
        }
    }

    fn read_section(&mut self, file: &str, table: &toml::Table, problems: &mut Vec<String>) {
        for (key, given) in table {
            let at = format!("{file}: {SECTION}.{TABLE}.{key}");
            let name = KEYS.iter().find(|(known, _)| known == key);
            match name.and_then(|(_, name)| settings_table::find(name)) {
                Some(knob) => {
                    let value = value::from_toml(knob, given);
                    self.take(knob, value, ValueSource::File, &at, problems);
                }
                None => {
                    let names = KEYS.iter().map(|(known, _)| *known);
                    let meant = match suggest::nearest(key, names.clone()) {
                        Some(name) => format!("did you mean {name:?}?"),
                        None => format!("expected one of {}", names.collect::<Vec<_>>().join(", ")),
                    };
                    problems.push(format!("{at} is unknown; {meant}"));
                }
            }
        }
    }

    /// How a worker comes by shards, as far as anything was said of it.
    pub(crate) fn leasing(&self) -> OwnershipSettings {
        let mut leasing = OwnershipSettings::default();
        if let Some(SettingValue::Switch(enabled)) = self.value("worker_ownership") {
            leasing.enabled = *enabled;
        }
        if let Some(SettingValue::Count(shards)) = self.value("worker_ownership_shards_per_worker")
        {
            leasing.shards_per_worker = Some(*shards);
        }
        let seconds = |name| match self.value(name) {
            Some(SettingValue::Time(time)) => Some(time.as_secs_f64()),
            _ => None,
        };
        leasing.ttl_secs = seconds("worker_ownership_ttl_secs");
        leasing.renew_interval_secs = seconds("worker_ownership_renew_secs");
        leasing
    }
}
