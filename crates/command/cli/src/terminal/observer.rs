//! Observers of the library's operations, which print notes and ask questions on the terminal.

use crate::terminal::console::{self, Console};
use crate::terminal::working;
use indicatif::ProgressBar;
use lacuna_storage::{MISSING_AFTER_GROWTH, Observer, Result};

/// Text on a damaged copy of a header, with the remedy.
pub(crate) fn damaged_copy(text: &str) -> String {
    if text.contains(MISSING_AFTER_GROWTH) {
        return format!(
            "{text}; `lacuna resize` takes the new space where the format can grow, `lacuna header repair` writes all copies anew"
        );
    }
    format!("{text}; `lacuna header repair` writes all copies anew")
}

impl Observer for Console {
    fn note(&self, text: &str) {
        Console::note(self, text);
    }

    fn damaged_copy(&self, text: &str) {
        Console::note(self, &damaged_copy(text));
    }

    fn during(&self, what: &str, work: &mut dyn FnMut()) {
        working::show(*self, what, |_| work());
    }
}

/// An observer of operations that may remove a disk: with a progress bar, and with a question if
/// the user can be asked.
pub(crate) struct Removing {
    console: Console,
    bar: ProgressBar,
    asks: bool,
}

impl Removing {
    /// `asks`: whether the user is asked before a disk is overwritten, if there is a terminal.
    pub(crate) fn new(console: Console, asks: bool) -> Self {
        Removing { console, bar: console.progress(0, "{per_sec}"), asks }
    }
}

impl Observer for Removing {
    fn note(&self, text: &str) {
        self.console.note(text);
    }

    fn damaged_copy(&self, text: &str) {
        self.console.damaged_copy(text);
    }

    fn during(&self, what: &str, work: &mut dyn FnMut()) {
        self.console.during(what, work);
    }

    fn progress(&self, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        if done == of {
            self.bar.finish_and_clear();
        }
    }

    fn replaces(&self, there: &str) -> Result<()> {
        if self.asks && console::can_ask() {
            self.console.note(&format!("{there} is there, which is lost then"));
            return console::confirm();
        }
        self.console.note(&format!("{there} is there, and will be overwritten"));
        Ok(())
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
