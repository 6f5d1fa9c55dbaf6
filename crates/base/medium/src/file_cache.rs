//! The system's cache of a file: drops its pages, and tells one state of the file from every other,
//! so that pages can stay from one user of the file to the next if no writer came between.

use crate::block_device;
use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::Result;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The file systems where this kernel makes every change and notes its time: ext4, xfs, btrfs and
/// f2fs. Elsewhere another machine or a server may change a file (NFS, FUSE, GFS2, OCFS2), or no
/// page can be dropped (tmpfs).
const OF_THIS_MACHINE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// Bytes of an entry in a page table. The number of pages in the largest piece of a cached file is
/// that of the entries in a page.
const TABLE_ENTRY: u64 = 8;
/// How often to look whether the clock of changes has gone on, and the pause between. Together they
/// are longer than the longest tick (10 ms).
const TICK_TRIES: usize = 20;
const TICK_PAUSE: Duration = Duration::from_millis(2);

/// The state of a file. Each later write, truncation or discard by any writer gives another one,
/// unless the clock is set back to the very nanosecond. A copy of the file has another one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// The number of its file system, which a file system gets when it is mounted.
    pub device: u64,
    /// Its number in the file system.
    pub inode: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Seconds and nanoseconds of its last change (ctime). No call can set it.
    pub changed: (i64, i64),
}

impl FileStamp {
    /// The present state. `None` if the time of the last change does not tell all changes: of a
    /// device, on a file system that other machines can change, and where times have no
    /// nanoseconds, as on ext4 with small inodes.
    pub(crate) fn of(file: &File) -> Result<Option<FileStamp>> {
        let about = file.metadata()?;
        if !about.is_file() || !OF_THIS_MACHINE.contains(&(fstatfs(file)?.f_type as u64)) {
            return Ok(None);
        }
        let changed = (about.ctime(), about.ctime_nsec());
        let stamp = FileStamp { device: about.dev(), inode: about.ino(), len: about.size(), changed };
        Ok((changed.1 != 0).then_some(stamp))
    }

    /// Waits, for at most some ticks of the clock of changes, until a further change gets a later
    /// time than this one. False if the clock does not get there, as after it was set back.
    pub(crate) fn wait_for_later_tick(&self) -> bool {
        (0..TICK_TRIES).any(|_| {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            let is_later = (now.tv_sec, now.tv_nsec) > self.changed;
            if !is_later {
                std::thread::sleep(TICK_PAUSE);
            }
            is_later
        })
    }
}

/// The largest part of `kept` that consists of whole pieces, with pages of `page` bytes. A piece
/// begins at a multiple of its length, and the system drops whole pieces only: one across the start
/// of `kept` would keep pages before it.
fn whole_pieces(kept: &Range<u64>, page: u64) -> Range<u64> {
    let piece = page * (page / TABLE_ENTRY);
    kept.start.next_multiple_of(piece)..kept.end / piece * piece
}

/// Drops the cached pages of a file or device, except those of whole pieces of a file in `kept`.
/// Dirty pages stay, and pages that a program has mapped.
pub(crate) fn drop_pages(file: &File, is_device: bool, kept: &Range<u64>) -> Result<()> {
    if is_device || kept.is_empty() {
        fadvise(file, 0, None, Advice::DontNeed)?;
        return if is_device { block_device::drop_cache(file) } else { Ok(()) };
    }
    let kept = whole_pieces(kept, page_size() as u64);
    if kept.is_empty() {
        fadvise(file, 0, None, Advice::DontNeed)?;
        return Ok(());
    }
    if let Some(len) = NonZeroU64::new(kept.start) {
        fadvise(file, 0, Some(len), Advice::DontNeed)?;
    }
    fadvise(file, kept.end, None, Advice::DontNeed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_make_larger_pieces() {
        const MIB: u64 = 1 << 20;
        let kept = 11 * MIB..1100 * MIB;
        assert_eq!(whole_pieces(&kept, 4 << 10), 12 * MIB..1100 * MIB);
        assert_eq!(whole_pieces(&kept, 16 << 10), 32 * MIB..1088 * MIB);
        assert_eq!(whole_pieces(&kept, 64 << 10), 512 * MIB..1024 * MIB);
        assert!(whole_pieces(&(MIB..3 * MIB), 4 << 10).is_empty());
    }
}
