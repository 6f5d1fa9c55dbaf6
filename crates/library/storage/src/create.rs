//! Makes a new disk, in a file, on a device, on flash or in a pool.
//!
//! What can be refused is refused before passphrases are asked for, and what is to be overwritten
//! is held against others from then on. The header comes last: until it is written there is nothing
//! that looks like a disk, so a power cut leaves either none or a whole one.

mod file;
mod flash;
mod making;
mod rados;

use crate::backing::{FilePlace, Site};
use crate::format::CreateOptions;
use crate::observer::Observer;
use lacuna_contracts::{Result, SecretVec};
use making::Making;

pub use making::{Created, NewDisk};
pub use rados::delete;

pub(crate) use rados::remove_objects;

/// Makes a disk. `passphrases` is called with the number of levels once nothing else can be
/// refused, and gives one passphrase for each, from level 0 up.
///
/// Errors: [`Kind::Exists`] if something is there and `force` does not say that it may be
/// overwritten, [`Kind::Usage`] for options that do not go together, [`Kind::NoSpace`], and what
/// the medium or the cluster reports. Nothing is left of a disk that could not be made whole.
pub fn create(
    options: &CreateOptions,
    observer: &dyn Observer,
    passphrases: impl FnOnce(u8) -> Result<Vec<SecretVec>>,
) -> Result<Created> {
    let one_each = |new: NewDisk| Ok(passphrases(new.levels)?.into_iter().map(|one| vec![one]).collect());
    create_with(options, observer, one_each)
}

/// Makes a disk, as [`create`] does. `passphrases` is also told the UUID, and gives one or more for
/// each level.
pub fn create_with(
    options: &CreateOptions,
    observer: &dyn Observer,
    passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
) -> Result<Created> {
    let making = Making { options, observer };
    let passphrases = Box::new(passphrases);
    let site = Site::of(&options.location, &options.pool_access.cluster);
    making.check_format(site.kind())?;
    match site {
        Site::Pool(target) => rados::run(&making, &target, passphrases),
        Site::File(FilePlace::Named(path) | FilePlace::HeaderIn(path)) => {
            file::run(&making, path, passphrases)
        }
        Site::Flash(place) => flash::run(&making, place, passphrases),
    }
}
