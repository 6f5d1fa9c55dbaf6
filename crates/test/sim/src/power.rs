//! The power of a simulated part: counts operations, and is cut when told.

use lacuna_contracts::{Error, Kind, Result};

/// The number of operations so far, and the number of the operation with the cut.
#[derive(Default)]
pub(crate) struct Power {
    ops: u64,
    cut_at: Option<u64>,
    off: bool,
}

impl Power {
    /// The error of an operation without power.
    pub(crate) fn error() -> Error {
        Error::new(Kind::Io, "power is off")
    }

    /// Fails if the power was cut.
    pub(crate) fn check_on(&self) -> Result<()> {
        if self.off { Err(Self::error()) } else { Ok(()) }
    }

    /// Counts `n` operations. False if the power is cut during one of them.
    pub(crate) fn survives(&mut self, n: u64) -> bool {
        match self.cut_at {
            Some(at) if n > 0 && at < self.ops + n => {
                self.ops = at + 1;
                self.off = true;
            }
            _ => self.ops += n,
        }
        !self.off
    }

    /// Lets the next `n` operations succeed and cuts the power in the middle of the operation after
    /// them.
    pub(crate) fn cut_after(&mut self, n: u64) {
        self.cut_at = Some(self.ops.saturating_add(n));
    }

    /// Cuts the power now, between two operations.
    pub(crate) fn cut_now(&mut self) {
        self.off = true;
    }

    /// Whether the power was cut.
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// The number of operations, including an operation in flight at the cut.
    pub(crate) fn ops(&self) -> u64 {
        self.ops
    }
}
