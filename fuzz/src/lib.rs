//! Shared parts of the fuzz targets: media that are cheap to copy, small valid disks to damage,
//! forgers that seal made-up contents under the keys of a disk, and conversions of the fuzzer's
//! bytes into damage or into the messages of an NBD client.
//!
//! Forgers follow the format pages and use only the primitives of `lacuna-crypto`. Readers accept
//! any nonce and salt, so the forgers do not hedge theirs. A test of each forger shows that its
//! format opens sensible forged contents.
//!
//! Invariants:
//! - Everything is a function of the input alone, so that a finding replays.
//! - The target itself spends bounded time and memory on any input; only the code under test can
//!   exceed the bound.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod bytes;
pub mod deniable_log;
pub mod flash_image;
pub mod flash_log;
pub mod header_image;
pub mod lying;
pub mod nand_chip;
pub mod nbd_client;
pub mod objects_image;
pub mod oblivious_journal;
pub mod ram_disk;
pub mod ram_flash;
pub mod sealed_image;
pub mod sparse;
pub mod store_journal;
pub mod vault_image;
