//! A medium one of whose syncs fails, and whose later ones do nothing and succeed: as Linux tells one caller alone that it
//! could not write pages, and has dropped them when the next one asks.

use crate::versions::fill;
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So long the sync takes that fails: whoever else wants one waits for it by then.
const FAILS_AFTER: Duration = Duration::from_millis(20);

/// The medium.
pub struct FailedSync {
    medium: Arc<dyn Medium>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Syncs until the one that fails.
    left: Option<u64>,
    failed: bool,
    after: u64,
}

impl FailedSync {
    /// Passes everything on.
    pub fn new(medium: Arc<dyn Medium>) -> Self {
        FailedSync { medium, state: Mutex::default() }
    }

    /// The `nth` sync from now on fails.
    pub fn fail_sync(&self, nth: u64) {
        self.state().left = Some(nth);
    }

    /// Syncs that were made after the one that failed: whoever makes one believes what is not true.
    pub fn syncs_after(&self) -> u64 {
        self.state().after
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clients that write and flush, each a block of its own, until they are refused.
pub fn flush_until_refused(disk: &dyn Disk, clients: u64) {
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let mut block = [0; BLOCK_SIZE];
                fill(client, 1, &mut block);
                while disk.write(BlockAddr(client), &block).and_then(|()| disk.flush()).is_ok() {}
            });
        }
    });
}

impl Medium for FailedSync {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.medium.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.medium.write(batch)
    }

    fn sync(&self) -> Result<()> {
        let fails = {
            let mut state = self.state();
            state.after += u64::from(state.failed);
            let fails = state.left == Some(1);
            state.left = state.left.filter(|_| !fails).map(|left| left - 1);
            state.failed |= fails;
            fails
        };
        if !fails {
            return self.medium.sync();
        }
        std::thread::sleep(FAILS_AFTER);
        Err(Error::new(Kind::Io, "sync of the medium").found("pages that could not be written"))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.medium.set_len(len)
    }
}
