//! Fail-stop: after a failure on the write path a disk permanently refuses every request that
//! changes the medium or makes changes durable, and reports the cause.

use crate::{Error, Kind, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an open disk has failed, and the cause.
pub struct FailStop {
    cause: Mutex<Option<Error>>,
    failed: AtomicBool,
    lower_layer: &'static str,
    /// The noun in messages for the object that the user closes and opens again.
    subject: &'static str,
}

impl Default for FailStop {
    fn default() -> Self {
        FailStop::of_disk("medium")
    }
}

impl FailStop {
    /// The state of a disk; `rests_on` names its lower layer in messages, such as "medium" or
    /// "store".
    pub const fn of_disk(rests_on: &'static str) -> Self {
        FailStop::new("disk", rests_on)
    }

    /// The state of a vault.
    pub const fn of_vault() -> Self {
        FailStop::new("vault", "backing directory")
    }

    const fn new(subject: &'static str, rests_on: &'static str) -> Self {
        FailStop { cause: Mutex::new(None), failed: AtomicBool::new(false), lower_layer: rests_on, subject }
    }

    /// Enters fail-stop permanently and returns the error; the first error stays the cause. Wakes
    /// no thread: the caller wakes waiting threads.
    pub fn fail(&self, e: Error) -> Error {
        self.cause.lock().get_or_insert_with(|| e.clone());
        self.failed.store(true, Ordering::Release);
        e
    }

    /// Refuses all later requests because the user closed the disk.
    pub fn close(&self) {
        self.fail(Error::new(Kind::FailStop, format!("the {} is closed", self.subject)));
    }

    /// Returns the refusal after a failure.
    pub fn check(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Whether there was no failure so far.
    pub fn is_alive(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub fn cause(&self) -> Option<Error> {
        self.cause.lock().clone()
    }

    /// The error that every refused request gets.
    pub fn refusal(&self) -> Error {
        let cause = self.cause().unwrap_or_else(closed_error);
        // The refusal of a lower layer is passed on: it has the first cause.
        if matches!(cause.kind(), Kind::Fenced | Kind::FailStop) {
            return cause;
        }
        let (place, subject) = (self.lower_layer, self.subject);
        let mend = match cause.kind() {
            Kind::NoSpace if place == "medium" => {
                format!("free space on the file system that holds the {place}")
            }
            _ => format!("repair the {place}"),
        };
        Error::new(Kind::FailStop, format!("the {subject} takes no more writes since an earlier failure"))
            .found(cause.summary())
            .expected(format!("a {place} that takes every write"))
            .hint(format!("{mend}, close the {subject} and open it again; flushed data is safe"))
    }
}

/// The error of a closed disk.
pub fn closed_error() -> Error {
    Error::new(Kind::FailStop, "the disk is closed")
}

/// Calls its function if a panic drops it, so that a dead thread does not block other threads.
pub struct OnPanic<F: FnMut()>(F);

impl<F: FnMut()> OnPanic<F> {
    /// A guard for the rest of a scope.
    pub const fn new(f: F) -> Self {
        OnPanic(f)
    }
}

impl<F: FnMut()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// The error of a write that a panic interrupted.
pub fn panic_error() -> Error {
    Error::new(Kind::Other, "a write was cut short by a defect of lacuna (a panic)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        let health = FailStop::default();
        assert!(health.is_alive() && health.check().is_ok());
        assert_eq!(health.fail(Error::new(Kind::Other, "the first")).kind(), Kind::Other);
        health.fail(Error::new(Kind::Other, "the second"));
        let refused = health.check().unwrap_err();
        assert!(!health.is_alive() && refused.kind() == Kind::FailStop);
        assert!(refused.to_string().contains("the first") && !refused.to_string().contains("the second"));
    }

    #[test]
    fn the_refusal_of_a_lower_layer_is_not_wrapped() {
        let (below, above) = (FailStop::of_vault(), FailStop::of_vault());
        below.fail(Error::new(Kind::Io, "the first"));
        above.fail(below.refusal());
        assert_eq!(above.refusal().to_string(), below.refusal().to_string());
        let said = above.refusal().to_string();
        assert!(
            said.contains("the vault takes no more writes") && said.contains("close the vault"),
            "{said}"
        );
    }

    #[test]
    fn the_refusal_after_a_close_names_the_subject() {
        let health = FailStop::of_vault();
        health.close();
        assert_eq!(health.check().unwrap_err().kind(), Kind::FailStop);
        assert!(health.refusal().to_string().starts_with("the vault is closed"), "{}", health.refusal());
    }

    #[test]
    fn only_a_panic_runs_the_guard() {
        let health = FailStop::default();
        drop(OnPanic::new(|| drop(health.fail(panic_error()))));
        assert!(health.is_alive());
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _guard = OnPanic::new(|| drop(health.fail(panic_error())));
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked && !health.is_alive());
    }
}
