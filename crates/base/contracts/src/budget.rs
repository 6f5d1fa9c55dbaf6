//! Memory for the caches of an open disk, in bytes, set once at open.

/// A share of memory. The default for a whole disk is 64 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// A budget of `bytes`.
    pub const fn bytes(bytes: u64) -> Self {
        Budget(bytes)
    }

    /// The budget in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `numerator / denominator` of this budget.
    pub const fn share(self, numerator: u64, denominator: u64) -> Self {
        Budget(self.0 / denominator * numerator)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget(64 << 20)
    }
}
