//! `vault`: a file system in a directory that nobody trusts, with one anchor of constant size
//! (paper 002).
//!
//! A [`Vault`] keeps the content of each file in one backing file under a random name, and names,
//! attributes, links and each file's trusted storage in a namespace database that is itself a
//! protected file. Everything therefore hangs on one root, which `vault-store` seals into its
//! commits and the anchor remembers.
//!
//! Invariants kept here:
//! - A read gives the latest content that was written, or an error; never anything else.
//! - What a commit makes durable is one state of the whole vault: names, attributes, contents.
//!   After a crash each file and the namespace are as at the last commit; a crash never looks like
//!   tampering.
//! - Nothing grows with the vault but caches with a bound.
//! - A failed write or sync of the backing directory ends all writing (fail-stop); a full one does
//!   not.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attr;
mod attributes;
mod background_tasks;
mod check;
mod contents;
mod directories;
mod entries;
mod fs_error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod group_commit;
mod inodes;
mod length;
mod namespace;
mod open_file;
mod open_files;
mod open_handles;
mod options;
mod parts;
mod paths;
mod record;
mod rename;
mod rescue;
mod services;
mod settings;
mod space_budget;
mod startup;
mod task_queue;
mod timer;
mod tree;
mod vault;

pub use attr::{
    Allocate, Attr, BLOCK, Changes, DirEntry, FILE_MAX, FileKind, LINK_MAX, NAME_MAX, NewNode, ROOT,
    RenameMode, SYMLINK_MAX, SeekTo, SetXattr, SystemWallClock, Time, WallClock, XATTR_MAX,
};
pub use attributes::INTEGRITY_XATTR;
pub use fs_error::{FsError, FsResult};
/// The store on which vaults rest, for callers that name its types: anchors, the size of the
/// journal, the consent to a rollback.
pub use lacuna_vault_store as store;
pub use options::{BadFile, COMMIT_PERIOD, CheckReport, FileStat, Log, OpenOptions, VaultOptions};
pub use rescue::Rescue;
pub use startup::{Base, Found};
pub use vault::Vault;
