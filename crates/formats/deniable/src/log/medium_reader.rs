//! Reads the medium: tries again after errors, with pauses where a failure would lose data.
//!
//! Invariant: on a medium that reads nothing at all, no data counts as lost.

use crate::params::CHECKPOINTS;
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{retry, retry_refused};
use lacuna_medium::{Medium, ReadExtent};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between the tries to read data that would be lost.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(75),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
/// The most places that are remembered as having failed all tries.
const MAX_GIVEN_UP: usize = 4096;

/// The reader of the medium of a disk.
pub(crate) struct MediumReader {
    medium: Arc<dyn Medium>,
    /// Whether to pause between tries: only on a disk with threads.
    pauses: bool,
    given_up: Mutex<BTreeSet<u64>>,
}

impl MediumReader {
    pub(crate) fn new(medium: Arc<dyn Medium>, patient: bool) -> MediumReader {
        MediumReader { medium, pauses: patient, given_up: Mutex::default() }
    }

    /// Whether the disk has threads: several may then read at once.
    pub(crate) fn has_threads(&self) -> bool {
        self.pauses
    }

    /// Reads once, for a level.
    ///
    /// Deniability contract: the system's cache shows which places were read. A read for a hidden
    /// level leaves nothing there.
    pub(crate) fn read_once(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        match level {
            0 => self.medium.read_at(offset, buf),
            _ => self.medium.read_discreetly(&mut [ReadExtent { offset, buf }]),
        }
    }

    /// Reads, and tries again if the medium fails: some errors are transient.
    pub(crate) fn read(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        retry(|| self.read_once(level, offset, buf))
    }

    /// Has the medium fetch a block that is read soon for level 0.
    pub(crate) fn will_read_public(&self, offset: u64) {
        self.medium.will_read(offset, BLOCK_SIZE as u64);
    }

    /// Reads data that is lost for good if it cannot be read: makes further tries with pauses
    /// between them, so that a transient failure of the medium costs nothing. A place that failed
    /// all of them once gets no more pauses. Nor does a read that the system refuses: nothing is
    /// lost then, and the caller tries again later.
    pub(crate) fn read_with_pauses(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut read = self.read(level, offset, buf);
        let ended = |read: &Result<()>| read.as_ref().err().is_none_or(|e| e.kind().is_refusal());
        // A medium that reads nothing at all has not lost this place: the disk fails, and no place
        // is given up.
        if ended(&read) || !self.pauses || self.given_up.lock().contains(&offset) || !self.is_readable() {
            return read;
        }
        for pause in PAUSES {
            std::thread::sleep(pause);
            read = self.read_once(level, offset, buf);
            if ended(&read) {
                return read;
            }
        }
        let mut given_up = self.given_up.lock();
        if given_up.len() < MAX_GIVEN_UP {
            given_up.insert(offset);
        }
        read
    }

    /// Reads data without which a stripe cannot be filled. On a disk with threads, a read that the
    /// system refuses is tried again ([`retry_refused`]).
    pub(crate) fn retry_if_refused(&self, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        if self.pauses { retry_refused(read) } else { read() }
    }

    /// Whether the medium reads at all; if not, a failed read means no loss.
    pub(crate) fn is_readable(&self) -> bool {
        let mut block = [0; BLOCK_SIZE];
        (0..2).any(|turn| self.read(0, CHECKPOINTS + turn * BLOCK_SIZE as u64, &mut block).is_ok())
    }
}
