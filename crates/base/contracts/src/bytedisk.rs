//! The wrapper that every front end calls: it turns requests for bytes into requests for blocks.
//!
//! Ranges are checked here and nowhere else. A request that is not aligned to blocks is widened:
//! its edge blocks are read, changed and written. Concurrent requests for different parts of one
//! block all take effect: writes of whole blocks share the locks of their range, and a widened
//! write locks its block exclusively.

use crate::range_lock::RangeLocks;
use crate::{
    BLOCK_SIZE, BlockAddr, Disk, Error, Extent, Hint, Kind, Result, Setting, Status, Traffic, WipeOnDrop,
    empty_idle_pools,
};
use std::sync::Arc;

/// Blocks discarded under one hold of the locks.
const DISCARD_STEP: u64 = 1 << 18;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A [`Disk`] addressed in bytes. Safe for untrusted clients.
#[derive(Clone)]
pub struct ByteDisk {
    disk: Arc<dyn Disk>,
    /// Shared by writes of whole blocks and by discards. Exclusive for a read-modify-write of a
    /// part of a block: the block must not change between the read and the write.
    locks: Arc<RangeLocks>,
    /// Traffic of this wrapper and its clones.
    traffic: Traffic,
}

impl ByteDisk {
    /// Wraps `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        ByteDisk { disk, locks: Arc::default(), traffic: Traffic::default() }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.disk.blocks() * BLOCK
    }

    /// Whether the disk has no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether writes are refused by design.
    pub fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    /// Fills `buf` with the bytes starting at `offset`. Errors: [`Kind::Usage`] outside the disk,
    /// and the errors of the disk.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(offset, buf.len() as u64)?;
        let _in_flight = self.traffic.begin();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let left = buf.len() - done;
            if within == 0 && left >= BLOCK_SIZE {
                let whole = left / BLOCK_SIZE * BLOCK_SIZE;
                self.disk.read(BlockAddr(at / BLOCK), &mut buf[done..done + whole])?;
                done += whole;
            } else {
                let part = left.min(BLOCK_SIZE - within);
                let mut edge = WipeOnDrop::new([0u8; BLOCK_SIZE]);
                self.disk.read(BlockAddr(at / BLOCK), &mut edge[..])?;
                buf[done..done + part].copy_from_slice(&edge[within..within + part]);
                done += part;
            }
        }
        self.traffic.add_read(done);
        Ok(())
    }

    /// Writes `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_write(offset, data.len() as u64)?;
        let _in_flight = self.traffic.begin();
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let left = data.len() - done;
            if within == 0 && left >= BLOCK_SIZE {
                let whole = left / BLOCK_SIZE * BLOCK_SIZE;
                let _shared = self.locks.lock_shared(at / BLOCK, (whole / BLOCK_SIZE) as u64);
                self.disk.write(BlockAddr(at / BLOCK), &data[done..done + whole])?;
                done += whole;
            } else {
                let part = left.min(BLOCK_SIZE - within);
                self.write_partial_block(at, part, |edge| edge.copy_from_slice(&data[done..done + part]))?;
                done += part;
            }
        }
        self.traffic.add_written(done);
        Ok(())
    }

    /// Makes exactly this range read as zeros.
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        let _in_flight = self.traffic.begin();
        let end = offset + len;
        let first_whole = offset.next_multiple_of(BLOCK).min(end);
        let last_whole = (end / BLOCK * BLOCK).max(first_whole);
        if offset < first_whole {
            self.write_partial_block(offset, (first_whole - offset) as usize, |edge| edge.fill(0))?;
        }
        if first_whole < last_whole {
            self.discard_blocks(first_whole / BLOCK, last_whole / BLOCK)?;
        }
        if last_whole < end {
            self.write_partial_block(last_whole, (end - last_whole) as usize, |edge| edge.fill(0))?;
        }
        Ok(())
    }

    /// Discards the whole blocks inside the range; partial blocks at its edges keep their data.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        let _in_flight = self.traffic.begin();
        let first = offset.div_ceil(BLOCK);
        let end = (offset + len) / BLOCK;
        self.discard_blocks(first, end)
    }

    /// Returns when all acknowledged writes are durable.
    pub fn flush(&self) -> Result<()> {
        let _in_flight = self.traffic.begin();
        self.disk.flush()
    }

    /// Calls [`Disk::purge`]. Also wipes the idle memory of requests, which may hold deleted data,
    /// even if the purge failed.
    pub fn purge(&self) -> Result<Status> {
        let purged = self.disk.purge();
        empty_idle_pools();
        purged
    }

    /// The written and unwritten runs of the blocks that the range touches; the first run begins at
    /// `offset` rounded down to a block.
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        self.check_range(offset, len)?;
        let first = offset / BLOCK;
        let end = (offset + len).div_ceil(BLOCK);
        if first == end { Ok(Vec::new()) } else { self.disk.extents(BlockAddr(first), end - first) }
    }

    /// Counters for the user: those of the disk and those of the traffic.
    pub fn status(&self) -> Status {
        let mut status = self.disk.status();
        status.items.extend(self.traffic.items());
        status
    }

    fn write_partial_block(&self, at: u64, len: usize, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let block = at / BLOCK;
        let within = (at % BLOCK) as usize;
        let _alone = self.locks.lock_exclusive(block);
        let mut edge = WipeOnDrop::new([0u8; BLOCK_SIZE]);
        self.disk.read(BlockAddr(block), &mut edge[..])?;
        change(&mut edge[within..within + len]);
        self.disk.write(BlockAddr(block), &edge[..])
    }

    fn discard_blocks(&self, first: u64, end: u64) -> Result<()> {
        let mut at = first;
        while at < end {
            let step = DISCARD_STEP.min(end - at);
            let _shared = self.locks.lock_shared(at, step);
            self.disk.discard(BlockAddr(at), step)?;
            at += step;
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        if self.disk.is_read_only() {
            return Err(Error::new(Kind::ReadOnly, "write refused")
                .found("a disk opened read-only")
                .hint(Hint::from("open it without ").setting(Setting("read_only"))));
        }
        self.check_range(offset, len)
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::new(Kind::Usage, "request outside the disk")
                .found(format!("offset {offset}, length {len}"))
                .expected(format!("an end at or before byte {}", self.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use parking_lot::Mutex;

    struct ArrayDisk(Mutex<Vec<u8>>);

    impl Disk for ArrayDisk {
        fn blocks(&self) -> u64 {
            self.0.lock().len() as u64 / BLOCK
        }
        fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
            let at = first.0 as usize * BLOCK_SIZE;
            buf.copy_from_slice(&self.0.lock()[at..at + buf.len()]);
            Ok(())
        }
        fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
            let at = first.0 as usize * BLOCK_SIZE;
            self.0.lock()[at..at + data.len()].copy_from_slice(data);
            Ok(())
        }
        fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
            self.write(first, &vec![0; count as usize * BLOCK_SIZE])
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
        fn extents(&self, _: BlockAddr, count: u64) -> Result<Vec<Extent>> {
            Ok(vec![Extent { blocks: count, written: true }])
        }
        fn status(&self) -> Status {
            Status::default()
        }
        fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn any_alignment_reads_and_writes_like_an_array() {
        let len = 8 * BLOCK_SIZE;
        let disk = ByteDisk::new(Arc::new(ArrayDisk(Mutex::new(vec![0x5a; len]))));
        let mut model = vec![0x5a_u8; len];
        let mut x = 12345u64;
        for round in 0..2000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (x >> 33) as usize % len;
            let n = (x >> 13) as usize % (len - at + 1);
            match round % 4 {
                0 => {
                    disk.write_zeroes(at as u64, n as u64).unwrap();
                    model[at..at + n].fill(0);
                }
                1 => disk.discard(at as u64, 0).unwrap(),
                _ => {
                    disk.write_at(at as u64, &vec![round as u8; n]).unwrap();
                    model[at..at + n].fill(round as u8);
                }
            }
            let mut got = vec![0; n];
            disk.read_at(at as u64, &mut got).unwrap();
            assert_eq!(got, model[at..at + n]);
        }
        let mut all = vec![0; len];
        disk.read_at(0, &mut all).unwrap();
        assert!(all == model);
    }

    #[test]
    fn partial_and_whole_block_writes_do_not_lose_each_other() {
        let disk = ByteDisk::new(Arc::new(ArrayDisk(Mutex::new(vec![0; BLOCK_SIZE]))));
        std::thread::scope(|scope| {
            for part in 0..4u64 {
                let disk = disk.clone();
                scope.spawn(move || {
                    for round in 1..=500u16 {
                        let mine = [round.to_le_bytes()[0]; 512];
                        disk.write_at(part * 1024, &mine).unwrap();
                        let mut back = [0; 512];
                        disk.read_at(part * 1024, &mut back).unwrap();
                        assert_eq!(back, mine);
                    }
                });
            }
        });
        // A write of the whole block that falls between the read and the write of a
        // read-modify-write must not be lost.
        std::thread::scope(|scope| {
            let part = disk.clone();
            scope.spawn(move || (0..2000).for_each(|_| part.write_at(0, &[9; 512]).unwrap()));
            for round in 0..2000u32 {
                let whole = [round as u8; BLOCK_SIZE];
                disk.write_at(0, &whole).unwrap();
                let mut back = [0; BLOCK_SIZE];
                disk.read_at(0, &mut back).unwrap();
                assert!(back[512..] == whole[512..]);
            }
        });
    }

    #[test]
    fn ranges_off_the_disk_are_refused() {
        let disk = ByteDisk::new(Arc::new(ArrayDisk(Mutex::new(vec![0; BLOCK_SIZE]))));
        for (offset, len) in [(BLOCK, 1), (u64::MAX, 1), (1, u64::MAX), (0, BLOCK + 1)] {
            assert_eq!(disk.write_zeroes(offset, len).unwrap_err().kind(), Kind::Usage);
        }
        disk.write_zeroes(BLOCK, 0).unwrap();
    }
}
