//! A medium on a local file or block device, through the page cache. Discreet reads bypass the
//! cache if they can.

use crate::direct::DirectReader;
use crate::dont_cache::DontCacheReader;
use crate::file_cache::{FileStamp, drop_pages};
use crate::file_limits::{allocation_error, length_error, longer_files, short_device_error};
use crate::file_open::{
    Access, LinkPolicy, check_kind, check_takes_writes, create_error, lock, open_error, open_noatime,
    refuse_hard_links, retry_while_busy,
};
use crate::path_only::path_only;
use crate::runs::{are_adjacent, near_runs, places};
use crate::write_back::start_write_back;
use crate::{Medium, ReadExtent, WriteExtent};
use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{
    Advice as ReadAdvice, FallocateFlags, OFlags, StatVfsMountFlags, fadvise, fallocate, fcntl_getfl,
    fcntl_setfl, fstatvfs,
};
use rustix::io::{Errno, ReadWriteFlags, preadv, pwritev, pwritev2, retry_on_intr};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Zeros for media that cannot punch holes.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The most adjacent extents per system call.
const AT_ONCE: usize = 64;

/// The advice for a full file system.
const FREE_SPACE: &str = "free space on the file system that holds it, then close the disk and open it \
    again; flushed data is safe";

/// A file or block device. Holds a lock on it until dropped: exclusive for writing, shared for
/// reading.
///
/// A file that is fully allocated when it is opened stays so: a discard writes zeros and frees
/// nothing. Otherwise discards would free, piece by piece, the space that the user allocated at
/// creation.
pub struct FileMedium {
    file: File,
    path: PathBuf,
    len: AtomicU64,
    device: bool,
    updates_atime: bool,
    /// Whether the file is fully allocated and stays so.
    keeps_allocation: AtomicBool,
    /// Whether a sync has failed: the cache may then have pages that the medium does not have. All
    /// handles on the medium share it, because the system tells the failure of a device to write
    /// its own cache to the caller of that sync alone.
    sync_failed: Arc<AtomicBool>,
    direct: DirectReader,
    discreet: DontCacheReader,
}

impl FileMedium {
    /// Opens an existing file or block device. While a device is open, the system refuses it to
    /// every program that asks for exclusive use, as `mount`, `mkfs`, `wipefs` and `pvcreate` do.
    ///
    /// Errors: [`Kind::NotFound`], [`Kind::Permission`], [`Kind::Busy`] if it is mounted, or
    /// another program has it open.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        Self::open_linked(path, access, LinkPolicy::Followed)
    }

    /// The same; `links` tells whether the path may be a symbolic link. Errors: also
    /// [`Kind::NotFound`] for a forbidden link.
    pub fn open_linked(path: &Path, access: Access, links: LinkPolicy) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write);
        // Checked before the open: opening a pipe would wait for a writer.
        let kind = links.kind(path).map_err(|e| open_error(path, &e))?;
        check_kind(path, kind)?;
        let alone = if kind.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
        let flags = alone | links.flags();
        let opened = retry_while_busy(
            || open_noatime(&mut options, path, flags),
            |e| e.kind() == ErrorKind::ResourceBusy,
        );
        let (file, touches) = opened.map_err(|e| open_error(path, &e))?;
        if links == LinkPolicy::Refused && access == Access::Write {
            refuse_hard_links(&file, path)?;
        }
        Self::locked(file, path, access, touches)
    }

    /// Creates a file of `len` bytes that takes no space yet. Refuses an existing file; to
    /// overwrite one, a caller opens it, which takes the lock, and sets its length.
    pub fn create(path: &Path, len: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).create_new(true);
        let file = options.open(path).map_err(|e| create_error(path, &e))?;
        // Set after creation: if new files belong to another user, NOATIME in `open` would be
        // refused with the file already created.
        let untouched = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NOATIME));
        let touches = untouched.is_err();
        let medium = Self::locked(file, path, Access::Write, touches)?;
        medium.set_len(len)?;
        Ok(medium)
    }

    /// Makes discards free space, even if the file was fully allocated when it was opened. For a
    /// file that is about to be overwritten.
    pub fn release_allocation(&self) {
        self.keeps_allocation.store(false, Ordering::Relaxed);
    }

    /// Whether this is a block device. Its length is fixed.
    pub fn is_device(&self) -> bool {
        self.device
    }

    /// Whether reading changes the access time: the system refused to keep it, as it does for files
    /// of other users, and the file system records access times.
    ///
    /// Deniability contract: hidden levels are read at times without public reads, and the access
    /// time would reveal it.
    pub fn updates_access_time(&self) -> bool {
        let spared = StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY;
        self.updates_atime && !fstatvfs(&self.file).is_ok_and(|fs| fs.f_flag.intersects(spared))
    }

    /// The medium of an open file, which is not known to be fully allocated.
    fn of_file(mut file: File, path: PathBuf, device: bool, updates_atime: bool) -> std::io::Result<Self> {
        let len = AtomicU64::new(file.seek(SeekFrom::End(0))?);
        let (keeps_allocation, direct) = (AtomicBool::new(false), DirectReader::default());
        let (sync_failed, discreet) = (Arc::default(), DontCacheReader::default());
        Ok(FileMedium {
            file,
            path,
            len,
            device,
            updates_atime,
            keeps_allocation,
            sync_failed,
            direct,
            discreet,
        })
    }

    fn locked(file: File, path: &Path, access: Access, touches: bool) -> Result<Self> {
        let about = file.metadata().map_err(|e| open_error(path, &e))?;
        let kind = about.file_type();
        check_kind(path, kind)?;
        if access == Access::Write && kind.is_block_device() {
            check_takes_writes(&file, path)?;
        }
        lock(&file, path, access)?;
        let mut medium = FileMedium::of_file(file, path.to_owned(), kind.is_block_device(), touches)
            .map_err(|e| open_error(path, &e))?;
        let len = *medium.len.get_mut();
        // `blocks()` counts units of 512 bytes, independent of the file system's block size.
        *medium.keeps_allocation.get_mut() = kind.is_file() && len > 0 && about.blocks() * 512 >= len;
        Ok(medium)
    }

    /// A path-only handle (`O_PATH`) on the file or device. It neither reads nor writes, and holds
    /// no lock.
    ///
    /// Errors: those of the system.
    pub fn path_only(&self) -> Result<OwnedFd> {
        path_only(&self.file, &self.path)
    }

    /// Opens the same medium once more. The system reports a failed write once to each open file,
    /// so with a file of its own no user of the medium misses the report.
    fn open_again(&self) -> std::io::Result<FileMedium> {
        let writes = fcntl_getfl(&self.file)?.contains(OFlags::RDWR);
        let (file, touches) = self.open_file_again(writes, OFlags::empty())?;
        let medium = FileMedium::of_file(file, self.path.clone(), self.device, touches)?;
        let keeps_allocation = AtomicBool::new(self.keeps_allocation.load(Ordering::Relaxed));
        let direct = DirectReader::for_other_handle(&self.direct);
        let sync_failed = Arc::clone(&self.sync_failed);
        Ok(FileMedium { keeps_allocation, sync_failed, direct, ..medium })
    }

    /// Opens the file through `/proc/self/fd`, since its path may lead elsewhere by now.
    fn open_file_again(&self, writes: bool, flags: OFlags) -> std::io::Result<(File, bool)> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        open_noatime(OpenOptions::new().read(true).write(writes), Path::new(&path), flags)
    }

    /// An open file for discreet reads, with additional `flags`.
    fn open_discreet(&self, flags: OFlags) -> std::io::Result<File> {
        self.open_file_again(false, flags).map(|(file, _)| file)
    }

    fn failed(&self, operation: &str, offset: u64, len: u64, e: &std::io::Error) -> Error {
        let what = format!("{operation} of {len} bytes at byte {offset} of {}", self.path.display());
        if e.kind() == std::io::ErrorKind::UnexpectedEof {
            return Error::io(what, e).found("the end of the file or device before that: it became shorter");
        }
        let error = longer_files(Error::io(what, e));
        if error.kind() == Kind::NoSpace && error.get_hint().is_none() {
            return error.hint(FREE_SPACE);
        }
        error
    }

    /// Refuses to allocate more space than the file system has: the attempt would fill the host
    /// first.
    fn check_free_space(&self, len: u64) -> Result<()> {
        let taken = self.file.metadata().map_or(0, |about| about.blocks() * 512);
        match fstatvfs(&self.file) {
            Ok(fs) if len.saturating_sub(taken) > fs.f_bavail.saturating_mul(fs.f_frsize) => {
                Err(allocation_error(&self.path, len, &Errno::NOSPC.into()))
            }
            _ => Ok(()),
        }
    }

    /// Reads adjacent extents with one call. False if that did not read all of them: the caller
    /// then reads one by one, to find the failing extent.
    fn read_run(&self, run: &mut [ReadExtent<'_>]) -> bool {
        let (offset, len) = (run[0].offset, run.iter().map(|extent| extent.buf.len()).sum());
        let mut bufs: Vec<IoSliceMut<'_>> =
            run.iter_mut().map(|extent| IoSliceMut::new(extent.buf)).collect();
        preadv(&self.file, &mut bufs, offset) == Ok(len)
    }

    /// Reads adjacent extents through the cache and leaves nothing of them there, if the system can
    /// do that.
    fn read_dont_cache(&self, run: &mut [ReadExtent<'_>]) -> Result<()> {
        if self.discreet.is_refused() {
            return self.read(run);
        }
        let open = || self.open_discreet(OFlags::empty());
        if run.len() > 1 && self.discreet.read_run(open, run) {
            return Ok(());
        }
        for extent in run {
            let (offset, len) = (extent.offset, extent.buf.len() as u64);
            if !self.discreet.read(open, extent).map_err(|e| self.failed("read", offset, len, &e))? {
                self.read(std::slice::from_mut(extent))?;
            }
        }
        Ok(())
    }

    /// Syncs, and records that earlier writes are on the medium.
    fn sync_data(&self) -> std::io::Result<()> {
        let under_way = self.direct.begin_sync();
        let synced = self.file.sync_data();
        under_way.into_iter().for_each(|sync| sync.end(synced.is_ok()));
        self.sync_failed.fetch_or(synced.is_err(), Ordering::Relaxed);
        synced
    }

    /// Writes adjacent extents with one call. False if that did not write all of them, as for
    /// reads.
    fn write_run(&self, run: &[WriteExtent<'_>]) -> bool {
        let len = run.iter().map(|extent| extent.data.len()).sum();
        let bufs: Vec<IoSlice<'_>> = run.iter().map(|extent| IoSlice::new(extent.data)).collect();
        pwritev(&self.file, &bufs, run[0].offset) == Ok(len)
    }

    fn write_zeros(&self, mut offset: u64, mut len: u64) -> Result<()> {
        while len > 0 {
            let part = len.min(ZEROS.len() as u64);
            self.write_at(offset, &ZEROS[..part as usize])?;
            offset += part;
            len -= part;
        }
        Ok(())
    }

    fn write_flagged(&self, offset: u64, data: &[u8], flags: ReadWriteFlags) -> std::io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match pwritev2(&self.file, &[IoSlice::new(&data[done..])], offset + done as u64, flags) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::WriteZero)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl Medium for FileMedium {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        let failed = |e| Error::io(format!("cannot open {} once more", self.path.display()), &e);
        self.open_again().map(|medium| Some(Arc::new(medium) as Arc<dyn Medium>)).map_err(failed)
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for run in batch.chunk_by_mut(are_adjacent).flat_map(|run| run.chunks_mut(AT_ONCE)) {
            if run.len() > 1 && self.read_run(run) {
                continue;
            }
            for extent in run {
                let len = extent.buf.len() as u64;
                self.file
                    .read_exact_at(extent.buf, extent.offset)
                    .map_err(|e| self.failed("read", extent.offset, len, &e))?;
            }
        }
        Ok(())
    }

    fn expect_discreet_reads(&self) -> Result<()> {
        let direct = self.direct.prepare(self.len(), || self.open_discreet(OFlags::DIRECT));
        let opened = direct.and(self.discreet.prepare(|| self.open_discreet(OFlags::empty())));
        let failed = |e| Error::io(format!("cannot open {} once more", self.path.display()), &e);
        opened.map(|_| ()).map_err(failed)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for run in near_runs(batch) {
            if !self.direct.read(|| self.open_discreet(OFlags::DIRECT), run) {
                run.chunk_by_mut(are_adjacent).try_for_each(|run| self.read_dont_cache(run))?;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let _writing = self.direct.begin_write(places(batch));
        let adjacent = |a: &WriteExtent<'_>, b: &WriteExtent<'_>| a.offset + a.data.len() as u64 == b.offset;
        for run in batch.chunk_by(adjacent).flat_map(|run| run.chunks(AT_ONCE)) {
            if run.len() > 1 && self.write_run(run) {
                continue;
            }
            for extent in run {
                self.file
                    .write_all_at(extent.data, extent.offset)
                    .map_err(|e| self.failed("write", extent.offset, extent.data.len() as u64, &e))?;
            }
        }
        Ok(())
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let _writing = self.direct.begin_write(places(batch));
        for extent in batch {
            match self.write_flagged(extent.offset, extent.data, ReadWriteFlags::DSYNC) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                    self.write(batch)?;
                    return self.sync();
                }
                Err(e) => {
                    // As for a failed sync.
                    self.sync_failed.store(true, Ordering::Relaxed);
                    let len = extent.data.len() as u64;
                    return Err(self.failed("synced write", extent.offset, len, &e).with_kind(Kind::Io));
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // Never `NoSpace`: the dropped data is unknown, so a caller must not continue as after a
        // refused write.
        self.sync_data()
            .map_err(|e| Error::io(format!("sync of {}", self.path.display()), &e).with_kind(Kind::Io))
    }

    fn forget_cached(&self) -> Result<()> {
        self.forget_cached_outside(0..0)
    }

    fn forget_cached_outside(&self, kept: Range<u64>) -> Result<()> {
        // Dirty pages cannot be dropped, hence the sync. After it, pages with a failed write count
        // as written, and can be dropped.
        let synced = match self.sync_data() {
            // A medium on a read-only file system has nothing to write.
            Err(e) if e.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => Ok(()),
            other => other,
        };
        // After a failed write no page is known to be on the medium.
        let kept = if synced.is_ok() { kept } else { 0..0 };
        let dropped = drop_pages(&self.file, self.device, &kept);
        synced.map_err(|e| {
            Error::io(format!("earlier writes did not reach {}", self.path.display()), &e)
                .with_kind(Kind::Io)
                .hint("repair the medium, then open it again: it continues from the last durable state")
        })?;
        dropped.map_err(|e| {
            Error::io(format!("cannot drop the cached pages of {}", self.path.display()), &e)
                .with_kind(Kind::Io)
        })
    }

    fn stamp(&self) -> Result<Option<FileStamp>> {
        let failed = |e| Error::io(format!("cannot look at {}", self.path.display()), &e);
        FileStamp::of(&self.file).map_err(failed)
    }

    fn settled_stamp(&self) -> Result<Option<FileStamp>> {
        let Some(stamp) = self.stamp()?.filter(FileStamp::wait_for_later_tick) else { return Ok(None) };
        // A write before this sync is on the medium after it; a write after it changes the stamp.
        self.sync()?;
        let is_sound = !self.sync_failed.load(Ordering::Relaxed);
        Ok(self.stamp()?.filter(|now| is_sound && *now == stamp))
    }

    fn expect_random_reads(&self) {
        // A system that ignores the advice reads more than necessary.
        let _advised = fadvise(&self.file, 0, None, ReadAdvice::Random);
    }

    fn will_read(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else { return };
        // A system that ignores the advice fetches the range when it is read.
        let _advised = fadvise(&self.file, offset, Some(len), ReadAdvice::WillNeed);
    }

    fn will_sync(&self, offset: u64, len: u64) {
        start_write_back(&self.file, offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let _writing = self.direct.begin_write(std::iter::once((offset, len)));
        let keeps = self.keeps_allocation.load(Ordering::Relaxed);
        let zeros = if keeps { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        match retry_on_intr(|| fallocate(&self.file, zeros | FallocateFlags::KEEP_SIZE, offset, len)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.write_zeros(offset, len),
            Err(e) => Err(self.failed("discard", offset, len, &e.into())),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool> {
        if self.device || len == 0 {
            return Ok(true);
        }
        self.check_free_space(len)?;
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)) {
            Ok(()) => {
                let whole = offset == 0 && len >= self.len();
                self.keeps_allocation.fetch_or(whole, Ordering::Relaxed);
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
            Err(e) => Err(allocation_error(&self.path, len, &e.into())),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if self.device {
            return if len <= self.len() {
                Ok(())
            } else {
                Err(short_device_error(&self.path, self.len(), len))
            };
        }
        let _writing = self.direct.begin_write(std::iter::once((0, u64::MAX)));
        self.file.set_len(len).map_err(|e| length_error(&self.path, len, &e))?;
        let before = self.len.swap(len, Ordering::Relaxed);
        if self.keeps_allocation.load(Ordering::Relaxed) && before > 0 && len > before {
            return self.allocate(before, len - before).map(drop).inspect_err(|_| {
                // The new space could not be allocated. The old length needs no new space.
                if self.file.set_len(before).is_ok() {
                    self.len.store(before, Ordering::Relaxed);
                }
            });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
