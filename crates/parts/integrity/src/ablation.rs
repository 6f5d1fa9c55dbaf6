//! Switches for the checks of the schemes. With them the replay game shows that each check is
//! needed: the game must fail as soon as one is disabled. Disabling takes the feature `ablation`,
//! which is only for tests and papers; without it every check is always made.
//!
//! Two checks have no switch: the level in the tag of a tree page, and the number of leaves. The
//! adversary of the game can replace a page only by other pages, and none of those has its tag on
//! any level; and a page that verifies has no leaf past the end. Tests of the keys show that tags
//! of different levels differ.

// Without the feature the module is private to the crate.
#![cfg_attr(not(feature = "ablation"), allow(unreachable_pub))]

/// A check of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeCheck {
    /// The tag of a page of a tree.
    PageTag,
    /// The tag of a block that has a leaf in a tree.
    LeafTag,
    /// The tag inside a block (COMP-EINT).
    InnerTag,
    /// IsRand for a block without a tag (RAND-EINT).
    Entropy,
    /// The hashes of IntStart and CtrVal (Figure 6).
    ArrayHash,
    /// Keys, nonces, tweaks and associated data bind the index of a block.
    Index,
    /// Keys, nonces and tweaks bind the write counter of a block.
    Counter,
}

/// Whether the check is made.
#[cfg(not(feature = "ablation"))]
#[inline]
pub(crate) const fn is_enforced(_: SchemeCheck) -> bool {
    true
}

#[cfg(feature = "ablation")]
pub(crate) use switch::is_enforced;
#[cfg(feature = "ablation")]
pub use switch::with_disabled;

#[cfg(feature = "ablation")]
mod switch {
    use super::SchemeCheck;
    use std::cell::Cell;

    thread_local! {
        static DISABLED: Cell<Option<SchemeCheck>> = const { Cell::new(None) };
    }

    pub(crate) fn is_enforced(check: SchemeCheck) -> bool {
        DISABLED.get() != Some(check)
    }

    /// Runs `game` on this thread with one check disabled.
    pub fn with_disabled<R>(check: SchemeCheck, game: impl FnOnce() -> R) -> R {
        DISABLED.set(Some(check));
        let result = game();
        DISABLED.set(None);
        result
    }
}
