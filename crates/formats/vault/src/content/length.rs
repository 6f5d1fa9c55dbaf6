//! The length of files and ranges of zeros: truncation both ways, `fallocate`, and seeking data and
//! holes.

use crate::content::file_contents::{FileContents, FileEdit, holes, write_blocks};
use crate::fs_error::errno;
use crate::nodes::inodes::{Inode, InodeBody};
use crate::{AllocateMode, BLOCK, FsResult, SeekTo};
use lacuna_contracts::WipeOnDrop;
use lacuna_vault_store::ObjectId;
use std::sync::Arc;

const LONG: u64 = BLOCK as u64;

/// Sets the length of a file with a locked inode. A longer file gets a hole.
pub(crate) fn truncate(
    contents: &FileContents,
    inode: &Arc<Inode>,
    body: &mut InodeBody,
    size: u64,
) -> FsResult<()> {
    if size > contents.max_file_size() {
        return errno(libc::EFBIG);
    }
    if size >= body.record.size || body.record.object == 0 {
        body.record.size = size;
        return Ok(());
    }
    contents.change_locked_file(inode, body, |contents, inode, work| {
        // The last block's rest first: only this can fail because a block does not verify.
        zero_part(contents, inode, work, size, size.next_multiple_of(LONG))?;
        let blocks = size.div_ceil(LONG);
        let old = work.open.protected.blocks();
        if old > blocks {
            let cut = old - blocks;
            let data = cut - holes(work, blocks, cut)?;
            work.open.protected.resize(&work.storage, blocks)?;
            work.record.data_blocks = work.record.data_blocks.saturating_sub(data);
            contents.store.truncate(ObjectId(work.record.object), blocks)?;
        }
        work.record.size = size;
        Ok(())
    })
}

/// As `fallocate`, but without reserving space: that would be space of the backing file system,
/// which other programs may fill.
pub(crate) fn allocate(
    contents: &FileContents,
    ino: u64,
    how: AllocateMode,
    offset: u64,
    len: u64,
) -> FsResult<()> {
    let Some(end) = offset.checked_add(len).filter(|_| len > 0) else { return errno(libc::EINVAL) };
    if end > contents.max_file_size() {
        return errno(libc::EFBIG);
    }
    contents.change_file(ino, true, |contents, inode, work| {
        zero(contents, inode, work, offset, end)?;
        if how == AllocateMode::ZeroRange {
            work.record.size = work.record.size.max(end);
        }
        Ok(())
    })
}

/// As `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
pub(crate) fn seek(contents: &FileContents, ino: u64, offset: u64, to: SeekTo) -> FsResult<u64> {
    let inode = contents.inodes.get(ino)?;
    let (body, _) = contents.lock_for_reading(&inode)?;
    let size = body.record.size;
    if offset >= size {
        return errno(libc::ENXIO);
    }
    let found = match &body.file {
        Some(open) if offset / LONG < open.protected.blocks() => {
            let space = contents.storage_of(ino, &body.record);
            let blocks = open.protected.blocks();
            let found = open.protected.seek(&space, offset / LONG, to == SeekTo::Data)?;
            // Past the file's blocks there is only a hole.
            found.or_else(|| (to == SeekTo::Hole).then_some(blocks)).map(|block| offset.max(block * LONG))
        }
        _ => (to == SeekTo::Hole).then_some(offset),
    };
    match (found, to) {
        (Some(at), _) if at < size => Ok(at),
        (_, SeekTo::Hole) => Ok(size),
        (_, SeekTo::Data) => errno(libc::ENXIO),
    }
}

/// Makes a range read as zeros: whole blocks become holes.
fn zero(
    contents: &FileContents,
    inode: &Inode,
    work: &mut FileEdit<'_>,
    offset: u64,
    end: u64,
) -> FsResult<()> {
    let end = end.min(work.record.size);
    if offset >= end {
        return Ok(());
    }
    // The bytes of the last block after the end of the file are zeros already: the whole block may
    // become a hole.
    let whole_end = if end == work.record.size { end.div_ceil(LONG) } else { end / LONG };
    let first = offset.div_ceil(LONG);
    if first > whole_end {
        return zero_part(contents, inode, work, offset, end);
    }
    zero_part(contents, inode, work, offset, end.min(first * LONG))?;
    zero_part(contents, inode, work, (whole_end * LONG).max(offset), end)?;
    let count = whole_end.min(work.open.protected.blocks()).saturating_sub(first);
    if count > 0 {
        let data = count - holes(work, first, count)?;
        work.open.protected.punch(&work.storage, first, count)?;
        work.record.data_blocks = work.record.data_blocks.saturating_sub(data);
    }
    Ok(())
}

/// Zeroes bytes within one block, unless the block is a hole.
fn zero_part(
    contents: &FileContents,
    inode: &Inode,
    work: &mut FileEdit<'_>,
    from: u64,
    to: u64,
) -> FsResult<()> {
    let block = from / LONG;
    if from >= to || block >= work.open.protected.blocks() || holes(work, block, 1)? == 1 {
        return Ok(());
    }
    let mut bytes = WipeOnDrop::new([0u8; BLOCK]);
    contents.old_block(inode, work, block, &mut bytes[..])?;
    let (from, to) = ((from - block * LONG) as usize, (to - block * LONG) as usize);
    bytes[from..to].fill(0);
    write_blocks(work, block, &bytes[..]).1
}
