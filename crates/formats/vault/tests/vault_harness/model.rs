//! A POSIX file system in plain maps, to compare a vault with.

use lacuna_vault::{AllocateMode, FILE_MAX, FileKind, NAME_MAX, ROOT, RenameMode, SeekTo, SetXattrMode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const BLOCK: u64 = 4096;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub data: Arc<Vec<u8>>,
    /// Blocks that are not holes.
    pub blocks: Arc<BTreeSet<u64>>,
    pub target: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub parent: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub choice: Option<Vec<u8>>,
}

impl Node {
    pub fn new(kind: FileKind, mode: u16, parent: u64) -> Node {
        Node {
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            data: Arc::default(),
            blocks: Arc::default(),
            target: vec![],
            entries: BTreeMap::new(),
            parent,
            xattrs: BTreeMap::new(),
            choice: None,
        }
    }

    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// All nodes, by the numbers that the vault gave them.
#[derive(Clone, Debug)]
pub struct FsModel {
    pub nodes: BTreeMap<u64, Node>,
    pub open: BTreeMap<u64, u32>,
}

pub type ModelResult<T> = Result<T, i32>;

impl Default for FsModel {
    fn default() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::new(FileKind::Directory, 0o755, ROOT))]);
        FsModel { nodes, open: BTreeMap::new() }
    }
}

impl FsModel {
    pub fn node(&self, ino: u64) -> ModelResult<&Node> {
        self.nodes.get(&ino).ok_or(libc::ENOENT)
    }

    fn node_mut(&mut self, ino: u64) -> ModelResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    fn directory(&self, ino: u64) -> ModelResult<&Node> {
        let node = self.node(ino)?;
        match node.kind {
            FileKind::Directory if node.nlink == 0 => Err(libc::ENOENT),
            FileKind::Directory => Ok(node),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn file(&mut self, ino: u64) -> ModelResult<&mut Node> {
        let node = self.node_mut(ino)?;
        match node.kind {
            FileKind::File => Ok(node),
            FileKind::Directory => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    fn check_name(name: &[u8]) -> ModelResult<()> {
        if name.is_empty() {
            return Err(libc::ENOENT);
        }
        if name.len() > NAME_MAX { Err(libc::ENAMETOOLONG) } else { Ok(()) }
    }

    pub fn lookup(&self, parent: u64, name: &[u8]) -> ModelResult<u64> {
        if name.len() > NAME_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        self.directory(parent)?.entries.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Whether a node may be made there: the first check of `make` and `link`.
    pub fn may_make(&self, parent: u64, name: &[u8]) -> ModelResult<()> {
        let directory = self.directory(parent)?;
        FsModel::check_name(name)?;
        if directory.entries.contains_key(name) { Err(libc::EEXIST) } else { Ok(()) }
    }

    pub fn make(&mut self, ino: u64, parent: u64, name: &[u8], mut node: Node) {
        let above = self.nodes.get_mut(&parent).unwrap();
        if above.mode & 0o2000 != 0 {
            node.gid = above.gid;
            node.mode |= if node.is_directory() { 0o2000 } else { 0 };
        }
        if matches!(node.kind, FileKind::File | FileKind::Directory) {
            node.choice.clone_from(&above.choice);
        }
        above.entries.insert(name.to_vec(), ino);
        above.nlink += u32::from(node.is_directory());
        self.nodes.insert(ino, node);
    }

    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8]) -> ModelResult<()> {
        let node = self.node(ino)?;
        if node.is_directory() {
            return Err(libc::EPERM);
        }
        if node.nlink == 0 {
            return Err(libc::ENOENT);
        }
        self.may_make(parent, name)?;
        self.node_mut(parent)?.entries.insert(name.to_vec(), ino);
        let node = self.node_mut(ino)?;
        node.nlink += 1;
        Ok(())
    }

    pub fn unlink(&mut self, parent: u64, name: &[u8]) -> ModelResult<()> {
        self.directory(parent)?;
        FsModel::check_name(name)?;
        let ino = self.lookup(parent, name)?;
        if self.node(ino)?.is_directory() {
            return Err(libc::EISDIR);
        }
        self.node_mut(parent)?.entries.remove(name);
        self.unnamed(ino);
        Ok(())
    }

    pub fn rmdir(&mut self, parent: u64, name: &[u8]) -> ModelResult<()> {
        self.directory(parent)?;
        FsModel::check_name(name)?;
        let ino = self.lookup(parent, name)?;
        self.removable(ino)?;
        let above = self.node_mut(parent)?;
        above.entries.remove(name);
        above.nlink -= 1;
        self.unnamed(ino);
        Ok(())
    }

    fn removable(&self, ino: u64) -> ModelResult<()> {
        let node = self.node(ino)?;
        if !node.is_directory() {
            return Err(libc::ENOTDIR);
        }
        if node.entries.is_empty() { Ok(()) } else { Err(libc::ENOTEMPTY) }
    }

    fn unnamed(&mut self, ino: u64) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.nlink = if node.is_directory() { 0 } else { node.nlink - 1 };
        if node.nlink == 0 && !self.open.contains_key(&ino) {
            self.nodes.remove(&ino);
        }
    }

    fn is_within(&self, directory: u64, above: u64) -> bool {
        let mut at = directory;
        while at != above && at != ROOT {
            at = self.nodes[&at].parent;
        }
        at == above
    }

    /// Renames; the caller makes the whiteout.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> ModelResult<()> {
        for (parent, name) in [from, to] {
            self.directory(parent)?;
            FsModel::check_name(name)?;
        }
        let moved = self.lookup(from.0, from.1)?;
        let there = self.lookup(to.0, to.1).ok();
        let moved_directory = self.node(moved)?.is_directory();
        if moved_directory && self.is_within(to.0, moved) {
            return Err(libc::EINVAL);
        }
        match (mode, there) {
            (RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. }, Some(_)) => {
                return Err(libc::EEXIST);
            }
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            (RenameMode::Exchange, Some(there)) => return self.exchange(from, moved, to, there),
            (_, Some(there)) if there == moved => return Ok(()),
            (_, Some(there)) => match (moved_directory, self.node(there)?.is_directory()) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) => self.removable(there)?,
                (false, false) => {}
            },
            (_, None) => {}
        }
        self.node_mut(from.0)?.entries.remove(from.1);
        self.node_mut(to.0)?.entries.insert(to.1.to_vec(), moved);
        if moved_directory {
            self.node_mut(from.0)?.nlink -= 1;
            self.node_mut(to.0)?.nlink += 1;
        }
        self.node_mut(moved)?.parent = to.0;
        if let Some(there) = there {
            if self.node(there)?.is_directory() {
                self.node_mut(to.0)?.nlink -= 1;
            }
            self.unnamed(there);
        }
        Ok(())
    }

    fn exchange(&mut self, from: (u64, &[u8]), moved: u64, to: (u64, &[u8]), there: u64) -> ModelResult<()> {
        if self.node(there)?.is_directory() && self.is_within(from.0, there) {
            return Err(libc::EINVAL);
        }
        self.node_mut(from.0)?.entries.insert(from.1.to_vec(), there);
        self.node_mut(to.0)?.entries.insert(to.1.to_vec(), moved);
        let gain = |here: &Node| i64::from(here.is_directory());
        let gained = gain(self.node(there)?) - gain(self.node(moved)?);
        for (parent, more) in [(from.0, gained), (to.0, -gained)] {
            let above = self.node_mut(parent)?;
            above.nlink = (i64::from(above.nlink) + more) as u32;
        }
        self.node_mut(moved)?.parent = to.0;
        self.node_mut(there)?.parent = from.0;
        Ok(())
    }

    pub fn read(&mut self, ino: u64, offset: u64, len: usize) -> ModelResult<Vec<u8>> {
        let data = &self.file(ino)?.data;
        let from = data.len().min(offset as usize);
        Ok(data[from..data.len().min(from + len)].to_vec())
    }

    pub fn write(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> ModelResult<()> {
        if offset + bytes.len() as u64 > FILE_MAX {
            return Err(libc::EFBIG);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let node = self.file(ino)?;
        let end = offset as usize + bytes.len();
        let data = Arc::make_mut(&mut node.data);
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(bytes);
        Arc::make_mut(&mut node.blocks).extend(offset / BLOCK..(end as u64).div_ceil(BLOCK));
        Ok(())
    }

    pub fn truncate(&mut self, ino: u64, size: u64) -> ModelResult<()> {
        let node = self.file(ino)?;
        if size > FILE_MAX {
            return Err(libc::EFBIG);
        }
        Arc::make_mut(&mut node.data).resize(size as usize, 0);
        Arc::make_mut(&mut node.blocks).retain(|block| *block < size.div_ceil(BLOCK));
        Ok(())
    }

    pub fn allocate(&mut self, ino: u64, how: AllocateMode, offset: u64, len: u64) -> ModelResult<()> {
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let node = self.file(ino)?;
        let (data, blocks) = (Arc::make_mut(&mut node.data), Arc::make_mut(&mut node.blocks));
        let (size, end) = (data.len() as u64, offset + len);
        let zeroed = end.min(size);
        if offset < zeroed {
            data[offset as usize..zeroed as usize].fill(0);
            let whole_end = if zeroed == size { zeroed.div_ceil(BLOCK) } else { zeroed / BLOCK };
            blocks.retain(|block| !(offset.div_ceil(BLOCK)..whole_end).contains(block));
        }
        if how == AllocateMode::ZeroRange && size < end {
            data.resize(end as usize, 0);
        }
        Ok(())
    }

    pub fn seek(&mut self, ino: u64, offset: u64, to: SeekTo) -> ModelResult<u64> {
        let node = self.file(ino)?;
        let size = node.data.len() as u64;
        if offset >= size {
            return Err(libc::ENXIO);
        }
        let is_data = |at: u64| node.blocks.contains(&(at / BLOCK));
        let mut at = offset;
        while at < size && is_data(at) != (to == SeekTo::Data) {
            at = (at / BLOCK + 1) * BLOCK;
        }
        match to {
            _ if at < size => Ok(at),
            SeekTo::Hole => Ok(size),
            SeekTo::Data => Err(libc::ENXIO),
        }
    }

    pub fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], how: SetXattrMode) -> ModelResult<()> {
        let there = self.node(ino)?.xattrs.contains_key(name);
        match how {
            SetXattrMode::Create if there => return Err(libc::EEXIST),
            SetXattrMode::Replace if !there => return Err(libc::ENODATA),
            _ => {}
        }
        self.node_mut(ino)?.xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    pub fn remove_xattr(&mut self, ino: u64, name: &[u8]) -> ModelResult<()> {
        self.node_mut(ino)?.xattrs.remove(name).map(drop).ok_or(libc::ENODATA)
    }

    pub fn set_choice(&mut self, ino: u64, choice: &[u8]) -> ModelResult<()> {
        let node = self.node_mut(ino)?;
        if !matches!(node.kind, FileKind::File | FileKind::Directory) {
            return Err(libc::EPERM);
        }
        node.choice = Some(choice.to_vec());
        Ok(())
    }

    pub fn chown(&mut self, ino: u64, uid: u32, gid: u32) -> ModelResult<()> {
        let node = self.node_mut(ino)?;
        (node.uid, node.gid) = (uid, gid);
        if !node.is_directory() {
            let group = if node.mode & 0o010 != 0 { 0o2000 } else { 0 };
            node.mode &= !(0o4000 | group);
        }
        Ok(())
    }

    pub fn opened(&mut self, ino: u64) -> ModelResult<()> {
        self.node(ino)?;
        *self.open.entry(ino).or_default() += 1;
        Ok(())
    }

    pub fn closed(&mut self, ino: u64) {
        let Some(count) = self.open.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            self.open.remove(&ino);
            if self.nodes[&ino].nlink == 0 {
                self.nodes.remove(&ino);
            }
        }
    }

    /// The model after reopening: nothing is open, and nodes without a name are gone.
    pub fn reopened(&self) -> FsModel {
        let mut model = self.clone();
        model.open.clear();
        model.nodes.retain(|_, node| node.nlink > 0);
        model
    }
}
