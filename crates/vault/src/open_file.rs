//! The content of a file that is in use: its protected file, and how much memory it may take.

use crate::BLOCK;
use crate::ground::Ground;
use crate::inodes::Inode;
use crate::namespace::tables;
use crate::record::Record;
use lacuna_core::{BoundedCache, Budget, Result};
use lacuna_integrity::{FileKeys, Part, ProtectedFile, Trusted, Untrusted};
use lacuna_vault_store::ObjectId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an open file takes beside cached pages of its untrusted storage, about.
const FILE_BYTES: u64 = 8 << 10;
/// Bytes of untrusted storage for a block in the densest scheme, about: counters, a tag, and its share of the tree.
const BLOCK_PAGES: u64 = 32;
/// Files that are open at most, however small.
const MOST: usize = 4096;

/// A file's content in use.
pub(crate) struct OpenFile {
    pub(crate) protected: ProtectedFile,
    /// How many blocks its budget was made for.
    room: u64,
}

/// Opens the content of an inode.
///
/// Errors: [`lacuna_core::Kind::Corrupt`] if its trusted storage is none.
pub(crate) fn open(ground: &Ground, ino: u64, record: &Record) -> Result<OpenFile> {
    let keys = FileKeys::derive(&ground.master, ino)?;
    let choice = record.choice.unwrap_or(ground.choice);
    let protected = if record.trusted.is_empty() {
        ProtectedFile::init(keys, choice, ground.session())
    } else {
        let trusted = Trusted::parse(&record.trusted)?;
        let budget = Budget::bytes(pages_budget(ground, record.size.div_ceil(BLOCK as u64)));
        ProtectedFile::open(keys, &trusted, ground.session(), budget)?
    };
    Ok(OpenFile { room: record.size.div_ceil(BLOCK as u64), protected })
}

/// Memory for the pages of a file of so many blocks.
fn pages_budget(ground: &Ground, blocks: u64) -> u64 {
    let most = total(ground) / 2;
    (blocks.saturating_mul(BLOCK_PAGES) + 4096).min(most)
}

/// Memory of all open files.
fn total(ground: &Ground) -> u64 {
    ground.budget.get() / 4
}

/// The open files, so that the ones that nobody used for the longest time can be given up.
pub(crate) struct OpenFiles(Mutex<Held>);

struct Held {
    files: BoundedCache<u64, (Arc<Inode>, u64)>,
    bytes: u64,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles(Mutex::new(Held { files: BoundedCache::new(MOST), bytes: 0 }))
    }
}

impl OpenFiles {
    /// A file is used; others may go for it. Its own inode is locked by the caller.
    pub(crate) fn used(&self, ground: &Ground, inode: &Arc<Inode>, open: &mut OpenFile) {
        let blocks = open.protected.blocks();
        let mut held = self.0.lock();
        if blocks <= open.room && held.files.get(inode.ino).is_some() {
            return;
        }
        open.room = open.room.max(blocks.saturating_mul(2));
        let pages = pages_budget(ground, open.room);
        open.protected.set_budget(Budget::bytes(pages));
        let cost = FILE_BYTES + pages;
        if let Some((_, old)) = held.files.put(inode.ino, (inode.clone(), cost)) {
            held.bytes -= old;
        }
        held.bytes += cost;
        held.make_room(inode.ino, total(ground));
    }

    /// A file is not open any more.
    pub(crate) fn forget(&self, ino: u64) {
        let mut held = self.0.lock();
        if let Some((_, cost)) = held.files.remove(ino) {
            held.bytes -= cost;
        }
    }

    /// How many files are open.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().files.len()
    }
}

impl Held {
    /// Gives up files that have nothing to be kept and that nobody uses now.
    fn make_room(&mut self, but: u64, most: u64) {
        // Those that cannot go are passed over a few at a time: the next call goes on behind them.
        for _ in 0..8 {
            if self.bytes <= most && !self.files.is_full() {
                return;
            }
            let Some((ino, (inode, cost))) = self.files.evict(|ino, _| ino != but) else { return };
            let given_up = inode.body.try_write().is_some_and(|mut body| {
                let clean = body.file.as_ref().is_none_or(|open| !open.protected.is_dirty());
                if clean {
                    body.file = None;
                }
                clean
            });
            if given_up {
                self.bytes -= cost;
            } else {
                self.files.put(ino, (inode, cost));
            }
        }
    }
}

/// The untrusted storage of one file: its blocks in an object of the store, its pages in the namespace.
pub(crate) struct FileSpace<'a> {
    ground: &'a Ground,
    ino: u64,
    object: u64,
    has_us: AtomicBool,
}

impl<'a> FileSpace<'a> {
    pub(crate) fn new(ground: &'a Ground, ino: u64, record: &Record) -> FileSpace<'a> {
        FileSpace { ground, ino, object: record.object, has_us: AtomicBool::new(record.has_us) }
    }

    /// Whether the namespace may have pages now.
    pub(crate) fn has_us(&self) -> bool {
        self.has_us.load(Ordering::Relaxed)
    }
}

impl Untrusted for FileSpace<'_> {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        if self.object == 0 {
            out.fill(0);
            return Ok(());
        }
        self.ground.store.read(ObjectId(self.object), first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.ground.store.write(ObjectId(self.object), first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        if !self.has_us() {
            return Ok(None);
        }
        self.ground.namespace.get(&tables::us(self.ino, part, page))
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        if bytes.is_some() {
            self.has_us.store(true, Ordering::Relaxed);
        }
        if self.has_us() {
            self.ground.namespace.put(&tables::us(self.ino, part, page), bytes);
        }
        Ok(())
    }
}
