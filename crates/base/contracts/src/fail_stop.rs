//! Fail-stop: after a failure on the write path a disk refuses whatever follows, for good, and says
//! why.

use crate::{Error, Kind, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an open disk has failed, and of what.
pub struct FailStop {
    cause: Mutex<Option<Error>>,
    failed: AtomicBool,
    rests_on: &'static str,
    /// What the user closes and opens again.
    subject: &'static str,
}

impl Default for FailStop {
    fn default() -> Self {
        FailStop::on("medium")
    }
}

impl FailStop {
    /// Of a disk that rests on what this word says: a medium, a store.
    pub const fn on(rests_on: &'static str) -> Self {
        FailStop::new("disk", rests_on)
    }

    /// Of a vault.
    pub const fn of_vault() -> Self {
        FailStop::new("vault", "backing directory")
    }

    const fn new(subject: &'static str, rests_on: &'static str) -> Self {
        FailStop { cause: Mutex::new(None), failed: AtomicBool::new(false), rests_on, subject }
    }

    /// Enters fail-stop for good and gives the error back; the first one stays the cause. It wakes
    /// no thread: the caller wakes those that wait.
    pub fn fail(&self, e: Error) -> Error {
        self.cause.lock().get_or_insert_with(|| e.clone());
        self.failed.store(true, Ordering::Release);
        e
    }

    /// Refuses whatever follows, because the user closed it.
    pub fn close(&self) {
        self.fail(Error::new(Kind::FailStop, format!("the {} is closed", self.subject)));
    }

    /// Refuses after a failure.
    pub fn check(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Whether nothing has failed so far.
    pub fn is_alive(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub fn cause(&self) -> Option<Error> {
        self.cause.lock().clone()
    }

    /// The standing refusal.
    pub fn refusal(&self) -> Error {
        let cause = self.cause().unwrap_or_else(closed);
        // The refusal of a part below is the one to give: its cause is the first.
        if matches!(cause.kind(), Kind::Fenced | Kind::FailStop) {
            return cause;
        }
        let (place, subject) = (self.rests_on, self.subject);
        let mend = match cause.kind() {
            Kind::NoSpace if place == "medium" => {
                format!("free space on the file system that holds the {place}")
            }
            _ => format!("mend the {place}"),
        };
        Error::new(Kind::FailStop, format!("the {subject} takes no more writes since an earlier failure"))
            .found(cause.finding())
            .expected(format!("a {place} that takes every write"))
            .remedy(format!("{mend}, close the {subject} and open it again; what was flushed is safe"))
    }
}

/// What a closed disk says.
pub fn closed() -> Error {
    Error::new(Kind::FailStop, "the disk is closed")
}

/// Calls its function when it is dropped by a panic, so that a thread that is gone keeps no other
/// waiting.
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

/// The error of a write that a panic cut short.
pub fn defect() -> Error {
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
    fn the_refusal_of_a_part_below_is_not_wrapped_in_another() {
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
    fn the_refusal_after_an_orderly_end_names_what_was_closed() {
        let health = FailStop::of_vault();
        health.close();
        assert_eq!(health.check().unwrap_err().kind(), Kind::FailStop);
        assert!(health.refusal().to_string().starts_with("the vault is closed"), "{}", health.refusal());
    }

    #[test]
    fn a_panic_is_noticed_and_nothing_else() {
        let health = FailStop::default();
        drop(OnPanic::new(|| drop(health.fail(defect()))));
        assert!(health.is_alive());
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _guard = OnPanic::new(|| drop(health.fail(defect())));
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked && !health.is_alive());
    }
}
