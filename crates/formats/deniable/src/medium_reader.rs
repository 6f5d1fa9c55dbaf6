//! Reading the medium: more than once what it does not give, and with pauses what would be lost for
//! good.
//!
//! Invariant: nothing is taken for lost on a medium that reads nothing at all.

use crate::params::CHECKPOINTS;
use lacuna_contracts::{BLOCK_SIZE, Result};
use lacuna_levels::{again, until_not_refused};
use lacuna_medium::{Medium, ReadExtent};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between the tries to read what would be lost.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(75),
    Duration::from_millis(200),
    Duration::from_millis(400),
];
/// How many places are remembered that failed all tries.
const MOST_GIVEN_UP: usize = 4096;

/// The medium of a disk, to be read.
pub(crate) struct MediumReader {
    medium: Arc<dyn Medium>,
    /// Pauses are made between tries. Without the threads of a disk they are not.
    patient: bool,
    given_up: Mutex<BTreeSet<u64>>,
}

impl MediumReader {
    pub(crate) fn new(medium: Arc<dyn Medium>, patient: bool) -> MediumReader {
        MediumReader { medium, patient, given_up: Mutex::default() }
    }

    /// Reads once, for a level.
    ///
    /// Deniability contract: the system's cache names the places that were read. What is read for a
    /// hidden level leaves none there.
    pub(crate) fn read_once(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        match level {
            0 => self.medium.read_at(offset, buf),
            _ => self.medium.read_discreetly(&mut [ReadExtent { offset, buf }]),
        }
    }

    /// Reads more than once if the medium fails: some errors pass.
    pub(crate) fn read(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        again(|| self.read_once(level, offset, buf))
    }

    /// Reads what is lost for good if it cannot be read: with pauses between further tries, so that
    /// a hiccup of the medium costs nothing. A place that failed all of them once is not waited for
    /// again; nor is one that the system refuses to read, which is not lost: the caller tries again
    /// later.
    pub(crate) fn read_or_lose(&self, level: u8, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut read = self.read(level, offset, buf);
        let ended = |read: &Result<()>| read.as_ref().err().is_none_or(|e| e.kind().is_refusal());
        // A medium that reads nothing at all has not lost this place: the disk fails, and nothing
        // is given up.
        if ended(&read) || !self.patient || self.given_up.lock().contains(&offset) || !self.reads_at_all() {
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
        if given_up.len() < MOST_GIVEN_UP {
            given_up.insert(offset);
        }
        read
    }

    /// Reads what a stripe cannot be filled without: with the threads of a disk, what the system
    /// refuses is tried again ([`until_not_refused`]).
    pub(crate) fn held(&self, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        if self.patient { until_not_refused(read) } else { read() }
    }

    /// Whether the medium reads at all: if not, what it does not give is not lost.
    pub(crate) fn reads_at_all(&self) -> bool {
        let mut block = [0; BLOCK_SIZE];
        (0..2).any(|turn| self.read(0, CHECKPOINTS + turn * BLOCK_SIZE as u64, &mut block).is_ok())
    }
}
