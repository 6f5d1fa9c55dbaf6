//! `completions` and `man`: shell completions and manual pages from the definition of the command
//! line.

mod mount_page;
mod sections;
mod text;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::terminal::console;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::Roff;
use lacuna_storage::{Error, Result, shell_word};
use std::io;
use std::path::Path;

/// `lacuna completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lacuna", &mut script);
    console::bytes(&script)
}

/// `lacuna man`.
pub(crate) fn pages(args: &ManArgs) -> Result<()> {
    write(&commands(), &args.dir)
        .and_then(|()| std::fs::write(args.dir.join(mount_page::FILE), mount_page::page()))
        .map_err(|e| not_written(&args.dir, &e))
}

/// The error of a directory that takes no manual pages.
fn not_written(dir: &Path, e: &io::Error) -> Error {
    let error = Error::io(format!("cannot write the manual pages to {}", dir.display()), e);
    match e.kind() {
        io::ErrorKind::NotFound => error
            .expected("an existing directory")
            .hint(format!("create the directory: mkdir -p {}", shell_word(dir))),
        io::ErrorKind::NotADirectory => error.expected("a directory"),
        _ => error,
    }
}

fn commands() -> Command {
    let mut commands = Cli::command().disable_help_subcommand(true);
    commands.build();
    commands
}

/// Writes the page of a command and the pages of its subcommands.
fn write(command: &Command, dir: &Path) -> io::Result<()> {
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write(one, dir)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    render(&page, command, &mut text)?;
    std::fs::write(dir.join(page.get_filename()), text)
}

fn render(page: &Man, command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(text)?;
    }
    extra_sections(command).to_writer(text)?;
    if command.get_version().is_some() {
        page.render_version_section(text)?;
    }
    Ok(())
}

/// The sections that do not come from the definition of the command line. A command with
/// subcommands, other than `lacuna`, has none.
fn extra_sections(command: &Command) -> Roff {
    let mut more = Roff::new();
    if command.has_subcommands() && command.get_name() != "lacuna" {
        return more;
    }
    let page = page_name(command);
    let own = |section| text::entries(&page, section);
    for (title, entries) in [
        ("LOCATIONS", own("LOCATIONS")),
        ("SIGNALS", sections::signals(command, own("SIGNALS"))),
        ("EXIT STATUS", sections::exit_codes(command)),
        ("ENVIRONMENT", sections::environment(command)),
        ("FILES", sections::files(command, own("FILES"))),
        ("EXAMPLES", own("EXAMPLES")),
    ] {
        text::write_list(&mut more, title, entries);
    }
    more
}

/// The name of the page of a command, such as `lacuna-key-add`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::BTreeSet;

    /// Checks the examples of a command and of its subcommands, and removes the names of their
    /// pages from `texts`.
    fn check(command: &Command, texts: &mut BTreeSet<&'static str>) {
        for one in command.get_subcommands() {
            check(one, texts);
        }
        let page = page_name(command);
        texts.remove(page.as_str());
        let examples = text::entries(&page, "EXAMPLES");
        assert_eq!(
            examples.is_empty(),
            ["lacuna-key", "lacuna-header", "lacuna-snapshot", "lacuna-vault"].contains(&page.as_str())
        );
        for (example, _) in examples {
            let words = example.split(" >").next().unwrap().replace("'/mnt/b c'", "/mnt/b");
            Cli::try_parse_from(words.split(' ')).map_or_else(|e| panic!("{example}: {e}"), drop);
        }
    }

    #[test]
    fn a_missing_directory_comes_with_the_command_that_makes_it() {
        let place = tempfile::tempdir().unwrap();
        let refused = |name: &str| pages(&ManArgs { dir: place.path().join(name) }).unwrap_err().to_string();
        let missing = refused("pages");
        assert!(
            missing.contains("expected: an existing directory; create the directory: mkdir -p /"),
            "{missing}"
        );
        std::fs::write(place.path().join("file"), "").unwrap();
        assert!(refused("file").contains("expected: a directory"));
    }

    #[test]
    fn every_page_has_examples_that_are_understood() {
        let mut texts = text::names();
        check(&commands(), &mut texts);
        let apart = ["environment", "exit-status", "mount.lacuna", "shared"];
        assert_eq!(texts, BTreeSet::from(apart), "texts of no page");
    }
}
