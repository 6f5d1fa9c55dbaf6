//! The file or device that a location refers to at the moment.

use lacuna_daemon::FileIdentity;
use lacuna_storage::Location;

/// The file that is at a location now; unknown in a pool, where names are unique.
pub(crate) fn file_at(location: &Location) -> FileIdentity {
    match location {
        Location::Path(path) | Location::Nand(path) | Location::Ubi(path) => FileIdentity::at(path),
        Location::Rados { .. } => FileIdentity::Unknown,
    }
}
