//! Flash with real erasure of old contents: chips, the logical erase blocks on them, and UBI
//! volumes.
//!
//! - [`Flash`] is the interface for formats: logical erase blocks (LEBs) that are programmed page
//!   after page, changed as a whole, erased, and drained of superseded copies.
//! - [`Chip`] is the interface of hardware: physical erase blocks (PEBs) and the rules of NAND.
//!   [`SimulatedChip`] keeps a chip in a [medium](lacuna_medium::Medium), enforces the rules,
//!   counts erasures, and fails and loses power on request of a test.
//! - [`Mapping`] implements [`Flash`] on a [`Chip`], as UBI does: it maps LEBs to PEBs, levels
//!   wear, and replaces bad blocks.
//! - [`UbiVolume`] is a UBI volume of Linux, through its character device.
//!
//! Invariants kept here:
//! - A page is programmed once between two erasures of its block, and pages of a block in ascending
//!   order.
//! - After a power cut a LEB holds the content programmed before. If it was being changed, it holds
//!   all of the old or all of the new content.
//! - A superseded copy may be read from the chip until [`Flash::drain`] returns, and not after,
//!   except the copies that `drain` returns.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod bad_blocks;
mod chip;
mod erase_block;
mod flash;
mod mapping;
mod power;
mod scan;
mod simulated;
mod state;
mod sysfs;
mod ubi;
mod ubi_calls;

pub use chip::{Chip, ChipFault, ChipGeometry, Peb};
pub use flash::{Flash, FlashGeometry, Leb, Unerased};
pub use mapping::{Mapping, Wear};
pub use power::PowerCut;
pub use simulated::{SimulatedChip, WearModel};
pub use ubi::UbiVolume;
