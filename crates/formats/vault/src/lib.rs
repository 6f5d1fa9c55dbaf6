//! `vault`: a file system in an untrusted directory, with one anchor of constant size (paper 002).
//!
//! A [`Vault`] keeps the content of each file in one backing file under a random name. Names,
//! attributes, links and each file's trusted storage are in a namespace database that is itself a
//! protected file. Everything therefore depends on one root, which `vault-store` seals into its
//! commits and the anchor remembers.
//!
//! Invariants kept here:
//! - A read returns the latest content that was written, or an error.
//! - A commit makes one state of the whole vault durable: names, attributes, contents. After a
//!   crash each file and the namespace are as at the last commit; a crash never looks like
//!   tampering.
//! - Only bounded caches grow with the vault.
//! - Fail-stop on a failed write or sync of the backing directory; a full directory only refuses
//!   calls.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod assembly;
mod check;
mod commits;
mod content;
mod fs_error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod names;
mod namespace;
mod nodes;
mod options;
mod rescue;
mod services;
mod settings;
mod space_budget;
mod startup;
mod tasks;
mod vault;

pub use fs_error::{FsError, FsResult};
/// The store below a vault, for callers that use its types: anchors, the size of the journal, the
/// policy for a rollback.
pub use lacuna_vault_store as store;
pub use nodes::acl::{ACL_ACCESS_XATTR, ACL_DEFAULT_XATTR};
pub use nodes::attr::{
    AllocateMode, Attr, AttrChanges, BLOCK, DirEntry, FILE_MAX, FileKind, LINK_MAX, NAME_MAX, NewNode, ROOT,
    RenameMode, SYMLINK_MAX, SeekTo, SetXattrMode, SystemWallClock, Time, WallClock, XATTR_MAX,
};
pub use nodes::attributes::INTEGRITY_XATTR;
pub use options::{BadFile, COMMIT_PERIOD, CheckReport, FileStat, VaultLog, VaultOpenOptions, VaultOptions};
pub use rescue::Rescue;
pub use startup::{OpeningReport, VaultBacking};
pub use vault::Vault;
