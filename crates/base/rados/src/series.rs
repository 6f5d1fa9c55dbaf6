//! Connections that hold a lock one after the other for one writer.
//!
//! A writer that connects again after its process died may rely on content of its own memory, as
//! long as no other client had the lock meanwhile. The locked object tells that: with its epoch, a
//! holder of a series stores the identity of the series together with that epoch. A client that
//! takes the lock begins another epoch, and leaves the identity with the epoch of its predecessor,
//! or stores its own.

use super::epoch::Epoch;
use super::ffi::WriteOp;
use std::ffi::CStr;

/// A series of connections. One of them lives at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterSeries {
    /// The identity of the series: random bytes.
    pub id: [u8; 16],
    /// Whether to take the lock only if the last holder was of this series.
    pub continues: bool,
}

impl WriterSeries {
    /// The attribute of the locked object with the epoch of its last holder of a series, and the
    /// identity of that series.
    pub(super) const NAME: &CStr = c"lacuna.series";

    /// Makes the operation store the series with an epoch.
    pub(super) fn stamp(&self, epoch: Epoch, op: &mut WriteOp) {
        op.set_attribute(WriterSeries::NAME, &format!("{}{}", epoch.digits(), self.digits()));
    }

    /// Whether the last holder, with the epoch `stands`, was of this series, if the attribute is
    /// `stored`.
    pub(super) fn was_last(&self, stands: &[u8], stored: &[u8]) -> bool {
        !stands.is_empty() && stored.strip_prefix(stands) == Some(self.digits().as_bytes())
    }

    /// The cookie of a lock with a number that no other lock of the connection has.
    pub(super) fn cookie(&self, number: u64) -> String {
        format!("{}.{number}", self.digits())
    }

    /// Whether a lock with this cookie is of this series.
    pub(super) fn has_cookie(&self, cookie: &CStr) -> bool {
        let after = cookie.to_bytes().strip_prefix(self.digits().as_bytes());
        after.is_some_and(|after| after.starts_with(b"."))
    }

    fn digits(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    const SERIES: WriterSeries = WriterSeries { id: [0xa5; 16], continues: true };
    const OTHER: WriterSeries = WriterSeries { id: [0xa6; 16], continues: true };

    #[test]
    fn a_series_was_last_only_with_the_epoch_that_stands() {
        let [first, second] = [Epoch::after(b""), Epoch::after(Epoch::after(b"").digits().as_bytes())];
        let stored = format!("{}{}", first.digits(), SERIES.digits());
        let was_last = |series: WriterSeries, stands: &str, stored: &str| {
            series.was_last(stands.as_bytes(), stored.as_bytes())
        };
        assert!(was_last(SERIES, &first.digits(), &stored));
        assert!(!was_last(OTHER, &first.digits(), &stored));
        assert!(!was_last(SERIES, &second.digits(), &stored));
        assert!(!was_last(SERIES, &first.digits(), ""));
        assert!(!was_last(SERIES, "", &SERIES.digits()));
    }

    #[test]
    fn a_cookie_tells_its_series() {
        let cookie = CString::new(SERIES.cookie(7)).unwrap();
        assert!(SERIES.has_cookie(&cookie) && !OTHER.has_cookie(&cookie));
        assert!(!SERIES.has_cookie(c"7") && !SERIES.has_cookie(c""));
    }
}
