//! Hidden levels: their writes are pending ([`lacuna_levels::HiddenLevels`]) until a stripe takes
//! them.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. When public
//! operations or the paced clock cause a stripe, its hidden slots are filled: with blocks that must
//! be carried, with pages and blocks of the open hidden levels, and with encrypted zeros.

use crate::cache_usage::CacheUsage;
use crate::health::{Health, Wake};
use crate::log::progress::LogProgress;
use crate::log::{Log, StripeInFlight};
use crate::place::StripeSeq;
use crate::stripe::carried::CarriedSlots;
use crate::stripe::carrier::HiddenBlocks;
use crate::stripe::closed_stripe::HiddenPart;
use crate::stripe::map_page_reader::MapPageReader;
use crate::stripe::slot_buffer::{LevelEntries, SlotBuffer};
use crate::stripe::stripe_filler::StripeFiller;
use lacuna_contracts::{BlockAddr, Result, StatusItem};
use lacuna_levels::{CoverWait, HiddenLevels, OpenMode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The hidden levels of an open disk.
pub(crate) struct OpenHiddenLevels {
    levels: HiddenLevels,
    log: Arc<Log>,
    progress: Arc<LogProgress>,
    health: Arc<Health>,
    mode: OpenMode,
    /// The entries of the hidden slots of the last stripe.
    echo: Mutex<LevelEntries>,
}

/// Sets empty hidden slots when dropped, if none were set: readers of a stripe wait for its hidden
/// slots, also after a failure or a panic.
struct FillGuard<'a>(&'a StripeInFlight);

impl Drop for FillGuard<'_> {
    fn drop(&mut self) {
        self.0.hidden.get_or_init(SlotBuffer::none);
    }
}

impl OpenHiddenLevels {
    /// `echo` has the entries of the hidden slots of the last stripe.
    pub(crate) fn new(
        levels: HiddenLevels,
        log: Arc<Log>,
        progress: Arc<LogProgress>,
        health: Arc<Health>,
        mode: OpenMode,
        echo: LevelEntries,
    ) -> Arc<OpenHiddenLevels> {
        let hidden =
            Arc::new(OpenHiddenLevels { levels, log, progress, health, mode, echo: Mutex::new(echo) });
        hidden.health.register(&hidden);
        hidden
    }

    fn source(&self, level: u8) -> MapPageReader<'_> {
        MapPageReader::strict(&self.log, level)
    }

    /// How a hidden operation waits for cover.
    fn cover_wait(&self) -> CoverWait<'_> {
        self.mode.cover_wait(self.health.state(), self.log.params().cover_millis)
    }

    /// Queues blocks of a level. Waits while too much is queued.
    pub(crate) fn write(&self, level: u8, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.levels.write(&self.cover_wait(), level, first.0, data, &self.source(level))
    }

    /// Queues a discard of a level.
    pub(crate) fn discard(&self, level: u8, first: BlockAddr, count: u64) -> Result<()> {
        self.levels.discard(&self.cover_wait(), level, first.0, count, &self.source(level))
    }

    /// Waits until everything that a level acknowledged is durable. Causes no write and no sync.
    pub(crate) fn flush(&self, level: u8) -> Result<()> {
        let cover = self.cover_wait();
        let last = self.levels.wait_taken(&cover, level)?;
        self.progress.wait_durable(StripeSeq(last), || self.levels.timeout(&cover, level))
    }

    /// Sets whether operations of a level stop waiting for cover.
    pub(crate) fn set_no_wait(&self, level: u8, gives_up: bool) {
        self.levels.set_no_wait(level, gives_up);
        if gives_up {
            self.progress.wake();
        }
    }

    /// Records that the user of a level was told of a loss.
    pub(crate) fn note_loss(&self, level: u8) {
        self.levels.note_loss(level);
    }

    /// Errors: [`Kind::NoCover`](lacuna_contracts::Kind) if a level has anything pending, or has
    /// lost something.
    pub(crate) fn check_nothing_pending(&self) -> Result<()> {
        self.levels.check_nothing_pending(self.health.state())
    }

    /// Sets the places of blocks of a level that lie in stripes. All other blocks are read at once,
    /// and their places set to 0.
    pub(crate) fn locate(
        &self,
        level: u8,
        first: BlockAddr,
        buf: &mut [u8],
        places: &mut [u64],
    ) -> Result<()> {
        self.levels.locate(self.health.state(), level, first.0, buf, places, &self.source(level))
    }

    /// Which of `count` blocks of a level are written.
    pub(crate) fn are_written(&self, level: u8, first: BlockAddr, count: usize) -> Result<Vec<bool>> {
        self.levels.are_written(self.health.state(), level, first.0, count, &self.source(level))
    }

    /// The counters of a level.
    pub(crate) fn status(&self, level: u8) -> Vec<StatusItem> {
        self.levels.status(self.health.state(), level)
    }

    /// The sizes of the cached parts of the maps, starting at level 1.
    pub(crate) fn cache_usage(&self) -> impl Iterator<Item = CacheUsage> {
        let levels = 1..=self.levels.count() as u8;
        levels.map(|level| CacheUsage::leaves(&self.levels.lock(self.health.state(), level).level.tree))
    }

    /// The work of the thread that loads leaves of maps before their blocks are carried. Nothing
    /// waits for it.
    pub(crate) fn warm_carried(&self, found: &Receiver<HiddenBlocks>) {
        let _guard = self.health.fail_on_panic();
        for (level, addr) in found.iter().flatten() {
            self.levels.warm(self.health.state(), level, addr, 1, &self.source(level));
        }
    }

    /// Fills the hidden slots of a stripe with the slots that it carries and with blocks that the
    /// levels have queued. Stripes come in order.
    pub(crate) fn fill(&self, in_flight: &StripeInFlight, carried: CarriedSlots) -> Result<HiddenPart> {
        let _guard = FillGuard(in_flight);
        let filling = StripeFiller::new(&self.levels, self.health.state(), &self.log, in_flight.seq, carried);
        let (plain, roots) = filling.fill()?;
        let echo = std::mem::replace(&mut *self.echo.lock(), plain.entries().to_vec());
        let _set_once = in_flight.hidden.set(plain);
        Ok(HiddenPart { roots, echo })
    }
}

impl Wake for OpenHiddenLevels {
    fn wake(&self) {
        self.levels.wake_all();
    }
}
