//! Makes a disk larger that is unlocked and not open.

use crate::enlarge::{find_former, grow, wanted};
use crate::unlock::Volume;
use lacuna_contracts::Result;

/// Gives a sealed disk `size` bytes, a multiple of 4096 and not less than it has; without a size
/// all of its block device. The disk is unlocked for writing and not open, and has the new
/// parameters afterwards. Whether that is a change.
///
/// Errors: [`Kind::Usage`](lacuna_contracts::Kind::Usage) for a size that cannot be had, or none
/// for what is no block device, and what the medium reports.
pub fn resize(volume: &mut Volume, size: Option<u64>) -> Result<bool> {
    volume.refuse_snapshot("resize")?;
    let blocks = wanted(&*volume.parameters, size, volume.device_len())?;
    let wanted = volume.parameters.as_of(blocks);
    if wanted.encode() == volume.parameters.encode() {
        return Ok(false);
    }
    let former = find_former(&*volume.header, &volume.unlocked, &*wanted)?;
    grow(&*volume.header, &mut volume.unlocked, &*wanted, &former)?;
    volume.parameters = wanted;
    Ok(true)
}
