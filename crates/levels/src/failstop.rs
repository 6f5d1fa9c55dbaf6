//! Fail-stop: after a failure on the write path a disk refuses whatever follows, for good, and says why.

use lacuna_core::{Error, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether an open disk has failed, and of what.
#[derive(Default)]
pub struct FailStop {
    cause: Mutex<Option<Error>>,
    failed: AtomicBool,
}

impl FailStop {
    /// Enters fail-stop for good and gives the error back; the first one stays the cause. It wakes nobody: whoever calls
    /// this wakes those who wait.
    pub fn fail(&self, e: Error) -> Error {
        self.cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| e.clone());
        self.failed.store(true, Ordering::Release);
        e
    }

    /// Refuses after a failure.
    pub fn check(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Whether nothing has failed so far.
    pub fn is_alive(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    /// The standing refusal.
    pub fn refusal(&self) -> Error {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = cause.as_ref().map_or_else(|| "the disk is closed".into(), Error::to_string);
        Error::new(Kind::FailStop, "the disk takes no more writes since an earlier failure")
            .found(cause)
            .expected("a medium that takes every write")
            .remedy("mend the medium, close the disk and open it again; what was flushed is safe")
    }
}

/// The error of a write that a panic cut short.
pub fn defect() -> Error {
    Error::new(Kind::Other, "a write was cut short by a defect of lacuna")
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
}
