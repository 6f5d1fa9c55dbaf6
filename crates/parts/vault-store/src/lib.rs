//! `vault-store`: a transactional object store in a folder that the adversary may write, with
//! rollback detection.
//!
//! Its one job: to make what changes between two commits durable whole or not at all, and to notice
//! when the folder holds an older state than this machine committed. Objects are arrays of pages,
//! one backing file each, under numbers that are never used again. A page that no commit refers to
//! is written to its place at once. A page that the last commit refers to is never overwritten
//! before the next commit is durable: its new version goes to the journal, and a checkpoint brings
//! it to its place. [`Store`] is the one object that users hold; `vault` is its user.
//! `docs/format/vault.md` has the bytes and the argument for every crash.
//!
//! Invariants kept here:
//! - After a crash the folder is exactly as at the last commit that returned, or at one that was
//!   under way.
//! - A commit returns only after the [`Anchor`] remembers it. A state that does not descend from
//!   what the anchor remembers is [`lacuna_contracts::Kind::RolledBack`]; a crash never is.
//! - The store takes pages as ciphertext and gives them back unverified: their reader verifies
//!   them. Records and superblocks are sealed and verified here.
//! - A refusal of the host (a full file system, a quota) fails one call and leaves every page as it
//!   was. Any other failure on the write path ends all writing (fail-stop).
//! - Memory is bounded by the journal, not by the number or length of objects.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod anchor;
mod anchor_file;
mod assembly;
mod checkpoint;
mod commit_log;
mod content;
mod copies;
mod doubled;
mod freshness;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod ids;
mod interval;
mod journal;
mod keys;
mod object;
mod object_table;
mod options;
mod page_range;
mod parts;
mod read;
mod reclaimer;
mod record;
mod recovered;
mod recovery;
mod replay;
mod session;
mod store;
mod superblock;
mod worker;
mod write;

pub use anchor::{Anchor, AnchorState, MemoryAnchor};
pub use anchor_file::{FileAnchor, default_anchor_path};
pub use content::ROOT_MAX;
pub use copies::PageCopy;
pub use ids::{CommitInfo, ObjectId, PAGE};
pub use journal::JournalSize;
pub use keys::StoreKeys;
pub use options::{Consent, Now, PastDamage, StoreBase, StoreOptions};
pub use recovered::{Before, Recovered, Superblocks};
pub use store::{FILES, Store};
