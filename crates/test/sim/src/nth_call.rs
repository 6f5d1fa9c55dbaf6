//! Fails the n-th call of a trait, whatever its kind: the base of sweeps over every call of a
//! script.

use lacuna_contracts::{Error, Kind, Result};
use std::fmt::Debug;

/// The errnos that a sweep injects into each call. A medium or a directory of files returns them in
/// use. EINTR is not among them, because no caller of a medium, a folder or an anchor sees it:
/// `FileMedium` and its `DontCacheReader`, `DiskFolder` and `FileAnchor` repeat such a call with a
/// loop of their own, `rustix::io::retry_on_intr`, or the standard library.
pub const SWEPT_ERRNOS: [i32; 8] = [
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::EFBIG,
    libc::EPERM,
    libc::EROFS,
    libc::ENOMEM,
    libc::EMFILE,
];

/// The cases of a sweep: each call up to number `calls`, with each errno of [`SWEPT_ERRNOS`]. With
/// `share`, only every `share`-th case. The share is odd, so that each errno occurs.
pub fn sweep_cases(calls: u64, share: Option<u64>) -> impl Iterator<Item = (u64, i32)> {
    assert!(share.is_none_or(|share| share % 2 == 1), "an even share never tries some errnos");
    let pairs = (1..=calls).flat_map(|nth| SWEPT_ERRNOS.map(|errno| (nth, errno)));
    let tried = move |at: u64| share.is_none_or(|share| at.is_multiple_of(share));
    (0..).zip(pairs).filter(move |(at, _)| tried(*at)).map(|(_, pair)| pair)
}

/// Whether this errno means that the call was refused without any effect
/// (`lacuna_contracts::Kind::is_refusal`).
pub fn is_refusal_errno(errno: i32) -> bool {
    call_error("a call", errno, false).kind().is_refusal()
}

/// The error of a call that fails with this errno, as `FileMedium` and `DiskFolder` create it.
/// `syncs`: the call makes something durable, and its error is one of the medium, whatever the
/// errno.
pub fn call_error(what: impl Into<String>, errno: i32, syncs: bool) -> Error {
    let error = Error::io(what, &std::io::Error::from_raw_os_error(errno));
    if syncs { error.with_kind(Kind::Io) } else { error }
}

/// Whether `error` reports this failure of a call: it has the kind and errno of [`call_error`], or
/// it is an incomplete purge with such an error, or this errno, as its cause.
pub fn reports_failure(error: &Error, errno: i32, syncs: bool) -> bool {
    if error.kind() != Kind::PurgeIncomplete {
        let expected = call_error("a call", errno, syncs);
        return (error.kind(), error.errno()) == (expected.kind(), expected.errno());
    }
    let Some(cause) = std::error::Error::source(error) else { return false };
    match cause.downcast_ref::<Error>() {
        Some(cause) => reports_failure(cause, errno, syncs),
        None => cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) == Some(errno),
    }
}

/// Counts calls, and makes one of them fail.
pub struct NthCall<C> {
    calls: u64,
    fault: Option<(u64, i32)>,
    failed_call: Option<C>,
}

impl<C> Default for NthCall<C> {
    fn default() -> Self {
        NthCall { calls: 0, fault: None, failed_call: None }
    }
}

impl<C: Copy + Debug> NthCall<C> {
    /// Makes the `nth` further call, counted from 1, fail with this errno; 0 disables this.
    pub fn fail(&mut self, nth: u64, errno: i32) {
        *self = NthCall { calls: 0, fault: (nth > 0).then_some((nth, errno)), failed_call: None };
    }

    /// The number of calls since the last [`NthCall::fail`].
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The call that failed, if there was one.
    pub fn failed_call(&self) -> Option<C> {
        self.failed_call
    }

    /// Counts a call, and returns its error if it is to fail. `syncs`: see [`call_error`].
    pub fn begin(&mut self, call: C, syncs: bool) -> Result<()> {
        self.calls += 1;
        let Some((_, errno)) = self.fault.filter(|(nth, _)| *nth == self.calls) else { return Ok(()) };
        self.failed_call = Some(call);
        Err(call_error(format!("call {} ({call:?}) failed", self.calls), errno, syncs))
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
        assert!(calls.begin("one", false).is_ok() && calls.failed_call().is_none());
        let refused = calls.begin("two", false).unwrap_err();
        assert_eq!((refused.kind(), refused.errno()), (Kind::NoSpace, libc::EDQUOT));
        assert!(calls.begin("three", false).is_ok());
        assert_eq!((calls.failed_call(), calls.calls()), (Some("two"), 3));
        calls.fail(1, libc::EDQUOT);
        assert_eq!(calls.begin("sync", true).unwrap_err().kind(), Kind::Io);
        calls.fail(0, libc::EIO);
        assert!(calls.begin("one", false).is_ok());
        let refused = SWEPT_ERRNOS.map(is_refusal_errno);
        assert_eq!(refused, [false, true, true, true, true, false, true, true]);
    }

    #[test]
    fn a_sweep_tries_every_pair_or_a_share_with_every_errno() {
        let all: Vec<_> = sweep_cases(3, None).collect();
        assert_eq!((all.len(), all[0], all[23]), (24, (1, libc::EIO), (3, libc::EMFILE)));
        assert_eq!(sweep_cases(3, Some(1)).collect::<Vec<_>>(), all);
        let share: Vec<_> = sweep_cases(80, Some(7)).collect();
        assert_eq!((share.len(), share[1], share[8]), (92, (1, libc::EMFILE), (8, libc::EIO)));
        assert!(SWEPT_ERRNOS.iter().all(|errno| share.iter().any(|(_, tried)| tried == errno)));
    }

    #[test]
    fn a_failure_is_reported_by_kind_and_errno_or_by_the_cause() {
        let full = call_error("write", libc::EDQUOT, false);
        assert!(reports_failure(&full, libc::EDQUOT, false) && !reports_failure(&full, libc::ENOSPC, false));
        assert!(!reports_failure(&full, libc::EDQUOT, true), "a sync is not refused");
        assert!(reports_failure(&full.clone().of_sync(), libc::EDQUOT, true));
        let purge = Error::new(Kind::PurgeIncomplete, "a purge");
        assert!(!reports_failure(&purge, libc::EDQUOT, false));
        assert!(reports_failure(&purge.caused_by(full), libc::EDQUOT, false));
        let sync = call_error("sync", libc::EDQUOT, true).with_kind(Kind::PurgeIncomplete);
        assert!(reports_failure(&sync, libc::EDQUOT, true) && !reports_failure(&sync, libc::EIO, true));
    }
}
