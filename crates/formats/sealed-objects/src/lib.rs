//! `sealed-objects`: the sealed format on numbered objects whose transactions are atomic: a disk
//! past one machine (Harnik et al., section 3).
//!
//! A segment of 1024 blocks is one object. Data and metadata of a write travel in one transaction,
//! so there is no journal and no copy-on-write segment, and no data to recover: what was
//! acknowledged as flushed is in the store, whole. What a client that died left half done is
//! settled when the disk is opened: pages of the version table that are marked as open
//! (`version_pages.rs`, `version_table.rs`), a rollback (`rollback.rs`) and the removal of
//! snapshots (`snapshots.rs`).
//!
//! The parts, each over those below it:
//! - `disk`: [`ObjectDisk`], put together from its parts; beside it `check` and `rollback`
//! - `writer`: takes writes into the cache or past it, and makes writers wait. `reader`: answers
//!   reads
//! - `writers`: the background threads
//! - `write_back`: from the cache to transactions; fail-stop
//! - `transactor`: one transaction on one object. `encryptor`: blocks become a `change`
//! - `cache`: what is not yet in the store, and what is in flight. `schedule`: which segment is
//!   next
//! - `placement`: where metadata is: `adaptive`, `chained`, `segment_end`, `interleaved`, `kv`;
//!   `pages` in memory
//! - `version_table`: what each object must be, over `version_ticket`, `objects`, `seals`,
//!   `version_pages`, `version_book`. `snapshots` over `snapshot_table`, and `snapshot_mark`, by
//!   which a store shows that it has one
//!
//! Invariants:
//! 1. At most one transaction per object is in flight. Its blocks stay in the cache, or are marked
//!    as on their way, until it is acknowledged.
//! 2. The latest version of a block is the cache's, or else the store's; a segment whose discard is
//!    pending reads as zeros but for what the cache holds above that.
//! 3. What is remembered about the store (metadata pages, absent objects) is changed before a
//!    transaction starts, and learned from an answer only if no transaction began meanwhile.
//! 4. Remembered metadata is believed for a block only if it was the same before and after the
//!    block was read.
//! 5. After a failed transaction nothing more is written, nothing remembered about its object is
//!    believed, and what had not reached the store is refused to readers. One that was refused, for
//!    want of room above all, did not happen, and is tried again.
//! 6. With a cipher that authenticates, a transaction keeps something of an object only if that is
//!    the version which this session found good, or wrote. What cannot be kept is marked as lost.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod absent;
mod adaptive;
mod buffers;
mod cache;
mod chain;
mod chained;
mod change;
mod check;
mod chunks;
mod disk;
mod encryptor;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod interleaved;
mod known_tails;
mod kv;
mod layouts;
mod objects;
mod pages;
mod params;
mod placement;
mod reader;
mod rollback;
mod schedule;
mod seal;
mod seals;
mod segment;
mod segment_end;
mod snapshot_mark;
mod snapshot_table;
mod snapshots;
mod stores;
mod transactor;
mod version_book;
mod version_page;
mod version_pages;
mod version_table;
mod version_ticket;
mod write_back;
mod writer;
mod writers;

pub use disk::{ObjectDisk, ObjectOptions};
pub use params::{ObjectLayout, ObjectParams, VERSION};
pub use snapshot_table::{SnapshotRecord, SnapshotState};
pub use snapshots::list_snapshots;
pub use stores::Stores;
pub use version_page::is_of_version_table;
