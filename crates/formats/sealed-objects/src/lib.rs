//! `sealed-objects`: the sealed format on numbered objects with atomic transactions, for disks
//! larger than one machine (Harnik et al., section 3).
//!
//! A segment of 1024 blocks is one object. Data and metadata of a write travel in one transaction,
//! so there is no journal, no copy-on-write segment and no data to recover: flushed data is
//! complete in the store. Opening the disk finishes the operations that a dead client left
//! incomplete: pages of the version table that are marked as open (`versions/pages.rs`,
//! `versions/table.rs`), a rollback (`snapshots/rollback.rs`) and the removal of snapshots
//! (`snapshots.rs`).
//!
//! The modules; each uses only those below it:
//! - `disk`: [`ObjectDisk`], assembled from its parts; `check` and `rollback` work on it
//! - `write_path`: puts writes into the cache or past it, and throttles. `read_path`: serves reads
//! - `write_threads`: the background threads
//! - `write_back`: turns the cache's content into transactions; fail-stop
//! - `transactor`: one transaction on one object. `encryptor`: encrypts blocks into an
//!   `object_change`
//! - `dirty_cache`: blocks that are not yet in the store, and transactions in flight, on
//!   `write_records`, the memory that outlives the process, and `pending_segment`. `write_queue`:
//!   the order of segments
//! - `placement`: where metadata lies: `adaptive`, `chained`, `segment_end`, `interleaved`, `kv`;
//!   `metadata_pages` caches metadata
//! - `versions`: the `table` has the expected version of each object, on `ticket`, `page_age`,
//!   `session_objects`, `seals`, `pages` and `store`. `snapshots` on `snapshots::table` and
//!   `snapshots::mark`, which proves that a store has a snapshot
//!
//! Invariants:
//! 1. At most one transaction per object is in flight. Its blocks stay in the cache, or are marked
//!    as in flight, until it is acknowledged.
//! 2. The latest version of a block is in the cache, or else in the store. A segment with a pending
//!    discard reads as zeros, except for the blocks that the cache holds.
//! 3. Cached knowledge of the store (metadata pages, absent objects) changes before a transaction
//!    starts. An answer may add to it only if no transaction has begun since the query.
//! 4. Cached metadata is valid for a block only if it was the same before and after the read of the
//!    block.
//! 5. After a failed transaction nothing more is written, cached knowledge of its object is
//!    invalid, and readers get an error for data that did not reach the store. A transaction that
//!    the store refused (mostly for lack of space) did not happen and is tried again.
//! 6. With a cipher that authenticates, a transaction keeps parts of an object only if the object
//!    has the version that this session verified or wrote. Parts that cannot be kept are marked as
//!    lost.
//! 7. An acknowledged write is in the store, or in a published record of the memory that outlives
//!    the process. A successor puts the records into its cache after it has finished the operations
//!    that the death interrupted.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod absent_objects;
mod check;
mod disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod layouts;
mod params;
mod read_path;
mod segment;
mod session_objects;
mod snapshots;
mod stores;
mod versions;
mod writing;

pub use disk::{ObjectAccess, ObjectDisk, ObjectOptions};
pub use params::{ObjectLayout, ObjectParams, VERSION};
pub use snapshots::list_snapshots;
pub use snapshots::table::{SnapshotRecord, SnapshotState};
pub use stores::Stores;
pub use versions::page::is_of_version_table;
