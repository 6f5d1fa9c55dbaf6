//! Encrypted storage for people whose adversary looks more than once: the library.
//!
//! A disk is an array of blocks of 4096 bytes, encrypted, on a file, a block device, flash or the
//! objects of a Ceph pool. This crate makes disks and opens them, from a [`Location`] and
//! passphrases to a [`Disk`] for each open level. It has no terminal, reads no arguments and ends
//! no process: what it has to say goes to an [`Observer`], what it wants to know it asks through
//! closures.
//!
//! ```
//! use lacuna_storage::{ByteDisk, Cost, CreateOptions, Disk, Location, Opening, Passphrase, Shape, Silent, create, open};
//!
//! # fn main() -> lacuna_storage::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("files.img");
//! # let path = path.to_str().unwrap();
//! let location = Location::parse(path)?;
//! let passphrase = || Passphrase::new(b"correct horse battery staple".to_vec());
//!
//! // Without this line a try costs a second, as it should.
//! let cost = Cost::fixed(1024, 1)?; let options = CreateOptions { cost,
//! ..CreateOptions::new(location.clone(), Shape::sealed(), 64 << 20) }; create(&options, &Silent,
//! |_levels| Ok(vec![passphrase()]))?;
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
//! # What is where
//!
//! - [`create`] makes a disk of a [`Shape`]: `sealed`, `deniable`, `oblivious` or `flash` ([`FORMATS`]).
//! - [`open`] opens one. [`unlock`] is its first half, for programs that ask a person or fork before they open: it
//!   gives a [`Volume`], which becomes a [`Key`], which opens the disk.
//! - [`OpenDisk`] is a disk that is open: [`levels`](OpenDisk::levels) for front ends, [`check`](OpenDisk::check),
//!   [`snapshots`](OpenDisk::snapshots), [`purge`](Disk::purge) to forget what was deleted.
//! - [`format`](mod@format) is what a format is to this library; a program that has one of its own adds it with [`add_format`],
//!   as `examples/sixth-format` does.
//! - [`vault`] makes, opens and checks vaults: file systems in directories that nobody trusts.
//! - [`about`] says what anybody can see of a disk.
//! - [`unlock_to_rescue`] and [`read_blocks`] get what there is from a disk whose medium is damaged or was cut short.
//! - What is open can be [checked](OpenDisk::check_in_use) and [grown](OpenDisk::grow), and its passphrases changed through a
//!   [`HeaderLease`].
//! - [`resize`], [`delete`], [`snapshots`], passphrases in [`keys`], backups of the header in [`header`].
//! - Serving is the job of `lacuna-nbd` and `lacuna-fuse`, which know [`Disk`] and nothing else; `lacuna-fuse` mounts a
//!   [`vault::Vault`], too.
//!
//! # Features
//!
//! | feature | what a build lacks without it |
//! |---|---|
//! | `rados` | disks in Ceph RADOS: such a location is refused |
//!
//! It is on by default.
//!
//! # Invariants
//!
//! - One process of a machine writes to a disk at a time, whatever names lead to it: unlocking for writing claims its
//!   UUID until the open disk is dropped.
//! - Nothing of the disk is written before a passphrase has opened the header, and nothing at all with [`Access::Read`]. In a
//!   pool the lock of the one client comes first.
//! - Errors of disks with levels that may tell of hidden ones are [private](Error::is_private): no log may keep them.
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
mod params;
mod partition_table;
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
pub use format::{CreateOptions, Shape};
pub use formats::{FORMATS, OVERWRITTEN, add_format, usual};
pub use held_header::{HeaderLease, HeldHeader};
pub use lacuna_contracts::{
    Action, Advice, BLOCK_SIZE, BadBlock, BlockAddr, Budget, ByteDisk, CheckReport, Disk, Error, Extent,
    ExtentRuns, Kind, Naming, Reading, Result, Secret, SecretVec as Passphrase, Setting, Status, StatusItem,
    Term, printable, read_blocks, shell_word,
};
pub use lacuna_crypto::{Argon2Cost, Cipher, cipher_speeds};
pub use lacuna_deniable::Geometry;
pub use lacuna_flash::Policy as PurgePolicy;
pub use lacuna_header::{
    CopyReport, CopyState, Diagnosis, DiskId, FormatId, HEADER_AREA, KEY_SLOTS, Location, PublicHeader,
    Unlocked, Uuid,
};
pub use lacuna_levels::{Masters, Pace};
pub use lacuna_medium::{Access, Medium, ReadExtent, WriteExtent};
pub use lacuna_nand::{FlashGeometry, Wearing};
pub use lacuna_oblivious::Hiding;
/// The connection to Ceph, of which a process must know when it ends.
#[cfg(feature = "rados")]
pub use lacuna_rados as rados;
pub use lacuna_sealed_objects::{ObjectLayout, is_of_version_table};
pub use observer::{Observer, Silent};
pub use open_disk::OpenDisk;
pub use opening::{Opening, no_write_through};
pub use rados::ClusterOptions;
pub use resize::resize;
pub use size::{blocks, human};
pub use unlock::{DEEPER_LEVELS, OpenHeader, Opened, Opener, Volume, open, peek, unlock, unlock_to_rescue};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;
