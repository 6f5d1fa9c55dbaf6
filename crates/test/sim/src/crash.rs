//! A medium in memory that simulates power cuts and the loss of unsynced writes.

pub(crate) mod late_writes;
mod process_death;

use crate::lies::{HonestReads, Lies, PageHistory};
use crate::operation::RunDigest;
use crate::power::Power;
use crate::unsynced_writes::{Fragment, UnsyncedOp, image_after_cut};
use crate::{LossPolicy, MediumImage, PAGE_SIZE, Rng};
use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent, check_range};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;

/// A medium in memory made of a durable image and the operations that were not synced yet.
///
/// Reads see every write. [`CrashMedium::cut_after`] cuts the power in the middle of a later
/// operation; after that every operation fails, and [`CrashMedium::after_cut`] returns the
/// remaining image, any number of times. Each extent written, each discard, sync and change of
/// length counts as one operation; reads do not.
pub struct CrashMedium(Mutex<CrashMediumState>);

struct CrashMediumState {
    durable: MediumImage,
    /// The durable image with every unsynced operation applied in order, until the power cut.
    volatile: MediumImage,
    unsynced: Vec<UnsyncedOp>,
    power: Power,
    syncs: u64,
    /// Whether a sync was in flight at the end.
    ended_in_sync: bool,
    ignore_syncs: bool,
    ignore_durable_writes: bool,
    /// Earlier versions, once they are kept.
    history: Option<PageHistory>,
}

impl CrashMediumState {
    /// Keeps the present version of a range that is about to change for reads.
    fn save_version(&mut self, range: Range<u64>) {
        if let Some(past) = &mut self.history {
            past.save_version(&self.volatile, &range);
        }
    }

    fn read(&mut self, batch: &mut [ReadExtent<'_>], is_discreet: bool) -> Result<()> {
        self.power.check_on()?;
        for ReadExtent { offset, buf } in batch {
            self.volatile.read(*offset, buf)?;
            if let Some(past) = &mut self.history {
                past.falsify(&self.volatile, *offset, buf, is_discreet);
            }
        }
        Ok(())
    }

    /// Adds an unsynced operation. If it was in flight at the cut, no read sees it.
    fn add_unsynced(&mut self, fragment: Option<Fragment>, length: Option<u64>) {
        let in_flight = self.power.is_off();
        self.unsynced.push(UnsyncedOp { fragments: fragment.into_iter().collect(), length, in_flight });
    }

    fn add_unsynced_write(&mut self, extent: &WriteExtent<'_>) {
        if !extent.data.is_empty() {
            let at = extent.offset..extent.offset + extent.data.len() as u64;
            self.add_unsynced(Some(Fragment { range: at, data: Some((extent.data.into(), 0)) }), None);
        }
    }

    fn check_batch(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.power.check_on()?;
        batch.iter().try_for_each(|e| check_range(e.offset, e.data.len() as u64, self.volatile.len()))
    }

    /// Performs a write that is not durable. If the power is cut during any extent, the whole batch
    /// was in flight, because the extents of a batch are written in any order.
    fn write(&mut self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let survived = self.power.survives(batch.len() as u64);
        for extent in batch {
            self.add_unsynced_write(extent);
            if survived {
                self.save_version(extent.offset..extent.offset + extent.data.len() as u64);
                self.volatile.write(extent.offset, extent.data)?;
            }
        }
        if survived { Ok(()) } else { Err(Power::error()) }
    }

    fn write_durable(&mut self, batch: &[WriteExtent<'_>]) -> Result<()> {
        if self.ignore_durable_writes {
            return self.write(batch);
        }
        if !self.power.survives(batch.len() as u64) {
            batch.iter().for_each(|extent| self.add_unsynced_write(extent));
            return Err(Power::error());
        }
        for extent in batch {
            let size = extent.data.len() as u64;
            let at = extent.offset..extent.offset + size;
            // A shrink that landed later than this write would discard bytes that it promised.
            let shrinks = self.unsynced.iter().filter_map(|op| op.length).any(|len| len < at.end);
            if shrinks || at.end > self.durable.len() {
                self.persist_lengths();
            }
            self.save_version(at.clone());
            self.volatile.write(extent.offset, extent.data)?;
            self.supersede(self.unsynced.len(), &at);
            if extent.offset.is_multiple_of(PAGE_SIZE) && size.is_multiple_of(PAGE_SIZE) {
                self.durable.share_pages(&self.volatile, extent.offset, size);
            } else {
                self.durable.write(extent.offset, extent.data)?;
            }
        }
        Ok(())
    }

    /// Removes `range` from the first `upto` unsynced operations.
    fn supersede(&mut self, upto: usize, range: &Range<u64>) {
        self.unsynced[..upto].iter_mut().for_each(|older| older.supersede(range));
        self.unsynced.retain(|op| op.length.is_some() || !op.fragments.is_empty());
    }

    /// Makes every change of length durable, as a durable write does that depends on the length.
    fn persist_lengths(&mut self) {
        while let Some(index) = self.unsynced.iter().position(|op| op.length.is_some()) {
            let len = self.unsynced.remove(index).length.unwrap_or(self.durable.len());
            self.durable.set_len(len);
            self.supersede(index, &(len..u64::MAX));
        }
    }

    fn sync(&mut self) -> Result<()> {
        self.power.check_on()?;
        if !self.power.survives(1) {
            self.ended_in_sync = true;
            self.unsynced.iter_mut().for_each(|op| op.in_flight = true);
            return Err(Power::error());
        }
        self.syncs += 1;
        if !self.ignore_syncs {
            self.persist_all();
        }
        Ok(())
    }

    fn persist_all(&mut self) {
        let fragments = || self.unsynced.iter().flat_map(|op| &op.fragments);
        let unsynced_bytes: u64 = fragments().map(|f| f.range.end - f.range.start).sum();
        let resized = self.unsynced.iter().any(|op| op.length.is_some());
        if resized || unsynced_bytes / PAGE_SIZE > self.volatile.resident_pages() as u64 {
            self.durable = self.volatile.clone();
        } else {
            for f in self.unsynced.iter().flat_map(|op| &op.fragments) {
                self.durable.share_pages(&self.volatile, f.range.start, f.range.end - f.range.start);
            }
        }
        self.unsynced.clear();
    }
}

impl CrashMedium {
    /// A medium of `len` zero bytes, all durable.
    pub fn new(len: u64) -> Self {
        Self::from_image(MediumImage::new(len))
    }

    /// A medium with `image` durable. Takes a [`MediumImage`] or flat bytes.
    pub fn from_image(image: impl Into<MediumImage>) -> Self {
        let durable = image.into();
        CrashMedium(Mutex::new(CrashMediumState {
            volatile: durable.clone(),
            durable,
            unsynced: Vec::new(),
            power: Power::default(),
            syncs: 0,
            ended_in_sync: false,
            ignore_syncs: false,
            ignore_durable_writes: false,
            history: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, CrashMediumState> {
        self.0.lock()
    }

    /// Lets the next `n` operations succeed and cuts the power in the middle of the operation after
    /// them.
    pub fn cut_after(&self, n: u64) {
        self.state().power.cut_after(n);
    }

    /// Cuts the power now, between two operations.
    pub fn cut_now(&self) {
        self.state().power.cut_now();
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.state().power.is_off()
    }

    /// The number of operations, including an operation in flight at the cut.
    pub fn ops(&self) -> u64 {
        self.state().power.ops()
    }

    /// The number of calls of `sync`, including ignored ones, without a call in flight at the cut.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// The number of operations that a power cut now could lose.
    pub fn unsynced(&self) -> usize {
        self.state().unsynced.len()
    }

    /// Makes every later `sync` return success without making anything durable. A crash test that
    /// still passes with this does not test the syncs.
    pub fn ignore_syncs(&self, ignore: bool) {
        self.state().ignore_syncs = ignore;
    }

    /// Makes every later `write_durable` a plain write that claims to be durable.
    pub fn ignore_durable_writes(&self, ignore: bool) {
        self.state().ignore_durable_writes = ignore;
    }

    /// Starts to keep every version of every page, for [`CrashMedium::set_lies`].
    pub fn keep_history(&self) {
        self.state().history.get_or_insert_default();
    }

    /// Starts or ends lying. Some reads then return versions that their places had since
    /// [`CrashMedium::keep_history`], or the content of other places, so two reads of one place may
    /// differ. Writes and the image after a cut are not affected.
    pub fn set_lies(&self, lies: Option<Lies>) {
        self.set_lies_except(lies, HonestReads::default());
    }

    /// Like [`CrashMedium::set_lies`], with exceptions.
    pub fn set_lies_except(&self, lies: Option<Lies>, truths: HonestReads) {
        self.state().history.get_or_insert_default().set_lies(lies, truths);
    }

    /// A copy of this medium with all data that reads see durable, and with its earlier versions.
    pub fn fork(&self) -> CrashMedium {
        let state = self.state();
        let fork = CrashMedium::from_image(state.volatile.clone());
        fork.state().history.clone_from(&state.history);
        drop(state);
        fork
    }

    /// A new medium in the state of this one after the power is back: it holds the image that
    /// [`CrashMedium::after_cut`] returns, all durable, and the earlier versions of this medium,
    /// including data that the cut lost.
    pub fn after_power_cycle(&self, rng: &mut Rng) -> CrashMedium {
        let left = self.after_cut(rng);
        let mut state = self.state();
        for page in state.volatile.changed_pages(&left) {
            state.save_version(page * PAGE_SIZE..(page + 1) * PAGE_SIZE);
        }
        let restarted = CrashMedium::from_image(left);
        restarted.state().history.clone_from(&state.history);
        drop(state);
        restarted
    }

    /// The length that a reader gets, which may be a lie.
    pub(crate) fn reported_len(&self) -> u64 {
        let mut state = self.state();
        let len = state.volatile.len();
        state.history.as_mut().map_or(len, |past| past.reported_len(len))
    }

    /// The image that an adversarial medium leaves after the cut, or after a cut now: all durable
    /// data, and from the unsynced operations a selection by a policy drawn from `rng`. May be
    /// called many times for one cut.
    pub fn after_cut(&self, rng: &mut Rng) -> MediumImage {
        let loss = LossPolicy::pick(rng);
        self.after_cut_with(loss, rng)
    }

    /// The image after the cut under a given policy.
    pub fn after_cut_with(&self, loss: LossPolicy, rng: &mut Rng) -> MediumImage {
        let state = self.state();
        image_after_cut(&state.durable, &state.unsynced, loss, rng)
    }

    /// The bytes as reads see them: the image after an orderly shutdown.
    pub fn image(&self) -> MediumImage {
        self.state().volatile.clone()
    }

    /// The bytes that no power cut can lose.
    pub fn durable_image(&self) -> MediumImage {
        self.state().durable.clone()
    }

    /// Durably replaces the whole content, as an adversary does between two operations.
    pub(crate) fn replace(&self, image: MediumImage) {
        let mut state = self.state();
        state.save_version(0..u64::MAX);
        state.unsynced.clear();
        state.durable = image.clone();
        state.volatile = image;
    }

    /// The number of pages that hold bytes, as reads see them.
    pub(crate) fn resident_pages(&self) -> u64 {
        self.state().volatile.resident_pages() as u64
    }

    /// Whether a page holds bytes, as reads see them.
    pub(crate) fn is_resident(&self, page: u64) -> bool {
        self.state().volatile.is_resident(page)
    }

    /// A digest of the whole state: durable bytes, bytes that reads see, and unsynced operations.
    /// The same seed and the same calls give the same digest.
    pub fn digest(&self) -> u64 {
        let state = self.state();
        let mut digest = RunDigest::new();
        digest.add_word(state.durable.digest());
        digest.add_word(state.volatile.digest());
        for op in &state.unsynced {
            digest.add_word(op.length.unwrap_or(u64::MAX));
            digest.add_word(u64::from(op.in_flight));
            for Fragment { range: at, data } in &op.fragments {
                digest.add_word(at.start);
                digest.add_word(at.end);
                if let Some((bytes, from)) = data {
                    digest.add_bytes(&bytes[*from..*from + (at.end - at.start) as usize]);
                }
            }
        }
        digest.0
    }
}

impl Medium for CrashMedium {
    fn len(&self) -> u64 {
        self.state().volatile.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.state().read(batch, false)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.state().read(batch, true)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut state = self.state();
        state.check_batch(batch)?;
        state.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut state = self.state();
        state.check_batch(batch)?;
        state.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        self.state().sync()
    }

    /// What a process left in the cache when it died becomes durable. Not counted as an operation:
    /// elsewhere media are opened with everything durable.
    fn forget_cached(&self) -> Result<()> {
        let mut state = self.state();
        state.power.check_on()?;
        if !state.ignore_syncs {
            state.persist_all();
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state();
        state.power.check_on()?;
        check_range(offset, len, state.volatile.len())?;
        let survived = state.power.survives(1);
        if len > 0 {
            state.add_unsynced(Some(Fragment { range: offset..offset + len, data: None }), None);
        }
        if !survived {
            return Err(Power::error());
        }
        state.save_version(offset..offset + len);
        state.volatile.zero(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.state();
        state.power.check_on()?;
        let survived = state.power.survives(1);
        state.add_unsynced(None, Some(len));
        if !survived {
            return Err(Power::error());
        }
        state.save_version(len..u64::MAX);
        state.volatile.set_len(len);
        Ok(())
    }
}
