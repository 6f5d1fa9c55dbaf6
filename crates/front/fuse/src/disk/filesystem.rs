//! The FUSE file system: a directory with the file `disk` and the file `status`.
//!
//! Like a block device, `disk` has a fixed length, which changes only when the disk is made larger:
//! writes stop at its end, and truncating it to nothing (as shells and `cp` do on opening) changes
//! nothing.

use crate::disk::changes::{ChangedDisk, DiskChanges};
use crate::session::MOST_THREADS;
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use lacuna_contracts::{BLOCK_SIZE, ByteDisk, IdlePool, Result, WipeOnDrop};
use lacuna_daemon::{DISK_NAME, MountEvent};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const STATUS_NAME: &str = "status";

const DISK: INodeNo = INodeNo(2);
const STATUS: INodeNo = INodeNo(3);

/// Handles of `disk`; handles of `status` count up from [`FIRST_STATUS_HANDLE`].
const READ_HANDLE: u64 = 1;
const WRITE_HANDLE: u64 = 2;
const FIRST_STATUS_HANDLE: u64 = 16;

/// The cached attributes and entries of the directory and of `status` never change.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// The length of `disk` changes when the disk is made larger: the kernel asks for it each time that
/// a program does.
const NEVER: Duration = Duration::ZERO;
/// The largest request. The kernel may allow less.
const MAX_REQUEST: u32 = 1 << 20;
/// Maximum number of background requests of the kernel: read-ahead and asynchronous direct I/O.
const MAX_BACKGROUND: u16 = 64;
/// Length of the map that one step of a search for data reads, which bounds its memory.
const SEEK_STEP: u64 = 1 << 30;

/// The file system.
pub(crate) struct DiskFilesystem {
    changes: DiskChanges,
    read_only: bool,
    owner: (u32, u32),
    since: SystemTime,
    /// The text of `status` at the time when each of its handles was opened.
    statuses: Mutex<HashMap<u64, Arc<str>>>,
    next_status: AtomicU64,
    /// Read buffers, each of the length of the longest request, at most one per serving thread.
    buffers: IdlePool<WipeOnDrop<Vec<u8>>>,
}

impl DiskFilesystem {
    /// Serves the disk of `changes`.
    pub(crate) fn new(changes: DiskChanges, read_only: bool) -> Self {
        let buffers = IdlePool::default();
        buffers.register_for_sweep();
        DiskFilesystem {
            buffers,
            read_only: read_only || changes.disk().disk.uncounted().is_read_only(),
            changes,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            since: SystemTime::now(),
            statuses: Mutex::default(),
            next_status: AtomicU64::new(FIRST_STATUS_HANDLE),
        }
    }

    fn disk(&self) -> &ChangedDisk {
        self.changes.disk()
    }

    /// The length of the disk, in bytes.
    fn len(&self) -> u64 {
        self.disk().disk.uncounted().len()
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let writable = if self.read_only { 0 } else { 0o200 };
        let (kind, perm, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0),
            DISK => (FileType::RegularFile, 0o400 | writable, self.len()),
            STATUS => (FileType::RegularFile, 0o400, 0),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK_SIZE as u32,
            flags: 0,
        })
    }

    /// How long the kernel may cache the attributes.
    fn validity(ino: INodeNo) -> &'static Duration {
        if ino == DISK { &NEVER } else { &FOR_EVER }
    }

    fn status_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: u64, unit: &str| {
            let _ = writeln!(text, "{name} {value} {unit}");
        };
        line("size", self.len(), "bytes");
        line("read_only", self.read_only.into(), "flag");
        line("failed_requests", self.disk().reporter.session.failures(), "requests");
        for item in self.disk().disk.uncounted().status().items {
            line(item.name, item.value, item.unit);
        }
        text
    }

    fn statuses(&self) -> MutexGuard<'_, HashMap<u64, Arc<str>>> {
        self.statuses.lock()
    }

    fn open_disk(&self, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && self.read_only {
            return reply.error(Errno::EROFS);
        }
        self.disk().reporter.session.handle_opened();
        let handle = if writes { WRITE_HANDLE } else { READ_HANDLE };
        reply.opened(
            FileHandle(handle),
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        );
    }

    fn read_disk(&self, offset: u64, size: u32, reply: ReplyData) {
        let disk = self.disk().disk.counted();
        let size = u64::from(size.min(MAX_REQUEST)).min(disk.len().saturating_sub(offset)) as usize;
        if size == 0 {
            return reply.data(&[]);
        }
        let new = || WipeOnDrop::new(vec![0; MAX_REQUEST as usize]);
        let mut buffer = self.buffers.take(|_| true).unwrap_or_else(new);
        match disk.read_at(offset, &mut buffer[..size]) {
            Ok(()) => reply.data(&buffer[..size]),
            Err(e) => reply.error(self.disk().report("read", e)),
        }
        self.buffers.give(buffer, MOST_THREADS);
    }
}

/// The first byte at or after `offset` with a written (or unwritten) block, as `SEEK_DATA` and
/// `SEEK_HOLE` ask; the end of the disk is a hole.
fn seek(disk: &ByteDisk, offset: u64, written: bool) -> Result<Option<u64>> {
    let mut at = offset;
    while at < disk.len() {
        let end = disk.len().min(at.saturating_add(SEEK_STEP));
        let mut run_start = at / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        for run in disk.extents(at, end - at)? {
            if run.written == written {
                return Ok(Some(run_start.max(offset)));
            }
            run_start = run_start.saturating_add(run.blocks.saturating_mul(BLOCK_SIZE as u64));
        }
        at = end;
    }
    Ok((!written).then_some(disk.len()))
}

impl Filesystem for DiskFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is optional: an old kernel without it works as well, only slower.
        let wishes = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Programs may map the file; the mapped part is then in the page cache.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for wish in wishes {
            let _ = config.add_capabilities(wish);
        }
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.changes.end();
        self.disk().reporter.report_end();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match (parent, name.to_str()) {
            (INodeNo::ROOT, Some(DISK_NAME)) => DISK,
            (INodeNo::ROOT, Some(STATUS_NAME)) => STATUS,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.attributes(ino) {
            Some(attributes) => reply.entry(Self::validity(ino), &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(Self::validity(ino), &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(ino) else { return reply.error(Errno::ENOENT) };
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match size {
            Some(_) if ino != DISK => reply.error(Errno::EPERM),
            Some(_) if self.read_only => reply.error(Errno::EROFS),
            Some(size) if size != 0 && size != self.len() => reply.error(Errno::EINVAL),
            _ => reply.attr(Self::validity(ino), &attributes),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match ino {
            DISK => self.open_disk(flags, reply),
            STATUS if flags.acc_mode() != OpenAccMode::O_RDONLY => reply.error(Errno::EACCES),
            STATUS => {
                let handle = self.next_status.fetch_add(1, Ordering::Relaxed);
                self.statuses().insert(handle, self.status_text().into());
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            INodeNo::ROOT => reply.error(Errno::EISDIR),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino == DISK {
            return self.read_disk(offset, size, reply);
        }
        let text = self.statuses().get(&fh.0).cloned();
        match text {
            Some(text) => {
                let rest = text.as_bytes().get(offset.min(text.len() as u64) as usize..).unwrap_or_default();
                reply.data(&rest[..rest.len().min(size as usize)]);
            }
            None => reply.error(Errno::EBADF),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if ino != DISK {
            return reply.error(Errno::EBADF);
        }
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        // O_SYNC contains the bit of O_DSYNC.
        self.changes.write(offset, data, flags.0 & libc::O_DSYNC != 0, reply);
    }

    fn flush(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        if ino == DISK && fh.0 == WRITE_HANDLE { self.changes.flush(reply) } else { reply.ok() }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if ino == DISK {
            if self.disk().reporter.session.handle_released() == 0 {
                self.disk().reporter.send_event(MountEvent::DiskReleased);
            }
        } else {
            self.statuses().remove(&fh.0);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if ino == DISK { self.changes.flush(reply) } else { reply.ok() }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (DISK, FileType::RegularFile, DISK_NAME),
            (STATUS, FileType::RegularFile, STATUS_NAME),
        ];
        for (number, (ino, kind, name)) in (1u64..).zip(entries) {
            if number > offset && reply.add(ino, number, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    /// The loop device takes the block size as the granularity of its discards.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block = BLOCK_SIZE as u32;
        reply.statfs(self.len() / u64::from(block), 0, 0, 2, 0, block, 255, block);
    }

    fn access(&self, _: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        match self.attributes(ino) {
            None => reply.error(Errno::ENOENT),
            Some(a) if mask.contains(AccessFlags::W_OK) && a.perm & 0o200 == 0 => reply.error(Errno::EACCES),
            Some(_) => reply.ok(),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if ino != DISK {
            return reply.error(Errno::EBADF);
        }
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        // Both modes must leave zeros only, so both use the same request. Plain allocation cannot
        // be guaranteed.
        let zeroing = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & zeroing == 0 || mode & !(zeroing | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.changes.discard(offset, length, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let written = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let from = match u64::try_from(offset) {
            Ok(from) if ino == DISK && from < self.len() => from,
            _ => return reply.error(Errno::ENXIO),
        };
        match seek(self.disk().disk.counted(), from, written) {
            Ok(Some(at)) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(e) => reply.error(self.disk().report("look for data", e)),
        }
    }
}
