//! Observers of the library's operations, which print notes and ask questions on the terminal.

use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::terminal::progress;
use indicatif::ProgressBar;
use lacuna_storage::{CopyRemedy, Observer, Result};

/// The text on a damaged copy of a header, with the way back to whole copies.
pub(crate) fn with_remedy(text: &str, remedy: &CopyRemedy) -> String {
    match remedy {
        CopyRemedy::Repair => format!("{text}; `lacuna header repair` rewrites all copies"),
        CopyRemedy::Resize => format!("{text}; `lacuna resize` takes the new space and rewrites all copies"),
        // The error about the length has the advice.
        CopyRemedy::Lengthen => text.to_owned(),
        CopyRemedy::WrittenOver(advice) => format!("{text}; {}", advice.render_with(option_names::name)),
    }
}

impl Observer for Console {
    fn note(&self, text: &str) {
        Console::note(self, text);
    }

    fn damaged_copy(&self, text: &str, remedy: &CopyRemedy) {
        Console::note(self, &with_remedy(text, remedy));
    }

    fn run_step(&self, what: &str, work: &mut dyn FnMut()) {
        progress::show(*self, what, |_| work());
    }
}

/// An observer of operations that may remove a disk: with a progress bar, and with a question if
/// the user can be asked.
pub(crate) struct RemovalObserver {
    console: Console,
    bar: ProgressBar,
    may_ask: bool,
}

impl RemovalObserver {
    /// `asks`: whether the user is asked before a disk is overwritten, if there is a terminal.
    pub(crate) fn new(console: Console, asks: bool) -> Self {
        RemovalObserver { console, bar: console.progress(0, "{per_sec}"), may_ask: asks }
    }
}

impl Observer for RemovalObserver {
    fn note(&self, text: &str) {
        self.console.note(text);
    }

    fn damaged_copy(&self, text: &str, remedy: &CopyRemedy) {
        self.console.damaged_copy(text, remedy);
    }

    fn run_step(&self, what: &str, work: &mut dyn FnMut()) {
        self.console.run_step(what, work);
    }

    fn progress(&self, done: usize, of: usize) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        if done == of {
            self.bar.finish_and_clear();
        }
    }

    fn confirm_overwrite(&self, there: &str) -> Result<()> {
        if self.may_ask && console::can_ask() {
            return self.console.confirm(&format!("{there} exists and will be lost"), false);
        }
        self.console.note(&format!("{there} exists and will be overwritten"));
        Ok(())
    }
}

impl Drop for RemovalObserver {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
