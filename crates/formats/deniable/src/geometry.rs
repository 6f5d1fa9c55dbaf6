//! How a stripe is divided into slots, and where its summary lists them. The byte-exact page is
//! `docs/format/deniable.md`.
//!
//! Invariant: a summary is one block, and lists every slot of its stripe and of the stripe before
//! it.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_levels::{SALT_LEN, STATE_LEN, TAG_LEN};

/// Hidden levels that a summary has room for.
pub(crate) const HIDDEN_LEVELS: usize = 7;
/// Bytes of a hidden root record.
pub(crate) const ROOT_LEN: usize = STATE_LEN + TAG_LEN;
/// Bytes of a hidden entry: the encrypted entry and the tag of its slot.
pub(crate) const HIDDEN_ENTRY: usize = 32;
/// Bytes of the echo of a hidden entry.
pub(crate) const HIDDEN_ECHO: usize = 16;
/// Bytes of a public entry with the tag of its slot.
pub(crate) const PUBLIC_ENTRY: usize = 24;
/// Bytes of the echo of a public entry.
pub(crate) const PUBLIC_ECHO: usize = 8;
/// Bytes of the public part before its entries.
pub(crate) const PUBLIC_FIXED: usize = 8 + 16 + 8 + STATE_LEN;

pub(crate) const TAG_AT: usize = SALT_LEN;
pub(crate) const DIGEST_AT: usize = TAG_AT + TAG_LEN;
pub(crate) const ROOTS_AT: usize = DIGEST_AT + TAG_LEN;
pub(crate) const ENTRIES_AT: usize = ROOTS_AT + HIDDEN_LEVELS * ROOT_LEN;

const _: () = assert!(StripeGeometry::DEFAULT.fits() && StripeGeometry::PAPER.fits());

/// How a stripe is divided (the paper's ratio of public to hidden blocks, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeGeometry {
    /// Public slots in a stripe, the *p* of the design.
    pub public: u8,
    /// Hidden slots in a stripe, the *h* of the design.
    pub hidden: u8,
}

impl StripeGeometry {
    /// Chosen by measurement: see `docs/benchmarks-method.md`.
    pub const DEFAULT: StripeGeometry = StripeGeometry { public: 32, hidden: 31 };
    /// One public and one hidden block per `PD_write`, as in the paper.
    pub const PAPER: StripeGeometry = StripeGeometry { public: 1, hidden: 1 };

    /// Blocks in a stripe: the summary and the slots.
    pub const fn blocks(self) -> u64 {
        1 + self.public as u64 + self.hidden as u64
    }

    /// Where the public part of a summary begins.
    pub(crate) const fn public_at(self) -> usize {
        ENTRIES_AT + self.hidden as usize * (HIDDEN_ENTRY + HIDDEN_ECHO)
    }

    /// Whether there are slots of both kinds, and one block can list them all.
    pub(crate) const fn fits(self) -> bool {
        let needed = self.public_at() + PUBLIC_FIXED + self.public as usize * (PUBLIC_ENTRY + PUBLIC_ECHO);
        self.public > 0 && self.hidden > 0 && needed <= BLOCK_SIZE
    }
}
