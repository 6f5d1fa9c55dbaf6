//! Encrypted storage against an adversary with repeated access to the medium: the library.
//!
//! A disk is an array of blocks of 4096 bytes, encrypted, on a file, a block device, flash or the
//! objects of a Ceph pool. This crate creates and opens disks: it turns a [`Location`] and
//! passphrases into a [`Disk`] for each open level. It has no terminal, reads no arguments and
//! never ends the process: messages go to an [`Observer`], and questions are asked through
//! closures.
//!
//! ```
//! use lacuna_storage::{
//!     ByteDisk, Cost, CreateOptions, Disk, Location, Opening, Passphrase, Shape, Silent, create,
//!     open,
//! };
//!
//! # fn main() -> lacuna_storage::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("files.img");
//! # let path = path.to_str().unwrap();
//! let location = Location::parse(path)?;
//! let passphrase = || Passphrase::new(b"correct horse battery staple".to_vec());
//!
//! // Cheap passphrase guesses for the example; by default one guess takes a second.
//! let cost = Cost::fixed(1024, 1)?;
//! let shape = Shape::sealed();
//! let options = CreateOptions { cost, ..CreateOptions::new(location.clone(), shape, 64 << 20) };
//! create(&options, &Silent, |_levels| Ok(vec![passphrase()]))?;
//!
//! let disk = open(&location, vec![passphrase()], Opening::default(), &Silent)?;
//! let bytes = ByteDisk::new(disk.levels().remove(0));
//! bytes.write_at(1000, b"nobody sees that this changed")?;
//! bytes.flush()?;
//! disk.close()?;
//!
//! # drop((disk, bytes));
//! let disk = open(&location, vec![passphrase()], Opening::default(), &Silent)?;
//! let mut read = [0; 28];
//! ByteDisk::new(disk.levels().remove(0)).read_at(1000, &mut read)?;
//! assert_eq!(&read, b"nobody sees that this changed"[..28].as_ref());
//! disk.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Contents
//!
//! - [`create`] makes a disk of a [`Shape`]: `sealed`, `deniable`, `oblivious` or `flash`
//!   ([`FORMATS`]).
//! - [`open`] opens one. [`unlock`] is its first half, for programs that ask for passphrases or
//!   fork before they open: it returns a [`Volume`], which becomes a [`Key`], which opens the disk.
//! - [`OpenDisk`] is an open disk: [`levels`](OpenDisk::levels) for front ends,
//!   [`check`](OpenDisk::check), [`snapshots`](OpenDisk::snapshots), [`purge`](Disk::purge) to
//!   erase deleted data.
//! - [`format`](mod@format) is the interface of a format; a program adds its own formats with
//!   [`add_format`], as `examples/sixth-format` does.
//! - [`vault`] creates, opens and checks vaults: file systems in untrusted directories.
//! - [`about`] returns the public information about a disk.
//! - [`unlock_to_rescue`] and [`read_blocks`] salvage data of a disk with a damaged or truncated
//!   medium.
//! - An open disk can be [checked](OpenDisk::check_in_use) and [grown](OpenDisk::grow), and its
//!   passphrases can be changed through a [`HeaderLease`].
//! - [`resize`], [`delete`], [`snapshots`], passphrases in [`keys`], backups of the header in
//!   [`header`].
//! - `lacuna-nbd` and `lacuna-fuse` serve disks; they depend only on [`Disk`]. `lacuna-fuse` also
//!   mounts a [`vault::Vault`].
//!
//! # Features
//!
//! | feature | missing in a build without it |
//! |---|---|
//! | `rados` | disks in Ceph RADOS: such a location is rejected |
//!
//! It is on by default.
//!
//! # Invariants
//!
//! - One process of a machine writes to a disk at a time, whatever names lead to it: unlocking for
//!   writing claims its UUID until the open disk is dropped.
//! - Nothing of the disk is written before a passphrase has opened the header, and nothing at all
//!   with [`Access::Read`]. In a pool the exclusive lock comes first.
//! - Errors of disks with levels that may reveal hidden ones are [private](Error::is_private): no
//!   log may contain them.
#![warn(missing_docs)]

mod about;
mod backing;
mod claim;
mod cost;
mod create;
mod disk_key;
mod enlarge;
mod erase;
mod examine;
mod foreign;
pub mod format;
mod format_info;
mod formats;
mod former_copies;
pub mod header;
mod held_header;
pub mod keys;
mod observer;
mod open_disk;
mod opening;
mod overwriting;
mod params;
mod private_disk;
#[cfg(not(feature = "rados"))]
pub mod rados;
mod remains;
mod resize;
mod size;
pub mod snapshots;
mod sync_directory;
mod unlock;
pub mod vault;
mod vault_anchor;
mod vault_place;
mod vault_rescue;

pub use about::{About, AboutMedium, about};
pub use backing::{
    Backing, BackingKind, ChipShape, Connection, DiskRef, FilePlace, FlashPlace, HeaderMedium, NewChip,
    PoolAccess, Site, Target, check_forgets, other_conf, refuse_snapshot,
};
pub use claim::process_of;
pub use cost::Cost;
pub use create::{Created, NewDisk, create, create_with, delete};
pub use disk_key::Key;
pub use erase::{Doomed, Erased, erase};
pub use examine::{Examination, examine};
pub use foreign::Foreign;
pub use format::{CreateOptions, Shape};
pub use formats::{FORMATS, OVERWRITTEN, add_format, usual};
pub use held_header::{HeaderLease, HeldHeader};
pub use lacuna_contracts::{
    Action, Advice, BLOCK_SIZE, BadBlock, BlockAddr, Budget, ByteDisk, CheckReport, Disk, Error, ErrorText,
    Extent, ExtentRuns, Kind, Naming, Reading, Result, Secret, SecretVec as Passphrase, Setting, Status,
    StatusItem, Term, printable, read_blocks, shell_word,
};
pub use lacuna_crypto::{Argon2Cost, Cipher, cipher_speeds, total_memory};
pub use lacuna_deniable::Geometry;
pub use lacuna_flash::Policy as PurgePolicy;
pub use lacuna_header::{
    CopyReport, CopyState, Diagnosis, DiskId, FormatId, HEADER_AREA, KEY_SLOTS, Location,
    MISSING_AFTER_GROWTH, PublicHeader, Unlocked, Uuid,
};
pub use lacuna_levels::{Masters, Pace};
pub use lacuna_medium::{Access, Medium, ReadExtent, WriteExtent};
pub use lacuna_nand::{FlashGeometry, Wearing};
pub use lacuna_oblivious::Hiding;
/// The connection to Ceph; a process that ends must take it into account.
#[cfg(feature = "rados")]
pub use lacuna_rados as rados;
pub use lacuna_sealed_objects::{ObjectLayout, is_of_version_table};
pub use observer::{Observer, Silent};
pub use open_disk::OpenDisk;
pub use opening::{Opening, no_write_through};
pub use rados::ClusterOptions;
pub use resize::resize;
pub use size::{blocks, human};
pub use unlock::{OpenHeader, Opened, Opener, Volume, open, peek, unlock, unlock_to_rescue};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;
