//! `deniable`: PD-DM, a disk with hidden levels that stays deniable to somebody who images the
//! medium many times (docs/papers.md), and loses nothing in a power cut.
//!
//! The medium is a ring of *stripes*, written one after another, and checkpoints by schedule. A
//! stripe is a summary, *p* public and *h* hidden slots, one write ([`Params`],
//! `docs/format/deniable.md`). Before the ring comes round to a stripe, what is valid in it is
//! carried on: into the same slots of the stripe written a *gap* earlier. So every block, until it
//! is written again, goes round with the log in its slot, and a map that says where a block was
//! *taken in* says for ever where it is. Carrying changes no map; a map changes with the writes of
//! its level alone, and its pages travel in the slots of the level like data.
//!
//! Invariants:
//! 1. Stripes are written at strictly successive places of the ring.
//! 2. Number, place, size and order of all writes to the medium, checkpoints and those of opening
//!    and closing included, are a function of public operations, public randomness and the paced
//!    clock.
//! 3. What is not public is uniform without its key: where no open level put ciphertext, the hidden
//!    part of a summary is random, and hidden slots are zeros encrypted under a level's key or a
//!    throwaway one.
//! 4. No valid block of an open level is overwritten before its copy is durable: stripe *q* carries
//!    stripe *q* − *N* + *gap*, and stripe *q* + *gap*, which lies over that one, is written when
//!    *q* is durable.
//! 5. After a power cut the log ends before the first stripe that is not whole and was not durable;
//!    what was flushed is before that end. Opening writes nothing, and finds the same end whichever
//!    levels are opened.
//! 6. A discard never reaches the medium: it is a record in a slot.
//! 7. Keys are derived from a level's key and the random salt of a stripe, which is hedged: no
//!    nonce ever repeats, and where the source of randomness does, it repeats with the content
//!    alone.
//!
//! Where it leaves the paper: one summary for a stripe instead of *k* map blocks for a block;
//! recovery from summaries; a copy a gap ahead instead of rewriting in place, which a power cut
//! could tear; no public bitmap (the entries of a summary and the map tell, for public blocks as
//! for hidden ones, whether a slot is valid: the paper's reverse map).
//!
//! The parts of an open disk. Each has its state, its lock and its methods in the file of its name,
//! and uses those below it:
//!
//! ```text
//! Deniable       puts the parts together; what front ends ask, `status`, closing     (disk.rs, threads.rs)
//! Public         level 0: when a stripe is opened and closed                         lock: the turn of one operation
//! Carrier        reads ahead what stripes carry on                                   lock: what is ready
//! View           level 0's map and the stripe that is being built, also for readers  lock: both
//! Hidden         hidden levels: their queues, and filling of hidden slots           lock: one for each level
//! Pipeline       closed stripes on their way to the medium, in order                 lock: what is in flight
//! Log            stripes to be read, in flight or on the medium                      locks: caches
//! Progress       what is written and what is durable                                 lock: the sync
//! MediumReader, Health                                                               retries; fail-stop
//! ```
//!
//! A thread takes their locks from above downwards. Upwards go return values, the channels of
//! `threads.rs`, and the news that the disk has failed (`Wake`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod caches;
mod carried;
mod carrier;
mod checkpoint;
mod closed;
mod disk;
mod filling;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod geometry;
mod head;
mod health;
mod hidden;
mod keys;
mod log;
mod medium_reader;
mod params;
mod pipeline;
mod place;
mod plain;
mod progress;
mod public;
mod read;
mod recovery;
mod source;
mod stripe_builder;
mod summary;
mod threads;
mod trims;
mod view;

pub use caches::{Cached, Caches};
pub use disk::Deniable;
pub use geometry::Geometry;
pub use lacuna_levels::{LevelDisk, Levels, OpenOptions};
pub use params::{Params, VERSION};
