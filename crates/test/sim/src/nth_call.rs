//! An error of the system at the n-th call of a trait, whichever call that is: what sweeps over every call of a script are made of.

use lacuna_contracts::{Error, Result};
use std::fmt::Debug;

/// The errors that a sweep gives to each call: those that a medium or a directory of files meets in use. EINTR reaches no caller of a medium
/// or a folder, which makes such a call again.
pub const SWEPT: [i32; 9] = [
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::EFBIG,
    libc::EPERM,
    libc::EROFS,
    libc::EINTR,
    libc::ENOMEM,
    libc::EMFILE,
];

/// Whether an error of this number says that a call was refused, and nothing else (`lacuna_contracts::Kind::is_refusal`).
pub fn refuses(errno: i32) -> bool {
    Error::io("a call", &std::io::Error::from_raw_os_error(errno)).kind().is_refusal()
}

/// Counts calls, and lets one of them fail.
pub struct NthCall<C> {
    calls: u64,
    fails: Option<(u64, i32)>,
    hit: Option<C>,
}

impl<C> Default for NthCall<C> {
    fn default() -> Self {
        NthCall { calls: 0, fails: None, hit: None }
    }
}

impl<C: Copy + Debug> NthCall<C> {
    /// The `nth` call from now on, the first being 1, fails with this number; with 0, none.
    pub fn fail(&mut self, nth: u64, errno: i32) {
        *self = NthCall { calls: 0, fails: (nth > 0).then_some((nth, errno)), hit: None };
    }

    /// Calls since the last [`NthCall::fail`].
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The call that failed, if it came that far.
    pub fn hit(&self) -> Option<C> {
        self.hit
    }

    /// A call begins. `syncs`: it makes something durable, and its error is never a refusal. One that a signal interrupts is made again, and
    /// so counted twice.
    pub fn begin(&mut self, call: C, syncs: bool) -> Result<()> {
        self.calls += 1;
        let Some((_, errno)) = self.fails.filter(|(nth, _)| *nth == self.calls) else { return Ok(()) };
        self.hit = Some(call);
        if errno == libc::EINTR {
            return self.begin(call, syncs);
        }
        let error = Error::io(
            format!("call {} ({call:?}) failed", self.calls),
            &std::io::Error::from_raw_os_error(errno),
        );
        Err(if syncs { error.of_sync() } else { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Kind;

    #[test]
    fn one_call_fails_and_a_sync_is_never_refused() {
        let mut calls = NthCall::default();
        calls.fail(2, libc::EDQUOT);
        assert!(calls.begin("one", false).is_ok() && calls.hit().is_none());
        let refused = calls.begin("two", false).unwrap_err();
        assert_eq!((refused.kind(), refused.errno()), (Kind::NoSpace, libc::EDQUOT));
        assert!(calls.begin("three", false).is_ok());
        assert_eq!((calls.hit(), calls.calls()), (Some("two"), 3));
        calls.fail(1, libc::EDQUOT);
        assert_eq!(calls.begin("sync", true).unwrap_err().kind(), Kind::Io);
        calls.fail(0, libc::EIO);
        assert!(calls.begin("one", false).is_ok());
        calls.fail(1, libc::EINTR);
        assert!(calls.begin("again", true).is_ok());
        assert_eq!((calls.hit(), calls.calls()), (Some("again"), 2));
        let refused = SWEPT.map(refuses);
        assert_eq!(refused, [false, true, true, true, true, false, false, true, true]);
    }
}
