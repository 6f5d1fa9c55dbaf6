//! Enlarges a disk that is unlocked and not open.

pub(crate) mod grow;

use crate::backing::FileLocation;
use crate::resize::grow::{find_stale_headers, grow, target_blocks};
use crate::size::size_in_blocks;
use crate::unlock::{UnlockedHeader, read_public_params};
use lacuna_contracts::Result;
use lacuna_header::Location;
use lacuna_medium::{Medium, check_takes_len};

/// Refuses a size that a closed disk in a file or on a block device cannot get, before a passphrase
/// is asked for. Nothing in its public header is authenticated, so [`resize`] checks again.
///
/// Errors: [`Kind::Usage`](lacuna_contracts::Kind::Usage) for an impossible size,
/// [`Kind::NoSpace`](lacuna_contracts::Kind::NoSpace) for a file or device that cannot get the
/// length of the disk.
pub fn check_resize(location: &Location, size: u64) -> Result<()> {
    let Some((parameters, path)) = read_public_params(location)?.zip(location.path()) else { return Ok(()) };
    let blocks = size_in_blocks(size)?;
    parameters.check_growth(blocks)?;
    if !parameters.has_data_beside_header() {
        return Ok(());
    }
    let (needed, present) = (parameters.resized_to(blocks).medium_len(), FileLocation::Named(path).probe()?);
    // A file that has all its space allocated keeps that as it grows.
    let allocates = present.used.is_some_and(|used| used >= present.len());
    if needed <= present.len() { Ok(()) } else { check_takes_len(path, needed, allocates) }
}

/// Gives a sealed disk `size` bytes, a multiple of 4096 and not less than it has; without a size,
/// all of its block device. The disk is unlocked for writing and not open, and `volume` has the new
/// parameters afterwards. Returns whether the size has changed.
///
/// Errors: [`Kind::Usage`](lacuna_contracts::Kind::Usage) for an impossible size, or without a size
/// if the disk is not on a block device; all errors of the medium.
pub fn resize(volume: &mut UnlockedHeader, size: Option<u64>) -> Result<bool> {
    volume.refuse_snapshot("resize")?;
    let blocks = target_blocks(&*volume.parameters, size, volume.device_len())?;
    let wanted = volume.parameters.resized_to(blocks);
    if wanted.encode() == volume.parameters.encode() {
        return Ok(false);
    }
    let former = find_stale_headers(&*volume.header, &volume.unlocked, &*wanted)?;
    grow(&*volume.header, &mut volume.unlocked, &*wanted, &former)?;
    volume.parameters = wanted;
    Ok(true)
}
