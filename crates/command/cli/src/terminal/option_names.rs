//! Names of the command line for the settings and actions in errors of the library.

use crate::terminal::permission_advice;
use clap::{Arg, ArgMatches, Command};
use lacuna_storage::{Action, Error, ErrorText, Location, Setting, Term, shell_word};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// The option for each setting, and a command that has it.
const OPTION_OF: &[(&str, &str, &str)] = &[
    ("ceph_conf", "--ceph-conf", "open"),
    ("ceph_id", "--ceph-id", "open"),
    ("cells_per_write", "--cells-per-write", "create"),
    ("chip", "--chip", "create"),
    ("cipher", "--cipher", "create"),
    ("cost", "--kdf-memory", "key refresh"),
    ("cover_millis", "--cover", "create"),
    ("cover_timeout", "--cover-timeout", "open"),
    ("force", "--force", "create"),
    ("geometry", "--geometry", "create"),
    ("hiding", "--hiding", "create"),
    ("key_bits", "--key-bits", "create"),
    ("layout", "--layout", "create"),
    ("levels", "--levels", "create"),
    ("mkfs", "--mkfs", "open"),
    ("mount_options", "--mount-options", "open"),
    ("namespace", "--namespace", "open"),
    ("older", "--older", "header restore"),
    ("overwrite", "--force", "open"),
    ("raw", "--raw", "open"),
    ("read_only", "--read-only", "open"),
    ("replace", "--replace", "header restore"),
    ("size", "--size", "create"),
    ("spare_permille", "--spare", "create"),
    ("steal", "--steal", "open"),
    ("timeout", "--timeout", "open"),
    ("via", "--via", "open"),
];

/// The command for each action, with its arguments. DIR and DISK stand for the location that the
/// running command has.
const COMMAND_OF: &[(&str, &str)] = &[
    ("close", "close DISK"),
    ("create", "create DISK"),
    ("examine", "doctor"),
    // Advice for a location that is a backup.
    ("header::check", "header check DISK"),
    ("header::restore", "header restore LOCATION DISK"),
    ("rescue", "rescue"),
    ("status", "status"),
    ("vault::accept", "vault accept DIR"),
    ("vault::repair", "vault check DIR --repair"),
    ("vault::rescue", "vault rescue DIR TARGET"),
    ("vault::restore_header", "header restore DIR BACKUP"),
];

/// The long options of the command that runs.
static OPTIONS: OnceLock<Vec<String>> = OnceLock::new();
/// The location of the command that runs.
static LOCATION: OnceLock<Given> = OnceLock::new();

/// A location as a word of a shell.
struct Given {
    typed: String,
    /// For readers with another working directory.
    absolute: String,
}

impl Given {
    fn of(word: &OsStr) -> Given {
        let typed = shell_word(word);
        let absolute = match Location::from_os_str(word) {
            Ok(Location::Path(path)) => shell_word(std::path::absolute(&path).unwrap_or(path)),
            _ => typed.clone(),
        };
        Given { typed, absolute }
    }
}

/// Remembers which command of `cli` runs, and for which location.
pub(crate) fn remember(cli: &Command, matches: &ArgMatches) {
    let (mut command, mut given) = (cli, matches);
    while let Some((name, below)) = given.subcommand()
        && let Some(found) = command.find_subcommand(name)
    {
        (command, given) = (found, below);
    }
    let options = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
    // A process runs one command.
    let _ = OPTIONS.set(options);
    let ids = command.get_arguments().map(|arg| arg.get_id().as_str());
    let location = ids.filter(|id| ["location", "dir"].contains(id)).find_map(|id| given.get_raw(id)?.next());
    if let Some(location) = location {
        let _ = LOCATION.set(Given::of(location));
    }
}

/// Renders an error with the names of the command line, on one line.
pub(crate) fn render(e: &Error) -> String {
    text(e).line()
}

/// Renders an error with the names of the command line, on up to three lines.
pub(crate) fn lines(e: &Error) -> String {
    text(e).lines()
}

fn text(e: &Error) -> ErrorText {
    let mut text = e.text(name);
    text.advice = text.advice.or_else(|| permission_advice::of(e).map(str::to_owned));
    let typed = LOCATION.get().map(|given| given.typed.as_str());
    text.advice = text.advice.map(|advice| filled(&advice, typed));
    text
}

/// The text with the location in its commands, instead of DIR and DISK. Without a location, they
/// are left out at the end of a command.
fn filled(text: &str, location: Option<&str>) -> String {
    let fill = |word: &str| match location {
        Some(location) if matches!(word, "DIR" | "DISK") => location.to_owned(),
        _ => word.to_owned(),
    };
    let part = |part: &str| {
        if !part.starts_with("lacuna ") {
            return part.to_owned();
        }
        let mut words: Vec<String> = part.split(' ').map(fill).collect();
        if location.is_none() {
            words.pop_if(|last| matches!(last.as_str(), "DIR" | "DISK"));
        }
        words.join(" ")
    };
    text.split('`').map(part).collect::<Vec<_>>().join("`")
}

/// The option or the command for a term. If the running command lacks the option, the name includes
/// a command that has it.
pub(crate) fn name(term: Term) -> Cow<'static, str> {
    let setting = match term {
        Term::Setting(setting) => setting,
        // The location is filled in with the rest of the advice.
        Term::Action(action) => return command(action).map_or_else(|| term.quoted(), Cow::Owned),
    };
    let Some((option, _)) = option(setting) else { return full_name(term) };
    // Commands that take the cost and refuse it must name the command that accepts it.
    let known = setting != Setting("cost")
        && OPTIONS.get().is_none_or(|options| options.iter().any(|known| known == &option[2..]));
    if known { option.into() } else { full_name(term) }
}

/// The option for a setting with a command that has it, or the command for an action: for output
/// that users of other commands read.
pub(crate) fn full_name(term: Term) -> Cow<'static, str> {
    let words = match term {
        Term::Setting(setting) => {
            option(setting).map(|(option, command)| format!("{option} of `lacuna {command}`"))
        }
        Term::Action(action) => command(action)
            .map(|command| filled(&command, LOCATION.get().map(|given| given.absolute.as_str()))),
    };
    words.map_or_else(|| term.quoted(), Cow::Owned)
}

/// The option for a setting, and a command that has it.
fn option(setting: Setting) -> Option<(&'static str, &'static str)> {
    let found = OPTION_OF.iter().find(|(name, ..)| *name == setting.0);
    found.map(|(_, option, command)| (*option, *command))
}

/// The command for an action, with its arguments, in backquotes.
fn command(action: Action) -> Option<String> {
    COMMAND_OF.iter().find(|(name, _)| *name == action.0).map(|(_, command)| format!("`lacuna {command}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use lacuna_storage::{Hint, Kind};

    #[test]
    fn every_named_option_exists_in_its_command() {
        for (name, option, command) in OPTION_OF {
            let cli = Cli::command();
            let found = command.split(' ').try_fold(&cli, |found, name| found.find_subcommand(name)).unwrap();
            assert!(found.get_arguments().any(|arg| arg.get_long() == Some(&option[2..])), "{name}");
        }
    }

    #[test]
    fn every_named_command_takes_its_arguments() {
        for (name, words) in COMMAND_OF {
            let cli = Cli::command();
            let (mut found, mut arguments) = (&cli, 0);
            for word in words.split(' ') {
                if word.chars().all(|letter| letter.is_ascii_lowercase()) {
                    found = found.find_subcommand(word).unwrap_or_else(|| panic!("{name}: {word}"));
                } else if let Some(option) = word.strip_prefix("--") {
                    assert!(found.get_arguments().any(|arg| arg.get_long() == Some(option)), "{name}");
                } else {
                    arguments += 1;
                }
            }
            assert!(found.get_positionals().count() >= arguments, "{name}");
        }
    }

    #[test]
    fn an_option_of_another_command_is_named_with_it() {
        let given = Cli::command().try_get_matches_from(["lacuna", "status"]).unwrap();
        remember(&Cli::command(), &given);
        let e = Error::new(Kind::ReadOnly, "refused").hint(Hint::from("give ").setting(Setting("read_only")));
        assert_eq!(render(&e), "refused; give --read-only of `lacuna open`");
        assert_eq!(lines(&e), "refused\n  hint: give --read-only of `lacuna open`");
    }

    #[test]
    fn a_refusal_of_the_system_without_advice_gets_some() {
        let e = Error::io("cannot read key", &std::io::Error::from_raw_os_error(libc::EACCES));
        assert!(text(&e).advice.is_some() && e.get_hint().is_none());
        assert_eq!(render(&e.clone().hint("do that")), format!("{e}; do that"));
    }

    #[test]
    fn an_action_is_named_by_its_command() {
        let e = Error::new(Kind::NotFound, "no answer").hint(Hint::from("see ").action(Action("status")));
        assert_eq!(render(&e), "no answer; see `lacuna status`");
    }

    #[test]
    fn commands_in_advice_name_the_location() {
        let advice = "`lacuna vault accept DIR` takes it, not DIR; `lacuna key add DISK --token T`";
        assert_eq!(
            filled(advice, Some("'my v'")),
            "`lacuna vault accept 'my v'` takes it, not DIR; `lacuna key add 'my v' --token T`"
        );
        assert_eq!(
            filled(advice, None),
            "`lacuna vault accept` takes it, not DIR; `lacuna key add DISK --token T`"
        );
        let given = Given::of(OsStr::new("a b"));
        assert!(given.typed == "'a b'" && given.absolute.starts_with("'/"), "{}", given.absolute);
        assert_eq!(Given::of(OsStr::new("rados:pool/x")).absolute, "rados:pool/x");
    }
}
