//! Turns the errors of the command line's parser into errors of the same form as all others, and
//! names the verb for words of other tools.

use crate::mount_helper::Helper;
use crate::terminal::mount_names;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lacuna_storage::{Error, Kind};
use std::error::Error as _;
use std::ffi::OsString;

/// Words that users of other tools type, with the verbs before them, and the command that does
/// that job here.
const MEANT: &[(&str, &str)] = &[
    ("backup", "header backup"),
    ("dismount", "close"),
    ("fsck", "check"),
    ("grow", "resize"),
    ("init", "create"),
    ("isLuks", "info"),
    ("lock", "close"),
    ("ls", "list"),
    ("luksAddKey", "key add"),
    ("luksChangeKey", "key change"),
    ("luksClose", "close"),
    ("luksDump", "info"),
    ("luksErase", "erase"),
    ("luksFormat", "create"),
    ("luksHeaderBackup", "header backup"),
    ("luksHeaderRestore", "header restore"),
    ("luksOpen", "open"),
    ("luksRemoveKey", "key remove"),
    ("mkfs", "open --mkfs"),
    ("passwd", "key change"),
    ("repair", "header repair"),
    ("restore", "header restore"),
    ("unlock", "open"),
    ("version", "--version"),
    ("wipe", "erase"),
    ("header dump", "info"),
    ("header show", "info"),
    ("key list", "info"),
    ("key passwd", "key change"),
    ("key rotate", "key refresh"),
    ("key show", "info"),
    ("vault close", "close"),
    ("vault create", "vault init"),
    ("vault fsck", "vault check"),
    ("vault info", "info"),
    ("vault list", "list"),
    ("vault mount", "open"),
    ("vault open", "open"),
    ("vault passwd", "key change"),
    ("vault status", "status"),
    ("vault umount", "close"),
];

/// The error for a command line that the parser refused; `given` is that command line.
pub(crate) fn of(e: &clap::Error, given: &[OsString]) -> Error {
    let rendered = e.render().to_string();
    let Parts { message, usage, tips } = Parts::of(&rendered);
    // The parser of a value gave an error in parts.
    if let Some(source) = e.source()
        && let Some(refused) = source.downcast_ref::<Error>()
    {
        let before = message.strip_suffix(&format!(": {refused}")).unwrap_or("cannot use a value");
        return refused.clone().context(before);
    }
    let refused = Error::new(Kind::Usage, message);
    if mount_names::are_used() {
        // The command line is a translation of the user's own.
        return Helper::Mount.explain(refused);
    }
    let refused = if usage.is_empty() { refused } else { refused.expected(usage.as_str()) };
    match (meant(e, given), tips.as_str()) {
        (Some(command), _) => refused.hint(format!("`lacuna {command}` does that")),
        (None, "") if usage.is_empty() => refused.hint("--help shows the options"),
        (None, "") => refused.hint(format!("`{} --help` explains it", verb(&usage))),
        (None, _) => refused.hint(tips),
    }
}

/// The parts of the text of a clap error, each on one line.
struct Parts {
    message: String,
    usage: String,
    tips: String,
}

impl Parts {
    fn of(rendered: &str) -> Parts {
        let (mut message, mut usage, mut tips) = (Vec::new(), Vec::new(), Vec::new());
        for paragraph in rendered.strip_prefix("error: ").unwrap_or(rendered).trim_end().split("\n\n") {
            let lines = paragraph.lines().map(str::trim);
            if let Some(form) = paragraph.strip_prefix("Usage: ") {
                usage.extend(form.lines().map(str::trim));
            } else if paragraph.trim_start().starts_with("tip: ") {
                let tip = |line: &str| line.strip_prefix("tip: ").unwrap_or(line).to_owned();
                // A mistyped option is not meant as a file name.
                tips.extend(lines.filter(|line| !line.starts_with("tip: to pass")).map(tip));
            } else if !paragraph.starts_with("For more information") {
                message.extend(lines);
            }
        }
        Parts { message: message.join(" "), usage: usage.join(" or "), tips: tips.join("; ") }
    }
}

/// The command at the beginning of a usage line, without its options and arguments.
fn verb(usage: &str) -> String {
    let is_verb = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
    usage.split(' ').take_while(is_verb).collect::<Vec<_>>().join(" ")
}

/// The command that a user means with a word that is no verb.
fn meant(e: &clap::Error, given: &[OsString]) -> Option<&'static str> {
    let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(typed))) =
        (e.kind(), e.get(ContextKind::InvalidSubcommand))
    else {
        return None;
    };
    let words = given.iter().skip(1).map_while(|word| word.to_str());
    let verbs: Vec<&str> = words.filter(|word| !word.starts_with('-')).collect();
    let before = verbs.iter().take_while(|word| *word != typed);
    let typed = before.chain([&typed.as_str()]).copied().collect::<Vec<_>>().join(" ");
    MEANT.iter().find(|(word, _)| *word == typed).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use lacuna_storage::Term;

    fn refused(line: &str) -> Error {
        let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        of(&Cli::command().try_get_matches_from(&given).unwrap_err(), &given)
    }

    #[test]
    fn words_of_other_tools_name_the_command() {
        for (word, command) in MEANT {
            let text = refused(&format!("lacuna -q {word} a b")).to_string();
            assert!(text.ends_with(&format!("; `lacuna {command}` does that")), "{word}: {text}");
            let mut found = &Cli::command();
            for name in command.split(' ').filter(|name| !name.starts_with('-')) {
                found = found.find_subcommand(name).unwrap_or_else(|| panic!("{command}"));
            }
        }
    }

    #[test]
    fn a_refused_command_line_has_the_form_of_all_errors() {
        let text = refused("lacuna open a b --key-fiel c").text(Term::quoted);
        assert_eq!(text.message, "unexpected argument '--key-fiel' found");
        assert!(text.expected.is_some_and(|usage| usage.starts_with("lacuna open ")));
        assert_eq!(text.advice.as_deref(), Some("a similar argument exists: '--key-file'"));
        let text = refused("lacuna close").text(Term::quoted);
        assert!(text.message.contains("required arguments") && text.message.contains("MOUNTPOINT"));
        assert_eq!(text.advice.as_deref(), Some("`lacuna close --help` explains it"));
        let text = refused("lacuna create a --size 5x").text(Term::quoted);
        assert_eq!(text.message, "invalid value '5x' for '--size <SIZE>': not a size");
        assert_eq!(text.found.as_deref(), Some("\"5x\""));
        let kinds = refused("lacuna create a --format nothing").to_string();
        assert!(kinds.contains("[possible values: ") && !kinds.contains('\n'), "{kinds}");
    }
}
