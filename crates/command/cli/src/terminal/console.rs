//! What people see and are asked: results on standard output, everything else on standard error.
//!
//! Never panics, whatever has become of the streams: a reader that has left has read enough, and a
//! full one is an error of its own.

use crate::terminal::exit_code;
use crate::terminal::settings;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lacuna_storage::{Error, Kind, Result};
use serde::Serialize;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// What is said of every private error where no terminal is.
const HIDDEN: &str = "the disk could not do what it was asked; what and why is told on a terminal only: run the \
    same command on one, or ask `lacuna status` while the disk is open";

/// How much to say.
#[derive(Clone, Copy)]
pub(crate) struct Console {
    quiet: bool,
    verbose: bool,
    drawing: bool,
}

impl Console {
    pub(crate) fn new(quiet: bool, verbose: bool) -> Self {
        Console { quiet, verbose, drawing: true }
    }

    /// Whether more is to be said.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A progress bar of `length` steps, drawn only where somebody may be watching. `rate` is the
    /// part of its template that says how fast it goes.
    pub(crate) fn progress(&self, length: u64, rate: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(length), self.target());
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{bar:40}} {{percent:>3}}%  {rate}  {{eta}} left"))
        {
            bar.set_style(style);
        }
        bar
    }

    /// A line that says that something is going on.
    pub(crate) fn spinner(&self) -> ProgressBar {
        let spinner = ProgressBar::with_draw_target(None, self.target());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {wide_msg}") {
            spinner.set_style(style);
        }
        spinner
    }

    /// The same, for a process that leaves the terminal to another.
    pub(crate) fn without_drawing(self) -> Self {
        Console { drawing: false, ..self }
    }

    /// Whether anything is drawn while something goes on.
    pub(crate) fn draws(&self) -> bool {
        self.drawing && !self.quiet && is_watched()
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.draws() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }

    /// Something a person should know though all goes well.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            to_stderr(&format!("lacuna: note: {text}"));
        }
    }

    /// A detail for `--verbose`.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            to_stderr(&format!("lacuna: {text}"));
        }
    }

    /// A sentence about what was done, on standard output unless `--quiet`.
    pub(crate) fn done(&self, text: &str) -> Result<()> {
        if self.quiet { Ok(()) } else { line(text) }
    }
}

/// An error, which `--quiet` does not silence.
///
/// Deniability contract: of a private one a log hears the same sentence, whatever it says.
pub(crate) fn error(e: &Error) {
    let words = if hides(e) { HIDDEN.into() } else { settings::words(e) };
    to_stderr(&format!("lacuna: {words}"));
}

/// What a command ends with, of two things that it did. If both failed, the second failure is told
/// at once.
pub(crate) fn both<T>(first: Result<T>, second: Result<()>) -> Result<T> {
    both_told(first, second, error)
}

/// The same; `say` is told the second failure.
pub(crate) fn both_told<T>(first: Result<T>, second: Result<()>, say: impl FnOnce(&Error)) -> Result<T> {
    match (first, second) {
        (Err(first), Err(second)) => {
            say(&second);
            Err(first)
        }
        (first, second) => first.and_then(|done| second.map(|()| done)),
    }
}

/// The exit code of a command that ends with an error. A log that keeps exit codes hears the same
/// one of all that are private.
pub(crate) fn exit_code(e: &Error) -> u8 {
    exit_code::of(if hides(e) { Kind::Other } else { e.kind() })
}

/// Ends the process. Everything written to the streams is out by now: nothing here keeps it back.
pub(crate) fn leave(code: u8) -> ! {
    if lacuna_storage::rados::is_in_use() {
        // A thread waits in it for a cluster that does not answer.
        lacuna_storage::rados::exit_at_once(code);
    }
    std::process::exit(i32::from(code))
}

/// Whether standard error is what a person looks at, not a file, a pipe or a log.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

fn hides(e: &Error) -> bool {
    e.is_private() && !is_watched()
}

/// Whether a person is there to be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks whether to go on, and fails unless the answer is yes.
pub(crate) fn confirm() -> Result<()> {
    let _ = write!(io::stderr(), "Go on? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|e| Error::io("cannot read the answer", &e))?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "nothing was changed").found("an answer other than yes"))
}

/// What a person has to do or to know now, which `--quiet` does not silence.
pub(crate) fn now(text: &str) {
    to_stderr(&format!("lacuna: {text}"));
}

/// A line of what was asked for.
pub(crate) fn line(text: &str) -> Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// A JSON document.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::io("cannot write the answer as JSON", &e.into()))?;
    line(&text)
}

/// Bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::io("cannot write to standard output", &e)),
        _ => Ok(()),
    }
}

/// The words of clap, in the form of our errors.
pub(crate) fn usage_error(e: &clap::Error) {
    let text = e.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // Nobody who mistypes an option means a file of that name.
    let said: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("tip: to pass")).collect();
    to_stderr(&format!("lacuna: {}", said.join("\n").trim_end()));
}

fn to_stderr(text: &str) {
    // There is nobody left to tell if this fails.
    let _ = writeln!(io::stderr(), "{text}");
}
