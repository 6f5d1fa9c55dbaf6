//! Hidden levels: their writes are pending ([`lacuna_levels::HiddenLevels`]) until a stripe takes
//! them.
//!
//! Deniability contract: nothing here decides that, when or where anything is written. When public
//! operations or the paced clock cause a stripe, its hidden slots are filled: with blocks that must
//! be carried, with pages and blocks of the open hidden levels, and with encrypted zeros.

use crate::caches::Cached;
use crate::carried::Carried;
use crate::carrier::Found;
use crate::closed::HiddenPart;
use crate::filling::Filling;
use crate::health::{Health, Wake};
use crate::log::{InFlight, Log};
use crate::place::Seq;
use crate::plain::{Echo, Plain};
use crate::progress::Progress;
use crate::source::Source;
use lacuna_contracts::{BlockAddr, Result, StatusItem};
use lacuna_levels::{HiddenLevels, Mode, Wait};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The hidden levels of an open disk.
pub(crate) struct Hidden {
    levels: HiddenLevels,
    log: Arc<Log>,
    progress: Arc<Progress>,
    health: Arc<Health>,
    mode: Mode,
    /// The entries of the hidden slots of the last stripe.
    echo: Mutex<Echo>,
}

/// Sets empty hidden slots when dropped, if none were set: readers of a stripe wait for its hidden
/// slots, also after a failure or a panic.
struct FilledAnyway<'a>(&'a InFlight);

impl Drop for FilledAnyway<'_> {
    fn drop(&mut self) {
        self.0.hidden.get_or_init(Plain::none);
    }
}

impl Hidden {
    /// `echo` has the entries of the hidden slots of the last stripe.
    pub(crate) fn new(
        levels: HiddenLevels,
        log: Arc<Log>,
        progress: Arc<Progress>,
        health: Arc<Health>,
        mode: Mode,
        echo: Echo,
    ) -> Arc<Hidden> {
        let hidden = Arc::new(Hidden { levels, log, progress, health, mode, echo: Mutex::new(echo) });
        hidden.health.watch(&hidden);
        hidden
    }

    fn source(&self, level: u8) -> Source<'_> {
        Source::strict(&self.log, level)
    }

    /// How a hidden operation waits for cover.
    fn cover(&self) -> Wait<'_> {
        self.mode.wait(self.health.state(), self.log.params().cover_millis)
    }

    /// Queues blocks of a level. Waits while too much is queued.
    pub(crate) fn write(&self, level: u8, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.levels.write(&self.cover(), level, first.0, data, &self.source(level))
    }

    /// Queues a discard of a level.
    pub(crate) fn discard(&self, level: u8, first: BlockAddr, count: u64) -> Result<()> {
        self.levels.discard(&self.cover(), level, first.0, count, &self.source(level))
    }

    /// Waits until everything that a level acknowledged is durable. Causes no write and no sync.
    pub(crate) fn flush(&self, level: u8) -> Result<()> {
        let cover = self.cover();
        let last = self.levels.wait_passed(&cover, level)?;
        self.progress.wait_durable(Seq(last), || self.levels.patience(&cover, level))
    }

    /// Sets whether operations of a level stop waiting for cover.
    pub(crate) fn give_up(&self, level: u8, gives_up: bool) {
        self.levels.give_up(level, gives_up);
        if gives_up {
            self.progress.wake();
        }
    }

    /// Records that the user of a level was told of a loss.
    pub(crate) fn lose(&self, level: u8) {
        self.levels.lose(level);
    }

    /// Errors: [`Kind::NoCover`](lacuna_contracts::Kind) if a level has anything pending, or has
    /// lost something.
    pub(crate) fn check_taken(&self) -> Result<()> {
        self.levels.check_taken(self.health.state())
    }

    /// Sets the places of blocks of a level that lie in stripes. All other blocks are read at once,
    /// and their places set to 0.
    pub(crate) fn look(&self, level: u8, first: BlockAddr, buf: &mut [u8], places: &mut [u64]) -> Result<()> {
        self.levels.look(self.health.state(), level, first.0, buf, places, &self.source(level))
    }

    /// Which of `count` blocks of a level are written.
    pub(crate) fn written(&self, level: u8, first: BlockAddr, count: usize) -> Result<Vec<bool>> {
        self.levels.written(self.health.state(), level, first.0, count, &self.source(level))
    }

    /// The counters of a level.
    pub(crate) fn status(&self, level: u8) -> Vec<StatusItem> {
        self.levels.status(self.health.state(), level)
    }

    /// The sizes of the cached parts of the maps, starting at level 1.
    pub(crate) fn cached(&self) -> impl Iterator<Item = Cached> {
        let levels = 1..=self.levels.count() as u8;
        levels.map(|level| Cached::leaves(&self.levels.lock(self.health.state(), level).level.tree))
    }

    /// The work of the thread that loads leaves of maps before their blocks are carried. Nothing
    /// waits for it.
    pub(crate) fn warm_found(&self, found: &Receiver<Found>) {
        let _guard = self.health.fail_on_panic();
        for (level, addr) in found.iter().flatten() {
            self.levels.warm(self.health.state(), level, addr, 1, &self.source(level));
        }
    }

    /// Fills the hidden slots of a stripe with the slots that it carries and with blocks that the
    /// levels have queued. Stripes come in order.
    pub(crate) fn fill(&self, in_flight: &InFlight, carried: Carried) -> Result<HiddenPart> {
        let _guard = FilledAnyway(in_flight);
        let filling = Filling::new(&self.levels, self.health.state(), &self.log, in_flight.seq, carried);
        let (plain, roots) = filling.fill()?;
        let echo = std::mem::replace(&mut *self.echo.lock(), plain.entries().to_vec());
        let _set_once = in_flight.hidden.set(plain);
        Ok(HiddenPart { roots, echo })
    }
}

impl Wake for Hidden {
    fn wake(&self) {
        self.levels.wake_all();
    }
}
