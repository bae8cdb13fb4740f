//! The settings of a node as flags, made from the table of [`knobs`](super::knobs).

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::knobs::{KNOBS, Knob};

/// The flags that were given, by the name of their setting. Those that every command takes are not among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags(pub(crate) BTreeMap<&'static str, String>);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        own().fold(command, |command, knob| {
            command.arg(
                Arg::new(knob.name)
                    .long(knob.flag())
                    .value_name(knob.value_name())
                    .help(format!("{} [env: {}]", knob.help, knob.env()))
                    .help_heading("Settings"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = own().filter_map(|knob| {
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

fn own() -> impl Iterator<Item = &'static Knob> {
    KNOBS.iter().filter(|knob| !knob.is_global())
}
