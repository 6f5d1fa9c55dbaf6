//! What the fuzz targets share: media that are cheap to copy, small valid disks to damage, forgers that seal what they make
//! up under the keys of a disk, and ways to turn the fuzzer's bytes into damage or into an NBD client's words.
//!
//! Forgers write what the format pages say, with the primitives of `lacuna-crypto` alone: nonces and salts are random to a
//! reader, so theirs are not hedged. A test of each shows that its format opens what it makes up if it makes sense.
//!
//! Invariants:
//! - Everything is a function of the input alone, so that a finding replays.
//! - No input makes a target itself spend more than a bounded amount of time or memory; what is left to grow is
//!   the code under test.
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
