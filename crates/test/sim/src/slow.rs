//! Media with random delays, and media with transient read errors.

use crate::Rng;
use crate::around::{Around, Surrounded};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A medium with transient read errors: a repeated read succeeds.
pub struct Flaky {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
}

/// A medium with random delays of reads, writes and syncs.
pub struct Slow {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
    /// One operation in this many is delayed.
    one_of: u64,
    /// The maximum delay of each kind of operation in microseconds.
    read: u64,
    write: u64,
    sync: u64,
    /// Whether a sync also waits after it is done: writes of other threads at that time are not
    /// durable.
    after_sync: bool,
}

impl Flaky {
    /// Wraps a medium.
    pub fn over(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        Arc::new(Surrounded(Flaky { medium, rng: Mutex::new(Rng::new(seed)) }))
    }
}

impl Around for Flaky {
    fn below(&self) -> &dyn Medium {
        &*self.medium
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        if self.rng.lock().chance(1, 100) {
            return Err(Error::new(Kind::Io, "not now"));
        }
        self.medium.read(batch)
    }
}

impl Slow {
    /// Delays every read, write and sync.
    pub fn over(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        let rng = Mutex::new(Rng::new(seed));
        let (one_of, after_sync) = (1, false);
        Arc::new(Surrounded(Slow { medium, rng, one_of, read: 60, write: 150, sync: 900, after_sync }))
    }

    /// Delays some writes and syncs, so that other threads come first.
    pub fn at_times(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        let rng = Mutex::new(Rng::new(seed));
        let (one_of, after_sync) = (3, true);
        Arc::new(Surrounded(Slow { medium, rng, one_of, read: 0, write: 300, sync: 300, after_sync }))
    }

    fn pause(&self, most: u64) {
        let micros = {
            let mut rng = self.rng.lock();
            if most > 0 && rng.chance(1, self.one_of) { rng.below(most) } else { 0 }
        };
        if micros > 0 {
            std::thread::sleep(Duration::from_micros(micros));
        }
    }
}

impl Around for Slow {
    fn below(&self) -> &dyn Medium {
        &*self.medium
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.pause(self.read);
        self.medium.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.pause(self.write);
        self.medium.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.pause(self.write + self.sync);
        self.medium.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        self.pause(self.sync);
        let synced = self.medium.sync();
        if self.after_sync {
            self.pause(self.sync);
        }
        synced
    }
}
