//! The first page of help: the verbs that people use every day, then all other verbs by the medium
//! that they are for.

use crate::terminal::terminal_size::{USUAL, columns_for_pager, filled};
use clap::builder::styling::Style;
use clap::{Arg, Command};
use std::fmt::Write as _;

/// The most columns of help: longer lines are hard to read.
const MOST: usize = 100;
/// The most columns of the lists on the first page.
const WIDTH: usize = 80;
/// The columns before the summary of a verb.
const BEFORE_SUMMARY: usize = 15;
/// The columns before the text of an option.
const BEFORE_TEXT: usize = 17;

/// The verbs below their headings.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Commands",
        &["create", "open", "close", "list", "status", "check", "doctor", "key", "header", "resize"],
    ),
    ("More", &["info", "serve", "rescue", "erase", "bench", "completions", "man"]),
    ("More, for vaults", &["vault"]),
    ("More, for disks in Ceph RADOS", &["snapshot", "delete"]),
    ("More, for disks on flash", &["purge"]),
];

/// The columns of help: those of the terminal, where there is one.
pub(crate) fn width() -> usize {
    columns_for_pager().unwrap_or(USUAL.columns).min(MOST)
}

/// The page of this command, in this number of columns, as a template: `clap` fills in its
/// description, its usage and the text after all.
pub(crate) fn template(command: &Command, columns: usize) -> String {
    let columns = columns.min(WIDTH);
    let (header, literal) = (command.get_styles().get_header(), command.get_styles().get_literal());
    let mut page = "{about-with-newline}\n{usage-heading} {usage}".to_owned();
    for (heading, names) in GROUPS {
        let _ = write!(page, "\n\n{header}{heading}:{header:#}");
        for verb in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let text =
                filled(summary(verb).iter().map(String::as_str), columns.saturating_sub(BEFORE_SUMMARY));
            page += &row(literal, verb.get_name(), BEFORE_SUMMARY, &text);
        }
    }
    let paragraph = |text: &str| filled(text.split(' '), columns).join("\n");
    page += "\n\n";
    page += &paragraph("`lacuna help COMMAND` explains a command and all its options.");
    let _ = write!(page, "\n\n{header}Options:{header:#}");
    let listed = |text: &str| filled(text.split(' '), columns.saturating_sub(BEFORE_TEXT));
    for option in command.get_arguments() {
        let text = option.get_help().map_or_else(String::new, ToString::to_string);
        page += &row(literal, &flags(option), BEFORE_TEXT, &listed(&text));
    }
    // `clap` adds these to the command later.
    page += &row(literal, "-h, --help", BEFORE_TEXT, &listed("Print this page, or the help of a command"));
    page += &row(literal, "-V, --version", BEFORE_TEXT, &listed("Print version"));
    page += "{after-help}\n\n";
    page += &paragraph("To report a vulnerability, see SECURITY.md in the source or in share/doc/lacuna.");
    page
}

/// An entry of a list with the lines of its text, after the end of the line before.
fn row(literal: &Style, name: &str, before: usize, text: &[String]) -> String {
    let gap = " ".repeat(before.saturating_sub(name.len() + 2));
    let text = text.join(&format!("\n{:before$}", ""));
    format!("\n  {literal}{name}{literal:#}{gap}{text}")
}

/// The words of the summary of a verb, and its other names as one piece.
fn summary(verb: &Command) -> Vec<String> {
    let about = verb.get_about().map_or_else(String::new, ToString::to_string);
    let aliases: Vec<&str> = verb.get_visible_aliases().collect();
    let names = match aliases[..] {
        [] => None,
        [one] => Some(format!("[alias: {one}]")),
        _ => Some(format!("[aliases: {}]", aliases.join(", "))),
    };
    about.split(' ').map(str::to_owned).chain(names).collect()
}

/// The short and the long form of an option.
fn flags(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("-{short}"));
    let long = option.get_long().map(|long| format!("--{long}"));
    short.into_iter().chain(long).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;
    use std::collections::BTreeSet;

    /// The page at 80 columns.
    const PAGE: &str = include_str!("help_screen.txt");

    #[test]
    fn the_first_page_is_this() {
        let page = args::command_of_width(WIDTH).render_long_help().to_string();
        assert_eq!(page, PAGE);
        // The short form has another description.
        let (_, rest) = PAGE.split_once("\nUsage:").unwrap();
        let short = args::command_of_width(WIDTH).render_help().to_string();
        assert!(short.ends_with(rest), "{short}");
    }

    #[test]
    fn help_is_not_wider_than_the_terminal() {
        for columns in [60, WIDTH, MOST] {
            let mut command = args::command_of_width(columns);
            command.build();
            let first = [command.render_help(), command.render_long_help()];
            let verbs = command.get_subcommands_mut().map(Command::render_long_help);
            for page in first.into_iter().chain(verbs).map(|page| page.to_string()) {
                let wide = page.lines().find(|line| line.chars().count() > columns);
                assert_eq!(wide, None, "{columns} columns");
            }
        }
        let narrow = args::command_of_width(50).render_help().to_string();
        // A line that is folded goes on below its own beginning.
        assert!(
            narrow.contains("  open         Open a disk or a vault and mount\n               its"),
            "{narrow}"
        );
    }

    #[test]
    fn every_verb_is_on_the_first_page_once() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let command = args::command();
        let all: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!((grouped.len(), grouped.into_iter().collect::<BTreeSet<_>>()), (all.len(), all));
    }

    #[test]
    fn the_short_help_leaves_out_options_that_few_need() {
        let rare = ["--kdf-passes", "--geometry", "--chip", "--key-bits", "--workers", "--sensitive"];
        for name in ["create", "serve"] {
            let mut command = args::command();
            let verb = command.find_subcommand_mut(name).unwrap();
            let (short, long) = (verb.render_help().to_string(), verb.render_long_help().to_string());
            let hidden = rare.iter().filter(|option| long.contains(*option));
            assert!(hidden.clone().count() > 1 && short.contains("--key-file"), "{long}");
            hidden.for_each(|option| assert!(!short.contains(option), "{option} in {short}"));
        }
    }
}
