//! A disk in memory that counts requests and fails on demand.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Extent, Kind, Result, Status, StatusItem};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::sleep;
use std::time::Duration;

/// Blocks per piece; a piece is allocated when first written.
const PIECE: usize = 256;

/// The disk.
pub(crate) struct MemoryDisk {
    pieces: Vec<RwLock<Option<Box<[u8]>>>>,
    /// Number of discarded blocks.
    pub discarded: AtomicU64,
    /// Number of flushes.
    pub flushes: AtomicU64,
    /// Number of writes since the last flush began.
    pub unflushed: AtomicU64,
    /// Number of calls of `close`.
    pub closes: AtomicU64,
    /// Makes reads fail.
    pub fail_reads: AtomicBool,
    /// Makes writes fail.
    pub fail_writes: AtomicBool,
    /// Makes writes fail that begin at a block with an odd number.
    pub fail_odd_blocks: AtomicBool,
    /// Makes writes and flushes fail for lack of cover.
    pub uncovered: AtomicBool,
    /// Makes writes wait as long as it is set.
    pub hold_writes: AtomicBool,
    /// Number of writes that wait.
    pub held: AtomicU64,
    /// Makes `close` fail.
    pub fail_close: AtomicBool,
}

impl MemoryDisk {
    /// A disk of `mib` MiB of zeros.
    pub(crate) fn new(mib: usize) -> Self {
        MemoryDisk {
            pieces: (0..mib).map(|_| RwLock::new(None)).collect(),
            discarded: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            unflushed: AtomicU64::new(0),
            closes: AtomicU64::new(0),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            fail_odd_blocks: AtomicBool::new(false),
            uncovered: AtomicBool::new(false),
            hold_writes: AtomicBool::new(false),
            held: AtomicU64::new(0),
            fail_close: AtomicBool::new(false),
        }
    }
}

impl MemoryDisk {
    fn wait_while_held(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
        while self.hold_writes.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(10));
        }
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    fn check_cover(&self) -> Result<()> {
        if self.uncovered.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::NoCover, "no cover came"));
        }
        Ok(())
    }
}

/// Splits a range at piece borders: piece, byte offset in it, byte length.
fn parts(first: BlockAddr, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut block = first.0 as usize;
    let mut left = bytes / BLOCK_SIZE;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let now = left.min(PIECE - block % PIECE);
        let part = (block / PIECE, block % PIECE * BLOCK_SIZE, now * BLOCK_SIZE);
        block += now;
        left -= now;
        Some(part)
    })
}

impl Disk for MemoryDisk {
    fn blocks(&self) -> u64 {
        (self.pieces.len() * PIECE) as u64
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        if self.fail_reads.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Corrupt, format!("block {} does not verify", first.0)));
        }
        let mut done = 0;
        for (piece, at, len) in parts(first, buf.len()) {
            match &*self.pieces[piece].read().unwrap_or_else(PoisonError::into_inner) {
                Some(bytes) => buf[done..done + len].copy_from_slice(&bytes[at..at + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
        }
        Ok(())
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.wait_while_held();
        self.check_cover()?;
        let is_odd = first.0 % 2 == 1;
        if self.fail_writes.load(Ordering::SeqCst) || is_odd && self.fail_odd_blocks.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Io, format!("block {} cannot be written", first.0)));
        }
        let mut done = 0;
        for (piece, at, len) in parts(first, data.len()) {
            let mut piece = self.pieces[piece].write().unwrap_or_else(PoisonError::into_inner);
            let bytes = piece.get_or_insert_with(|| vec![0; PIECE * BLOCK_SIZE].into_boxed_slice());
            bytes[at..at + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        self.unflushed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        for (piece, at, len) in parts(first, count as usize * BLOCK_SIZE) {
            let mut piece = self.pieces[piece].write().unwrap_or_else(PoisonError::into_inner);
            if len == PIECE * BLOCK_SIZE {
                *piece = None;
            } else if let Some(bytes) = &mut *piece {
                bytes[at..at + len].fill(0);
            }
        }
        self.discarded.fetch_add(count, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.check_cover()?;
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.unflushed.store(0, Ordering::SeqCst);
        Ok(())
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let runs = parts(first, count as usize * BLOCK_SIZE);
        Ok(runs
            .map(|(piece, _, len)| Extent {
                blocks: (len / BLOCK_SIZE) as u64,
                written: self.pieces[piece].read().unwrap_or_else(PoisonError::into_inner).is_some(),
            })
            .collect())
    }

    fn status(&self) -> Status {
        let value = self.discarded.load(Ordering::SeqCst);
        Status { items: vec![StatusItem { name: "discarded", value, unit: "blocks" }] }
    }

    fn close(&self) -> Result<()> {
        self.closes.fetch_add(1, Ordering::SeqCst);
        if self.fail_close.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::FailStop, "the medium failed at block 7"));
        }
        Ok(())
    }
}
