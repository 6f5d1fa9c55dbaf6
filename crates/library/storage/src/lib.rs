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
//!     ByteDisk, Cost, CreateOptions, Disk, Location, OpenDiskOptions, Passphrase, Shape, Silent,
//!     create, open,
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
//! let disk = open(&location, vec![passphrase()], OpenDiskOptions::default(), &Silent)?;
//! let bytes = ByteDisk::new(disk.levels().remove(0));
//! bytes.write_at(1000, b"nobody sees that this changed")?;
//! bytes.flush()?;
//! disk.close()?;
//!
//! # drop((disk, bytes));
//! let disk = open(&location, vec![passphrase()], OpenDiskOptions::default(), &Silent)?;
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
//!   fork before they open: it returns an [`UnlockedHeader`], which becomes an [`UnlockedDisk`],
//!   which opens the disk.
//! - [`OpenDisk`] is an open disk: [`levels`](OpenDisk::levels) for front ends,
//!   [`check`](OpenDisk::check), [`snapshots`](OpenDisk::snapshots), [`purge`](Disk::purge) to
//!   erase deleted data.
//! - [`format`](mod@format) is the interface of a format; a program adds its own formats with
//!   [`add_format`], as `examples/sixth-format` does.
//! - [`vault`] creates, opens and checks vaults: file systems in untrusted directories.
//! - [`public_info`] returns the public information about a disk.
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
//! - Errors of disks with levels that may reveal hidden ones are
//!   [private](Error::is_confidential): no log may contain them.
#![warn(missing_docs)]

mod backing;
mod cost;
mod create;
mod erase;
mod foreign;
pub mod format;
mod format_info;
mod formats;
pub mod header;
mod inspect;
pub mod keys;
mod observer;
mod opening;
mod overwriting;
mod params;
#[cfg(not(feature = "rados"))]
pub mod rados;
mod resize;
mod size;
pub mod snapshots;
mod sync_directory;
mod unlock;
pub mod vault;

pub use backing::{
    Backing, BackingKind, ChipShape, DiskRef, FileLocation, FlashLocation, HeaderMedium, NewChip, PoolAccess,
    PoolConnection, PoolLocation, ResolvedLocation, check_can_purge, non_default_conf, refuse_snapshot,
};
pub use cost::Cost;
pub use create::{CreatedDisk, NewDisk, create, create_with, delete};
pub use erase::{ErasePlan, Erased, erase};
pub use foreign::Foreign;
pub use format::{CreateOptions, Shape};
pub use formats::{FORMATS, OVERWRITTEN, add_format, default_format};
pub use header::copy_remedy::CopyRemedy;
pub use header::header_lease::{HeaderLease, OpenDiskHeader};
pub use inspect::examine::{Examination, examine};
pub use inspect::public_info::{MediumInfo, PublicInfo, public_info};
pub use lacuna_contracts::{
    Action, BLOCK_SIZE, BadBlock, BlockAddr, Budget, ByteDisk, Disk, DiskCheckReport, Error, ErrorText,
    Extent, ExtentBuilder, Hint, Kind, ReadOutcome, Result, Secret, SecretVec as Passphrase, Setting, Status,
    StatusItem, Term, TermRenderer, printable, read_blocks, shell_word,
};
pub use lacuna_crypto::{Argon2Cost, Cipher, cipher_speeds, total_memory};
pub use lacuna_deniable::StripeGeometry;
pub use lacuna_flash::PurgePolicy;
pub use lacuna_header::{
    CopyReport, CopyState, Diagnosis, DiskId, FormatId, HEADER_AREA, KEY_SLOTS, Location, OpenHeader,
    PublicHeader, Uuid,
};
pub use lacuna_kept_memory::{KeptMemory, MemoryKeeper};
pub use lacuna_levels::{DiskKeys, Pace};
pub use lacuna_medium::{Access, Medium, ReadExtent, WriteExtent};
pub use lacuna_nand::{FlashGeometry, WearModel};
pub use lacuna_oblivious::HidingMode;
/// The connection to Ceph; a process that ends must take it into account.
#[cfg(feature = "rados")]
pub use lacuna_rados as rados;
pub use lacuna_sealed_objects::{ObjectLayout, is_of_version_table};
pub use observer::{Observer, Silent};
pub use opening::claim::claiming_process;
pub use opening::close_marks::CloseMarks;
pub use opening::disk::OpenDisk;
pub use opening::open_disk_options::{OpenDiskOptions, write_through_refused};
pub use opening::reopenable_disk::ReopenableDisk;
pub use opening::unlocked_disk::UnlockedDisk;
pub use rados::ClusterOptions;
pub use resize::{check_resize, resize};
pub use size::{human_size, size_in_blocks};
pub use unlock::{
    HeaderOpener, LeasedHeader, PassphraseMatch, UnlockedHeader, open, read_public_params, unlock,
    unlock_to_rescue, unlock_to_serve,
};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../../README.md")]
struct Readme;
