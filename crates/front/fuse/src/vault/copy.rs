//! `copy_file_range`: copies within the vault, without passing the data through the kernel, and
//! preserves holes.

use lacuna_contracts::WipeOnDrop;
use lacuna_vault::{AllocateMode, FsError, FsResult, SeekTo, Vault};

/// Number of bytes that one step copies.
const STEP: usize = 1 << 20;
/// Number of bytes that one request copies: the caller asks again for the rest, and can be
/// interrupted in between.
const MOST: u64 = 16 << 20;

/// A position in a file.
#[derive(Clone, Copy)]
pub(crate) struct FilePosition {
    /// The file.
    pub ino: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Copies up to `length` bytes, and fewer at the end of the source or beyond [`MOST`]. Returns how
/// many. Bytes copied before a failure count: the failure is reported when the caller continues.
pub(crate) fn copy(vault: &Vault, from: FilePosition, to: FilePosition, length: u64) -> FsResult<u64> {
    let size = vault.attr(from.ino)?.size;
    let total = length.min(MOST).min(size.saturating_sub(from.offset));
    // Allocated at full length: a buffer that grows would free memory without wiping it.
    let mut buffer = WipeOnDrop::new(vec![0u8; total.min(STEP as u64) as usize]);
    let mut done = 0;
    while done < total {
        let source = FilePosition { offset: from.offset + done, ..from };
        let target = FilePosition { offset: to.offset + done, ..to };
        match step(vault, source, target, total - done, &mut buffer) {
            Ok(0) => break,
            Ok(copied) => done += copied,
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Copies a piece of the data at `from` through `buffer`, or makes the same hole.
fn step(
    vault: &Vault,
    from: FilePosition,
    to: FilePosition,
    length: u64,
    buffer: &mut [u8],
) -> FsResult<u64> {
    let data = match vault.seek(from.ino, from.offset, SeekTo::Data) {
        Ok(at) => at,
        Err(FsError::Errno(libc::ENXIO)) => from.offset.saturating_add(length),
        Err(e) => return Err(e),
    };
    let hole = data.saturating_sub(from.offset).min(length);
    if hole > 0 {
        vault.allocate(to.ino, AllocateMode::ZeroRange, to.offset, hole)?;
        return Ok(hole);
    }
    let end = vault.seek(from.ino, from.offset, SeekTo::Hole)?;
    let wanted = (length.min(end.saturating_sub(from.offset)) as usize).min(buffer.len());
    let read = vault.read(from.ino, from.offset, &mut buffer[..wanted])?;
    Ok(vault.write(to.ino, to.offset, &buffer[..read])? as u64)
}
