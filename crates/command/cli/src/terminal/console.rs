//! Output to the user and questions: results on standard output, everything else on standard error.
//! Control characters in it, as in the name of a file, are escaped.
//!
//! Never panics because of a broken stream: EPIPE on standard output counts as success, ENOSPC is
//! an error.

use crate::terminal::{exit_code, mount_names, option_names};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lacuna_storage::{Error, Kind, Result, printable};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// Replaces the text of every private error if standard error is not a terminal.
const REDACTED: &str = "failed, and this disk keeps the reason out of logs: run the same command on a terminal to see it, \
    or ask `lacuna status` while the disk is open. A script gets a terminal from `script -qec COMMAND /dev/null`, and must \
    not keep the output";

/// Verbosity.
#[derive(Clone, Copy)]
pub(crate) struct Console {
    quiet: bool,
    verbose: bool,
    may_draw: bool,
}

impl Console {
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        Console { quiet, verbose, may_draw: true }
    }

    /// Whether details are shown.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A progress bar of `length` steps, drawn only on a terminal. `rate` is the part of its
    /// template that shows the speed.
    pub(crate) fn progress(&self, length: u64, rate: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:40}} {{percent:>3}}%  {rate}  {{eta}} left"))
        {
            bar.set_style(style);
        }
        bar
    }

    /// A line that shows that work is going on.
    pub(crate) fn spinner(&self) -> ProgressBar {
        let spinner = ProgressBar::with_draw_target(None, self.target());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {wide_msg}") {
            spinner.set_style(style);
        }
        spinner
    }

    /// The same console without bars and spinners, for a process that leaves the terminal to
    /// another one.
    pub(crate) fn without_drawing(self) -> Self {
        Console { may_draw: false, ..self }
    }

    /// Whether bars and spinners are drawn.
    pub(crate) fn can_draw(&self) -> bool {
        self.may_draw && !self.quiet && is_terminal()
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.can_draw() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }

    /// Information that the user should have although there is no error.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            print_always(&format!("note: {text}"));
        }
    }

    /// An error as information, on up to three lines on a terminal.
    pub(crate) fn note_error(&self, e: &Error) {
        if !self.quiet {
            to_stderr(&format!("lacuna: note: {}", shown(e)));
        }
    }

    /// The same console for what leads to a question: `--quiet` does not silence it.
    pub(crate) fn before_question(self) -> Self {
        Console { quiet: false, ..self }
    }

    /// Tells what will be done and, unless the user has `agreed` to it before, asks whether to go
    /// on. Errors: [`Kind::Usage`] if the answer is not yes.
    pub(crate) fn confirm(self, about: &str, agreed: bool) -> Result<()> {
        if agreed {
            self.note(about);
            return Ok(());
        }
        self.before_question().note(about);
        ask_to_go_on()
    }

    /// A detail for `--verbose`.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            print_always(text);
        }
    }

    /// An error as a detail for `--verbose`, on up to three lines on a terminal.
    pub(crate) fn detail_error(&self, e: &Error) {
        if self.verbose {
            error(e);
        }
    }

    /// A sentence about completed work, on standard output unless `--quiet`.
    pub(crate) fn done(&self, text: &str) -> Result<()> {
        if self.quiet { Ok(()) } else { line(text) }
    }

    /// Several sentences about completed work, each on a line.
    pub(crate) fn done_lines<S: AsRef<str>>(&self, lines: &[S]) -> Result<()> {
        lines.iter().try_for_each(|line| self.done(line.as_ref()))
    }
}

/// Prints an error: on up to three lines on a terminal, on one line elsewhere. `--quiet` does not
/// silence it.
pub(crate) fn error(e: &Error) {
    to_stderr(&format!("lacuna: {}", shown(e)));
}

/// The text of an error for standard error: on up to three lines on a terminal, on one elsewhere.
///
/// Deniability contract: a log gets the same sentence for every private error.
pub(crate) fn shown(e: &Error) -> String {
    if is_redacted(e) {
        REDACTED.to_owned()
    } else if is_terminal() {
        mount_names::in_message(option_names::lines(e))
    } else {
        mount_names::in_message(option_names::render(e))
    }
}

/// Combines the results of two steps of a command. If both failed, the second error is printed at
/// once and the first is returned.
pub(crate) fn combine<T>(first: Result<T>, second: Result<()>) -> Result<T> {
    combine_with(first, second, error)
}

/// Like [`combine`], with `report` for the second error.
pub(crate) fn combine_with<T>(
    first: Result<T>,
    second: Result<()>,
    report: impl FnOnce(&Error),
) -> Result<T> {
    match (first, second) {
        (Err(first), Err(second)) => {
            report(&second);
            Err(first)
        }
        (first, second) => first.and_then(|done| second.map(|()| done)),
    }
}

/// The exit code of a command that ends with an error. A log that keeps exit codes gets the same
/// code for all private errors.
pub(crate) fn exit_code(e: &Error) -> u8 {
    exit_code::of(if is_redacted(e) { Kind::Other } else { e.kind() })
}

/// Ends the process. All output is written by now: no stream is buffered here.
pub(crate) fn exit(code: u8) -> ! {
    if lacuna_storage::rados::is_in_use() {
        // A thread of the client library may wait for a cluster that does not answer.
        lacuna_storage::rados::exit_at_once(code);
    }
    std::process::exit(i32::from(code))
}

/// Whether standard error is a terminal and not a file, a pipe or a log.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

fn is_redacted(e: &Error) -> bool {
    e.is_confidential() && !is_terminal()
}

/// Whether the user can be asked on a terminal.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn ask_to_go_on() -> Result<()> {
    let _ = write!(io::stderr(), "Go on? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|e| Error::io("cannot read the answer", &e))?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "nothing was changed").found("an answer other than yes"))
}

/// Information that the user needs now; `--quiet` does not silence it.
pub(crate) fn print_always(text: &str) {
    to_stderr(&format!("lacuna: {}", mount_names::in_message(printable(text).into_owned())));
}

/// A line of requested output.
pub(crate) fn line(text: &str) -> Result<()> {
    bytes(format!("{}\n", printable(text)).as_bytes())
}

/// A table of requested output, with a name and a value in each row.
pub(crate) fn table<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> Result<()> {
    bytes(table_text(rows).as_bytes())
}

fn table_text<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> String {
    let row = |(name, value): (N, String)| format!("{:<16} {}\n", name.as_ref(), printable(&value));
    rows.into_iter().map(row).collect()
}

/// A JSON document. It may have names of other users in it, and reach a terminal.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::io("cannot write the answer as JSON", &e.into()))?;
    bytes((escaped(&text) + "\n").as_bytes())
}

/// Escapes the control characters that JSON permits in strings, such as U+009B.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        let mut bytes = [0; 4];
        // Line ends stand between the strings.
        if letter == '\n' || matches!(printable(letter.encode_utf8(&mut bytes)), Cow::Borrowed(_)) {
            out.push(letter);
        } else {
            // All of them have a number of at most four digits.
            let _ = write!(out, "\\u{:04x}", u32::from(letter));
        }
    }
    out
}

/// Raw bytes, without the names that other users or other media have chosen.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::io("cannot write to standard output", &e)),
        _ => Ok(()),
    }
}

/// Prints help that was not asked for, because the command line lacks a verb.
pub(crate) fn help_instead(e: &clap::Error) {
    to_stderr(e.render().to_string().trim_end());
}

fn to_stderr(text: &str) {
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_table_forges_no_row() {
        let rows = [("location", "a\nUUID\u{1b}[2J".to_owned()), ("size", "1".to_owned())];
        assert_eq!(table_text(rows), "location         a\\nUUID\\u{1b}[2J\nsize             1\n");
    }

    #[test]
    fn json_reaches_a_terminal_without_control_characters() {
        let value = serde_json::json!({ "at": "a\u{9b}2J\u{202e}b\n\u{1b}", "größer": "日本" });
        let text = escaped(&serde_json::to_string_pretty(&value).unwrap());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(text.contains("a\\u009b2J\\u202eb\\n\\u001b") && text.contains("größer"), "{text}");
    }
}
