//! The value of one setting, as given: read and checked on its own.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tenure_console::logging;
use tenure_core::ids::{ClusterName, NodeName};
use tenure_core::record::{PlanningSettings, RejoinMode};

use super::duration;
use super::planning;
use super::settings_table::{SettingDefinition, SettingKind};

/// A value that fits its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
    Time(Duration),
    Count(u32),
    Switch(bool),
    Text(String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => f.write_str(&duration::show(*time)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Switch(switch) => write!(f, "{switch}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Reads a value that was given as text: a flag or an environment variable.
pub(crate) fn from_text(knob: &SettingDefinition, text: &str) -> Result<SettingValue, String> {
    match knob.kind {
        SettingKind::Time(..) | SettingKind::PlanTime(_) => {
            duration::parse(text).map(SettingValue::Time)
        }
        SettingKind::Count(..)
        | SettingKind::Weight
        | SettingKind::Limit
        | SettingKind::PlanCount(_) => match text.parse() {
            Ok(count) => Ok(SettingValue::Count(count)),
            Err(_) => Err(format!(
                "{text:?} is not a whole number from 0 to {}",
                u32::MAX
            )),
        },
        SettingKind::OnOff => match text {
            "true" | "1" | "on" => Ok(SettingValue::Switch(true)),
            "false" | "0" | "off" => Ok(SettingValue::Switch(false)),
            _ => Err(format!("{text:?} is neither true (1) nor false (0)")),
        },
        SettingKind::Seconds => match text.parse::<f64>() {
            Ok(number) => seconds(number)
                .ok_or_else(|| format!("{text} is not a number of seconds above zero")),
            Err(_) => duration::parse(text),
        }
        .map(SettingValue::Time),
        SettingKind::Switch(..) | SettingKind::YesNo => match text {
            "true" => Ok(SettingValue::Switch(true)),
            "false" => Ok(SettingValue::Switch(false)),
            _ => Err(format!("{text:?} is neither true nor false")),
        },
        _ => check_text(knob, text).map(|()| SettingValue::Text(text.to_owned())),
    }
}

/// Reads a value from the file, where numbers and switches are not text.
pub(crate) fn from_toml(
    knob: &SettingDefinition,
    value: &toml::Value,
) -> Result<SettingValue, String> {
    let wrong = |wanted: &str| {
        Err(format!(
            "{value} has type {}; expected {wanted}",
            value.type_str()
        ))
    };
    match (&knob.kind, value) {
        (
            SettingKind::Count(..)
            | SettingKind::Weight
            | SettingKind::Limit
            | SettingKind::PlanCount(_),
            toml::Value::Integer(n),
        ) => match u32::try_from(*n) {
            Ok(count) => Ok(SettingValue::Count(count)),
            Err(_) => Err(format!("{n} is not a number from 0 to {}", u32::MAX)),
        },
        (
            SettingKind::Count(..)
            | SettingKind::Weight
            | SettingKind::Limit
            | SettingKind::PlanCount(_),
            _,
        ) => wrong("a whole number without quotes"),
        (
            SettingKind::Switch(..) | SettingKind::YesNo | SettingKind::OnOff,
            toml::Value::Boolean(switch),
        ) => Ok(SettingValue::Switch(*switch)),
        (SettingKind::Seconds, toml::Value::Integer(_) | toml::Value::Float(_)) => {
            from_text(knob, &value.to_string())
        }
        (SettingKind::Seconds, _) => wrong("a number of seconds without quotes"),
        (SettingKind::Switch(..) | SettingKind::YesNo | SettingKind::OnOff, _) => {
            wrong("true or false without quotes")
        }
        (_, toml::Value::String(text)) => from_text(knob, text),
        (SettingKind::Time(..) | SettingKind::PlanTime(_), _) => {
            wrong("a duration in quotes, such as \"2500ms\" or \"3s\"")
        }
        _ => wrong("a string in quotes"),
    }
}

fn seconds(number: f64) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(number).ok();
    time.filter(|time| !time.is_zero())
}

fn check_text(knob: &SettingDefinition, text: &str) -> Result<(), String> {
    match knob.kind {
        // The message of a bad URL names it without its secrets.
        SettingKind::Url => match tenure_store::describe(text) {
            Ok(_) => Ok(()),
            Err(e) => Err(e.to_string()),
        },
        SettingKind::Cluster => named(ClusterName::new(text)),
        SettingKind::Node => named(NodeName::new(text)),
        SettingKind::Address => check_address(text),
        SettingKind::Filter => match logging::check(text) {
            Ok(_) => Ok(()),
            Err(e) => Err(format!(
                "{text:?} is not a filter: {e}; write a level such as info, or TARGET=LEVEL"
            )),
        },
        _ if text.is_empty() => Err("the value is empty; omit the setting instead".to_owned()),
        SettingKind::Rejoin => text.parse::<RejoinMode>().map(|_| ()),
        SettingKind::Labels => planning::labels(text).map(|_| ()),
        SettingKind::PlanText(set) => set(&mut PlanningSettings::default(), Some(text)),
        SettingKind::Directory if Path::new(text).exists() && !Path::new(text).is_dir() => {
            Err(format!(
                "{text:?} is not a directory; give a directory, or a path that does not exist yet"
            ))
        }
        SettingKind::File if Path::new(text).is_dir() => {
            Err(format!("{text:?} is a directory; give a file in it"))
        }
        _ => Ok(()),
    }
}

fn named<T>(name: Result<T, tenure_core::ids::BadName>) -> Result<(), String> {
    name.map(|_| ()).map_err(|e| e.to_string())
}

fn check_address(text: &str) -> Result<(), String> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(()),
        _ => Err(format!(
            "{text:?} is not an address; write HOST:PORT, or :PORT for the loopback interface"
        )),
    }
}
