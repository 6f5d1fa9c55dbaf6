//! How a disk becomes larger, whether it is open or not.
//!
//! The medium grows and is synced before the header says so. A power cut in between leaves the old disk on a
//! medium that is longer than it need be, which opens as before; there is no moment at which the header
//! promises blocks that the medium does not have. In RADOS objects come with the first write to them, and the
//! header is all there is to change. A block device must have grown before.

use crate::format::Params;
use crate::former_copies;
use crate::size::blocks;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_header::{Unlocked, copy_c};
use lacuna_medium::Medium;

/// How far behind its former end a disk is searched for a copy of its header: a block device can have been longer than the disk.
/// `erase` finds what lies further.
const SEARCHED: u64 = 4 << 30;

/// What a disk with these parameters becomes with `size` bytes, or with all of its block device. `medium_len` is the length of its
/// medium.
pub(crate) fn wanted(params: &dyn Params, size: Option<u64>, medium_len: u64) -> Result<Box<dyn Params>> {
    if let Some(size) = size {
        return params.grown(blocks(size)?);
    }
    params.grown_into(copy_c(medium_len).unwrap_or(0)).ok_or_else(|| {
        Error::new(Kind::Usage, "cannot resize the disk")
            .found("no size")
            .expected("the new size of the disk; only on a block device it need not be given")
    })
}

/// Where copies of the header lie in what the disk has besides with these parameters. Until the medium is longer, one of them may be
/// the last copy. Nothing is changed, so that it may take its time beside an open disk.
///
/// Errors: [`Kind::Io`] if a part of it cannot be read.
pub(crate) fn find_former(medium: &dyn Medium, unlocked: &Unlocked, params: &dyn Params) -> Result<Vec<u64>> {
    if !params.has_data_beside_header() {
        return Ok(Vec::new());
    }
    let (start, end) = (unlocked.header.end, params.end());
    let near = start..start.saturating_add(SEARCHED).min(end);
    let last = copy_c(medium.len().max(params.medium_len()));
    let found = former_copies::find(medium, unlocked.header.uuid, near, last);
    if found.complete {
        return Ok(found.places);
    }
    Err(Error::new(Kind::Io, "cannot resize the disk")
        .found("a part of what it is to grow into that cannot be read")
        .expected("a medium of which every place can be read")
        .remedy("the log of the system says more; replace the medium, or choose a smaller size"))
}

/// Makes the medium as long as a disk with these parameters needs, and writes them to the header. No copy of the header stays
/// where one was found before ([`find_former`]): it would open with passphrases that are removed later.
pub(crate) fn grow(
    medium: &dyn Medium,
    unlocked: &mut Unlocked,
    params: &dyn Params,
    former: &[u64],
) -> Result<()> {
    if params.has_data_beside_header() {
        let needed = params.medium_len();
        if medium.len() < needed {
            medium.set_len(needed)?;
        }
        params.reserve(medium)?;
        medium.sync()?;
        // Before the header says that the disk has grown: a growth that was cut short is repeated then, with this.
        former_copies::forget(medium, former)?;
    }
    lacuna_header::update_params(unlocked, medium, params.encode(), params.end())
}
