//! What the fuzz targets share: a medium that is cheap to copy, small valid disks to damage, and ways to turn
//! the fuzzer's bytes into damage or into an NBD client's words.
//!
//! Invariants:
//! - Everything is a function of the input alone, so that a finding replays.
//! - No input makes a target itself spend more than a bounded amount of time or memory; what is left to grow is
//!   the code under test.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod bytes;
pub mod header_image;
pub mod lying;
pub mod nbd_client;
pub mod objects_image;
pub mod ram_disk;
pub mod sealed_image;
pub mod sparse;
