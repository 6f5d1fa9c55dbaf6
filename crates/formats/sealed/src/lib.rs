//! `sealed`: an encrypted disk whose overwrites cannot be linked, on a flat medium, that survives
//! power cuts without writing streamed data twice (Harnik et al., sections 1 to 3).
//!
//! A disk is a row of segments of 1024 blocks. Every segment has a *slot* on the medium; blocks
//! keep their place inside it, and each block carries the metadata of its cipher
//! ([`lacuna_crypto::Cipher`]), which lies after the blocks of its segment. Three ways lead to the
//! medium:
//!
//! - **The journal.** Small writes wait in a bounded write-back cache. A flush appends them,
//!   encrypted and with their metadata, to the journal in one synced write, and returns. They are
//!   destaged later, sorted and without a sync of their own.
//! - **Copy-on-write segments.** A stream of large writes goes straight to a *copy-on-write
//!   segment*: a second, free slot of its segment. When the copy-on-write segment is whole and
//!   synced, a 48-byte record in the journal makes it the slot. Streamed data is written once, and
//!   never over its last durable version.
//! - **Recovery.** Opening a disk replays the journal: the last word on each block wins, then the
//!   journal is retired.
//!
//! The parts, each over those below it, which are all that it calls:
//!
//! ```text
//! Sealed       disk.rs         create and open; the `Disk` of front ends
//! Worker       worker.rs       the background thread; which writers must wait, and how long
//! Flusher      flush.rs        who may commit; flushes that come together share a commit
//! Committer    commit.rs       the order of a commit; recovery's end, closing
//! MediumFull   medium_full.rs  what is done on a full medium
//! Destager     destage.rs      committed blocks to their slots; the checkpoint
//! Mover        moves.rs        copy-on-write segments become slots
//! Gatherer     gather.rs       what goes into the batches of a commit, encrypted
//! Log          log.rs          the journal (journal.rs), and what of it is not yet destaged
//! Access       access.rs       reads, writes, discards; beside the parts of a commit, which it does not call
//! Segments     segments.rs     where a segment is: map.rs, cow_segment.rs, and their locks (locks.rs)
//! Cache        cache.rs        what was acknowledged and is not yet destaged
//! Store        store.rs        slots with their metadata: meta_cache.rs
//! Sealer       sealer.rs       the cipher
//! recovery     recovery.rs     what the journal says last, when a disk is opened
//! Health       health.rs       fail-stop, and the wake-ups (signals.rs)
//! ```
//!
//! Invariants:
//! 1. The last durable version of a block is never overwritten before the next one is durable
//!    elsewhere. So a write torn at 512 bytes, dropped or reordered is never seen: not as a
//!    mixture, not as an alarm.
//! 2. The latest version of a block is, in this order: the cache's newest, the copy-on-write
//!    segment's if it covers the block, the cache's committed one (in the journal, not yet
//!    destaged), the slot's, zeros.
//! 3. A slot is read, and one that others can see is written, only under the lock of its chunk of
//!    64 blocks; a thread holds one chunk lock at a time, or all of one segment's in ascending
//!    order. The thread that commits, which alone writes slots, reads them without. Slots that
//!    nobody can see, and what a frozen copy-on-write segment does not cover, are the committing
//!    thread's alone.
//! 4. A ciphertext is made once per write under fresh randomness, which is hedged with the content,
//!    and may then be copied as it is; no cipher binds the place on the medium, all bind the block
//!    address.
//! 5. After an error on the write path nothing more is written and nothing is retired. A write that
//!    the medium refuses, because it is full above all, is no such error, nor is a read that fails:
//!    the request or the flush fails, and the disk goes on in its journal, where room is kept for
//!    it (`medium_full.rs`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod address;
mod cache;
mod commit;
mod counters;
mod cow_segment;
mod destage;
mod disk;
mod flush;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gather;
mod geometry;
mod health;
mod journal;
mod limits;
mod locks;
mod log;
mod map;
mod medium_full;
mod meta_cache;
mod moves;
mod outgrown;
mod recovery;
mod scratch;
mod sealer;
mod segments;
mod signals;
mod store;
mod stream;
mod worker;

pub use disk::{OpenOptions, Sealed};
pub use geometry::{Geometry, Params, VERSION};
