//! Cells, the ring and the journal on the medium: a batch goes to the ring and the journal first, and in place later.
//!
//! The ring has six parts. At the end of a part everything is synced, and what is durable then is written in place, in
//! the order of the cells; another sync, or the next part's, makes that durable. What heads say of this follows from their
//! number alone ([`Params::schedule`]): a batch waits until what its head is going to say is true. Wherever the power goes,
//! every batch after the last one that the last head calls applied is whole in the ring.
//!
//! Invariant: a cell that `flight` names is read from the ring and never in place, so that nobody reads a cell while it is
//! being written.

use crate::head::{Head, PublicPart};
use crate::params::{META_LEN, Params};
use crate::progress::{Claims, Progress};
use lacuna_core::{BLOCK_SIZE, Error, FailStop, Kind, Result, Secret, defect};
use lacuna_levels::again;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use rustc_hash::FxHashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// Batches whose records are in memory at once while they are written in place: 8 MB, with the most cells 15 MB.
const RECORDS_AT_ONCE: usize = 16;
/// Groups of cells that are written in place at once.
const AT_ONCE: usize = 256;
/// The unit in which a medium loses what it holds.
const SECTOR: usize = 512;
/// A thread that waits looks again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pauses before a medium that fails is asked again: a failure of a connection passes.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(10), Duration::from_millis(100)];
/// How often cells are read without holding the lock of those in flight.
const LOOKS: usize = 3;

/// Where in the ring the latest version of a cell is, or of the first of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InRing {
    seq: u64,
    slot: u8,
}

/// What is under way: in the ring and not yet in place.
#[derive(Default)]
struct Flight {
    /// By the numbers of groups.
    groups: FxHashMap<u64, InRing>,
    /// How often it was begun to write in place.
    landings: u64,
}

impl Flight {
    /// Where a cell is in the ring, if it is, with groups of so many cells.
    fn cell(&self, cell: u64, group: u64) -> Option<InRing> {
        let first = self.groups.get(&(cell / group))?;
        Some(InRing { slot: first.slot + (cell % group) as u8, ..*first })
    }
}

pub(crate) struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) params: Params,
    flight: RwLock<Flight>,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// The error of a sync that failed. No other is made then: the system, which has dropped what it could not write, would
    /// say that all is well.
    syncing: Mutex<Option<Error>>,
    /// Held by who writes in place; memory for records.
    applying: Mutex<Vec<u8>>,
    pub(crate) syncs: AtomicU64,
}

impl Store {
    pub(crate) fn new(medium: Arc<dyn Medium>, params: Params) -> Store {
        Store {
            medium,
            params,
            flight: RwLock::default(),
            progress: Mutex::new(Progress::at(0, 0)),
            moved: Condvar::new(),
            syncing: Mutex::default(),
            applying: Mutex::default(),
            syncs: AtomicU64::new(0),
        }
    }

    // Reading.

    /// Where cells are in the ring, if they are, and how often it was begun to write in place.
    fn whereabouts(&self, cells: &[u64]) -> (Vec<Option<InRing>>, u64) {
        let flight = self.flight();
        let group = self.params.group();
        (cells.iter().map(|cell| flight.cell(*cell, group)).collect(), flight.landings)
    }

    fn flight(&self) -> RwLockReadGuard<'_, Flight> {
        self.flight.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads cells, one after another, into `out`.
    pub(crate) fn read_cells(&self, cells: &[u64], out: &mut [u8]) -> Result<()> {
        for _ in 0..LOOKS {
            let (places, landings) = self.whereabouts(cells);
            self.read_from(cells, &places, out)?;
            // A cell that came into the ring meanwhile may be half written in place, if that was begun meanwhile.
            if self.whereabouts(cells) == (places, landings) {
                return Ok(());
            }
        }
        let (flight, group) = (self.flight(), self.params.group());
        let places: Vec<Option<InRing>> = cells.iter().map(|cell| flight.cell(*cell, group)).collect();
        self.read_from(cells, &places, out)
    }

    fn read_from(&self, cells: &[u64], places: &[Option<InRing>], out: &mut [u8]) -> Result<()> {
        // In place the blocks of a group lie side by side, and then its metadata.
        let group = self.params.group();
        let mut batch: Vec<ReadExtent<'_>> = Vec::with_capacity(2 * cells.len());
        let mut metadata: Vec<ReadExtent<'_>> = Vec::new();
        let mut last = None;
        for ((cell, place), buf) in cells.iter().zip(places).zip(out.chunks_exact_mut(self.params.cell_len()))
        {
            if last.replace(*cell / group) != Some(*cell / group) {
                batch.append(&mut metadata);
            }
            if let Some(at) = place {
                let offset = self.params.ring_offset(at.seq, usize::from(at.slot));
                batch.push(ReadExtent { offset, buf });
                continue;
            }
            let offsets = self.params.cell_offsets(*cell);
            let (block, meta) = buf.split_at_mut(BLOCK_SIZE);
            batch.push(ReadExtent { offset: offsets[0], buf: block });
            metadata.push(ReadExtent { offset: offsets[1], buf: meta });
        }
        batch.append(&mut metadata);
        self.medium.read(&mut batch)
    }

    /// Reads more than once what the medium fails to give, with pauses if the disk has threads.
    pub(crate) fn patiently(&self, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        let mut done = again(&mut read);
        for pause in PAUSES.iter().filter(|_| self.progress().has_threads()) {
            match done {
                Err(e) if e.kind() != Kind::Corrupt => {
                    std::thread::sleep(*pause);
                    done = read();
                }
                done => return done,
            }
        }
        done
    }

    /// Reads the cells of a batch, which will be overwritten. What the medium does not give is lost, and zeros here: one bad
    /// sector must not stop the disk. That nothing can be read is an error.
    pub(crate) fn read_last(&self, cells: &[u64], out: &mut [u8]) -> Result<()> {
        let Err(e) = self.patiently(|| self.read_cells(cells, out)) else { return Ok(()) };
        let mut given = false;
        for (cell, out) in cells.iter().zip(out.chunks_exact_mut(self.params.cell_len())) {
            match again(|| self.read_cells(&[*cell], out)) {
                Ok(()) => given = true,
                Err(_) => out.fill(0),
            }
        }
        if given { Ok(()) } else { Err(e) }
    }

    /// Reads a slot of the stash of batch `seq`.
    pub(crate) fn read_stash(&self, seq: u64, slot: usize, out: &mut [u8]) -> Result<()> {
        self.medium.read_at(self.params.ring_offset(seq, self.params.batch_cells() + slot), out)
    }

    /// The head of batch `seq`, if the journal still has one that fits. One copy that can be read is enough.
    pub(crate) fn head(
        &self,
        level0: &Secret<32>,
        seq: u64,
        fits: impl Fn(&Head) -> bool,
    ) -> Result<Option<Head>> {
        let mut failed = Vec::new();
        for copy in 0..2 {
            let mut block = [0; BLOCK_SIZE];
            if let Err(e) = again(|| self.medium.read_at(self.params.head_offset(seq, copy), &mut block)) {
                failed.push(e);
                continue;
            }
            let head = Head::open(&self.params, level0, &block)?;
            if let Some(head) = head.filter(|head| head.public.seq == seq && fits(head)) {
                return Ok(Some(head));
            }
        }
        // Both copies become durable together: one that can be read and is another says that this one never was.
        if failed.len() == 2 { failed.pop().map_or(Ok(None), Err) } else { Ok(None) }
    }

    /// Whether the ring has the record of a batch. One that the medium does not give whole counts as there: what cannot be
    /// read of it is lost, which is less than all that was flushed with it.
    pub(crate) fn has_record(&self, head: &Head) -> bool {
        let mut record = vec![0; self.params.record_len() as usize];
        let read = again(|| self.medium.read_at(self.params.ring_offset(head.public.seq, 0), &mut record));
        read.is_err() || head.has_record(&record)
    }

    // Writing.

    /// Takes over how far the batches had come, and the cells of those that may not be in place yet, oldest first.
    pub(crate) fn resume<'a>(&self, progress: Progress, in_ring: impl Iterator<Item = (u64, &'a [u64])>) {
        for (seq, cells) in in_ring {
            self.set_off(seq, cells);
        }
        *self.progress() = progress;
    }

    fn set_off(&self, seq: u64, cells: &[u64]) {
        let mut flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
        let group = self.params.group();
        for (slot, first) in (0u8..).zip(cells).step_by(group as usize) {
            flight.groups.insert(first / group, InRing { seq, slot });
        }
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a batch to ring and journal. Batches come one after another.
    pub(crate) fn put(&self, head: &[u8; BLOCK_SIZE], public: &PublicPart, record: &[u8]) -> Result<()> {
        let extents = [
            WriteExtent { offset: self.params.ring_offset(public.seq, 0), data: record },
            WriteExtent { offset: self.params.head_offset(public.seq, 0), data: head },
            WriteExtent { offset: self.params.head_offset(public.seq, 1), data: head },
        ];
        self.medium.write(&extents)?;
        self.set_off(public.seq, &public.cells);
        self.progress().written = public.seq;
        Ok(())
    }

    /// Makes batch `seq`, which was written, and all before it durable.
    pub(crate) fn sync_to(&self, seq: u64) -> Result<()> {
        if self.progress().synced >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.progress().synced >= seq {
            return Ok(());
        }
        self.sync_held(syncing)
    }

    /// Makes everything durable that was written so far, in place as well.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_held(self.syncing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sync_held(&self, mut syncing: MutexGuard<'_, Option<Error>>) -> Result<()> {
        if let Some(e) = &*syncing {
            return Err(e.clone());
        }
        let before = *self.progress();
        self.medium.sync().inspect_err(|e| *syncing = Some(e.clone()))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let mut progress = self.progress();
        progress.synced = before.written;
        progress.applied_durable = before.applied;
        drop((progress, syncing));
        self.moved.notify_all();
        Ok(())
    }

    /// Writes in place what batches up to `seq`, which are durable, say of their cells.
    pub(crate) fn apply_to(&self, seq: u64) -> Result<()> {
        let mut applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.progress().applied + 1;
        self.flight.write().unwrap_or_else(PoisonError::into_inner).landings += 1;
        for first in (from..=seq).step_by(RECORDS_AT_ONCE) {
            self.land(first..=seq.min(first + RECORDS_AT_ONCE as u64 - 1), &mut applying)?;
        }
        let mut progress = self.progress();
        progress.applied = progress.applied.max(seq);
        drop((progress, applying));
        self.moved.notify_all();
        Ok(())
    }

    /// Writes in place, in the order of their numbers, the cells whose latest version is in one of these batches.
    fn land(&self, batches: RangeInclusive<u64>, records: &mut Vec<u8>) -> Result<()> {
        let (len, group) = (self.params.cell_len(), self.params.group());
        let (first, each) = (*batches.start(), self.params.batch_cells() * len);
        let mut groups: Vec<(u64, InRing)> = {
            let flight = self.flight();
            let latest = flight.groups.iter().filter(|(_, at)| batches.contains(&at.seq));
            latest.map(|(group, at)| (*group, *at)).collect()
        };
        groups.sort_unstable_by_key(|(group, _)| *group);
        let all = batches.clone().count() * each;
        records.resize(records.len().max(all), 0);
        let mut reads: Vec<ReadExtent<'_>> = (first..)
            .zip(records[..all].chunks_exact_mut(each))
            .map(|(seq, buf)| ReadExtent { offset: self.params.ring_offset(seq, 0), buf })
            .collect();
        let whole = self.medium.read(&mut reads).is_ok();
        let place = |at: &InRing| (at.seq - first) as usize * each + usize::from(at.slot) * len;
        for groups in groups.chunks(AT_ONCE) {
            let cells = groups.iter().flat_map(move |(number, at)| {
                let cell = move |n: u64| (number * group + n, InRing { slot: at.slot + n as u8, ..*at });
                (0..group).map(cell)
            });
            // What the ring does not give any more stays as it was: what lay there does not verify in the place of what is
            // lost.
            let mut given: Vec<(u64, InRing)> = Vec::with_capacity(groups.len() * group as usize);
            for (cell, at) in cells {
                let from = self.params.ring_offset(at.seq, usize::from(at.slot));
                let buf = &mut records[place(&at)..place(&at) + len];
                if whole || again(|| self.medium.read_at(from, buf)).is_ok() {
                    given.push((cell, at));
                }
            }
            let bytes = |(cell, at): &(u64, InRing)| (*cell, &records[place(at)..place(at) + len]);
            self.put_in_place(&given.iter().map(bytes).collect::<Vec<_>>())?;
            let mut flight = self.flight.write().unwrap_or_else(PoisonError::into_inner);
            for (number, at) in groups {
                if flight.groups.get(number) == Some(at) {
                    flight.groups.remove(number);
                }
            }
        }
        Ok(())
    }

    /// Writes cells, given in the order of their numbers, in place: of each group the blocks, then their metadata.
    fn put_in_place(&self, cells: &[(u64, &[u8])]) -> Result<()> {
        let groups = cells.chunk_by(|(a, _), (b, _)| a / self.params.group() == b / self.params.group());
        let writes = groups.flat_map(|group| self.part_of(group, 0).chain(self.part_of(group, 1)));
        let Err(e) = self.medium.write(&writes.collect::<Vec<_>>()) else { return Ok(()) };
        // A system that writes pages must read the rest of one, and cannot where a sector is bad: whole pages it need not read.
        let Some(pages) = self.pages_with_bad_sectors(cells) else { return Err(e) };
        let pages = pages.iter().map(|(offset, page)| WriteExtent { offset: *offset, data: page });
        self.medium.write(&self.part_of(cells, 0).chain(pages).collect::<Vec<_>>()).map_err(|_| e)
    }

    /// The blocks of cells, or with 1 their metadata, as they go in place.
    fn part_of<'a>(&self, cells: &'a [(u64, &[u8])], which: usize) -> impl Iterator<Item = WriteExtent<'a>> {
        cells.iter().map(move |(cell, buf)| {
            let data = if which == 0 { &buf[..BLOCK_SIZE] } else { &buf[BLOCK_SIZE..] };
            WriteExtent { offset: self.params.cell_offsets(*cell)[which], data }
        })
    }

    /// The pages of metadata of these cells as they will be, if there is a bad sector in any: what it said of others is lost, and
    /// zeros from now on; everything else stays.
    fn pages_with_bad_sectors(&self, cells: &[(u64, &[u8])]) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut pages: Vec<(u64, Vec<u8>)> = Vec::with_capacity(cells.len());
        for (cell, _) in cells {
            let offset = self.params.meta_page(*cell).0;
            if pages.last().is_none_or(|(last, _)| *last != offset) {
                pages.push((offset, vec![0; BLOCK_SIZE]));
            }
        }
        let mut bad = false;
        for (offset, page) in &mut pages {
            for (at, sector) in (*offset..).step_by(SECTOR).zip(page.chunks_exact_mut(SECTOR)) {
                if again(|| self.medium.read_at(at, sector)).is_err() {
                    sector.fill(0);
                    bad = true;
                }
            }
        }
        let mut page = 0;
        for (cell, buf) in cells {
            let (offset, at) = self.params.meta_page(*cell);
            page += usize::from(pages[page].0 != offset);
            pages[page].1[at..at + META_LEN].copy_from_slice(&buf[BLOCK_SIZE..]);
        }
        bad.then_some(pages)
    }

    /// From now on there are threads that do what [`Progress::wants_sync`] and [`Progress::due_in_place`] say; or they end.
    pub(crate) fn set_threads(&self, threads: bool) {
        self.progress().threads = threads;
        self.moved.notify_all();
    }

    /// Waits until `done`, or until a failure, or until no batch has come for so long: then it returns false.
    pub(crate) fn wait(
        &self,
        health: &FailStop,
        patience: Option<Duration>,
        done: impl Fn(&Progress) -> bool,
    ) -> Result<bool> {
        let mut since = Instant::now();
        let mut progress = self.progress();
        while !done(&progress) {
            health.check()?;
            let written = progress.written;
            // Not every failure wakes those who wait here.
            let left = patience.map_or(LOOK_AGAIN, |patience| patience.saturating_sub(since.elapsed()));
            if left.is_zero() {
                return Ok(false);
            }
            let waited = self.moved.wait_timeout(progress, left.min(LOOK_AGAIN));
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
            if progress.written > written {
                since = Instant::now();
            }
        }
        Ok(true)
    }

    /// Wakes all waiting threads: something failed, or a part of the ring has ended.
    pub(crate) fn wake_all(&self) {
        drop(self.progress());
        self.moved.notify_all();
    }

    /// Waits until what the head of a batch is going to say is so, which other threads see to.
    pub(crate) fn wait_for(&self, health: &FailStop, background: bool, claims: Claims) -> Result<()> {
        if self.progress().bears_out(claims) {
            return Ok(());
        }
        if !background {
            // Parts are synced and applied as they end: that is in time. A flush may still be syncing.
            self.sync_to(claims.synced)?;
            return if self.progress().bears_out(claims) { Ok(()) } else { Err(defect()) };
        }
        {
            let mut progress = self.progress();
            progress.wanted = progress.wanted.max(claims);
        }
        self.moved.notify_all();
        self.wait(health, None, |progress| progress.bears_out(claims)).map(drop)
    }
}
