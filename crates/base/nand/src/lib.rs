//! Flash whose old contents can really be erased: chips, the logical erase blocks on them, and UBI
//! volumes.
//!
//! - [`Flash`] is what a format sees: logical erase blocks (LEBs) that are programmed page after
//!   page, changed as a whole, erased, and drained of superseded copies.
//! - [`Chip`] is what hardware gives: physical erase blocks (PEBs) and the rules of NAND.
//!   [`SimulatedChip`] keeps one in a [medium](lacuna_medium::Medium), enforces the rules, counts
//!   erasures, and fails and loses power where a test says so.
//! - [`Mapping`] makes [`Flash`] of a [`Chip`], as UBI does: it maps LEBs to PEBs, levels wear,
//!   replaces bad blocks.
//! - [`UbiVolume`] is a UBI volume of Linux, through its character device.
//!
//! Invariants kept here:
//! - A page is programmed once between two erasures of its block, and pages of a block in ascending
//!   order.
//! - After a power cut a LEB holds what was programmed into it before, or, if it was being changed,
//!   all of the old or all of the new content.
//! - A superseded copy may be read from the chip until [`Flash::drain`] returns, and not after,
//!   unless `drain` says so.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod bad_blocks;
mod chip;
mod erase_block;
mod flash;
mod mapping;
mod scan;
mod simulated;
mod state;
mod sysfs;
mod ubi;
mod ubi_calls;

pub use chip::{Chip, ChipGeometry, Fault, Peb};
pub use flash::{Flash, FlashGeometry, Leb, Unerased};
pub use mapping::{Mapping, Wear};
pub use simulated::{PowerCut, SimulatedChip, Wearing};
pub use ubi::UbiVolume;
