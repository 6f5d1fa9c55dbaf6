//! The epoch of writes: a number in every object that rejects writes of earlier lock holders.
//!
//! A client that takes the lock begins an epoch, later than any before. Each of its writes asserts,
//! in the same operation, that the object has no later epoch, and stamps the object with its own.
//! So an object written by a later holder refuses delayed writes of a former holder, even if the
//! cluster has forgotten the exclusion of that client. Objects not yet written by a later holder
//! are protected only by the blocklist.

use super::ffi::WriteOp;
use std::ffi::CStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// An epoch. Objects store it as 16 hexadecimal digits, which sort like numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch(u64);

impl Epoch {
    /// The object attribute that holds the epoch.
    pub(super) const NAME: &CStr = c"lacuna.epoch";

    /// The epoch after the stored epoch of the locked object, and at least the seconds since 1970,
    /// so that epochs keep growing if the object was removed.
    pub(super) fn after(stands: &[u8]) -> Epoch {
        let before = std::str::from_utf8(stands).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Epoch(before.unwrap_or(0).saturating_add(1).max(now))
    }

    /// The epoch as objects store it.
    pub(super) fn digits(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Makes the operation, on an existing object, fail if the object has a later epoch.
    pub(super) fn assert(self, op: &mut WriteOp) {
        op.assert_attribute_at_most(Epoch::NAME, &self.digits());
    }

    /// Makes the operation stamp the object with this epoch.
    pub(super) fn stamp(self, op: &mut WriteOp) {
        op.set_attribute(Epoch::NAME, &self.digits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_later_than_the_stored_one() {
        let first = Epoch::after(b"");
        let second = Epoch::after(first.digits().as_bytes());
        assert!(first < second && first.digits() < second.digits());
        assert!(Epoch::after(b"nonsense") >= first);
        assert_eq!(Epoch::after(b"ffffffff00000000").digits(), "ffffffff00000001");
        assert_eq!(Epoch::after(b"ffffffffffffffff").digits(), "ffffffffffffffff");
    }
}
