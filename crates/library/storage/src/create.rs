//! Makes a new disk, in a file, on a device, on flash or in a pool.
//!
//! All checks that can fail happen before passphrases are requested, and a medium that is to be
//! overwritten is held from then. The header comes last: until it is written, nothing looks like a
//! disk, so a power cut leaves either no disk or a complete one.

mod create_context;
mod file;
mod flash;
mod rados;

use crate::backing::{FileLocation, ResolvedLocation};
use crate::format::CreateOptions;
use crate::observer::Observer;
use create_context::CreateContext;
use lacuna_contracts::{Result, SecretVec};

pub use create_context::{CreatedDisk, NewDisk};
pub use rados::delete;

pub(crate) use rados::remove_objects;

/// Makes a disk. `passphrases` is called with the number of levels after all checks, and returns
/// one passphrase for each, starting with level 0.
///
/// Errors: [`Kind::Exists`] if something exists there and `force` does not allow overwriting it,
/// [`Kind::Usage`] for options that do not go together, [`Kind::NoSpace`], and all errors of the
/// medium or the cluster. After a failure nothing is left of the disk.
///
/// [`Kind::Exists`]: lacuna_contracts::Kind::Exists
/// [`Kind::Usage`]: lacuna_contracts::Kind::Usage
/// [`Kind::NoSpace`]: lacuna_contracts::Kind::NoSpace
pub fn create(
    options: &CreateOptions,
    observer: &dyn Observer,
    passphrases: impl FnOnce(u8) -> Result<Vec<SecretVec>>,
) -> Result<CreatedDisk> {
    let one_each = |new: NewDisk| Ok(passphrases(new.levels)?.into_iter().map(|one| vec![one]).collect());
    create_with(options, observer, one_each)
}

/// Makes a disk, as [`create`] does. `passphrases` also gets the UUID, and returns one or more
/// passphrases for each level.
pub fn create_with(
    options: &CreateOptions,
    observer: &dyn Observer,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<CreatedDisk> {
    let context = CreateContext { options, observer };
    let passphrases = Box::new(passphrases);
    let site = ResolvedLocation::of(&options.location, &options.pool_access.cluster);
    context.check_format(site.storage_kind())?;
    match site {
        ResolvedLocation::Pool(target) => rados::create(&context, &target, passphrases),
        ResolvedLocation::File(FileLocation::Named(path) | FileLocation::VaultHeader(path)) => {
            file::create(&context, path, passphrases)
        }
        ResolvedLocation::Flash(place) => flash::create(&context, place, passphrases),
    }
}
