//! Media with random delays, and media with transient read errors.

use crate::Rng;
use crate::intercept::{InterceptedMedium, MediumInterceptor};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A medium with transient read errors: a repeated read succeeds.
pub struct FlakyMedium {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
}

/// A medium with random delays of reads, writes and syncs.
pub struct SlowMedium {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
    /// One operation in this many is delayed.
    one_of: u64,
    /// The maximum delay of each kind of operation in microseconds.
    max_read: u64,
    max_write: u64,
    max_sync: u64,
    /// Whether a sync also waits after it is done: writes of other threads at that time are not
    /// durable.
    after_sync: bool,
}

impl FlakyMedium {
    /// Wraps a medium.
    pub fn wrap(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        Arc::new(InterceptedMedium(FlakyMedium { medium, rng: Mutex::new(Rng::new(seed)) }))
    }
}

impl MediumInterceptor for FlakyMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.medium
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        if self.rng.lock().chance(1, 100) {
            return Err(Error::new(Kind::Io, "a simulated transient read error"));
        }
        self.medium.read(batch)
    }
}

impl SlowMedium {
    /// Delays every read, write and sync.
    pub fn wrap(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        let rng = Mutex::new(Rng::new(seed));
        let (one_of, after_sync) = (1, false);
        Arc::new(InterceptedMedium(SlowMedium {
            medium,
            rng,
            one_of,
            max_read: 60,
            max_write: 150,
            max_sync: 900,
            after_sync,
        }))
    }

    /// Delays some writes and syncs, so that other threads come first.
    pub fn wrap_occasional(medium: Arc<dyn Medium>, seed: u64) -> Arc<dyn Medium> {
        let rng = Mutex::new(Rng::new(seed));
        let (one_of, after_sync) = (3, true);
        Arc::new(InterceptedMedium(SlowMedium {
            medium,
            rng,
            one_of,
            max_read: 0,
            max_write: 300,
            max_sync: 300,
            after_sync,
        }))
    }

    fn delay(&self, most: u64) {
        let micros = {
            let mut rng = self.rng.lock();
            if most > 0 && rng.chance(1, self.one_of) { rng.below(most) } else { 0 }
        };
        if micros > 0 {
            std::thread::sleep(Duration::from_micros(micros));
        }
    }
}

impl MediumInterceptor for SlowMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.medium
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.delay(self.max_read);
        self.medium.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.delay(self.max_write);
        self.medium.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.delay(self.max_write + self.max_sync);
        self.medium.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        self.delay(self.max_sync);
        let synced = self.medium.sync();
        if self.after_sync {
            self.delay(self.max_sync);
        }
        synced
    }
}
