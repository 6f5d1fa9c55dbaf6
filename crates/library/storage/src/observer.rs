//! What the library says and asks while it works.

use lacuna_contracts::Result;

/// A program's ear: what is told here a person may want to see, and may be asked. Every method has
/// a default, which says nothing and agrees.
pub trait Observer {
    /// Something a person should know though all goes well: a sentence.
    fn note(&self, _text: &str) {}

    /// A copy of a header is not as it should be, and another one was used: a sentence.
    /// [`header::repair`](crate::header::repair) writes all copies anew.
    fn damaged_copy(&self, text: &str) {
        self.note(text);
    }

    /// Does `work`, which may take longer than a moment: `what` it is, in words such as "laying out
    /// disk.img". An implementation calls `work` once.
    fn during(&self, _what: &str, work: &mut dyn FnMut()) {
        work();
    }

    /// Part of a long removal is done: `done` of `of` objects.
    fn progress(&self, _done: usize, _of: usize) {}

    /// Whether what is `there` may be overwritten, in words such as "a lacuna disk (UUID ...)".
    /// Errors: the refusal, with which everything ends before anything was changed.
    fn replaces(&self, _there: &str) -> Result<()> {
        Ok(())
    }
}

/// Hears nothing and agrees to everything.
pub struct Silent;

impl Observer for Silent {}

/// Does `work` while an observer knows of it, and gives what it gave.
pub(crate) fn during<R>(observer: &dyn Observer, what: &str, work: impl FnOnce() -> R) -> R {
    let (mut work, mut done) = (Some(work), None);
    observer.during(what, &mut || {
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
    fn work_is_done_once_whatever_an_observer_does() {
        struct Lazy;
        impl Observer for Lazy {
            fn during(&self, _: &str, _: &mut dyn FnMut()) {}
        }
        struct Eager;
        impl Observer for Eager {
            fn during(&self, _: &str, work: &mut dyn FnMut()) {
                work();
                work();
            }
        }
        for observer in [&Silent as &dyn Observer, &Lazy, &Eager] {
            let mut count = 0;
            assert_eq!(
                during(observer, "counting", || {
                    count += 1;
                    count
                }),
                1
            );
            assert_eq!(count, 1);
        }
    }
}
