//! `flash`: a disk on raw flash with secure deletion: a purge makes deleted blocks unrecoverable
//! (DNEFS).
//!
//! On flash an overwrite destroys nothing. So each block that is written is a *node*, encrypted
//! under its own key, which is used once. Nodes go to a log; keys lie in the *key storage area*, a
//! few erase blocks that a *purge* replaces atomically and drains. Data deleted before the purge
//! cannot be decrypted after it with any keys.
//!
//! The parts, each calling only those below it:
//! - [`FlashDisk`] (`disk`): creates and opens disks, implements [`lacuna_contracts::Disk`];
//!   `policy` purges when it is time.
//! - `writer`: one thread at a time writes the `write_buffer` to the log, discards, purges, writes
//!   checkpoints. `reader`: all other threads.
//! - `purger` ends epochs; `collector` frees erase blocks; `checkpoint` shortens opening;
//!   `recovery` replays the log.
//! - `write_buffer`: acknowledged blocks, in records that outlive the process (`kept_blocks`).
//! - `log_writer`: appends nodes and records to the log, in step with index and keys.
//! - `index`: where each block lies. `key_storage`: the key storage area and the key state map;
//!   `assignment`: which keys are taken next. `log`: groups of nodes on the flash.
//!
//! Invariants:
//! 1. A node is encrypted under a key that was made after the last purge began, and that encrypts
//!    nothing else.
//! 2. Its key is deleted when the index names another node for the block, or none; never before
//!    that is in the log.
//! 3. When a purge returns, no key that was deleted before it can be read from the flash, not even
//!    from a superseded copy.
//! 4. After a power cut each block reads as its last flushed version or a later one, and every key
//!    that is used and not named by the index counts as deleted.
//! 5. After the death of the process each block reads as its last acknowledged version, if a
//!    successor has the memory of the disk ([`OpenOptions::kept`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod checkpoint;
mod disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod header_area;
mod ids;
mod index;
mod kept_blocks;
mod key_storage;
mod log;
mod params;
mod params_record;
mod policy;
mod purge_status;
mod reader;
mod recovery;
mod write_buffer;
mod writer;

pub use disk::{FlashDisk, OpenOptions};
pub use header_area::{HEADER_COPY_LEN, header_lebs};
pub use key_storage::purger::PurgeResult;
pub use params::{Layout, Params};
pub use params_record::{PARAMS_LEN, VERSION};
pub use policy::PurgePolicy;
pub use purge_status::PurgeStatus;
