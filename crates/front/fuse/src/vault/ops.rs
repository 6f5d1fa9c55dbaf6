//! The operations of requests on the vault, and the conversion of its errors into error numbers.

use crate::session_reporter::SessionReporter;
use crate::vault::attributes::time_from_kernel;
use crate::vault::caller::Caller;
use crate::vault::nodes::Nodes;
use crate::vault::seek::{KernelNotifier, PendingSeek, SeekQueue};
use fuser::{Errno, INodeNo, OpenAccMode, OpenFlags, ReplyLseek, WriteFlags};
use lacuna_contracts::{Error, Traffic};
use lacuna_vault::{
    ACL_DEFAULT_XATTR, AllocateMode, Attr, AttrChanges, FileKind, FsError, FsResult, NewNode, RenameMode,
    SeekTo, SystemWallClock, Time, Vault, WallClock,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Offset that invalidates only a node's attributes in the kernel.
const ATTRIBUTES: i64 = -1;
/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;
/// The flags of `renameat2` for a whiteout if the new name is free.
const WHITEOUT_NO_REPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;

/// The vault and the state of its mount.
pub(crate) struct VaultOps {
    pub vault: Arc<Vault>,
    pub read_only: bool,
    pub nodes: Nodes,
    pub seeks: SeekQueue,
    pub reporter: SessionReporter,
    /// Counters of reads and writes.
    pub traffic: Traffic,
    /// Whether the kernel has a write-back cache, and so keeps the times of the files that it
    /// writes.
    pub has_writeback_cache: AtomicBool,
    /// Whether the kernel checks access by access control lists, and leaves the umask to the vault.
    pub access_lists: AtomicBool,
    notifier: KernelNotifier,
}

impl VaultOps {
    /// Starts the threads and state that requests need.
    pub(crate) fn new(
        vault: Arc<Vault>,
        read_only: bool,
        notifier: KernelNotifier,
        reports: SessionReporter,
    ) -> lacuna_contracts::Result<Self> {
        let seeks = SeekQueue::start(KernelNotifier::clone(&notifier))
            .map_err(|e| Error::io("cannot start the thread that answers seeks", &e))?;
        let traffic = Traffic::default();
        let (nodes, dates, access_lists) = (Nodes::default(), AtomicBool::default(), AtomicBool::default());
        Ok(VaultOps {
            vault,
            read_only,
            nodes,
            seeks,
            reporter: reports,
            traffic,
            has_writeback_cache: dates,
            access_lists,
            notifier,
        })
    }

    /// The error number of a failed request. Failures of the storage go to the log, since the
    /// kernel takes a number only.
    pub(crate) fn report(&self, doing: &str, ino: u64, error: FsError) -> Errno {
        let number = Errno::from_i32(error.errno());
        if let FsError::Storage(error) = error {
            self.reporter.report_failure(&error.context(format!("{doing} {}", self.vault.path_of(ino))));
        }
        number
    }

    /// The same for a request that names its node by number. If the node does not exist, the
    /// kernel's knowledge is stale; with ESTALE it looks the name up again. A file that is replaced
    /// while it is being opened is thus found under either number.
    pub(crate) fn report_node(&self, doing: &str, ino: u64, error: FsError) -> Errno {
        match error {
            FsError::Errno(libc::ENOENT) => Errno::ESTALE,
            error => self.report(doing, ino, error),
        }
    }

    /// Attributes, also of a node that is deleted and not forgotten.
    pub(crate) fn attr(&self, ino: u64) -> FsResult<Attr> {
        match self.vault.attr(ino) {
            Err(FsError::Errno(libc::ENOENT | libc::ESTALE)) => {
                self.nodes.deleted_attr(ino).ok_or(FsError::Errno(libc::ESTALE))
            }
            other => other,
        }
    }

    /// Changes attributes. A deleted node has no attributes in the vault, but the kernel still sets
    /// its times, so this succeeds.
    pub(crate) fn set_attr(&self, ino: u64, changes: &AttrChanges, caller: Caller) -> FsResult<Attr> {
        if changes.size.is_some() || changes.uid.is_some() || changes.gid.is_some() {
            self.clear_set_ids_for(ino, caller)?;
        }
        match self.vault.set_attr(ino, &self.with_shown_times(ino, changes)?) {
            Err(FsError::Errno(libc::ENOENT | libc::ESTALE)) => {
                self.nodes.deleted_attr(ino).ok_or(FsError::Errno(libc::ESTALE))
            }
            other => other,
        }
    }

    /// The changes with the times that the kernel shows afterwards. A kernel with a write-back
    /// cache sends them with a new length. Without them the length stays, and so do the times.
    fn with_shown_times(&self, ino: u64, changes: &AttrChanges) -> FsResult<AttrChanges> {
        let is_shown = self.has_writeback_cache.load(Ordering::Relaxed);
        if !is_shown || changes.size.is_none() || changes.mtime.is_some() {
            return Ok(*changes);
        }
        let attr = self.attr(ino)?;
        let ctime = changes.ctime.or(Some(attr.ctime));
        Ok(AttrChanges { mtime: Some(attr.mtime), ctime, ..*changes })
    }

    /// Clears set-user-ID and set-group-ID before the caller changes content or owner, unless it
    /// keeps them.
    pub(crate) fn clear_set_ids_for(&self, ino: u64, caller: Caller) -> FsResult<()> {
        if caller.clears_set_ids() { self.clear_set_ids(ino, caller) } else { Ok(()) }
    }

    fn clear_set_ids(&self, ino: u64, caller: Caller) -> FsResult<()> {
        let attr = self.attr(ino)?;
        let set = attr.kind == FileKind::File && attr.mode & 0o6000 != 0;
        if !set {
            return Ok(());
        }
        self.vault.clear_set_ids(ino, caller.keeps_set_group_id(attr.gid))?;
        if let Some(kernel) = self.notifier.get() {
            // The kernel caches attributes for long, and the reply to a write contains none. A
            // failure means that the kernel does not know the node any more.
            let _ = kernel.inval_inode(INodeNo(ino), ATTRIBUTES, 0);
        }
        Ok(())
    }

    /// Makes a node of the type and permissions in `mode`.
    pub(crate) fn make_node(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
        caller: Caller,
    ) -> FsResult<Attr> {
        let new = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(rdev),
            libc::S_IFBLK => NewNode::BlockDevice(rdev),
            _ => return Err(FsError::Errno(libc::EINVAL)),
        };
        self.make(parent, name, new, mode, umask, caller)
    }

    /// Makes a node with the permissions in `mode`, without those in `umask` unless the directory
    /// has a default access control list.
    pub(crate) fn make(
        &self,
        parent: u64,
        name: &[u8],
        new: NewNode<'_>,
        mode: u32,
        umask: u32,
        caller: Caller,
    ) -> FsResult<Attr> {
        let mode = if self.inherits_access(parent)? { mode } else { mode & !umask };
        self.vault.create_node(parent, name, new, (mode & PERMISSIONS) as u16, caller.uid, caller.gid)
    }

    /// Whether new nodes in a directory get an access control list from it; then the umask of the
    /// caller does not count.
    fn inherits_access(&self, directory: u64) -> FsResult<bool> {
        match self.vault.get_xattr(directory, ACL_DEFAULT_XATTR) {
            // Making the node fails with the same error if there is no such directory.
            Err(FsError::Errno(_)) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Opens a handle on a regular file.
    pub(crate) fn open(&self, ino: u64, flags: OpenFlags, caller: Caller) -> FsResult<()> {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && self.read_only {
            return Err(FsError::Errno(libc::EROFS));
        }
        self.vault.acquire_handle(ino)?;
        if flags.0 & libc::O_TRUNC != 0 {
            let now = Some(SystemWallClock.now());
            let changes = AttrChanges { size: Some(0), mtime: now, ctime: now, ..AttrChanges::default() };
            if let Err(e) = self.set_attr(ino, &changes, caller) {
                self.vault.release_handle(ino);
                return Err(e);
            }
        }
        if writes {
            self.nodes.writer_opened(ino);
        }
        Ok(())
    }

    /// Closes a handle on a regular file. The kernel passes the flags of the open.
    pub(crate) fn release(&self, ino: u64, flags: OpenFlags) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            self.nodes.writer_closed(ino);
        }
        self.vault.release_handle(ino);
    }

    /// Removes a name, of a directory or of another node.
    pub(crate) fn remove(&self, parent: u64, name: &[u8], directory: bool) -> FsResult<()> {
        let last = self.retain_if_last_name(parent, name)?;
        let removed =
            if directory { self.vault.rmdir(parent, name) } else { self.vault.unlink(parent, name) };
        self.forget_if_failed(last, removed)
    }

    /// Renames. `flags` are those of `renameat2`.
    pub(crate) fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
        caller: Caller,
    ) -> FsResult<()> {
        let whiteout = |replaces| RenameMode::Whiteout { replaces, uid: caller.uid, gid: caller.gid };
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => whiteout(true),
            WHITEOUT_NO_REPLACE => whiteout(false),
            _ => return Err(FsError::Errno(libc::EINVAL)),
        };
        let replaces = matches!(flags, 0 | libc::RENAME_WHITEOUT);
        let last = if replaces { self.retain_if_last_name(new_parent, new_name)? } else { None };
        // A process may have just looked up the replaced file and open it now, so the file lives
        // until the kernel has forgotten it.
        let kept = match last.map(|ino| self.vault.acquire_handle(ino).map(|()| ino)) {
            None | Some(Err(FsError::Errno(_))) => None,
            Some(Ok(ino)) => Some(ino),
            Some(Err(e)) => return self.forget_if_failed(last, Err(e)),
        };
        let renamed = self.vault.rename(parent, name, new_parent, new_name, mode);
        match kept {
            Some(ino) if renamed.is_ok() => self.nodes.hold_open(ino),
            Some(ino) => self.vault.release_handle(ino),
            None => {}
        }
        self.forget_if_failed(last, renamed)
    }

    /// The kernel has forgotten a node.
    pub(crate) fn forget(&self, ino: u64) {
        self.nodes.forget([ino]);
        if self.nodes.release(ino) {
            self.vault.release_handle(ino);
        }
    }

    /// The kernel has forgotten all nodes.
    pub(crate) fn forget_all(&self) {
        self.nodes.release_all().into_iter().for_each(|ino| self.vault.release_handle(ino));
    }

    /// Remembers the node of this name if it is about to lose its last name. The kernel keeps the
    /// directory locked meanwhile.
    fn retain_if_last_name(&self, parent: u64, name: &[u8]) -> FsResult<Option<u64>> {
        let attr = match self.vault.lookup(parent, name) {
            // The removal or the replacement fails with the same error.
            Err(FsError::Errno(_)) => return Ok(None),
            found => found?,
        };
        if attr.kind != FileKind::Directory && attr.nlink > 1 {
            return Ok(None);
        }
        self.nodes.retain_deleted(&attr);
        Ok(Some(attr.ino))
    }

    fn forget_if_failed(&self, last: Option<u64>, outcome: FsResult<()>) -> FsResult<()> {
        if outcome.is_err() {
            self.nodes.forget(last);
        }
        outcome
    }

    /// Writes at least a part of the data and returns the number of bytes.
    pub(crate) fn write(
        &self,
        ino: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        caller: Caller,
    ) -> FsResult<u32> {
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.clear_set_ids(ino, caller)?;
        }
        let _in_flight = self.traffic.begin();
        let undated = self.has_writeback_cache.load(Ordering::Relaxed);
        let write = |at: usize| {
            let (offset, data) = (offset + at as u64, &data[at..]);
            if undated {
                self.vault.write_keeping_times(ino, offset, data)
            } else {
                self.vault.write(ino, offset, data)
            }
        };
        let mut written = write(0)?;
        // The kernel ignores the length that was written of a cached page: a partial write without
        // an error would lose data.
        while written < data.len() && flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            written += write(written)?;
        }
        self.traffic.add_written(written);
        Ok(written as u32)
    }

    /// `fallocate`. EOPNOTSUPP for reserving space for later writes: the space would belong to the
    /// backing file system, and other programs may fill it. `posix_fallocate` of glibc then writes
    /// the blocks, which does reserve it.
    pub(crate) fn allocate(
        &self,
        ino: u64,
        mode: i32,
        offset: u64,
        length: u64,
        caller: Caller,
    ) -> FsResult<()> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP;
        let how = match mode {
            PUNCH => AllocateMode::Punch,
            libc::FALLOC_FL_ZERO_RANGE => AllocateMode::ZeroRange,
            ZERO_KEEP => AllocateMode::ZeroKeep,
            _ => return Err(FsError::Errno(libc::EOPNOTSUPP)),
        };
        self.clear_set_ids_for(ino, caller)?;
        self.vault.allocate(ino, how, offset, length)
    }

    /// Returns when all acknowledged changes of this node are durable. For a deleted node, that
    /// means its deletion.
    pub(crate) fn fsync(&self, ino: u64) -> FsResult<()> {
        let _in_flight = self.traffic.begin();
        match self.vault.fsync(ino) {
            Err(FsError::Errno(libc::ENOENT | libc::ESTALE)) if self.nodes.deleted_attr(ino).is_some() => {
                self.vault.sync()
            }
            other => other,
        }
    }

    /// Fills `buf` up to the end of the file. A block before the end that does not verify is an
    /// error: the kernel takes missing bytes of a reply for a hole and would return zeros as
    /// content.
    pub(crate) fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        let _in_flight = self.traffic.begin();
        let mut done = 0;
        while done < buf.len() {
            match self.vault.read(ino, offset + done as u64, &mut buf[done..])? {
                0 => break,
                read => done += read,
            }
        }
        self.traffic.add_read(done);
        Ok(done)
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`. The reply is delayed if the kernel may hold data
    /// that the vault lacks.
    pub(crate) fn seek(self: &Arc<Self>, ino: u64, offset: i64, whence: i32, reply: ReplyLseek) {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let front = Arc::clone(self);
        let number = move |reply: ReplyLseek| match front.vault.seek(ino, offset, to) {
            Ok(at) => reply.offset(at.min(i64::MAX as u64) as i64),
            Err(e) => reply.error(front.report_node("look for data in", ino, e)),
        };
        if self.nodes.may_be_dirty(ino) {
            self.seeks.push(PendingSeek { ino, answer: Box::new(number), reply });
        } else {
            number(reply);
        }
    }
}

/// Makes an error with text from a failure of the vault: `what` failed. A storage failure keeps its
/// kind and its remedy.
pub(crate) fn to_error(what: String, error: FsError) -> Error {
    match error {
        FsError::Storage(error) => error.context(what),
        FsError::Errno(number) => Error::io(what, &io::Error::from_raw_os_error(number)),
    }
}

/// The requested changes, from the kernel's arguments in their order.
pub(crate) fn changes(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<Time>,
    mtime: Option<Time>,
    ctime: Option<SystemTime>,
) -> AttrChanges {
    let mode = mode.map(|mode| (mode & PERMISSIONS) as u16);
    AttrChanges { mode, uid, gid, size, atime, mtime, ctime: ctime.map(time_from_kernel) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Kind;

    #[test]
    fn a_storage_failure_keeps_its_kind_and_its_hint() {
        let full = Error::new(Kind::NoSpace, "cannot write").hint("free some space");
        let words = to_error("cannot sync".to_owned(), FsError::Storage(full));
        assert_eq!((words.kind(), words.get_hint().is_some()), (Kind::NoSpace, true));
        assert_eq!(words.summary(), "cannot sync: cannot write");
        let refused = to_error("cannot sync".to_owned(), FsError::Errno(libc::EROFS));
        assert_eq!(refused.kind(), Kind::ReadOnly);
    }
}
