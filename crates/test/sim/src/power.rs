//! The power of a simulated part: counts operations, and goes when told.

use lacuna_contracts::{Error, Kind, Result};

/// Operations so far, and the one that the power goes in.
#[derive(Default)]
pub(crate) struct Power {
    ops: u64,
    cut_at: Option<u64>,
    off: bool,
}

impl Power {
    /// What an operation without power fails with.
    pub(crate) fn error() -> Error {
        Error::new(Kind::Io, "power is off")
    }

    /// Fails if the power has gone.
    pub(crate) fn on(&self) -> Result<()> {
        if self.off { Err(Self::error()) } else { Ok(()) }
    }

    /// Counts `n` operations. False if the power goes during one of them.
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

    /// Lets the next `n` operations pass and goes in the middle of the one after them.
    pub(crate) fn cut_after(&mut self, n: u64) {
        self.cut_at = Some(self.ops.saturating_add(n));
    }

    /// Goes now, between two operations.
    pub(crate) fn cut_now(&mut self) {
        self.off = true;
    }

    /// Whether it has gone.
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// Operations so far, the one in flight at the cut included.
    pub(crate) fn ops(&self) -> u64 {
        self.ops
    }
}
