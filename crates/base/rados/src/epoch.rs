//! The epoch of writes: a number in every object, which no write of an earlier holder of the lock
//! passes.
//!
//! Who takes the lock begins an epoch, later than any before. Each of its writes asserts, in the
//! same operation, that the object has no later epoch than its own, and leaves its own there. So
//! what a former holder still had under way is refused on every object that a later one has
//! written, whenever it arrives and whatever the cluster has forgotten by then. Objects that no
//! later holder has written are kept by the blocklist alone.

use super::ffi::WriteOp;
use std::ffi::CStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// An epoch. In objects it stands as 16 hexadecimal digits, which sort like numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch(u64);

impl Epoch {
    /// The attribute of an object that holds it.
    pub(super) const NAME: &CStr = c"lacuna.epoch";

    /// One after that which stands in the locked object. It is not below the seconds since 1970
    /// either, so that epochs go on where they were should that object have been removed.
    pub(super) fn after(stands: &[u8]) -> Epoch {
        let before = std::str::from_utf8(stands).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Epoch(before.unwrap_or(0).saturating_add(1).max(now))
    }

    fn digits(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Adds to an operation on an object that is there that nothing of it happens if the object has
    /// a later epoch.
    pub(super) fn assert(self, op: &mut WriteOp) {
        op.assert_attribute_at_most(Epoch::NAME, &self.digits());
    }

    /// Adds to an operation that the object gets this epoch.
    pub(super) fn stamp(self, op: &mut WriteOp) {
        op.set_attribute(Epoch::NAME, &self.digits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_follow_each_other_whatever_stood_there() {
        let first = Epoch::after(b"");
        let second = Epoch::after(first.digits().as_bytes());
        assert!(first < second && first.digits() < second.digits());
        assert!(Epoch::after(b"nonsense") >= first);
        assert_eq!(Epoch::after(b"ffffffff00000000").digits(), "ffffffff00000001");
        assert_eq!(Epoch::after(b"ffffffffffffffff").digits(), "ffffffffffffffff");
    }
}
