//! Enlarges a disk, open or closed.
//!
//! The medium is extended and synced before the header says so. A power cut in between leaves the
//! old disk on a longer medium, which opens as before; the header never promises blocks that the
//! medium does not have. In RADOS the first write to an object creates it, so only the header
//! changes. A block device must have been extended before.

use crate::format::Params;
use crate::header::stale_headers;
use crate::size::size_in_blocks;
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use lacuna_header::{OpenHeader, copy_c};
use lacuna_medium::Medium;

/// The range behind the former end of a disk that is searched for a copy of its header: a block
/// device can have been longer than the disk. `erase` finds copies beyond it.
const SEARCHED_LEN: u64 = 4 << 30;

/// The number of blocks of a disk with these parameters that is to have `size` bytes, or all of its
/// block device, which is `device` bytes long.
///
/// Errors: [`Kind::Usage`] for a size that the disk cannot have, and without a size if the disk is
/// not on a block device or does not grow with it.
pub(crate) fn target_blocks(params: &dyn Params, size: Option<u64>, device: Option<u64>) -> Result<u64> {
    if let Some(size) = size {
        let wanted = size_in_blocks(size)?;
        params.check_growth(wanted)?;
        return Ok(wanted);
    }
    device.and_then(|len| params.max_blocks_in(copy_c(len).unwrap_or(0))).ok_or_else(|| {
        Error::new(Kind::Usage, "cannot resize the disk")
            .found("no size")
            .expected(
                "the new size of the disk; only a sealed disk on a block device takes all of it without one",
            )
            .hint(Hint::from("give the ").setting(Setting("size")))
    })
}

/// The error for an open disk of a format that grows only while closed.
pub(crate) fn grows_only_closed() -> Error {
    Error::new(Kind::Busy, "cannot resize the disk while it is open")
        .found("a disk of a format that grows only while it is closed")
        .expected("a disk that is closed, or a sealed one in a file or on a block device")
        .hint("close it first")
}

/// The former copies of the header in the space that the disk gains with these parameters. Until
/// the medium is extended, one of them may be the last copy. Nothing is changed, so the search may
/// take its time beside an open disk.
///
/// Errors: [`Kind::Io`] if a part of the space cannot be read.
pub(crate) fn find_stale_headers(
    medium: &dyn Medium,
    unlocked: &OpenHeader,
    params: &dyn Params,
) -> Result<Vec<u64>> {
    if !params.has_data_beside_header() {
        return Ok(Vec::new());
    }
    let (start, end) = (unlocked.header.end, params.end());
    let near = start..start.saturating_add(SEARCHED_LEN).min(end);
    let last = copy_c(medium.len().max(params.medium_len()));
    let found = stale_headers::find(medium, unlocked.header.uuid, near, last);
    if found.is_complete {
        return Ok(found.offsets);
    }
    Err(Error::new(Kind::Io, "cannot resize the disk")
        .found("an unreadable part in the space that it gains")
        .expected("a fully readable medium")
        .hint("see the log of the system; replace the medium, or choose a smaller size"))
}

/// Extends the medium to the length that a disk with these parameters needs, and writes them to the
/// header. Overwrites the copies of the header that [`find_stale_headers`] found: they would open
/// with passphrases that are removed later.
pub(crate) fn grow(
    medium: &dyn Medium,
    unlocked: &mut OpenHeader,
    params: &dyn Params,
    former: &[u64],
) -> Result<()> {
    if params.has_data_beside_header() {
        let needed = params.medium_len();
        if medium.len() < needed {
            medium.set_len(needed)?;
        }
        params.allocate_growth(medium)?;
        medium.sync()?;
        // Before the header has the new size: an interrupted growth is then repeated, including
        // this step.
        stale_headers::wipe(medium, former)?;
    }
    lacuna_header::update_params(unlocked, medium, params.encode(), params.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::BLOCK_SIZE;
    use lacuna_crypto::Cipher;
    use lacuna_sealed::Params as SealedParams;
    use lacuna_sealed_objects::{ObjectLayout, ObjectParams};

    #[test]
    fn only_a_disk_on_a_block_device_grows_without_a_size() {
        let flat = SealedParams::plan(Cipher::Gcm, 16384, Some(1 << 30)).unwrap();
        let objects = ObjectParams::plan(Cipher::Gcm, ObjectLayout::Kv, 16384).unwrap();
        assert!(target_blocks(&flat, None, Some(1 << 30)).unwrap() > 16384);
        assert_eq!(target_blocks(&flat, Some(20_000 * BLOCK_SIZE as u64), None).unwrap(), 20_000);
        let refused: [(&dyn Params, Option<u64>); 3] =
            [(&flat, None), (&objects, None), (&objects, Some(1 << 30))];
        for (params, device) in refused {
            assert_eq!(target_blocks(params, None, device).unwrap_err().kind(), Kind::Usage);
        }
    }
}
