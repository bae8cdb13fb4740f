//! Settings as flags, made from the table of [`settings_table`](super::settings_table).

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::settings_table::{KNOBS, SettingDefinition};

/// Flags that were given, by the name of their setting. Those that every command takes are not among them.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident, $takes:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $name(pub(crate) BTreeMap<&'static str, String>);

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                own($takes).fold(command, |command, knob| command.arg(arg(knob)))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                let given = own($takes).filter_map(|knob| {
                    let text = matches.get_one::<String>(knob.name)?;
                    Some((knob.name, text.clone()))
                });
                Ok(Self(given.collect()))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                self.0.extend(Self::from_arg_matches(matches)?.0);
                Ok(())
            }
        }
    };
}

flags! {
    /// Those that matter to a node and are changed often. The others are set by file, environment or `--set`.
    Flags, |knob: &SettingDefinition| !knob.is_plan() && !knob.is_leasing() && knob.is_common()
}

flags! {
    /// Those that matter to a worker of a queue, without shard leasing, which is set by file and environment.
    WorkerFlags, |knob: &SettingDefinition| knob.is_workers() && !knob.is_leasing()
}

flags! {
    /// Those that say how a leader plans for a keyspace.
    PlanFlags, SettingDefinition::is_plan
}

flags! {
    /// Those that matter to a process that only leads.
    LeaderFlags, |knob: &SettingDefinition| knob.is_leaders() && knob.is_common()
}

flags! {
    /// Those that matter to a router.
    RouterFlags, |knob: &SettingDefinition| knob.is_routers() && knob.is_common()
}

fn arg(knob: &'static SettingDefinition) -> Arg {
    let heading = match knob.is_plan() {
        true => "Planning settings",
        false => "Settings",
    };
    Arg::new(knob.name)
        .long(knob.flag())
        .value_name(knob.value_name())
        .allow_negative_numbers(true)
        .help(format!("{} [env: {}]", knob.help, knob.env()))
        .help_heading(heading)
}

fn own(takes: fn(&SettingDefinition) -> bool) -> impl Iterator<Item = &'static SettingDefinition> {
    KNOBS
        .iter()
        .filter(move |knob| !knob.is_global() && takes(knob))
}
