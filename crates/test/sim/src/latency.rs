//! Simulates the time that operations of a medium take, without waiting.

use crate::intercept::delegate_rest;
use lacuna_contracts::{Clock, ManualClock, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The cost of each operation. A model, not a measurement: it compares data layouts, and does not
/// predict their speed.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyModel {
    /// The shortest seek.
    pub seek_min: Duration,
    /// A seek from one end of the medium to the other. Between the two limits, the cost grows with
    /// the square root of the distance.
    pub seek_max: Duration,
    /// One rotation; a seek waits half of one on average. Zero for media without rotation.
    pub rotation: Duration,
    /// The overhead of a read of one extent, without seek and transfer.
    pub read_overhead: Duration,
    /// The overhead of a write of one extent, without seek and transfer.
    pub write_overhead: Duration,
    /// The extra cost of a write that does not begin where the last write ended.
    pub scattered_write: Duration,
    /// The number of extents of a batch with overlapping overheads.
    pub parallel: u32,
    /// Transfer of reads.
    pub read_bytes_per_second: u64,
    /// Transfer of writes.
    pub write_bytes_per_second: u64,
    /// A sync, without the writes that it waits for, which are charged when they are made.
    pub sync: Duration,
    /// The extra cost of a batch of durable writes over a batch of writes.
    pub durable: Duration,
    /// A discard, of any length.
    pub discard: Duration,
    /// The size in bytes of a write-back cache before the medium, like the system's page cache.
    /// Cached writes are charged at a sync or when the cache overflows, sorted by offset with
    /// adjacent ones merged. Reads of cached writes are free; no other data is cached for reads.
    /// Zero for no cache.
    pub write_back: u64,
}

impl LatencyModel {
    /// A disk of 5400 rotations per minute, like the WD10SPCX of PD-DM, section 5: a seek to a
    /// random place takes 8.9 ms on average, and the sequential rate is what the paper's dm-crypt
    /// read.
    pub fn laptop_disk() -> Self {
        LatencyModel {
            seek_min: Duration::from_millis(1),
            seek_max: Duration::from_micros(15_800),
            rotation: Duration::from_micros(11_111),
            read_overhead: Duration::from_micros(50),
            write_overhead: Duration::from_micros(50),
            read_bytes_per_second: 100_000_000,
            write_bytes_per_second: 100_000_000,
            sync: Duration::from_micros(11_111),
            discard: Duration::from_micros(100),
            ..LatencyModel::zero_cost()
        }
    }

    /// A solid-state disk on a SATA bus, without power loss protection.
    pub fn ssd() -> Self {
        LatencyModel {
            read_overhead: Duration::from_micros(90),
            write_overhead: Duration::from_micros(30),
            parallel: 32,
            read_bytes_per_second: 520_000_000,
            write_bytes_per_second: 450_000_000,
            sync: Duration::from_micros(900),
            durable: Duration::from_micros(500),
            discard: Duration::from_micros(200),
            ..LatencyModel::zero_cost()
        }
    }

    /// A flash stick on a USB 3 bus that does not map single pages: after a write that does not
    /// follow the last one, the stick copies the rest of an erase block. About 90 scattered writes
    /// per second, 20 MB/s for sequential writes, 100 MB/s for reads.
    pub fn usb_stick() -> Self {
        LatencyModel {
            read_overhead: Duration::from_micros(500),
            write_overhead: Duration::from_micros(800),
            scattered_write: Duration::from_millis(10),
            read_bytes_per_second: 100_000_000,
            write_bytes_per_second: 20_000_000,
            sync: Duration::from_millis(2),
            discard: Duration::from_millis(1),
            ..LatencyModel::zero_cost()
        }
    }

    /// A medium where every operation is free; the caller sets the costs that it needs.
    pub fn zero_cost() -> Self {
        LatencyModel {
            seek_min: Duration::ZERO,
            seek_max: Duration::ZERO,
            rotation: Duration::ZERO,
            read_overhead: Duration::ZERO,
            write_overhead: Duration::ZERO,
            scattered_write: Duration::ZERO,
            parallel: 1,
            read_bytes_per_second: u64::MAX,
            write_bytes_per_second: u64::MAX,
            sync: Duration::ZERO,
            durable: Duration::ZERO,
            discard: Duration::ZERO,
            write_back: 0,
        }
    }

    /// The cost of moving the head to `to`, and whether it is a seek: a seek, or letting the bytes
    /// between pass if that is faster.
    fn move_head(&self, head: u64, to: u64, len: u64, rate: u64) -> (Duration, bool) {
        if head == to {
            return (Duration::ZERO, false);
        }
        let part = (head.abs_diff(to) as f64 / len.max(1) as f64).clamp(0.0, 1.0).sqrt();
        let seek =
            self.seek_min + self.seek_max.saturating_sub(self.seek_min).mul_f64(part) + self.rotation / 2;
        let passing = if to > head { transfer(to - head, rate) } else { Duration::MAX };
        (seek.min(passing), seek < passing)
    }
}

fn transfer(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanos.min(u128::from(u64::MAX)) as u64)
}

/// The reads of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// The number of extents that were read.
    pub extents: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// The number of extents that do not begin where the extent before them ended. The extents of a
    /// batch are sorted by offset.
    pub runs: u64,
}

#[derive(Default)]
struct LatencyState {
    head: u64,
    total: Duration,
    seeks: u64,
    reads: ReadStats,
    /// The end of the last read.
    last_read_end: u64,
    /// The end of the last write.
    last_write_end: u64,
    write_back: WriteBackCache,
}

/// Cached writes, as disjoint ranges that do not touch, by their beginning.
#[derive(Default)]
struct WriteBackCache {
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl WriteBackCache {
    fn put(&mut self, mut start: u64, mut end: u64) {
        while let Some((&first, &last)) = self.ends.range(..=end).next_back()
            && last >= start
        {
            self.ends.remove(&first);
            self.bytes -= last - first;
            (start, end) = (start.min(first), end.max(last));
        }
        self.ends.insert(start, end);
        self.bytes += end - start;
    }

    fn covers(&self, start: u64, end: u64) -> bool {
        self.ends.range(..=start).next_back().is_some_and(|(_, &last)| last >= end)
    }

    /// Removes and returns all ranges, as offset and length.
    fn take(&mut self) -> Vec<(u64, u64)> {
        self.bytes = 0;
        std::mem::take(&mut self.ends).into_iter().map(|(start, end)| (start, end - start)).collect()
    }
}

/// Passes all operations on and advances a clock by their cost. The extents of a batch are served
/// in the order of their offsets, as by a command queue; calls are served one after another.
pub struct LatencyMedium<M: Medium + ?Sized = dyn Medium> {
    inner: Arc<M>,
    model: LatencyModel,
    clock: Arc<ManualClock>,
    state: Mutex<LatencyState>,
}

impl<M: Medium + ?Sized> LatencyMedium<M> {
    /// Wraps `inner`, and charges `clock` by `model`. The head starts at offset 0.
    pub fn new(inner: Arc<M>, model: LatencyModel, clock: Arc<ManualClock>) -> Self {
        LatencyMedium { inner, model, clock, state: Mutex::default() }
    }

    /// The total cost so far.
    pub fn elapsed(&self) -> Duration {
        self.state().total
    }

    /// The number of seeks. Letting the bytes between pass is not counted as a seek.
    pub fn seeks(&self) -> u64 {
        self.state().seeks
    }

    /// The charged reads so far.
    pub fn reads(&self) -> ReadStats {
        self.state().reads
    }

    /// The simulated time; other users of the clock may advance it as well.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    fn state(&self) -> MutexGuard<'_, LatencyState> {
        self.state.lock()
    }

    fn charge(&self, charged: &mut LatencyState, cost: Duration) {
        charged.total += cost;
        self.clock.advance(cost);
    }

    fn charge_batch(
        &self,
        charged: &mut LatencyState,
        mut places: Vec<(u64, u64)>,
        overhead: Duration,
        rate: u64,
    ) {
        places.sort_unstable();
        let len = self.inner.len();
        let rounds = places.len().div_ceil(self.model.parallel.max(1) as usize) as u32;
        let mut cost = overhead * rounds;
        for (offset, size) in places {
            let (travel, seek) = self.model.move_head(charged.head, offset, len, rate);
            cost += travel + transfer(size, rate);

            charged.seeks += u64::from(seek);
            charged.head = offset.saturating_add(size);
        }
        self.charge(charged, cost);
    }

    fn charge_writes(&self, charged: &mut LatencyState, mut places: Vec<(u64, u64)>) {
        places.sort_unstable();
        for (offset, size) in &places {
            if *offset != charged.last_write_end {
                self.charge(charged, self.model.scattered_write);
            }
            charged.last_write_end = offset.saturating_add(*size);
        }
        self.charge_batch(charged, places, self.model.write_overhead, self.model.write_bytes_per_second);
    }
}

fn places(batch: &[WriteExtent<'_>]) -> Vec<(u64, u64)> {
    batch.iter().map(|e| (e.offset, e.data.len() as u64)).collect()
}

impl<M: Medium + ?Sized> Medium for LatencyMedium<M> {
    delegate_rest!(inner);

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut charged = self.state();
        let places = batch.iter().map(|e| (e.offset, e.buf.len() as u64));
        let mut places: Vec<_> =
            places.filter(|(offset, len)| !charged.write_back.covers(*offset, offset + len)).collect();
        places.sort_unstable();
        for (offset, len) in &places {
            charged.reads.extents += 1;
            charged.reads.bytes += len;
            charged.reads.runs += u64::from(*offset != charged.last_read_end);
            charged.last_read_end = offset + len;
        }
        self.charge_batch(&mut charged, places, self.model.read_overhead, self.model.read_bytes_per_second);
        drop(charged);
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut charged = self.state();
        if self.model.write_back == 0 {
            self.charge_writes(&mut charged, places(batch));
        } else {
            places(batch).into_iter().for_each(|(offset, len)| charged.write_back.put(offset, offset + len));
            if charged.write_back.bytes > self.model.write_back {
                let held = charged.write_back.take();
                self.charge_writes(&mut charged, held);
            }
        }
        drop(charged);
        self.inner.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut charged = self.state();
        self.charge_writes(&mut charged, places(batch));
        self.charge(&mut charged, self.model.durable);
        drop(charged);
        self.inner.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        let mut charged = self.state();
        let held = charged.write_back.take();
        self.charge_writes(&mut charged, held);
        self.charge(&mut charged, self.model.sync);
        drop(charged);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.charge(&mut self.state(), self.model.discard);
        self.inner.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CrashMedium, Rng};

    fn medium(model: LatencyModel) -> LatencyMedium<CrashMedium> {
        LatencyMedium::new(Arc::new(CrashMedium::new(1 << 30)), model, Arc::default())
    }

    /// The cost of reading 4 KiB at each place, with one call each.
    fn cost(model: LatencyModel, places: impl Iterator<Item = u64>) -> Duration {
        let medium = medium(model);
        places.for_each(|p| medium.read_at(p * 4096, &mut [0; 4096]).unwrap());
        assert_eq!(medium.elapsed(), medium.now());
        medium.elapsed()
    }

    #[test]
    fn distance_costs_time_on_hard_disks_only() {
        let mut rng = Rng::new(1);
        let scattered: Vec<u64> = (0..100).map(|_| rng.below(1 << 18)).collect();
        let far = cost(LatencyModel::laptop_disk(), scattered.iter().copied());
        let near = cost(LatencyModel::laptop_disk(), 0..100);
        assert!(far > near * 50, "{far:?} {near:?}");
        assert_eq!(cost(LatencyModel::ssd(), scattered.into_iter()), cost(LatencyModel::ssd(), 0..100));
    }

    #[test]
    fn reads_that_follow_one_another_are_one_run() {
        let medium = medium(LatencyModel::zero_cost());
        let mut buf = [0; 8192];
        for block in [4, 6, 8, 7] {
            medium.read_at(block * 4096, &mut buf).unwrap();
        }
        assert_eq!(medium.reads(), ReadStats { extents: 4, bytes: 32 << 10, runs: 2 });
        let (one, two) = buf.split_at_mut(4096);
        let offset = 20 * 4096;
        let second = ReadExtent { offset: offset + 4096, buf: two };
        medium.read(&mut [second, ReadExtent { offset, buf: one }]).unwrap();
        assert_eq!(medium.reads(), ReadStats { extents: 6, bytes: 40 << 10, runs: 3 });
    }

    #[test]
    fn a_gap_that_is_faster_to_read_through_is_no_seek() {
        let medium = medium(LatencyModel::laptop_disk());
        for (place, seeks) in [(0, 0), (4096, 0), (3 * 4096, 0), (0, 1), (1 << 29, 2)] {
            medium.read_at(place, &mut [0; 4096]).unwrap();
            assert_eq!(medium.seeks(), seeks, "{place}");
        }
    }

    #[test]
    fn the_laptop_disk_seeks_as_long_as_the_papers_and_waits_half_a_rotation() {
        let mut rng = Rng::new(3);
        let model = LatencyModel::laptop_disk();
        let fixed = model.rotation / 2 + model.read_overhead + transfer(4096, model.read_bytes_per_second);
        let whole = cost(model, (0..10_000).map(|_| rng.below(1 << 18))) / 10_000;
        let seek = (whole.as_secs_f64() - fixed.as_secs_f64()) * 1e3;
        assert!((8.7..9.1).contains(&seek), "{seek}");
    }

    #[test]
    fn a_batch_is_served_in_offset_order_and_in_parallel() {
        let mut order: Vec<u64> = (0..64).map(|i| i << 20).collect();
        Rng::new(2).shuffle(&mut order);
        let extents = || -> Vec<WriteExtent<'_>> {
            order.iter().map(|&offset| WriteExtent { offset, data: &[1; 4096] }).collect()
        };
        for model in [LatencyModel::laptop_disk(), LatencyModel::ssd()] {
            let (whole, single) = (medium(model.clone()), medium(model));
            whole.write(&extents()).unwrap();
            extents().iter().for_each(|e| single.write_at(e.offset, e.data).unwrap());
            assert!(whole.elapsed() < single.elapsed());
        }
    }

    #[test]
    fn a_sync_charges_cached_writes_once_and_in_order() {
        let ms = Duration::from_millis;
        let model = LatencyModel {
            write_overhead: ms(10),
            read_overhead: ms(1),
            write_bytes_per_second: 1000,
            write_back: 100,
            ..LatencyModel::zero_cost()
        };
        let medium = medium(model);
        for offset in [20, 0, 10, 5, 60] {
            medium.write_at(offset, &[1; 10]).unwrap();
        }
        medium.read_at(2, &mut [0; 28]).unwrap();
        assert_eq!(medium.elapsed(), ms(0));
        medium.read_at(25, &mut [0; 10]).unwrap();
        assert_eq!(medium.elapsed(), ms(1));
        // Two ranges with 40 bytes in total.
        medium.sync().unwrap();
        assert_eq!(medium.elapsed(), ms(1 + 20 + 40));
        medium.sync().unwrap();
        assert_eq!(medium.elapsed(), ms(61));
        medium.write_at(200, &[1; 101]).unwrap();
        assert_eq!(medium.elapsed(), ms(61 + 10 + 101));
    }

    #[test]
    fn each_operation_costs_what_the_model_says() {
        let ms = Duration::from_millis;
        let model = LatencyModel {
            write_overhead: ms(1),
            read_overhead: ms(2),
            parallel: 2,
            write_bytes_per_second: 1000,
            sync: ms(100),
            durable: ms(50),
            discard: ms(7),
            ..LatencyModel::zero_cost()
        };
        let medium = medium(model);
        medium.write_at(0, &[1; 10]).unwrap();
        assert_eq!(medium.elapsed(), ms(11));
        medium.sync().unwrap();
        assert_eq!(medium.elapsed(), ms(111));
        medium.write_durable(&[WriteExtent { offset: 10, data: &[2; 1] }]).unwrap();
        assert_eq!(medium.elapsed(), ms(163));
        medium.discard(0, 4096).unwrap();
        assert_eq!(medium.elapsed(), ms(170));
        let mut bufs = [[0u8; 8]; 3];
        let mut batch: Vec<ReadExtent<'_>> =
            bufs.iter_mut().map(|buf| ReadExtent { offset: 0, buf }).collect();
        medium.read(&mut batch).unwrap();
        assert_eq!(medium.elapsed(), ms(174));
    }
}
