//! Makes a disk larger.
//!
//! The medium grows and is synced before the header says so. A power cut in between leaves the old disk on a
//! medium that is longer than it need be, which opens as before; there is no moment at which the header
//! promises blocks that the medium does not have. In RADOS objects come with the first write to them, and the
//! header is all there is to change. A block device must have grown before.

use crate::former_copies;
use crate::parameters::Parameters;
use crate::shape::blocks;
use crate::unlock::Volume;
use lacuna_core::{Error, Kind, Result};
use lacuna_header::{HEADER_LEN, copy_c, medium_len};

use lacuna_sealed::Sealed;

/// How far behind the end of a disk the last copy of its header may lie: less than two segments of it.
const NEAR_THE_END: u64 = 16 << 20;

/// Gives a sealed disk `size` bytes, a multiple of 4096 and not less than it has; without a size all of its block device. The
/// disk is unlocked for writing and not open. Gives what the disk is then, whether or not that is a change.
///
/// Errors: [`Kind::Usage`] for a size that cannot be had, or none for what is no block device, and what the medium reports.
pub fn resize(volume: &mut Volume, size: Option<u64>) -> Result<Parameters> {
    volume.refuse_snapshot("resize")?;
    let given = size.map(blocks).transpose()?;
    // A disk of version 1 of the header has no copy of it at the end.
    let first_version = volume.unlocked.header.version == 1;
    let parameters = match (given, volume.parameters) {
        (None, Parameters::Flat(params)) => {
            let room = if first_version { Some(volume.header.len()) } else { copy_c(volume.header.len()) };
            Parameters::Flat(params.grown_into(room.unwrap_or(0)))
        }
        (Some(wanted), parameters) => parameters.grown(wanted)?,
        (None, _) => {
            return Err(Error::new(Kind::Usage, "cannot resize the disk")
                .found("no size")
                .expected("the new size of the disk; only on a block device it need not be given"));
        }
    };
    if parameters == volume.parameters {
        return Ok(parameters);
    }
    let former_end = volume.parameters.end();
    if let Parameters::Flat(params) = &parameters {
        let end = parameters.end();
        let needed = if first_version { end } else { medium_len(end) };
        if volume.header.len() < needed {
            volume.header.set_len(needed)?;
        }
        Sealed::reserve_map(&*volume.header, params)?;
        volume.header.sync()?;
    }
    lacuna_header::update_params(
        &mut volume.unlocked,
        &*volume.header,
        parameters.encode(),
        parameters.end(),
    )?;
    if let Parameters::Flat(_) = &parameters {
        forget_former_copy(volume, former_end)?;
    }
    volume.parameters = parameters;
    Ok(parameters)
}

/// Overwrites the copy of the header at the former end of the medium, which is part of the disk now and holds nothing yet: it
/// would open with passphrases that are removed later.
fn forget_former_copy(volume: &Volume, former_end: u64) -> Result<()> {
    let near = former_end..former_end.saturating_add(NEAR_THE_END).min(volume.unlocked.header.end);
    let found = former_copies::find(&*volume.header, volume.unlocked.header.uuid, near)?;
    for at in &found {
        volume.header.write_at(*at, &[0; HEADER_LEN])?;
    }
    if found.is_empty() { Ok(()) } else { volume.header.sync() }
}
