//! Encrypted storage for people whose adversary looks more than once: the library.
//!
//! A disk is an array of blocks of 4096 bytes, encrypted, on a file, a block device, flash or the objects of a Ceph pool. This
//! crate makes disks and opens them, from a [`Location`] and passphrases to a [`Disk`] for each open level. It has no
//! terminal, reads no arguments and ends no process: what it has to say goes to an [`Observer`], what it wants to know
//! it asks through closures.
//!
//! ```
//! use lacuna::{ByteDisk, Cost, CreateOptions, Disk, Location, Opening, Passphrase, Shape, Silent, create, open};
//!
//! # fn main() -> lacuna::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("files.img");
//! # let path = path.to_str().unwrap();
//! let location = Location::parse(path)?;
//! let passphrase = || Passphrase::new(b"correct horse battery staple".to_vec());
//!
//! // Without this line a try costs a second, as it should.
//! let cost = Cost::fixed(1024, 1)?;
//! let options = CreateOptions { cost, ..CreateOptions::new(location.clone(), Shape::sealed(), 64 << 20) };
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
//! # What is where
//!
//! - [`create`] makes a disk of a [`Shape`]: `sealed`, `deniable`, `oblivious` or `flash`.
//! - [`open`] opens one. [`unlock`] is its first half, for programs that ask a person or fork before they open: it
//!   gives a [`Volume`], which becomes a [`Key`], which opens the disk.
//! - [`OpenDisk`] is a disk that is open: [`levels`](OpenDisk::levels) for front ends, [`check`](OpenDisk::check),
//!   [`on_objects`](OpenDisk::on_objects) for snapshots, [`purge`](Disk::purge) to forget what was deleted.
//! - [`vault`] makes, opens and checks vaults: file systems in directories that nobody trusts.
//! - [`about`] says what anybody can see of a disk.
//! - [`unlock_to_rescue`] and [`read_blocks`] get what there is from a disk whose medium is damaged or was cut short.
//! - What is open can be [checked](OpenDisk::check_in_use) and [grown](OpenDisk::grow), and its passphrases changed through a
//!   [`HeaderLease`].
//! - [`resize`], [`delete`], [`snapshots`], passphrases in [`keys`], backups of the header in [`header`].
//! - Serving is the job of `lacuna-nbd` and `lacuna-fuse`, which know [`Disk`] and nothing else, and of `lacuna-vaultfs`, which
//!   mounts a [`vault::Vault`].
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
mod claim;
mod cluster;
mod cost;
mod create;
mod create_file;
mod create_flash;
mod create_rados;
mod enlarge;
mod erase;
mod examine;
mod file_place;
mod flash_place;
mod former_copies;
mod growing;
pub mod header;
mod held_header;
mod human;
pub mod keys;
mod look;
mod making;
mod observer;
mod open_disk;
mod opening;
mod parameters;
mod partition_table;
mod private_disk;
#[cfg(not(feature = "rados"))]
pub mod rados;
mod remains;
mod resize;
mod shape;
pub mod snapshots;
mod unlock;
pub mod vault;
mod vault_anchor;
mod vault_params;
mod vault_place;
mod vault_rescue;

pub use about::{About, AboutMedium, about};
pub use claim::process_of;
pub use cluster::{Holder, Site, Target, other_conf, refuse_snapshot};
pub use cost::Cost;
pub use create::{create, create_with};
pub use create_rados::delete;
pub use erase::{Doomed, Erased, erase};
pub use examine::{Examination, examine};
pub use file_place::FilePlace;
pub use flash_place::{FlashPlace, check_forgets};
pub use held_header::HeaderLease;
pub use human::human;
pub use lacuna_core::{
    Action, Advice, BLOCK_SIZE, BadBlock, BlockAddr, Budget, ByteDisk, CheckReport, Disk, Error, Kind,
    Naming, Reading, Result, SecretVec as Passphrase, Setting, Status, Term, printable, read_blocks,
    shell_word,
};
pub use lacuna_crypto::{Argon2Cost, Cipher, cipher_speeds};
pub use lacuna_deniable::{Geometry, VERSION as DENIABLE_VERSION};
pub use lacuna_flash::{FlashDisk, Policy as PurgePolicy, VERSION as FLASH_VERSION};
pub use lacuna_header::{
    CopyReport, CopyState, Diagnosis, DiskId, FormatId, KEY_SLOTS, Location, PublicHeader, Unlocked, Uuid,
};
pub use lacuna_medium::{Access, Medium, ReadExtent, WriteExtent};
pub use lacuna_nand::{FlashGeometry, Wearing};
pub use lacuna_oblivious::{Hiding, Plan, VERSION as OBLIVIOUS_VERSION};
/// The connection to Ceph, of which a process must know when it ends.
#[cfg(feature = "rados")]
pub use lacuna_rados as rados;
pub use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, VERSION as OBJECTS_VERSION, is_of_version_table};
pub use making::NewDisk;
pub use observer::{Observer, Silent};
pub use open_disk::{OVERWRITTEN, OpenDisk};
pub use opening::{Key, Opening, no_write_through};
pub use parameters::{Parameters, hiding};
pub use rados::ClusterOptions;
pub use resize::resize;
pub use shape::{ChipShape, CreateOptions, Created, Shape, blocks};
pub use unlock::{DEEPER_LEVELS, Opened, Opener, Volume, open, peek, unlock, unlock_to_rescue};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
