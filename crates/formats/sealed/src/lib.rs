//! `sealed`: an encrypted disk on a flat medium with unlinkable overwrites. It survives power cuts
//! without writing streamed data twice (Harnik et al., sections 1 to 3).
//!
//! A disk consists of segments of 1024 blocks. Every segment has a *slot* on the medium. Blocks
//! keep their index in the slot, and each block has the metadata of its cipher
//! ([`lacuna_crypto::Cipher`]). The metadata of eight slots lies together, before their blocks.
//! Data reaches the medium in three ways:
//!
//! - **The journal.** Small writes are gathered in a bounded write-back cache. A flush appends
//!   them, encrypted and with their metadata, to the journal in one synced write, and returns. They
//!   are destaged later, sorted and without a sync of their own.
//! - **Copy-on-write segments.** A stream of large writes goes straight to a *copy-on-write
//!   segment*: a second, free slot of its segment. When the copy-on-write segment is whole and
//!   synced, a 48-byte record in the journal makes it the slot. Streamed data is written once, and
//!   never over its last durable version.
//! - **Recovery.** Opening a disk replays the journal: the last entry for each block wins. These
//!   entries are destaged before the disk is in use. The journal is retired then too; with
//!   background threads it is retired later, before the first commit.
//!
//! The parts, each calling only parts below it:
//!
//! ```text
//! SealedDisk    disk.rs           create and open; the `Disk` of front ends
//! CommitWorker  worker.rs         the background threads; when and how long writers wait
//! Flusher       flush.rs          the commit lock; concurrent flushes share a commit
//! Committer     commit.rs         the order of a commit; the end of recovery; closing
//! MediumFull    medium_full.rs    the full-medium state
//! Destager      destage.rs        committed blocks to their slots; the checkpoint
//! Remapper      remapper.rs       copy-on-write segments become slots
//! BatchBuilder  batch_builder.rs  the encrypted batches of a commit
//! Log           log.rs            the journal (journal.rs), and its blocks not yet destaged
//! Access        access.rs         reads, writes, discards; does not call the parts of a commit
//! ReadAhead     read_ahead.rs     streams of reads, and how far they were fetched
//! Segments      segments.rs       where a segment is: map.rs, cow_segment.rs; locks (locks.rs)
//! WriteCache    cache.rs          blocks acknowledged and not yet destaged
//! SlotStore     slot_store.rs     slots with their metadata: meta_cache.rs
//! Sealer        sealer.rs         the cipher
//! KeptWrites    kept_writes.rs    acknowledged writes in memory that outlives the process
//! recovery      recovery.rs       the last entries of the journal, when a disk is opened
//! Health        health.rs         fail-stop, and the wake-ups (signals.rs)
//! ```
//!
//! Invariants:
//! 1. The last durable version of a block is never overwritten before the next one is durable
//!    elsewhere. So a write torn at 512 bytes, dropped or reordered is never seen: neither as a
//!    mixture nor as a false alarm.
//! 2. The latest version of a block is, in this order: the cache's newest, the copy-on-write
//!    segment's if it covers the block, the cache's committed one (in the journal, not yet
//!    destaged), the slot's, zeros.
//! 3. A slot is read, and a visible slot is written, only under the lock of its chunk of 64 blocks.
//!    A thread holds one chunk lock at a time, or all of one segment's in ascending order. The
//!    thread with the commit lock, which alone writes slots, reads them without locks. Invisible
//!    slots, and blocks that a frozen copy-on-write segment does not cover, belong to it alone.
//! 4. A ciphertext is made once per write under fresh randomness, which is hedged with the content,
//!    and may then be copied as it is. No cipher binds the place on the medium; all bind the block
//!    address.
//! 5. After an error on the write path nothing more is written and nothing is retired. Two kinds of
//!    errors are exceptions: a write that the medium refuses, mostly because it is full, and a
//!    failed read. Then only the request or the flush fails, and the disk goes on in its journal,
//!    which has room reserved for this (`medium_full.rs`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod address;
mod caches;
mod counters;
mod disk;
mod durability;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod geometry;
mod health;
mod journal;
mod kept_writes;
mod limits;
mod locks;
mod log;
mod map;
mod medium_full;
mod read_ahead;
mod recovery;
mod sealer;
mod segments;
mod slot_store;

pub use disk::{CachedSlots, OpenOptions, SealedDisk};
pub use geometry::{Geometry, Params, VERSION};
