//! Reads past the system's cache (O_DIRECT), from the medium straight into memory of this process:
//! the cache holds nothing of them at any moment, on any kernel, on block devices and the file
//! systems that are known to do nothing else (`READS_DIRECTLY`). Those take such reads of some
//! files through the cache (ext4 of encrypted or journalled ones, btrfs of compressed ones), which
//! is asked to forget them (Linux from 6.14 on). They move whole pages of the file into whole pages
//! of memory. An extent that is not made of such pages, and what lies between extents, goes into
//! memory that is kept for it.
//!
//! Deniability contract: which places are not read so, `unsynced.rs` says.

use crate::ReadExtent;
use crate::discreet::DONT_CACHE;
use crate::pieces::pieces;
use crate::runs::MOST_AT_ONCE;
use crate::unsynced::{Syncing, Unsynced, Writing};
use parking_lot::Mutex;
use rustix::fs::{Advice, FileType, fadvise, fstat, fstatfs};
use rustix::io::{Errno, preadv, preadv2};
use std::fs::File;
use std::io::{IoSliceMut, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What such reads are aligned to, in the file and in memory, in bytes: no common device has longer
/// sectors.
const PAGE: u64 = 4096;
/// Pages of memory for one read: of a run that begins and ends within a page.
const MOST_PAGES: usize = (MOST_AT_ONCE / PAGE) as usize + 1;
/// Of how many reads the memory is kept for later ones.
const MOST_SPARE: usize = 4;
/// The file systems on which such a read has nothing written but the place that it reads: ext4,
/// xfs, btrfs and f2fs. Others (NFS, GFS2, OCFS2) write all that the cache has of the file first,
/// at a moment that would follow from what is read (deniability contract).
const READS_DIRECTLY: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Memory that begins where a page does.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE as usize]);

/// Reads one file so.
#[derive(Default)]
pub(crate) struct DirectReader {
    /// An open file of its own. While there is none to be had, each read tries again.
    file: OnceLock<File>,
    /// Whether the system has refused.
    refused: AtomicBool,
    /// Which places may be read so, once such reads are expected; shared by all handles on the
    /// file.
    places: Arc<OnceLock<Unsynced>>,
    /// Memory for the next reads, which holds ciphertext alone.
    spare: Mutex<Vec<Box<[Page]>>>,
}

impl DirectReader {
    /// For another handle on the same file: what either writes or syncs, both know.
    pub(crate) fn beside(other: &DirectReader) -> DirectReader {
        DirectReader { places: Arc::clone(&other.places), ..DirectReader::default() }
    }

    /// Opens the file, which has `len` bytes, by way of `open`, and notes from now on what is
    /// written.
    ///
    /// Errors: why it cannot be opened; another call may open it. That the system knows no such
    /// reads of it is none.
    pub(crate) fn prepare(&self, len: u64, open: impl FnOnce() -> Result<File>) -> Result<()> {
        self.places.get_or_init(|| Unsynced::new(len));
        self.file(open).map(|_| ())
    }

    /// Places, each an offset and a length, are going to be written, as long as what this gives is
    /// held.
    pub(crate) fn begin_write(&self, places: impl Iterator<Item = (u64, u64)>) -> Option<Writing<'_>> {
        self.places.get().map(|known| known.begin_write(places))
    }

    /// Everything that was written is going to be synced.
    pub(crate) fn begin_sync(&self) -> Option<Syncing<'_>> {
        self.places.get().and_then(Unsynced::begin_sync)
    }

    /// Whether the system has refused such reads.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The file; none if the system knows no such reads of it.
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
                // Where the system reads through the cache all the same, what it reads ahead would
                // stay.
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

    /// Reads a run ([`near_runs`](crate::near_runs)) of the file that `open` opens, if it is not
    /// open yet, with one request. False if that is not to be, or did not give all of it: a read
    /// through the cache gives it then, or the reason why not.
    pub(crate) fn read(&self, open: impl FnOnce() -> Result<File>, run: &mut [ReadExtent<'_>]) -> bool {
        let (Some(known), Some(span)) = (self.places.get(), Span::of(run)) else { return false };
        let Some(needed) = span.pages_besides(run).filter(|needed| *needed <= MOST_PAGES) else {
            return false;
        };
        let Some(file) = self.file(open).ok().flatten() else { return false };
        let Some(_reading) = known.begin_read(span.start, span.end - span.start) else { return false };
        let mut memory = self.memory(needed);
        let pages = &mut memory[..needed];
        let whole = match request(file, &span, run, pages) {
            Ok(bytes) => bytes >= span.wanted,
            Err(errno) => {
                self.refused.fetch_or(is_refusal(errno), Ordering::Relaxed);
                false
            }
        };
        if whole {
            hand_out(&span, run, pages);
        }
        self.keep(memory);
        whole
    }

    /// Memory for as many pages, if any.
    fn memory(&self, needed: usize) -> Box<[Page]> {
        if needed == 0 {
            return Box::default();
        }
        let kept = self.spare.lock().pop();
        kept.unwrap_or_else(|| vec![Page([0; PAGE as usize]); MOST_PAGES].into_boxed_slice())
    }

    fn keep(&self, memory: Box<[Page]>) {
        let mut spare = self.spare.lock();
        if !memory.is_empty() && spare.len() < MOST_SPARE {
            spare.push(memory);
        }
    }
}

/// Whether a file lies on a block device or a file system whose direct reads are known to touch
/// nothing else.
fn is_read_directly(file: &File) -> rustix::io::Result<bool> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::BlockDevice {
        return Ok(true);
    }
    Ok(READS_DIRECTLY.contains(&(fstatfs(file)?.f_type as u64)))
}

/// Whether an error says that the system knows no such reads of the file.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// The pages of the file that a run lies in.
struct Span {
    start: u64,
    end: u64,
    /// Bytes from the start to the end of the last extent: the file may end before the page does.
    wanted: usize,
}

impl Span {
    /// None of a run that is none, or that reaches beyond all files.
    fn of(run: &[ReadExtent<'_>]) -> Option<Span> {
        let (first, last) = (run.first()?, run.last()?);
        let start = first.offset - first.offset % PAGE;
        let end = last.offset.checked_add(last.buf.len() as u64)?;
        Some(Span { start, end: end.checked_next_multiple_of(PAGE)?, wanted: (end - start) as usize })
    }

    /// How many of its pages are read to no extent's own memory.
    fn pages_besides(&self, run: &[ReadExtent<'_>]) -> Option<usize> {
        let own = run.iter().filter(|extent| is_in_pages(extent)).map(|extent| extent.buf.len() as u64);
        (self.end - self.start).checked_sub(own.sum()).map(|bytes| (bytes / PAGE) as usize)
    }
}

/// Whether an extent can be read to where it is: whole pages, in the file and in memory.
fn is_in_pages(extent: &ReadExtent<'_>) -> bool {
    let places = [extent.offset, extent.buf.len() as u64, extent.buf.as_ptr().addr() as u64];
    places.iter().all(|place| place.is_multiple_of(PAGE))
}

/// Asks the system for all pages of a run: those of extents that are whole pages go there, the
/// others to `pages`.
fn request(
    file: &File,
    span: &Span,
    run: &mut [ReadExtent<'_>],
    pages: &mut [Page],
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

/// Copies what was read to `pages` to the extents that are not whole pages.
fn hand_out(span: &Span, run: &mut [ReadExtent<'_>], pages: &[Page]) {
    // The first of the pages that were read from `at` on.
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
