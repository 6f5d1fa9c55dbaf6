//! Enlarges a disk that is unlocked and not open.

pub(crate) mod grow;

use crate::resize::grow::{find_stale_headers, grow, target_blocks};
use crate::unlock::UnlockedHeader;
use lacuna_contracts::Result;

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
