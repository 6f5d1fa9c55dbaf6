//! Reads past the system's cache (O_DIRECT), from the medium straight into memory of this process.
//! The cache never holds the data, on any kernel, on block devices and on the file systems in
//! `READS_DIRECTLY`. Exceptions are files that these file systems read through the cache all the
//! same (ext4: encrypted or journalled files, btrfs: compressed files); the system is asked to drop
//! their pages (Linux 6.14 and later). Direct reads move whole pages of the file into whole pages
//! of memory. Unaligned extents, and the gaps between extents, are read into separate memory.
//!
//! Deniability contract: `unsynced.rs` determines which ranges must not be read so.

use crate::ReadExtent;
use crate::dont_cache::DONT_CACHE;
use crate::pieces::pieces;
use crate::runs::MOST_AT_ONCE;
use crate::unsynced::{SyncInProgress, UnsyncedRanges, WriteInProgress};
use parking_lot::Mutex;
use rustix::fs::{Advice, FileType, fadvise, fstat, fstatfs};
use rustix::io::{Errno, preadv, preadv2};
use std::fs::File;
use std::io::{IoSliceMut, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The alignment of direct reads, in the file and in memory, in bytes: no common device has larger
/// sectors.
const PAGE: u64 = 4096;
/// The most pages of separate memory for one read: for a run that begins and ends within a page.
const MOST_PAGES: usize = (MOST_AT_ONCE / PAGE) as usize + 1;
/// The pages of a buffer for a small read: the cells of a group and their metadata take nine.
const FEW_PAGES: usize = 16;
/// The most buffers of a size that are kept for later reads: a server performs about that many
/// requests of a connection at a time. New memory costs a small read more than its request does.
const MOST_SPARE: usize = 16;
/// The file systems where a direct read makes the system write nothing except the range being read:
/// ext4, xfs, btrfs and f2fs. Other file systems (NFS, GFS2, OCFS2) first write all cached data of
/// the file, and the time of these writes would reveal the read (deniability contract).
const READS_DIRECTLY: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// A page-aligned page of memory.
#[derive(Clone)]
#[repr(align(4096))]
struct AlignedPage([u8; PAGE as usize]);

/// Separate memory for one read.
type BouncePages = Box<[AlignedPage]>;

/// Reads one file with O_DIRECT.
#[derive(Default)]
pub(crate) struct DirectReader {
    /// A separate open file. Until it can be opened, each read tries again.
    file: OnceLock<File>,
    /// Whether the system has refused.
    refused: AtomicBool,
    /// The ranges that may be read directly, once discreet reads are expected; shared by all
    /// handles on the file.
    unsynced: Arc<OnceLock<UnsyncedRanges>>,
    /// Memory for later reads: for small reads, and for all others. It holds only ciphertext.
    spare: [Mutex<Vec<BouncePages>>; 2],
}

impl DirectReader {
    /// A reader for another handle on the same file; both know of the writes and syncs of either.
    pub(crate) fn for_other_handle(other: &DirectReader) -> DirectReader {
        DirectReader { unsynced: Arc::clone(&other.unsynced), ..DirectReader::default() }
    }

    /// Opens the file, of `len` bytes, with `open`, and starts to track writes.
    ///
    /// Errors: the reason why it cannot be opened; a later call may succeed. It is no error if the
    /// system does not support direct reads of the file.
    pub(crate) fn prepare(&self, len: u64, open: impl FnOnce() -> Result<File>) -> Result<()> {
        self.unsynced.get_or_init(|| UnsyncedRanges::new(len));
        self.file(open).map(|_| ())
    }

    /// Announces writes to ranges, each an offset and a length. They are in progress until the
    /// result is dropped.
    pub(crate) fn begin_write(
        &self,
        places: impl Iterator<Item = (u64, u64)>,
    ) -> Option<WriteInProgress<'_>> {
        self.unsynced.get().map(|known| known.begin_write(places))
    }

    /// Announces a sync of all earlier writes.
    pub(crate) fn begin_sync(&self) -> Option<SyncInProgress<'_>> {
        self.unsynced.get().and_then(UnsyncedRanges::begin_sync)
    }

    /// Whether the system has refused such reads.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The open file; `None` if the system does not support direct reads of it.
    fn file(&self, open: impl FnOnce() -> Result<File>) -> Result<Option<&File>> {
        if self.is_refused() {
            return Ok(None);
        }
        if let Some(file) = self.file.get() {
            return Ok(Some(file));
        }
        match open() {
            Ok(file) if !is_read_directly(&file)? => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Ok(file) => {
                // No read-ahead: if the system reads through the cache all the same, pages read
                // ahead would stay there.
                fadvise(&file, 0, None, Advice::Random)?;
                Ok(Some(self.file.get_or_init(|| file)))
            }
            Err(e) if Errno::from_io_error(&e).is_some_and(is_refusal) => {
                self.refused.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads a run ([`near_runs`](crate::near_runs)) of the file with one request; `open` opens the
    /// file if needed. False if a direct read is not allowed, or did not read all of the run: the
    /// caller then reads through the cache, which gives the data or the error.
    pub(crate) fn read(&self, open: impl FnOnce() -> Result<File>, run: &mut [ReadExtent<'_>]) -> bool {
        let (Some(known), Some(span)) = (self.unsynced.get(), Span::of(run)) else { return false };
        let Some(needed) = span.bounce_pages(run).filter(|needed| *needed <= MOST_PAGES) else {
            return false;
        };
        let Some(file) = self.file(open).ok().flatten() else { return false };
        let Some(_reading) = known.begin_read(span.start, span.end - span.start) else { return false };
        let mut memory = self.take_bounce_pages(needed);
        let pages = &mut memory[..needed];
        let whole = match read_pages(file, &span, run, pages) {
            Ok(bytes) => bytes >= span.wanted,
            Err(errno) => {
                self.refused.fetch_or(is_refusal(errno), Ordering::Relaxed);
                false
            }
        };
        if whole {
            hand_out(&span, run, pages);
        }
        self.return_bounce_pages(memory);
        whole
    }

    /// Memory for `needed` pages, at most [`MOST_PAGES`].
    fn take_bounce_pages(&self, needed: usize) -> BouncePages {
        if needed == 0 {
            return BouncePages::default();
        }
        let len = if needed <= FEW_PAGES { FEW_PAGES } else { MOST_PAGES };
        let kept = self.spare_of(len).lock().pop();
        kept.unwrap_or_else(|| vec![AlignedPage([0; PAGE as usize]); len].into_boxed_slice())
    }

    fn return_bounce_pages(&self, memory: BouncePages) {
        if memory.is_empty() {
            return;
        }
        let mut spare = self.spare_of(memory.len()).lock();
        if spare.len() < MOST_SPARE {
            spare.push(memory);
        }
    }

    /// The kept buffers of `len` pages.
    fn spare_of(&self, len: usize) -> &Mutex<Vec<BouncePages>> {
        &self.spare[usize::from(len > FEW_PAGES)]
    }
}

/// Whether a file is on a block device, or on a file system in `READS_DIRECTLY`.
fn is_read_directly(file: &File) -> rustix::io::Result<bool> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::BlockDevice {
        return Ok(true);
    }
    Ok(READS_DIRECTLY.contains(&(fstatfs(file)?.f_type as u64)))
}

/// Whether an error means that the system does not support direct reads of the file.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// The pages of the file that cover a run.
struct Span {
    start: u64,
    end: u64,
    /// Bytes from `start` to the end of the last extent: the file may end within the last page.
    wanted: usize,
}

impl Span {
    /// `None` for an empty run, or one that exceeds the maximum file size.
    fn of(run: &[ReadExtent<'_>]) -> Option<Span> {
        let (first, last) = (run.first()?, run.last()?);
        let start = first.offset - first.offset % PAGE;
        let end = last.offset.checked_add(last.buf.len() as u64)?;
        Some(Span { start, end: end.checked_next_multiple_of(PAGE)?, wanted: (end - start) as usize })
    }

    /// The number of pages that are read into separate memory.
    fn bounce_pages(&self, run: &[ReadExtent<'_>]) -> Option<usize> {
        let own = run.iter().filter(|extent| is_in_pages(extent)).map(|extent| extent.buf.len() as u64);
        (self.end - self.start).checked_sub(own.sum()).map(|bytes| (bytes / PAGE) as usize)
    }
}

/// Whether an extent is made of whole pages, in the file and in memory.
fn is_in_pages(extent: &ReadExtent<'_>) -> bool {
    let places = [extent.offset, extent.buf.len() as u64, extent.buf.as_ptr().addr() as u64];
    places.iter().all(|place| place.is_multiple_of(PAGE))
}

/// Requests all pages of a run. Page-aligned extents are read in place, the other pages into
/// `pages`.
fn read_pages(
    file: &File,
    span: &Span,
    run: &mut [ReadExtent<'_>],
    pages: &mut [AlignedPage],
) -> rustix::io::Result<usize> {
    let mut bufs: Vec<IoSliceMut<'_>> = Vec::with_capacity(run.len() + pages.len());
    let mut pages = pages.iter_mut().map(|page| IoSliceMut::new(&mut page.0));
    let mut at = span.start;
    for extent in run.iter_mut().filter(|extent| is_in_pages(extent)) {
        bufs.extend(pages.by_ref().take(((extent.offset - at) / PAGE) as usize));
        at = extent.offset + extent.buf.len() as u64;
        bufs.push(IoSliceMut::new(extent.buf));
    }
    bufs.extend(pages);
    loop {
        let read = match preadv2(file, &mut bufs, span.start, DONT_CACHE) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => preadv(file, &mut bufs, span.start),
            read => read,
        };
        match read {
            Err(Errno::INTR) => {}
            read => return read,
        }
    }
}

/// Copies the data in `pages` to the unaligned extents.
fn hand_out(span: &Span, run: &mut [ReadExtent<'_>], pages: &[AlignedPage]) {
    // `first`: the index of the first page in `pages` read at or after `at`.
    let (mut at, mut first) = (span.start, 0);
    for extent in run {
        if is_in_pages(extent) {
            first += ((extent.offset - at) / PAGE) as usize;
            at = extent.offset + extent.buf.len() as u64;
            continue;
        }
        for (number, within, part) in pieces(extent.offset - at, extent.buf.len() as u64, PAGE) {
            extent.buf[part].copy_from_slice(&pages[first + number as usize].0[within]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_reads_take_small_buffers_and_buffers_are_used_again() {
        let reader = DirectReader::default();
        assert!(reader.take_bounce_pages(0).is_empty());
        for (needed, len) in [(1, FEW_PAGES), (FEW_PAGES + 1, MOST_PAGES)] {
            let taken: Vec<_> = (0..=MOST_SPARE).map(|_| reader.take_bounce_pages(needed)).collect();
            assert!(taken.iter().all(|pages| pages.len() == len));
            let places: Vec<_> = taken.iter().map(|pages| pages.as_ptr()).collect();
            taken.into_iter().for_each(|pages| reader.return_bounce_pages(pages));
            assert_eq!(reader.spare_of(len).lock().len(), MOST_SPARE);
            let again: Vec<_> = (0..MOST_SPARE).map(|_| reader.take_bounce_pages(needed)).collect();
            assert!(again.iter().all(|pages| places.contains(&pages.as_ptr())));
        }
        assert!(reader.spare.iter().all(|spare| spare.lock().is_empty()));
    }
}
