//! The common parts of disks with hidden levels, independent of their layout on a medium: the map
//! of a level, its pending blocks, the keys of one write to the medium, the paced clock, fail-stop,
//! and the disks that front ends see.
//!
//! A format gives places their meaning, and decides when and where anything is written. It
//! implements [`PageSource`], which maps read their pages from, [`LevelFormat`], which creates and
//! opens its disks, and [`Levels`], which front ends reach the levels through.
//!
//! Invariants kept here:
//! 1. Nothing here writes to a medium, or decides that anything is written (deniability contract):
//!    hidden data is pending until the format reports that a stripe or batch has passed
//!    ([`HiddenLevels::mark_filled`]).
//! 2. Only writes of a level change its map.
//! 3. An operation that is refused after a failure stays refused, with the first cause
//!    ([`FailStop`](lacuna_contracts::FailStop)).
//! 4. Within one write each nonce is a domain and an index, and keys are derived from the random
//!    salt of the write: no nonce repeats as long as a format uses each domain and index once
//!    ([`WriteKey`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod clock;
mod closing;
mod dirty_pages;
mod disk;
mod entry;
mod format;
mod hidden;
mod keys;
mod leaves;
mod level_map;
mod map_size;
mod map_state;
mod queue;
mod queued_level;
mod randomness;
mod refused_blocks;
mod retry;
mod warm;

pub use clock::PacedClock;
pub use closing::{ClosingCover, Pace};
pub use disk::{LevelDisk, Levels, OpenOptions, check_length, level_disks};
pub use entry::{LOST_PLACE, SlotEntry};
pub use format::{DiskKeys, LevelFormat};
pub use hidden::{CoverWait, HiddenLevels, HiddenState, OpenMode, no_sync};
pub use keys::{SALT_LEN, TAG_LEN, Unverified, WriteKey, corrupt};
pub use level_map::{LevelMap, LoadedLeaf, PageSource, UncachedLeaf};
pub use map_size::{DISCARD_SLOTS, FANOUT, MAX_LEVEL_BLOCKS, largest_level, map_pages};
pub use map_state::{MapState, STATE_LEN};
pub use queue::{PendingBlock, PendingQueue};
pub use queued_level::QueuedLevel;
pub use randomness::Randomness;
pub use retry::{retry, retry_refused};
pub use warm::warm;
