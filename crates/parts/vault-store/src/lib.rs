//! `vault-store`: a transactional object store in a folder that the adversary may write, with
//! rollback detection.
//!
//! Its one job: to make all changes between two commits durable as a whole or not at all, and to
//! detect a folder with an older state than this machine committed. Objects are arrays of pages,
//! with one backing file each and with numbers that are never reused. A page that no commit refers
//! to is written in place at once. A page that the last commit refers to is never overwritten
//! before the next commit is durable: its new version goes to the journal, and a checkpoint writes
//! it back to its place. [`Store`] is the interface; `vault` is its user. `docs/format/vault.md`
//! has the bytes and the argument for every crash.
//!
//! Invariants kept here:
//! - After a crash the folder has exactly the state of the last commit that returned, or of a
//!   commit that was in progress.
//! - A commit returns only after the [`Anchor`] remembers it. A state that does not descend from
//!   the anchored state is [`lacuna_contracts::Kind::RolledBack`]; a crash never is.
//! - The store takes pages as ciphertext and returns them unverified: their reader verifies them.
//!   Records and superblocks are sealed and verified here.
//! - A refusal of the host (a full file system, a quota) fails one call and leaves every page
//!   unchanged. Fail-stop on any other failure on the write path.
//! - The journal bounds memory, not the number or length of objects.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod anchor;
mod checkpoint;
mod commits;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod ids;
mod journal;
mod keys;
mod objects;
mod opening;
mod options;
mod store;
mod worker;
mod write_back;

pub use anchor::file::{FileAnchor, default_anchor_path};
pub use anchor::{Anchor, AnchorState, MemoryAnchor};
pub use commits::codec::ROOT_MAX;
pub use ids::{CommitInfo, ObjectId, PAGE};
pub use journal::size::JournalSize;
pub use keys::StoreKeys;
pub use objects::copies::PageCopy;
pub use opening::recovered::{PreviousRoot, Recovered, SuperblockStatus};
pub use options::{CommitClock, RollbackPolicy, StoreBacking, StoreOptions, ToleratedDamage};
pub use store::{FILES, Store};
