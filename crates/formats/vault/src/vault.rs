//! `Vault`: the interface for front ends, and making, opening and closing a vault.

use crate::assembly::{Storage, VaultParts};
use crate::check;
use crate::commits::group_commit::{GroupCommit, reclaim_after};
use crate::commits::timer::CommitTimer;
use crate::content::file_contents::FileContents;
use crate::content::length;
use crate::names::paths;
use crate::names::rename::{self, EntryName};
use crate::names::tree::Tree;
use crate::namespace::{CopyReadOptions, Namespace, PagePosition};
use crate::nodes::attributes;
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::open_handles::OpenHandles;
use crate::options::{CheckReport, FileStat, VaultOpenOptions, VaultOptions};
use crate::settings::Settings;
use crate::space_budget::SpaceRequest;
use crate::startup::{Leniency, OpeningReport, Strict, VaultBacking, mixed_states, store_backing};
use crate::tasks::background_tasks::{self, BackgroundTasks};
use crate::{
    AllocateMode, Attr, AttrChanges, DirEntry, FileKind, FsResult, NewNode, ROOT, RenameMode, SeekTo,
    SetXattrMode,
};
use lacuna_contracts::{Error, Kind, Result, Secret, Status, StatusItem};
use lacuna_medium::FsSpace;
use lacuna_vault_store::{
    CommitInfo, Recovered, Store, StoreKeys, StoreOptions, SuperblockStatus, ToleratedDamage,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// An open vault, for concurrent callers.
pub struct Vault {
    contents: Arc<FileContents>,
    handles: Arc<OpenHandles>,
    tree: Tree,
    commits: Arc<GroupCommit>,
    opening_report: OpeningReport,
    timer: Mutex<Option<CommitTimer>>,
    tasks: Mutex<Option<BackgroundTasks>>,
}

impl Vault {
    /// Makes a vault in a directory without one, beside its header. Errors: [`Kind::Exists`] if the
    /// anchor remembers a vault already.
    pub fn create(
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOptions,
    ) -> Result<Vault> {
        let (backing, store_options) = store_backing(&base, uuid, &options.open);
        let store = Arc::new(Store::create(backing, StoreKeys::derive(master, &uuid), &store_options)?);
        let namespace =
            Namespace::create(&store, master, options.open.budget.share(1, 4), &options.open.log)?;
        let settings = Settings::create(&namespace, options.choice);
        let state = store.last_commit();
        let superblocks = SuperblockStatus::Whole;
        let found = OpeningReport { first_opening: false, accepted: false, state, records: 0, superblocks };
        let storage = Storage { store, namespace, settings };
        let vault = Vault::of(storage.assemble(base, master, uuid, &options.open), found);
        let mut root = InodeRecord::new(FileKind::Directory, vault.contents.services.now());
        (root.mode, root.uid, root.gid) = (options.mode & 0o7777, options.uid, options.gid);
        (root.nlink, root.parent) = (2, ROOT);
        let root = vault.contents.inodes.create(root);
        debug_assert_eq!(root.ino, ROOT);
        vault.commits.checkpoint()?;
        vault.start(&options.open)?;
        Ok(vault)
    }

    /// Opens a vault in its newest state. Errors: [`Kind::RolledBack`] if that state does not
    /// descend from the anchored state, [`Kind::Corrupt`] if the superblocks, the journal or the
    /// namespace do not verify.
    pub fn open(
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOpenOptions,
    ) -> Result<Vault> {
        Vault::open_with(base, master, uuid, options, &Strict)
    }

    /// Like [`Vault::open`], but tolerates damage as far as `leniency` allows.
    pub(crate) fn open_with(
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOpenOptions,
        leniency: &dyn Leniency,
    ) -> Result<Vault> {
        let (backing, store_options) = store_backing(&base, uuid, options);
        let choices = StoreOptions { tolerated: leniency.tolerated_damage(), ..store_options };
        let (store, recovered) = Store::probe(backing, StoreKeys::derive(master, &uuid), &choices)?;
        let store = Arc::new(store);
        let Recovered {
            root,
            puts,
            previous_root: before,
            stale_numbers: stale,
            may_be_mixed,
            first_opening,
            accepted,
            state,
            records,
            superblocks,
            superblock_fault,
        } = recovered;
        if let Some(fault) = superblock_fault.filter(|_| superblocks == SuperblockStatus::Damaged) {
            (options.log)(&format!(
                "one of the two superblocks of the vault does not verify, and the other one has everything: the backing file {fault}"
            ));
        }
        let root = root.ok_or_else(incomplete_error)?;
        let open = |root: &[u8], puts: &[Vec<u8>], stale: Range<u64>| {
            let thirds = leniency.tolerated_damage() > ToleratedDamage::Nothing;
            let reading =
                CopyReadOptions { stale_numbers: stale, reads_thirds: thirds, log: options.log.clone() };
            Namespace::open(&store, master, root, puts, reading, options.budget.share(1, 4))
        };
        let namespace = leniency.choose_namespace(open(&root, &puts, stale), &|| {
            let before = before.as_ref()?;
            let puts = [&before.puts[..], &puts[..]].concat();
            Some(open(&before.root, &puts, before.commit_limit..u64::MAX))
        });
        let namespace = namespace.map_err(|e| {
            let names = Namespace::backing_files(&store, &root).map(|names| names.join(" and "));
            mixed_states(e, &names.unwrap_or_else(|_| "super.0 and super.1".to_owned()))
        })?;
        // A program that synchronises the directory may have brought files of several states.
        let is_mixed = !options.read_only && (namespace.find_superseded()? || may_be_mixed);
        let found = OpeningReport { first_opening, accepted, state, records, superblocks };
        let settings = leniency.settings(&namespace)?;
        let storage = Storage { store, namespace, settings };
        let vault = Vault::of(storage.assemble(base, master, uuid, options), found);
        // Only here is the state known to be whole enough to continue.
        vault.contents.store.activate()?;
        if is_mixed {
            vault.repair_copies()?;
        }
        vault.start(options)?;
        if vault.remove_orphans()? > 0
            && let Err(e) = vault.commits.checkpoint()
            // On a full file system the removal waits for the next commit that finds space.
            && !e.changed_nothing()
        {
            return Err(e);
        }
        Ok(vault)
    }

    /// Repairs pages that only one of the two files of a namespace object holds in this state,
    /// before there is another root. A checkpoint of a later state may have written one of the
    /// files, or the checkpoint of this state only one.
    fn repair_copies(&self) -> Result<()> {
        let (_, single) = self.contents.namespace.verify(&mut |_, _| ())?;
        if single == 0 {
            return Ok(());
        }
        match self.rewrite_single_copies() {
            // Without space the pages stay single: even a full vault must open, for removals.
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        }
    }

    fn of(parts: VaultParts, opening_report: OpeningReport) -> Vault {
        let VaultParts { contents, handles, tree, commits } = parts;
        let (timer, tasks) = (Mutex::new(None), Mutex::new(None));
        Vault { contents, handles, tree, commits, opening_report, timer, tasks }
    }

    fn start(&self, options: &VaultOpenOptions) -> Result<()> {
        let Some(period) = options.commit_period.filter(|_| !options.read_only) else { return Ok(()) };
        let failed = |e| Error::io("cannot start a thread", &e);
        let timer = CommitTimer::start(self.commits.clone(), period, options.log.clone());
        *self.timer.lock() = Some(timer.map_err(failed)?);
        let tasks = BackgroundTasks::start(self.commits.clone(), self.contents.clone());
        *self.tasks.lock() = Some(tasks.map_err(failed)?);
        Ok(())
    }

    /// Converts a file to the scheme that suits it, as a thread does if there is a commit period.
    pub fn convert(&self, ino: u64) -> FsResult<()> {
        background_tasks::run_task(&self.commits, &self.contents, ino, &|| false)
    }

    /// Removes or begins to remove nodes left without a name. Returns their number.
    fn remove_orphans(&self) -> Result<u64> {
        let Some(_transaction) = self.commits.begin_forced() else { return Ok(0) };
        self.handles.remove_orphans()
    }

    /// The contents of files, with the parts that they use.
    pub(crate) fn contents(&self) -> &FileContents {
        &self.contents
    }

    #[cfg(test)]
    pub(crate) fn commits(&self) -> &GroupCommit {
        &self.commits
    }

    /// The result of the opening.
    pub fn opening_report(&self) -> OpeningReport {
        self.opening_report
    }

    /// The last commit.
    pub fn last_commit(&self) -> CommitInfo {
        self.contents.store.last_commit()
    }

    /// Whether this machine never opened the vault before, so its freshness could not be checked.
    pub fn first_opening(&self) -> bool {
        self.opening_report.first_opening
    }

    /// Commits everything, writes a checkpoint and refuses all later changes.
    pub fn close(&self) -> Result<()> {
        drop((self.tasks.lock().take(), self.timer.lock().take()));
        // Try twice: no later commit can make up for a refusal.
        let twice = |close: &dyn Fn() -> Result<()>| {
            close().or_else(|e| if e.changed_nothing() { close() } else { Err(e) })
        };
        twice(&|| self.commits.close())?;
        twice(&|| self.contents.store.close())
    }

    /// Looks up a name in a directory.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Attr> {
        self.tree.lookup(parent, name)
    }

    /// Reads attributes.
    pub fn attr(&self, ino: u64) -> FsResult<Attr> {
        self.tree.attr(ino)
    }

    /// Changes attributes.
    pub fn set_attr(&self, ino: u64, changes: &AttrChanges) -> FsResult<Attr> {
        // Truncation frees space; lengthening adds only a hole, and is admitted as easily.
        let sets_size = changes.size.is_some();
        let reserve = if sets_size { SpaceRequest::Removal } else { SpaceRequest::Metadata };
        let _transaction = self.commits.begin(reserve)?;
        attributes::set(&self.contents, ino, changes)
    }

    /// Clears set-user-ID, and set-group-ID if the group may execute or the writer is no member of
    /// it, as a user's write does.
    pub fn clear_set_ids(&self, ino: u64, is_member: bool) -> FsResult<()> {
        let _transaction = self.commits.begin(SpaceRequest::Metadata)?;
        attributes::clear_set_ids(&self.contents, ino, is_member)
    }

    /// Makes a node. In a directory with set-group-ID it gets the directory's group; in a directory
    /// with a default access control list, that list and no permissions beyond it.
    pub fn create_node(
        &self,
        parent: u64,
        name: &[u8],
        new: NewNode<'_>,
        mode: u16,
        uid: u32,
        gid: u32,
    ) -> FsResult<Attr> {
        let _transaction = self.commits.begin(SpaceRequest::Write(name.len() as u64))?;
        self.tree.create_node(parent, name, new, mode, uid, gid)
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, ino: u64) -> FsResult<Vec<u8>> {
        self.tree.read_link(ino)
    }

    /// Adds a name to a node that is no directory.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> FsResult<Attr> {
        let _transaction = self.commits.begin(SpaceRequest::Write(name.len() as u64))?;
        self.tree.link(ino, parent, name)
    }

    /// Removes a name of a node that is no directory.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(SpaceRequest::Removal)?;
        self.tree.unlink(parent, name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(SpaceRequest::Removal)?;
        self.tree.rmdir(parent, name)
    }

    /// Renames.
    pub fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> FsResult<()> {
        let _transaction = self.commits.begin(rename::reserve(name, mode))?;
        let to = EntryName { parent: new_parent, name: new_name };
        rename::rename(&self.tree, EntryName { parent, name }, to, mode)
    }

    /// Lists entries after a cookie (0: from the start), including "." and "..", until `each`
    /// returns false; the refused entry is listed again next time.
    pub fn read_dir(&self, ino: u64, after: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> FsResult<()> {
        self.tree.read_dir(ino, after, each)
    }

    /// Acquires a handle: a node without names lives until all its handles are released.
    pub fn acquire_handle(&self, ino: u64) -> FsResult<()> {
        self.handles.acquire(ino)
    }

    /// Releases a handle.
    pub fn release_handle(&self, ino: u64) {
        if self.handles.release(ino) {
            reclaim_after(&self.commits, &self.handles, ino);
        }
    }

    /// Reads; short only at the end of the file or before a block that does not verify.
    pub fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> FsResult<usize> {
        self.contents.read(ino, offset, buf)
    }

    /// Writes. A write longer than half of the journal's limit becomes several transactions, and a
    /// commit may come between them.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> FsResult<usize> {
        self.write_in_parts(ino, offset, data, true)
    }

    /// Writes for a caller that keeps the file's times itself and sets them later
    /// ([`Vault::set_attr`]): a kernel with a writeback cache.
    pub fn write_keeping_times(&self, ino: u64, offset: u64, data: &[u8]) -> FsResult<usize> {
        self.write_in_parts(ino, offset, data, false)
    }

    /// Writes in parts: space for more than the journal holds could never be reserved at once.
    fn write_in_parts(&self, ino: u64, offset: u64, data: &[u8], sets_times: bool) -> FsResult<usize> {
        let (most, mut done) = (self.commits.space_budget.max_write_len(), 0);
        loop {
            let part = &data[done..data.len().min(done + most)];
            let begun = self.commits.begin(SpaceRequest::Write(part.len() as u64));
            let written =
                begun.and_then(|_begun| self.contents.write(ino, offset + done as u64, part, sets_times));
            match written {
                // The written bytes are in the file; the next write reports the error.
                Err(_) if done > 0 => return Ok(done),
                written => done += written?,
            }
            if done == data.len() || done % most > 0 {
                return Ok(done);
            }
        }
    }

    /// As `fallocate`.
    pub fn allocate(&self, ino: u64, how: AllocateMode, offset: u64, len: u64) -> FsResult<()> {
        let reserve = match how {
            AllocateMode::Punch => SpaceRequest::Removal,
            // It makes holes.
            _ => SpaceRequest::Write(0),
        };
        let _transaction = self.commits.begin(reserve)?;
        length::allocate(&self.contents, ino, how, offset, len)
    }

    /// As `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
    pub fn seek(&self, ino: u64, offset: u64, to: SeekTo) -> FsResult<u64> {
        length::seek(&self.contents, ino, offset, to)
    }

    /// Returns when all acknowledged changes of this node are durable.
    pub fn fsync(&self, ino: u64) -> FsResult<()> {
        self.contents.inodes.get(ino)?;
        self.commits.sync()
    }

    /// Returns when all acknowledged changes are durable.
    pub fn sync(&self) -> FsResult<()> {
        self.commits.sync()
    }

    /// The value of an extended attribute. ENODATA if there is none.
    pub fn get_xattr(&self, ino: u64, name: &[u8]) -> FsResult<Vec<u8>> {
        attributes::get_xattr(&self.contents, ino, name)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], how: SetXattrMode) -> FsResult<()> {
        let _transaction = self.commits.begin(SpaceRequest::Write(value.len() as u64))?;
        attributes::set_xattr(&self.contents, ino, name, value, how)
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self, ino: u64) -> FsResult<Vec<Vec<u8>>> {
        attributes::list_xattrs(&self.contents, ino)
    }

    /// Removes an extended attribute. ENODATA if there is none.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(SpaceRequest::Removal)?;
        attributes::remove_xattr(&self.contents, ino, name)
    }

    /// The space of the backing file system that is available to files.
    pub fn space(&self) -> FsResult<FsSpace> {
        Ok(self.commits.space_budget.space()?)
    }

    /// The protection of a file.
    pub fn file_stat(&self, ino: u64) -> FsResult<FileStat> {
        check::file_stat(&self.contents, ino)
    }

    /// The plain path of a node, for the log.
    pub fn path_of(&self, ino: u64) -> String {
        paths::path_of(&self.contents.inodes, &self.contents.namespace, ino).display().to_string()
    }

    /// Reads and verifies everything; calls `progress` with the number of finished files and of all
    /// files.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        if !self.contents.services.read_only {
            self.commits.commit()?;
        }
        let lacks_superblock =
            matches!(self.opening_report.superblocks, SuperblockStatus::Damaged | SuperblockStatus::Lost);
        check::check(&self.contents, progress).map(|report| CheckReport { lacks_superblock, ..report })
    }

    /// Rewrites the pages of the namespace that only one of their backing files holds, and with
    /// them both superblocks. Before that it finishes a checkpoint, without the blocks of files
    /// that can be read neither in the journal nor in place: they are lost, and no longer prevent
    /// checkpoints. Returns the number of pages. Errors: EROFS as [`Kind::ReadOnly`], and those of
    /// a commit.
    pub fn repair(&self) -> Result<u64> {
        self.contents.store.finish_without_unreadable()?;
        self.rewrite_single_copies()
    }

    fn rewrite_single_copies(&self) -> Result<u64> {
        let namespace = &self.contents.namespace;
        let mut is_whole = true;
        namespace.verify(&mut |_, _| is_whole = false)?;
        let (mut pages, mut next) = (0, Some(PagePosition::default()));
        while let Some(from) = next {
            let give = || namespace.rewrite_single_copies(from, is_whole);
            let (given, further) = self.commits.checkpoint_after(give)?;
            self.contents.store.finish_checkpoint()?;
            (pages, next) = (pages + given, further);
        }
        Ok(pages)
    }

    /// Counters for users.
    pub fn status(&self) -> Status {
        let (bad, open) = self.contents.counts();
        let mut items = vec![
            StatusItem::new("commits_made", self.commits.count(), "commits"),
            StatusItem::new("changed_inodes", self.contents.inodes.changed_count() as u64, "inodes"),
            StatusItem::new("open_nodes", self.handles.count() as u64, "nodes"),
            StatusItem::new("cached_files", open, "files"),
            StatusItem::new("bad_blocks", bad, "blocks"),
            StatusItem::new("inodes_made", self.contents.inodes.made(), "inodes"),
            StatusItem::new("pages_from_copies", self.contents.namespace.other_copy_reads(), "pages"),
        ];
        items.extend(self.contents.store.status().items);
        Status { items }
    }
}

/// The error for a vault whose creation was cut short.
fn incomplete_error() -> Error {
    Error::new(Kind::Corrupt, "cannot open the vault")
        .found("a store without a namespace")
        .expected("a vault that was created completely")
        .hint("create the vault again: nothing was ever written to it")
}
