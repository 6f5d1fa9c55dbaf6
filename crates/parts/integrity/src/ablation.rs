//! The checks of the schemes by name, so that games can show that each of them is needed: the
//! replay game must fail as soon as one is left out. That takes the feature `ablation`, which is
//! for tests and papers alone; without it all of them are always made.
//!
//! The level in the tag of a tree page and the number of leaves are none of them. The adversary of
//! the game has nothing to put in the place of a page but other pages, none of which has its tag on
//! any level, and no leaf past the end is in a page that verifies. Tests of the keys show that tags
//! of different levels differ.

// Without the feature no other crate sees it.
#![cfg_attr(not(feature = "ablation"), allow(unreachable_pub))]

/// A check that a scheme makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The tag of a page of a tree.
    PageTag,
    /// The tag of a block that has a leaf in a tree.
    LeafTag,
    /// The tag inside of a block (COMP-EINT).
    InnerTag,
    /// IsRand of a block without a tag (RAND-EINT).
    Entropy,
    /// The hashes of IntStart and CtrVal (Figure 6).
    ArrayHash,
    /// That keys, nonces, tweaks and associated data bind the index of a block.
    Index,
    /// That keys, nonces and tweaks bind the write counter of a block.
    Counter,
}

/// Whether the check is made.
#[cfg(not(feature = "ablation"))]
#[inline]
pub(crate) const fn enforced(_: Check) -> bool {
    true
}

#[cfg(feature = "ablation")]
pub(crate) use switch::enforced;
#[cfg(feature = "ablation")]
pub use switch::without;

#[cfg(feature = "ablation")]
mod switch {
    use super::Check;
    use std::cell::Cell;

    thread_local! {
        static LEFT_OUT: Cell<Option<Check>> = const { Cell::new(None) };
    }

    pub(crate) fn enforced(check: Check) -> bool {
        LEFT_OUT.get() != Some(check)
    }

    /// Runs `game` on this thread without one check.
    pub fn without<R>(check: Check, game: impl FnOnce() -> R) -> R {
        LEFT_OUT.set(Some(check));
        let result = game();
        LEFT_OUT.set(None);
        result
    }
}
