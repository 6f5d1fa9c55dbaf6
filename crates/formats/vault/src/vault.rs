//! `Vault`: the interface for front ends, and making, opening and closing a vault.

use crate::attributes;
use crate::background_tasks::{self, BackgroundTasks};
use crate::check;
use crate::contents::Contents;
use crate::directories::Directories;
use crate::entries::NameHash;
use crate::group_commit::{GroupCommit, reclaim_after};
use crate::inodes::Inodes;
use crate::length;
use crate::namespace::{Namespace, Reading, Spot};
use crate::open_files::OpenFiles;
use crate::open_handles::OpenHandles;
use crate::options::{CheckReport, FileStat, OpenOptions, VaultOptions};
use crate::paths;
use crate::record::Record;
use crate::rename::{self, EntryName};
use crate::services::Services;
use crate::settings::Settings;
use crate::space_budget::{Reserve, SpaceBudget};
use crate::startup::{Base, Found, Leniency, Strict, incomplete, store_base};
use crate::timer::Timer;
use crate::tree::Tree;
use crate::{
    Allocate, Attr, Changes, DirEntry, FileKind, FsResult, NewNode, ROOT, RenameMode, SeekTo, SetXattr,
};
use lacuna_contracts::{Error, FailStop, Kind, Result, Secret, Status, StatusItem};
use lacuna_medium::Space;
use lacuna_vault_store::{CommitInfo, PastDamage, Recovered, Store, StoreKeys, StoreOptions, Superblocks};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// An open vault, for concurrent callers.
pub struct Vault {
    contents: Arc<Contents>,
    handles: Arc<OpenHandles>,
    tree: Tree,
    commits: Arc<GroupCommit>,
    found: Found,
    timer: Mutex<Option<Timer>>,
    tasks: Mutex<Option<BackgroundTasks>>,
}

/// The store, the namespace and the settings of a vault.
struct Storage {
    store: Arc<Store>,
    namespace: Namespace,
    settings: Settings,
}

impl Vault {
    /// Makes a vault in a directory without one, beside its header. Errors: [`Kind::Exists`] if the
    /// anchor remembers a vault already.
    pub fn create(base: Base, master: &Secret<32>, uuid: [u8; 16], options: &VaultOptions) -> Result<Vault> {
        let (rests, choices) = store_base(&base, uuid, &options.open);
        let store = Arc::new(Store::create(rests, StoreKeys::derive(master, &uuid), &choices)?);
        let namespace =
            Namespace::create(&store, master, options.open.budget.share(1, 4), &options.open.log)?;
        let settings = Settings::create(&namespace, options.choice);
        let state = store.last_commit();
        let superblocks = Superblocks::Whole;
        let found = Found { first_opening: false, accepted: false, state, records: 0, superblocks };
        let storage = Storage { store, namespace, settings };
        let vault = Vault::assemble(base, master, uuid, storage, &options.open, found);
        let mut root = Record::new(FileKind::Directory, vault.contents.services.now());
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
    pub fn open(base: Base, master: &Secret<32>, uuid: [u8; 16], options: &OpenOptions) -> Result<Vault> {
        Vault::open_with(base, master, uuid, options, &Strict)
    }

    /// Like [`Vault::open`], but tolerates damage as far as `leniency` allows.
    pub(crate) fn open_with(
        base: Base,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &OpenOptions,
        leniency: &dyn Leniency,
    ) -> Result<Vault> {
        let (rests, choices) = store_base(&base, uuid, options);
        let choices = StoreOptions { past: leniency.past(), ..choices };
        let (store, recovered) = Store::look(rests, StoreKeys::derive(master, &uuid), &choices)?;
        let store = Arc::new(store);
        let Recovered {
            root,
            puts,
            before,
            stale,
            may_be_mixed,
            first_opening,
            accepted,
            state,
            records,
            superblocks,
            superblock_fault,
        } = recovered;
        if let Some(fault) = superblock_fault.filter(|_| superblocks == Superblocks::Damaged) {
            (options.log)(&format!(
                "one of the two superblocks of the vault does not verify, and the other one has everything: the backing file {fault}"
            ));
        }
        let root = root.ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot open the vault")
                .found("a store without a namespace")
                .expected("one that was made whole")
                .remedy("make the vault anew: nothing was ever written to it")
        })?;
        let open = |root: &[u8], puts: &[Vec<u8>], stale: Range<u64>| {
            let thirds = leniency.past() > PastDamage::Nothing;
            let reading = Reading { stale, thirds, log: options.log.clone() };
            Namespace::open(&store, master, root, puts, reading, options.budget.share(1, 4))
        };
        let namespace = leniency.namespace(open(&root, &puts, stale), &|| {
            let before = before.as_ref()?;
            let puts = [&before.puts[..], &puts[..]].concat();
            Some(open(&before.root, &puts, before.below..u64::MAX))
        });
        let namespace = namespace.map_err(|e| {
            let names = Namespace::backing_files(&store, &root).map(|names| names.join(" and "));
            incomplete(e, &names.unwrap_or_else(|_| "super.0 and super.1".to_owned()))
        })?;
        let found = Found { first_opening, accepted, state, records, superblocks };
        let settings = leniency.settings(&namespace)?;
        let storage = Storage { store, namespace, settings };
        let vault = Vault::assemble(base, master, uuid, storage, options, found);
        // Only here is the state known to be whole enough to continue.
        vault.contents.store.take_up()?;
        if may_be_mixed && !options.read_only {
            vault.mend_copies()?;
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
    fn mend_copies(&self) -> Result<()> {
        let (_, single) = self.contents.namespace.verify(&mut |_, _| ())?;
        if single == 0 {
            return Ok(());
        }
        match self.repair() {
            // Without space the pages stay single: even a full vault must open, for removals.
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        }
    }

    fn assemble(
        base: Base,
        master: &Secret<32>,
        uuid: [u8; 16],
        storage: Storage,
        options: &OpenOptions,
        found: Found,
    ) -> Vault {
        let Storage { store, namespace, settings } = storage;
        let namespace = Arc::new(namespace);
        let services = Arc::new(Services {
            clock: base.clock,
            log: options.log.clone(),
            read_only: options.read_only,
            health: FailStop::of_vault(),
        });
        let inodes = Inodes::new(namespace.clone(), settings.next_inode, options.budget.share(1, 8));
        let inodes = Arc::new(inodes);
        let space = Arc::new(SpaceBudget::new(store.clone(), namespace.clone(), inodes.clone()));
        let files = OpenFiles::new(master.clone(), settings.choice, options.budget);
        let contents =
            Contents::new(services.clone(), store, namespace.clone(), inodes.clone(), space.clone(), files);
        let contents = Arc::new(contents);
        let handles = Arc::new(OpenHandles::new(namespace.clone(), inodes.clone(), contents.clone()));
        let tree = Tree {
            services,
            inodes,
            namespace: namespace.clone(),
            directories: Directories::new(namespace, NameHash::new(master, &uuid)),
            handles: handles.clone(),
            changes: Mutex::new(()),
        };
        let commits = Arc::new(GroupCommit::new(contents.clone(), space));
        let (timer, tasks) = (Mutex::new(None), Mutex::new(None));
        Vault { contents, handles, tree, commits, found, timer, tasks }
    }

    fn start(&self, options: &OpenOptions) -> Result<()> {
        let Some(period) = options.commit_period.filter(|_| !options.read_only) else { return Ok(()) };
        let failed = |e| Error::io("cannot start a thread", &e);
        let timer = Timer::start(self.commits.clone(), period, options.log.clone());
        *self.timer.lock() = Some(timer.map_err(failed)?);
        let tasks = BackgroundTasks::start(self.commits.clone(), self.contents.clone());
        *self.tasks.lock() = Some(tasks.map_err(failed)?);
        Ok(())
    }

    /// Converts a file to the scheme that suits it, as a thread does if there is a commit period.
    pub fn convert(&self, ino: u64) -> FsResult<()> {
        background_tasks::all_of(&self.commits, &self.contents, ino, &|| false)
    }

    /// Removes or begins to remove nodes left without a name. Returns their number.
    fn remove_orphans(&self) -> Result<u64> {
        let Some(_transaction) = self.commits.begin_forced() else { return Ok(0) };
        self.handles.remove_orphans()
    }

    /// The contents of files, with the parts that they use.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    #[cfg(test)]
    pub(crate) fn commits(&self) -> &GroupCommit {
        &self.commits
    }

    /// The result of the opening.
    pub fn found(&self) -> Found {
        self.found
    }

    /// The last commit.
    pub fn last_commit(&self) -> CommitInfo {
        self.contents.store.last_commit()
    }

    /// Whether this machine never opened the vault before, so its freshness could not be checked.
    pub fn first_opening(&self) -> bool {
        self.found.first_opening
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
    pub fn set_attr(&self, ino: u64, changes: &Changes) -> FsResult<Attr> {
        // Truncation frees space; lengthening adds only a hole, and is admitted as easily.
        let sets_size = changes.size.is_some();
        let reserve = if sets_size { Reserve::Removal } else { Reserve::Metadata };
        let _transaction = self.commits.begin(reserve)?;
        attributes::set(&self.contents, ino, changes)
    }

    /// Clears set-user-ID, and set-group-ID if the group may execute, as a user's write does.
    pub fn clear_set_ids(&self, ino: u64) -> FsResult<()> {
        let _transaction = self.commits.begin(Reserve::Metadata)?;
        attributes::clear_set_ids(&self.contents, ino)
    }

    /// Makes a node. In a directory with set-group-ID it gets the directory's group; in a directory
    /// with a default access control list, that list and no permissions beyond it.
    pub fn make(
        &self,
        parent: u64,
        name: &[u8],
        new: NewNode<'_>,
        mode: u16,
        uid: u32,
        gid: u32,
    ) -> FsResult<Attr> {
        let _transaction = self.commits.begin(Reserve::Write(name.len() as u64))?;
        self.tree.make(parent, name, new, mode, uid, gid)
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, ino: u64) -> FsResult<Vec<u8>> {
        self.tree.read_link(ino)
    }

    /// Adds a name to a node that is no directory.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> FsResult<Attr> {
        let _transaction = self.commits.begin(Reserve::Write(name.len() as u64))?;
        self.tree.link(ino, parent, name)
    }

    /// Removes a name of a node that is no directory.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(Reserve::Removal)?;
        self.tree.unlink(parent, name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(Reserve::Removal)?;
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
    pub fn opened(&self, ino: u64) -> FsResult<()> {
        self.handles.acquire(ino)
    }

    /// Releases a handle.
    pub fn closed(&self, ino: u64) {
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
        self.write_parts(ino, offset, data, true)
    }

    /// Writes for a caller that keeps the file's times itself and sets them later
    /// ([`Vault::set_attr`]): a kernel with a writeback cache.
    pub fn write_undated(&self, ino: u64, offset: u64, data: &[u8]) -> FsResult<usize> {
        self.write_parts(ino, offset, data, false)
    }

    /// Writes in parts: space for more than the journal holds could never be reserved at once.
    fn write_parts(&self, ino: u64, offset: u64, data: &[u8], dated: bool) -> FsResult<usize> {
        let (most, mut done) = (self.commits.space.most_of_write(), 0);
        loop {
            let part = &data[done..data.len().min(done + most)];
            let begun = self.commits.begin(Reserve::Write(part.len() as u64));
            let written =
                begun.and_then(|_begun| self.contents.write(ino, offset + done as u64, part, dated));
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
    pub fn allocate(&self, ino: u64, how: Allocate, offset: u64, len: u64) -> FsResult<()> {
        let reserve = match how {
            Allocate::Punch => Reserve::Removal,
            // It makes holes.
            _ => Reserve::Write(0),
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
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], how: SetXattr) -> FsResult<()> {
        let _transaction = self.commits.begin(Reserve::Write(value.len() as u64))?;
        attributes::set_xattr(&self.contents, ino, name, value, how)
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self, ino: u64) -> FsResult<Vec<Vec<u8>>> {
        attributes::list_xattrs(&self.contents, ino)
    }

    /// Removes an extended attribute. ENODATA if there is none.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> FsResult<()> {
        let _transaction = self.commits.begin(Reserve::Removal)?;
        attributes::remove_xattr(&self.contents, ino, name)
    }

    /// The space of the backing file system that is available to files.
    pub fn space(&self) -> FsResult<Space> {
        Ok(self.commits.space.space()?)
    }

    /// The protection of a file.
    pub fn file_stat(&self, ino: u64) -> FsResult<FileStat> {
        check::file_stat(&self.contents, ino)
    }

    /// The plain path of a node, for the log.
    pub fn path_of(&self, ino: u64) -> String {
        paths::path_of(&self.contents.inodes, &self.contents.namespace, ino)
    }

    /// Reads and verifies everything; calls `progress` with the number of finished files and of all
    /// files.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        if !self.contents.services.read_only {
            self.commits.commit()?;
        }
        let lacks_superblock = matches!(self.found.superblocks, Superblocks::Damaged | Superblocks::Lost);
        check::check(&self.contents, progress).map(|report| CheckReport { lacks_superblock, ..report })
    }

    /// Rewrites the pages of the namespace that only one of their backing files holds, and with
    /// them both superblocks. Returns the number of pages. Errors: EROFS as [`Kind::ReadOnly`], and
    /// those of a commit.
    pub fn repair(&self) -> Result<u64> {
        let namespace = &self.contents.namespace;
        let mut is_whole = true;
        namespace.verify(&mut |_, _| is_whole = false)?;
        let (mut pages, mut next) = (0, Some(Spot::default()));
        while let Some(from) = next {
            let give = || namespace.give_again(from, is_whole);
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
            StatusItem::new("changed_inodes", self.contents.inodes.changed() as u64, "inodes"),
            StatusItem::new("open_nodes", self.handles.count() as u64, "nodes"),
            StatusItem::new("cached_files", open, "files"),
            StatusItem::new("bad_blocks", bad, "blocks"),
            StatusItem::new("inodes_made", self.contents.inodes.made(), "inodes"),
            StatusItem::new("pages_from_copies", self.contents.namespace.elsewhere(), "pages"),
        ];
        items.extend(self.contents.store.status().items);
        Status { items }
    }
}
