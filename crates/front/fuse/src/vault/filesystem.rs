//! The FUSE file system: parses requests and answers them.

use crate::session::MOST_THREADS;
use crate::use_count::UseCounted;
use crate::vault::attributes::{file_attr, file_type, no_entry, time_or_now, unreadable_entry};
use crate::vault::caller::Caller;
use crate::vault::capabilities;
use crate::vault::copy::{FilePosition, copy};
use crate::vault::listing::fill;
use crate::vault::ops::{VaultOps, changes};
use crate::vault::xattrs;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use lacuna_contracts::{IdlePool, WipeOnDrop};
use lacuna_vault::{Attr, BLOCK, FsError, FsResult, NAME_MAX, NewNode};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// How long the kernel may cache anything: the vault changes through this mount alone.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// The largest request, in bytes. The kernel may allow less.
const MAX_REQUEST: u32 = 1 << 20;
/// Maximum background requests of the kernel: write-back, read-ahead, asynchronous direct I/O.
const MAX_BACKGROUND: u16 = 64;
/// Node numbers are never reused.
const ONLY: Generation = Generation(0);
/// All handles are alike: node and flags identify the state that belongs to one.
const HANDLE: FileHandle = FileHandle(0);

/// The file system.
pub(crate) struct VaultFilesystem {
    /// All requests of programs count as use, except that for space: monitors send it to every file
    /// system.
    ops: UseCounted<Arc<VaultOps>>,
    /// Whether the kernel opens directories without a request. Entries are found by their cookie,
    /// so opening needs no work.
    skips_opendir: bool,
    /// Whether the kernel opens files without a request. In a read-only mount it does not matter
    /// which files are open.
    skips_open: bool,
    /// Read buffers, each of the length of the longest request, at most one per serving thread.
    buffers: IdlePool<WipeOnDrop<Vec<u8>>>,
}

impl VaultFilesystem {
    pub(crate) fn new(front: VaultOps) -> Self {
        let buffers = IdlePool::default();
        buffers.register_for_sweep();
        let watch = Arc::clone(&front.reporter.session);
        let front = UseCounted::new(Arc::new(front), watch);
        VaultFilesystem { ops: front, skips_opendir: false, skips_open: false, buffers }
    }
}

fn reply_entry(front: &VaultOps, doing: &str, parent: INodeNo, made: FsResult<Attr>, reply: ReplyEntry) {
    match made {
        Ok(attr) => reply.entry(&FOR_EVER, &file_attr(&attr), ONLY),
        Err(e) => reply.error(front.report(doing, parent.0, e)),
    }
}

fn reply_empty(front: &VaultOps, doing: &str, ino: INodeNo, done: FsResult<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(front.report(doing, ino.0, e)),
    }
}

impl Filesystem for VaultFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let front = self.ops.uncounted();
        for wish in capabilities::wanted(front.read_only) {
            let granted = config.add_capabilities(wish).is_ok();
            if wish == InitFlags::FUSE_WRITEBACK_CACHE {
                front.has_writeback_cache.store(granted, Ordering::Relaxed);
            }
        }
        // The kernel applies the umask itself, unless new nodes may get access control lists
        // instead.
        let lists = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        front.access_lists.store(config.add_capabilities(lists).is_ok(), Ordering::Relaxed);
        let able = config.capabilities();
        self.skips_opendir = able.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.skips_open = front.read_only && able.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        let _ = config.set_max_write(MAX_REQUEST);
        if let Err(most) = config.set_max_readahead(MAX_REQUEST) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        let front = self.ops.uncounted();
        front.forget_all();
        front.reporter.report_end();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let front = self.ops.counted();
        match front.vault.lookup(parent.0, name.as_bytes()) {
            Err(FsError::Errno(libc::ENOENT)) => reply.entry(&FOR_EVER, &no_entry(), ONLY),
            found => reply_entry(front, "look up a name in", parent, found, reply),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, _: u64) {
        self.ops.uncounted().forget(ino.0);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let front = self.ops.counted();
        match front.attr(ino.0) {
            Ok(attr) => reply.attr(&FOR_EVER, &file_attr(&attr)),
            Err(e) => reply.error(front.report_node("read the attributes of", ino.0, e)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let front = self.ops.counted();
        let (atime, mtime) = (atime.map(time_or_now), mtime.map(time_or_now));
        let changes = changes(mode, uid, gid, size, atime, mtime, ctime);
        match front.set_attr(ino.0, &changes, Caller::of(request)) {
            Ok(attr) => reply.attr(&FOR_EVER, &file_attr(&attr)),
            Err(e) => reply.error(front.report_node("change the attributes of", ino.0, e)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let front = self.ops.counted();
        match front.vault.read_link(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(front.report_node("read the symbolic link", ino.0, e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let front = self.ops.counted();
        let made = front.make_node(parent.0, name.as_bytes(), mode, umask, rdev, Caller::of(request));
        reply_entry(front, "make a node in", parent, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let front = self.ops.counted();
        let (name, caller) = (name.as_bytes(), Caller::of(request));
        let made = front.make(parent.0, name, NewNode::Directory, mode, umask, caller);
        reply_entry(front, "make a directory in", parent, made, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let front = self.ops.counted();
        let new = NewNode::Symlink(target.as_os_str().as_bytes());
        let made = front.make(parent.0, name.as_bytes(), new, 0o777, 0, Caller::of(request));
        reply_entry(front, "make a symbolic link in", parent, made, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let front = self.ops.counted();
        let made = front.vault.link(ino.0, parent.0, name.as_bytes());
        reply_entry(front, "make a link in", parent, made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let front = self.ops.counted();
        let done = front.remove(parent.0, name.as_bytes(), false);
        reply_empty(front, "remove a file in", parent, done, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let front = self.ops.counted();
        let done = front.remove(parent.0, name.as_bytes(), true);
        reply_empty(front, "remove a directory in", parent, done, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let front = self.ops.counted();
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let caller = Caller::of(request);
        let done = front.rename(parent.0, name, new_parent.0, new_name, flags.bits(), caller);
        reply_empty(front, "rename in", parent, done, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let front = self.ops.counted();
        if self.skips_open {
            return reply.error(Errno::ENOSYS);
        }
        match front.open(ino.0, flags, Caller::of(request)) {
            Ok(()) => reply.opened(HANDLE, FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(front.report_node("open", ino.0, e)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let front = self.ops.counted();
        let caller = Caller::of(request);
        let made = front.make(parent.0, name.as_bytes(), NewNode::File, mode, umask, caller);
        // A new file has nothing to truncate.
        let flags = OpenFlags(flags & !libc::O_TRUNC);
        let opened = made.and_then(|attr| front.open(attr.ino, flags, caller).map(|()| attr));
        match opened {
            Ok(attr) => {
                reply.created(&FOR_EVER, &file_attr(&attr), ONLY, HANDLE, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(front.report("make a file in", parent.0, e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let front = self.ops.counted();
        let size = size.min(MAX_REQUEST) as usize;
        let new = || WipeOnDrop::new(vec![0; MAX_REQUEST as usize]);
        let mut buffer = self.buffers.take(|_| true).unwrap_or_else(new);
        match front.read(ino.0, offset, &mut buffer[..size]) {
            Ok(read) => reply.data(&buffer[..read]),
            Err(e) => reply.error(front.report_node("read", ino.0, e)),
        }
        self.buffers.give(buffer, MOST_THREADS);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let front = self.ops.counted();
        match front.write(ino.0, offset, data, flags, Caller::of(request)) {
            Ok(written) => reply.written(written),
            Err(e) => reply.error(front.report_node("write", ino.0, e)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel has written its pages before it asks, and need not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.ops.uncounted().release(ino.0, flags);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let front = self.ops.counted();
        reply_empty(front, "make durable", ino, front.fsync(ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let front = self.ops.counted();
        reply_empty(front, "make durable", ino, front.fsync(ino.0), reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.ops.counted();
        if self.skips_opendir {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(HANDLE, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, after: u64, mut reply: ReplyDirectory) {
        let front = self.ops.counted();
        let filled = fill(front, ino.0, after, |e| {
            reply.add(INodeNo(e.ino), e.cookie, file_type(e.kind), OsStr::from_bytes(&e.name))
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(number) => reply.error(number),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        after: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let front = self.ops.counted();
        let filled = fill(front, ino.0, after, |e| {
            let (attr, valid) = match front.vault.attr(e.ino) {
                Ok(attr) => (file_attr(&attr), FOR_EVER),
                // The entry was removed meanwhile.
                Err(FsError::Errno(libc::ENOENT | libc::ESTALE)) => return false,
                Err(error) => {
                    front.report("read the attributes of", e.ino, error);
                    (unreadable_entry(e.ino, e.kind), Duration::ZERO)
                }
            };
            reply.add(INodeNo(e.ino), e.cookie, OsStr::from_bytes(&e.name), &valid, &attr, ONLY)
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(number) => reply.error(number),
        }
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let front = self.ops.uncounted();
        match front.vault.space() {
            Ok(space) => {
                let (block, name) = (BLOCK as u32, NAME_MAX as u32);
                let blocks = |bytes: u64| bytes / BLOCK as u64;
                let (total, free) = (blocks(space.total_bytes), blocks(space.free_bytes));
                reply.statfs(total, free, free, space.total_files, space.free_files, block, name, block);
            }
            Err(e) => reply.error(front.report("measure the space of", ino.0, e)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let front = self.ops.counted();
        let done = xattrs::set(front, ino.0, name.as_bytes(), value, flags, Caller::of(request));
        reply_empty(front, "set an extended attribute of", ino, done, reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, room: u32, reply: ReplyXattr) {
        let front = self.ops.counted();
        match xattrs::get(front, ino.0, name.as_bytes()) {
            Ok(value) => xattrs::reply_value(&value, room, reply),
            Err(e) => reply.error(front.report("read an extended attribute of", ino.0, e)),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, room: u32, reply: ReplyXattr) {
        let front = self.ops.counted();
        match front.vault.list_xattrs(ino.0) {
            Ok(names) => {
                let list: Vec<u8> = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
                xattrs::reply_value(&list, room, reply);
            }
            Err(e) => reply.error(front.report("list the extended attributes of", ino.0, e)),
        }
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let front = self.ops.counted();
        let done = xattrs::remove(front, ino.0, name.as_bytes());
        reply_empty(front, "remove an extended attribute of", ino, done, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let front = self.ops.counted();
        let done = front.allocate(ino.0, mode, offset, length, Caller::of(request));
        reply_empty(front, "allocate in", ino, done, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.ops.counted().seek(ino.0, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let front = self.ops.counted();
        let source = FilePosition { ino: from.0, offset: from_offset };
        let target = FilePosition { ino: to.0, offset: to_offset };
        let cleared = front.clear_set_ids_for(to.0, Caller::of(request));
        match cleared.and_then(|()| copy(&front.vault, source, target, length)) {
            Ok(copied) => reply.written(copied as u32),
            Err(e) => reply.error(front.report_node("copy to", to.0, e)),
        }
    }
}
