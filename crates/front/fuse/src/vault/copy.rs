//! `copy_file_range`: copies within the vault, without a way through the kernel, and keeps holes.

use lacuna_contracts::Plain;
use lacuna_vault::{Allocate, FsError, FsResult, SeekTo, Vault};

/// What one step copies, in bytes.
const STEP: usize = 1 << 20;
/// What one request copies, in bytes: the caller asks again for the rest, and may be interrupted
/// between.
const MOST: u64 = 16 << 20;

/// A place in a file.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The file.
    pub ino: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Copies up to `length` bytes; fewer at the end of the source and when there is much to copy.
/// Gives how many. What was copied before a failure counts: the failure comes back when the caller
/// goes on.
pub(crate) fn copy(vault: &Vault, from: Place, to: Place, length: u64) -> FsResult<u64> {
    let size = vault.attr(from.ino)?.size;
    let total = length.min(MOST).min(size.saturating_sub(from.offset));
    // As long as a step can be: memory that grows is given back without being wiped.
    let mut buffer = Plain::new(vec![0u8; total.min(STEP as u64) as usize]);
    let mut done = 0;
    while done < total {
        let source = Place { offset: from.offset + done, ..from };
        let target = Place { offset: to.offset + done, ..to };
        match step(vault, source, target, total - done, &mut buffer) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Copies a piece of what lies at `from`, by way of `buffer`, or makes the same hole.
fn step(vault: &Vault, from: Place, to: Place, length: u64, buffer: &mut [u8]) -> FsResult<u64> {
    let data = match vault.seek(from.ino, from.offset, SeekTo::Data) {
        Ok(at) => at,
        Err(FsError::Errno(libc::ENXIO)) => from.offset.saturating_add(length),
        Err(e) => return Err(e),
    };
    let hole = data.saturating_sub(from.offset).min(length);
    if hole > 0 {
        vault.allocate(to.ino, Allocate::ZeroRange, to.offset, hole)?;
        return Ok(hole);
    }
    let end = vault.seek(from.ino, from.offset, SeekTo::Hole)?;
    let wanted = (length.min(end.saturating_sub(from.offset)) as usize).min(buffer.len());
    let read = vault.read(from.ino, from.offset, &mut buffer[..wanted])?;
    Ok(vault.write(to.ino, to.offset, &buffer[..read])? as u64)
}
