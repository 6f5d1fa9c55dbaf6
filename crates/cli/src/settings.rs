//! What the command line calls the settings that errors of the library speak of.

use clap::{Arg, ArgMatches, Command};
use lacuna::{Error, Setting};
use std::borrow::Cow;
use std::sync::OnceLock;

/// The long options of the command that was given.
static OPTIONS: OnceLock<Vec<String>> = OnceLock::new();

/// Remembers which of the commands of `cli` was given.
pub(crate) fn remember(cli: &Command, matches: &ArgMatches) {
    let (mut command, mut given) = (cli, matches);
    while let Some((name, below)) = given.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, given) = (found, below);
    }
    let options = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
    // A process is given one command.
    let _ = OPTIONS.set(options);
}

/// An error in the words of the command line.
pub(crate) fn words(e: &Error) -> String {
    e.named(name)
}

/// The option for a setting. Where the command that was given has none, it is named with a command that has it.
pub(crate) fn name(setting: Setting) -> Cow<'static, str> {
    let (option, _) = option(setting);
    // The verbs that take it and refuse it are those that are told where it belongs.
    let known = setting != Setting::Cost
        && OPTIONS.get().is_none_or(|options| options.iter().any(|known| known == &option[2..]));
    if known { option.into() } else { full_name(setting) }
}

/// The option for a setting with a command that has it: for those who read of it in the output of another command.
pub(crate) fn full_name(setting: Setting) -> Cow<'static, str> {
    let (option, command) = option(setting);
    format!("{option} of `lacuna {command}`").into()
}

/// The option for a setting, and a command that has it.
const fn option(setting: Setting) -> (&'static str, &'static str) {
    match setting {
        Setting::CephId => ("--ceph-id", "open"),
        Setting::CephConf => ("--ceph-conf", "open"),
        Setting::Cost => ("--kdf-memory", "key refresh"),
        Setting::CoverTimeout => ("--cover-timeout", "open"),
        Setting::Force => ("--force", "create"),
        Setting::Geometry => ("--geometry", "create"),
        Setting::Layout => ("--layout", "create"),
        Setting::Mkfs => ("--mkfs", "open"),
        Setting::MountOptions => ("--mount-options", "open"),
        Setting::Namespace => ("--namespace", "open"),
        Setting::Older => ("--older", "header restore"),
        Setting::Overwrite => ("--force", "open"),
        Setting::Raw => ("--raw", "open"),
        Setting::ReadOnly => ("--read-only", "open"),
        Setting::Replace => ("--replace", "header restore"),
        Setting::Size => ("--size", "create"),
        Setting::Steal => ("--steal", "open"),
        Setting::Timeout => ("--timeout", "open"),
        Setting::Via => ("--via", "open"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use lacuna::{Advice, Kind};

    #[test]
    fn options_are_those_of_the_commands_that_are_named() {
        for setting in [
            Setting::CephId,
            Setting::CephConf,
            Setting::Cost,
            Setting::CoverTimeout,
            Setting::Force,
            Setting::Geometry,
            Setting::Layout,
            Setting::Mkfs,
            Setting::MountOptions,
            Setting::Namespace,
            Setting::Older,
            Setting::Overwrite,
            Setting::Raw,
            Setting::ReadOnly,
            Setting::Replace,
            Setting::Size,
            Setting::Steal,
            Setting::Timeout,
            Setting::Via,
        ] {
            let (option, command) = option(setting);
            let cli = Cli::command();
            let found = command.split(' ').try_fold(&cli, |found, name| found.find_subcommand(name)).unwrap();
            assert!(found.get_arguments().any(|arg| arg.get_long() == Some(&option[2..])), "{setting:?}");
        }
    }

    #[test]
    fn an_option_of_another_command_is_named_with_it() {
        let given = Cli::command().try_get_matches_from(["lacuna", "status"]).unwrap();
        remember(&Cli::command(), &given);
        let e =
            Error::new(Kind::ReadOnly, "refused").remedy(Advice::from("give ").setting(Setting::ReadOnly));
        assert_eq!(words(&e), "refused; give --read-only of `lacuna open`");
    }
}
