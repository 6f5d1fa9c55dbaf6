//! Messages and questions of the library to its program.

use crate::header::copy_remedy::CopyRemedy;
use lacuna_contracts::Result;

/// Receives the library's messages and questions for the user. Every method has a default, which
/// ignores messages and agrees to questions.
pub trait Observer {
    /// A message about a normal operation: a sentence.
    fn note(&self, _text: &str) {}

    /// A copy of a header is damaged, and another one was used: a sentence, and the way back to
    /// whole copies.
    fn damaged_copy(&self, text: &str, _remedy: &CopyRemedy) {
        self.note(text);
    }

    /// Runs `work`, which may take some time; `what` describes it, as in "laying out disk.img". An
    /// implementation calls `work` once.
    fn run_step(&self, _what: &str, work: &mut dyn FnMut()) {
        work();
    }

    /// Progress of a long removal: `done` of `of` objects.
    fn progress(&self, _done: usize, _of: usize) {}

    /// Whether the existing content, described by `there` as in "a lacuna disk (UUID ...)", may be
    /// overwritten. Errors: the refusal; nothing has been changed.
    fn confirm_overwrite(&self, _there: &str) -> Result<()> {
        Ok(())
    }
}

/// Ignores all messages and agrees to all questions.
pub struct Silent;

impl Observer for Silent {}

/// Runs `work` under an observer's [`Observer::run_step`], and returns its result.
pub(crate) fn run_step<R>(observer: &dyn Observer, what: &str, work: impl FnOnce() -> R) -> R {
    let (mut work, mut done) = (Some(work), None);
    observer.run_step(what, &mut || {
        if let Some(work) = work.take() {
            done = Some(work());
        }
    });
    match (done, work) {
        (Some(result), _) => result,
        (None, Some(work)) => work(),
        (None, None) => unreachable!("work that was taken gave a result"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_runs_once_with_any_observer() {
        struct Lazy;
        impl Observer for Lazy {
            fn run_step(&self, _: &str, _: &mut dyn FnMut()) {}
        }
        struct Eager;
        impl Observer for Eager {
            fn run_step(&self, _: &str, work: &mut dyn FnMut()) {
                work();
                work();
            }
        }
        for observer in [&Silent as &dyn Observer, &Lazy, &Eager] {
            let mut count = 0;
            assert_eq!(
                run_step(observer, "counting", || {
                    count += 1;
                    count
                }),
                1
            );
            assert_eq!(count, 1);
        }
    }
}
