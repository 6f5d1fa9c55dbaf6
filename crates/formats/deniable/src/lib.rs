//! `deniable`: PD-DM, a disk with hidden levels that stays deniable to an adversary with many
//! snapshots of the medium (docs/papers.md). A power cut loses no flushed block.
//!
//! The medium holds a ring of *stripes*, written one after another, and checkpoints written on a
//! schedule. A stripe is one write: a summary, *p* public and *h* hidden slots ([`Params`],
//! `docs/format/deniable.md`). Before the ring overwrites a stripe, its valid blocks are carried:
//! they are copied to the same slots of the stripe that is written a *gap* earlier. A block
//! therefore moves with the log, in its slot, until it is written again. A map stores only the
//! place where a block was *taken in*, that is, written and not carried; its current place follows
//! from that. Carrying changes no map. Only writes of a level change its map, and map pages
//! travel in the slots of the level like data.
//!
//! Invariants:
//! 1. Stripes are written to strictly successive places of the ring.
//! 2. Number, place, size and order of all writes to the medium, those of checkpoints, opening and
//!    closing included, are a function of public operations, public randomness and the paced clock.
//! 3. Everything that is not public is uniform without its key: where no open level put ciphertext,
//!    the hidden part of a summary is random, and hidden slots are zeros encrypted under a level's
//!    key or a throwaway key.
//! 4. No valid block of an open level is overwritten before its copy is durable: stripe *q* carries
//!    stripe *q* − *N* + *gap*, and stripe *q* + *gap*, which overwrites that one, is written only
//!    when *q* is durable.
//! 5. After a power cut the log ends before the first stripe that is not whole and was not durable;
//!    flushed blocks lie before that end. Opening writes nothing, and finds the same end whichever
//!    levels are opened.
//! 6. The medium gets no discards: a discard is a record in a slot.
//! 7. Keys are derived from a level's key and the random salt of a stripe. Salts are hedged: no
//!    nonce repeats, and if the source of randomness repeats, a nonce repeats only with the same
//!    content.
//!
//! Differences from the paper: one summary for each stripe instead of *k* map blocks for each
//! block; recovery from summaries; a copy one gap ahead instead of a rewrite in place, which a
//! power cut could tear; no public bitmap (the entries of a summary and the map show whether a slot
//! is valid, for public and hidden blocks alike: the paper's reverse map).
//!
//! The parts of an open disk. Each keeps its state, its lock and its methods in the file of its
//! name, and uses only the parts below it:
//!
//! ```text
//! DeniableDisk      assembles the parts; front-end requests, status, closing (disk.rs, threads.rs)
//! PublicLevel       level 0: opens and closes stripes            lock: one operation at a time
//! Carrier           reads ahead the blocks to carry              lock: the stripes that are ready
//! PublicView        level 0's map and the open stripe, also for  lock: both
//!                   readers
//! OpenHiddenLevels  hidden levels: queues, filling of slots      lock: one for each level
//! Pipeline          closed stripes in flight, in order           lock: the stripes in flight
//! Log               reads stripes, in flight or on the medium    locks: caches
//! LogProgress       which stripes are written and durable        lock: the sync
//! MediumReader      retries of reads
//! Health            fail-stop
//! ```
//!
//! A thread takes the locks in the order of this list. Only return values, the channels of
//! `threads.rs` and the notice of a failure (`Wake`) go upwards.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache_usage;
mod discard_record;
mod disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod geometry;
mod health;
mod hidden;
mod keys;
mod log;
mod params;
mod place;
mod public_level;
mod public_view;
mod read;
mod recovery;
mod stripe;
mod threads;

pub use cache_usage::{CacheUsage, DiskCacheUsage};
pub use disk::DeniableDisk;
pub use geometry::StripeGeometry;
pub use lacuna_levels::{LevelDisk, Levels, OpenOptions};
pub use params::{Params, VERSION};
