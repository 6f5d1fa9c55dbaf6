//! The content of files: reads and writes of verified blocks, and the handling of blocks that do
//! not verify.
//!
//! Invariant: the bytes of the last block after the end of the file are zeros, so a file that grows
//! reads as zeros there.

use crate::content::open_file::{FileStorage, OpenFile};
use crate::content::open_files::OpenFiles;
use crate::fs_error::errno;
use crate::names::paths;
use crate::namespace::{Namespace, tables, tables::Table};
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::inodes::{Inode, InodeBody, Inodes};
use crate::services::Services;
use crate::space_budget::SpaceBudget;
use crate::tasks::task_queue::TaskQueue;
use crate::{BLOCK, FILE_MAX, FsError, FsResult};
use lacuna_contracts::{Error, Kind, Result, WipeOnDrop};
use lacuna_integrity::{Choice, FailedBlock, ProtectedFile, Session};
use lacuna_vault_store::{ObjectId, Store};
use parking_lot::{Mutex, RwLockReadGuard};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per step of a read or write that is not aligned to blocks.
const PIECE: usize = 128 << 10;
/// Bytes that are written all or not at all if there is no space.
pub(crate) const ATOMIC: usize = 128 << 10;
/// Files with at least this number of blocks are removed piece by piece.
const LARGE: u64 = 2048;
/// The most failures that are remembered, so that each is logged once.
const MAX_LOGGED: usize = 1024;

/// The contents of an open vault's files.
pub(crate) struct FileContents {
    pub(crate) services: Arc<Services>,
    pub(crate) store: Arc<Store>,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) inodes: Arc<Inodes>,
    space_budget: Arc<SpaceBudget>,
    files: OpenFiles,
    /// Files with work to be done piece by piece.
    pub(crate) tasks: Arc<TaskQueue>,
    /// Inodes and blocks that were logged.
    logged: Mutex<HashSet<(u64, u64)>>,
    failed: AtomicU64,
}

/// The result of a read, or the block that failed.
type BlockResult<T> = std::result::Result<T, FailedBlock>;

/// A file's content, untrusted storage and record, for a change.
pub(crate) struct FileEdit<'a> {
    pub(crate) open: &'a mut OpenFile,
    pub(crate) storage: FileStorage<'a>,
    pub(crate) record: &'a mut InodeRecord,
}

impl FileContents {
    pub(crate) fn new(
        services: Arc<Services>,
        store: Arc<Store>,
        namespace: Arc<Namespace>,
        inodes: Arc<Inodes>,
        space: Arc<SpaceBudget>,
        files: OpenFiles,
    ) -> FileContents {
        FileContents {
            services,
            store,
            namespace,
            inodes,
            space_budget: space,
            files,
            tasks: Arc::default(),
            logged: Mutex::default(),
            failed: AtomicU64::new(0),
        }
    }

    /// The size limit of a file in bytes: that of the backing file of its blocks.
    pub(crate) fn max_file_size(&self) -> u64 {
        FILE_MAX.min(self.store.max_object_pages().saturating_mul(BLOCK as u64))
    }

    /// The scheme of files without a choice of their directory.
    pub(crate) fn default_choice(&self) -> Choice {
        self.files.default_choice()
    }

    /// The untrusted storage of a file.
    pub(crate) fn storage_of(&self, ino: u64, record: &InodeRecord) -> FileStorage<'_> {
        FileStorage::new(&self.store, &self.namespace, ino, record)
    }

    /// Opens the content of an inode; the caller keeps it.
    pub(crate) fn open_file(&self, ino: u64, record: &InodeRecord) -> Result<OpenFile> {
        self.files.open(self.session(), ino, record)
    }

    /// The session for writes.
    fn session(&self) -> Session {
        Session(self.store.session())
    }

    /// Reads; short at the end of the file and before a block that does not verify.
    pub(crate) fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        let inode = self.inodes.get(ino)?;
        let (body, fresh) = self.lock_for_reading(&inode)?;
        let size = body.record.size;
        if offset >= size || buf.is_empty() {
            return Ok(0);
        }
        let len = buf.len().min((size - offset) as usize);
        let mut done = 0;
        if let Some(open) = &body.file {
            let space = self.storage_of(ino, &body.record);
            while done < len {
                let at = offset + done as u64;
                let step = read_step(&open.protected, &space, at, &mut buf[done..len]);
                match step {
                    Ok(read) => done += read,
                    Err(FailedBlock { block, error }) => {
                        // The blocks before it were verified and are in the buffer.
                        let good = (block * BLOCK as u64).saturating_sub(at) as usize;
                        done += good.min(len - done);
                        self.log_bad_block(&inode, &body.record, block, &error);
                        if done == 0 {
                            return Err(error.into());
                        }
                        break;
                    }
                }
            }
        } else {
            buf[..len].fill(0);
            done = len;
        }
        drop(body);
        if !fresh && !self.services.read_only {
            self.accessed(&inode);
        }
        Ok(done)
    }

    /// Writes all of `data`. With `sets_times` the file's times change.
    pub(crate) fn write(&self, ino: u64, offset: u64, data: &[u8], sets_times: bool) -> FsResult<usize> {
        let longest = self.max_file_size();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > longest) {
            return errno(libc::EFBIG);
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.change_file(ino, sets_times, |this, inode, work| {
            let mut done = 0;
            while done < data.len() {
                let at = offset + done as u64;
                match this.write_step(inode, work, at, &data[done..]) {
                    Ok(written) => done += written,
                    Err(e) => {
                        trim(work)?;
                        if done == 0 {
                            return Err(e);
                        }
                        // The written bytes are in the file; the next write reports the error.
                        break;
                    }
                }
                work.record.size = work.record.size.max(offset + done as u64);
            }
            this.space_budget.note_written(done as u64);
            Ok(done)
        })
    }

    /// Changes a file's content; adds it to the list of changed inodes, and with `sets_times` sets
    /// its times, even if the work fails half way.
    pub(crate) fn change_file<T>(
        &self,
        ino: u64,
        sets_times: bool,
        work: impl FnOnce(&Self, &Inode, &mut FileEdit<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let inode = self.inodes.get(ino)?;
        let mut guard = inode.body.write();
        let now = self.services.now();
        guard.live_record()?.check_is_file()?;
        let result = self.change_locked_file(&inode, &mut guard, work);
        if sets_times {
            guard.set_change_times(now, true);
        }
        self.inodes.mark_changed(&inode, &mut guard);
        result
    }

    /// The same for an inode that is already locked; its times stay.
    pub(crate) fn change_locked_file<T>(
        &self,
        inode: &Arc<Inode>,
        body: &mut InodeBody,
        work: impl FnOnce(&Self, &Inode, &mut FileEdit<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.open(inode.ino, body)?;
        if body.record.object == 0 {
            let object = self.store.new_object();
            // A commit that would permit more objects finds no space.
            let busy = |e: Error| if e.kind() == Kind::Busy { e.with_kind(Kind::NoSpace) } else { e };
            body.record.object = object.map_err(busy)?.0;
        }
        let space = self.storage_of(inode.ino, &body.record);
        let open = body.file.as_mut().expect("it was just opened");
        open.protected.set_session(self.session());
        let mut all = FileEdit { open, storage: space, record: &mut body.record };
        let result = work(self, inode, &mut all);
        let has_us = all.storage.has_us();
        body.record.has_us = has_us;
        let open = body.file.as_mut().expect("it was opened above");
        self.files.note_use(inode, open);
        if open.protected.is_dirty() {
            // Even after an error: the next commit must include the TS of a partial change.
            self.inodes.mark_changed(inode, body);
        }
        result.map_err(|e| match e {
            FsError::Storage(e) => FsError::Storage(self.services.change_failed(e)),
            FsError::Errno(_) => e,
        })
    }

    /// Writes a file's TS into its record, so that the file can be closed.
    pub(crate) fn save_trusted(&self, inode: &Inode, body: &mut InodeBody) -> Result<()> {
        let Some(open) = body.file.as_mut().filter(|open| open.protected.is_dirty()) else { return Ok(()) };
        let space = self.storage_of(inode.ino, &body.record);
        let trusted = open.protected.commit(&space)?;
        body.record.has_us = space.has_us();
        body.record.trusted = trusted.to_bytes();
        self.queue_conversion(inode, body);
        Ok(())
    }

    /// Queues a file for conversion if its scheme does not suit it, unless its conversion failed
    /// since the vault was opened. Errors are reported by later reads.
    pub(crate) fn queue_conversion(&self, inode: &Inode, body: &InodeBody) {
        let Some(open) = body.file.as_ref().filter(|_| !self.tasks.is_postponed(inode.ino)) else { return };
        let space = self.storage_of(inode.ino, &body.record);
        if open.protected.needs_conversion(&space).is_ok_and(|wants| wants) {
            self.tasks.push(inode.ino);
        }
    }

    /// Whether a file is being removed piece by piece.
    pub(crate) fn is_being_removed(&self, ino: u64) -> FsResult<bool> {
        match self.inodes.get(ino) {
            Err(FsError::Errno(_)) => Ok(false),
            inode => Ok(inode?.body.read().record.is_being_removed()),
        }
    }

    /// Converts a part of a file to the scheme that suits it, if that is another. Returns whether
    /// there may be more to do.
    pub(crate) fn convert(&self, inode: &Arc<Inode>, body: &mut InodeBody) -> FsResult<bool> {
        if body.record.object == 0 || body.record.nlink == 0 {
            return Ok(false);
        }
        self.change_locked_file(inode, body, |_, _, work| {
            Ok(work.open.protected.convert_if_better(&work.storage)?)
        })
    }

    /// Removes a node without a name, with its content and extended attributes: at once if it is
    /// small or the task queue does not take it. Otherwise removes only its blocks, leaves the rest
    /// to the task queue and returns `false`: the node must stay an orphan until it is gone.
    pub(crate) fn remove_or_queue(&self, inode: &Arc<Inode>, body: &mut InodeBody) -> Result<bool> {
        let record = &body.record;
        let large = record.has_us && (record.data_blocks >= LARGE || record.object == 0);
        if !large || !self.tasks.push(inode.ino) {
            return self.remove(inode, body).map(|()| true);
        }
        if record.object != 0 {
            self.store.remove(ObjectId(record.object))?;
        }
        body.record.mark_being_removed();
        body.file = None;
        self.files.note_closed(inode.ino);
        self.inodes.mark_changed(inode, body);
        Ok(false)
    }

    /// Removes a node with its content and extended attributes.
    pub(crate) fn remove(&self, inode: &Inode, body: &mut InodeBody) -> Result<()> {
        let namespace = &self.namespace;
        if body.record.has_us {
            namespace.remove_all(&tables::of_inode(Table::Us, inode.ino))?;
        }
        if body.record.has_xattrs {
            namespace.remove_all(&tables::of_inode(Table::Xattrs, inode.ino))?;
        }
        if body.record.object != 0 {
            self.store.remove(ObjectId(body.record.object))?;
        }
        self.inodes.remove(inode, body);
        self.files.note_closed(inode.ino);
        Ok(())
    }

    /// The number of blocks that did not verify, and of open files.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.failed.load(Ordering::Relaxed), self.files.count() as u64)
    }

    /// A file's inode for reading, with its content open; and whether its time of access is recent.
    pub(crate) fn lock_for_reading<'a>(
        &self,
        inode: &'a Arc<Inode>,
    ) -> FsResult<(RwLockReadGuard<'a, InodeBody>, bool)> {
        loop {
            let body = inode.body.read();
            let record = body.live_record()?;
            record.check_is_file()?;
            if body.file.is_some() || record.trusted.is_empty() {
                let fresh = record.is_atime_fresh(self.services.now());
                return Ok((body, fresh));
            }
            drop(body);
            let mut body = inode.body.write();
            body.live_record()?;
            self.open(inode.ino, &mut body)?;
            if let Some(open) = body.file.as_mut() {
                self.files.note_use(inode, open);
            }
        }
    }

    /// A block before a change of a part of it: zeros past the file's blocks.
    pub(crate) fn old_block(
        &self,
        inode: &Inode,
        work: &FileEdit<'_>,
        block: u64,
        out: &mut [u8],
    ) -> FsResult<()> {
        if block >= work.open.protected.blocks() {
            out.fill(0);
            return Ok(());
        }
        work.open.protected.check(&work.storage, block, out).map_err(|FailedBlock { block, error }| {
            self.log_bad_block(inode, work.record, block, &error);
            error.into()
        })
    }

    /// Writes a first part of the data: a run of whole blocks directly, or a piece through a
    /// buffer. Returns its length.
    fn write_step(&self, inode: &Inode, work: &mut FileEdit<'_>, at: u64, data: &[u8]) -> FsResult<usize> {
        let (first, within) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
        let whole = data.len() / BLOCK * BLOCK;
        if within == 0 && whole > 0 && (whole == data.len() || whole >= PIECE) {
            let (done, result) = write_blocks(work, first, &data[..whole]);
            return if done > 0 { Ok(done * BLOCK) } else { result.map(|()| 0) };
        }
        // Up to the next long run of whole blocks, through a buffer.
        let long = data.len() - (BLOCK - within).min(data.len()) >= PIECE + BLOCK;
        let take = if long { BLOCK - within } else { data.len() };
        let end = within + take;
        let mut buf = WipeOnDrop::new(vec![0u8; end.next_multiple_of(BLOCK)]);
        if within > 0 {
            self.old_block(inode, work, first, &mut buf[..BLOCK])?;
        }
        let last = (buf.len() / BLOCK - 1) as u64;
        // After the end of the file the last block has zeros.
        let keeps_tail = end % BLOCK != 0 && at + (take as u64) < work.record.size;
        if keeps_tail && (last > 0 || within == 0) {
            let from = last as usize * BLOCK;
            self.old_block(inode, work, first + last, &mut buf[from..])?;
        }
        buf[within..end].copy_from_slice(&data[..take]);
        let (done, result) = write_blocks(work, first, &buf);
        let written = (done * BLOCK).saturating_sub(within).min(take);
        if written > 0 { Ok(written) } else { result.map(|()| 0) }
    }

    fn open(&self, ino: u64, body: &mut InodeBody) -> Result<()> {
        if body.file.is_none() {
            body.file = Some(self.open_file(ino, &body.record)?);
        }
        Ok(())
    }

    /// Renews the time of access after a read.
    fn accessed(&self, inode: &Arc<Inode>) {
        if self.space_budget.is_short() || self.inodes.has_too_many_changed() {
            return;
        }
        let mut body = inode.body.write();
        if !body.is_removed {
            body.record.atime = self.services.now();
            self.inodes.mark_changed(inode, &mut body);
        }
    }

    /// Logs once that a block cannot be read.
    fn log_bad_block(&self, inode: &Inode, record: &InodeRecord, block: u64, error: &Error) {
        if error.kind() == Kind::FailStop {
            // The failure that ended writing was reported already.
            return;
        }
        let mut logged = self.logged.lock();
        if logged.len() >= MAX_LOGGED {
            logged.clear();
        }
        if !logged.insert((inode.ino, block)) {
            return;
        }
        drop(logged);
        self.failed.fetch_add(1, Ordering::Relaxed);
        let path = paths::path_from(&self.inodes, &self.namespace, inode.ino, record.parent);
        let backing = self.store.object_name(ObjectId(record.object));
        let (path, why) = (path.display(), error.summary());
        self.services.log(&format!("block {block} of {path} (backing file {backing}) cannot be read: {why}"));
    }
}

/// After a failed write: removes blocks past the end of the file.
fn trim(work: &mut FileEdit<'_>) -> Result<()> {
    let blocks = work.record.size.div_ceil(BLOCK as u64);
    if work.open.protected.blocks() > blocks {
        work.open.protected.resize(&work.storage, blocks)?;
    }
    Ok(())
}

/// Writes whole blocks, and counts the holes that they fill. Returns the number written: after an
/// error, the blocks before the piece that failed.
pub(crate) fn write_blocks(work: &mut FileEdit<'_>, first: u64, plain: &[u8]) -> (usize, FsResult<()>) {
    let mut done = 0;
    for piece in plain.chunks(ATOMIC) {
        let at = first + done as u64;
        let filled = match holes(work, at, (piece.len() / BLOCK) as u64) {
            Ok(filled) => filled,
            Err(e) => return (done, Err(e.into())),
        };
        if let Err(e) = work.open.protected.update(&work.storage, at, piece) {
            return (done, Err(e.into()));
        }
        work.record.data_blocks = work.record.data_blocks.saturating_add(filled);
        done += piece.len() / BLOCK;
    }
    (done, Ok(()))
}

/// Reads a first part: a run of whole blocks directly, or a piece through a buffer.
#[expect(clippy::result_large_err, reason = "errors are rare, and this one is passed on at once")]
fn read_step(file: &ProtectedFile, space: &FileStorage<'_>, at: u64, out: &mut [u8]) -> BlockResult<usize> {
    let (first, within) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
    let whole = out.len() / BLOCK * BLOCK;
    if within == 0 && whole > 0 {
        read_run(file, space, first, &mut out[..whole])?;
        return Ok(whole);
    }
    let take = out.len().min(PIECE);
    let mut buf = WipeOnDrop::new(vec![0u8; (within + take).next_multiple_of(BLOCK)]);
    let result = read_run(file, space, first, &mut buf);
    out[..take].copy_from_slice(&buf[within..within + take]);
    result.map(|()| take)
}

/// Reads whole blocks; past the file's blocks they are zeros.
#[expect(clippy::result_large_err, reason = "errors are rare, and this one is passed on at once")]
pub(crate) fn read_run(
    file: &ProtectedFile,
    space: &FileStorage<'_>,
    first: u64,
    out: &mut [u8],
) -> BlockResult<()> {
    let there = file.blocks().saturating_sub(first).min((out.len() / BLOCK) as u64) as usize * BLOCK;
    let (content, beyond) = out.split_at_mut(there);
    beyond.fill(0);
    if content.is_empty() { Ok(()) } else { file.check(space, first, content) }
}

/// The number of these blocks that are holes or past the file's blocks.
pub(crate) fn holes(work: &FileEdit<'_>, first: u64, count: u64) -> Result<u64> {
    let file = &work.open.protected;
    let blocks = file.blocks();
    let (mut at, end) = (first, first + count.min(blocks.saturating_sub(first)));
    let mut holes = first + count - end;
    if work.record.data_blocks == blocks {
        return Ok(holes);
    }
    while at < end {
        let Some(hole) = file.seek(&work.storage, at, false)?.filter(|hole| *hole < end) else { break };
        let data = file.seek(&work.storage, hole, true)?.map_or(end, |data| data.min(end));
        holes += data - hole;
        at = data;
    }
    Ok(holes)
}
