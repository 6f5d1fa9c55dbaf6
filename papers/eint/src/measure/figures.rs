//! The metrics of EINT, section 2, over a set of files that are written and then read from end to
//! end.

use crate::measure::memory::CountingMemory;
use crate::measure::subject::{CacheKind, MeasuredFile, MeasuredScheme};
use lacuna_contracts::{Error, Kind, Result};
use std::time::{Duration, Instant};

/// Measured figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostFigures {
    /// Time of all writes, including the commits to US.
    pub write: Duration,
    /// Time of all reads, including their checks.
    pub read: Duration,
    /// Blocks written.
    pub written: u64,
    /// Blocks read.
    pub checked: u64,
    /// Bytes of US accessed by writes.
    pub write_us: u64,
    /// Bytes of US accessed by reads.
    pub read_us: u64,
    /// Bytes of US at the end.
    pub stored_us: u64,
}

impl CostFigures {
    /// The integrity bandwidth: bytes of US per block that is written or read.
    pub fn bandwidth(&self) -> f64 {
        (self.write_us + self.read_us) as f64 / (self.written + self.checked).max(1) as f64
    }

    /// Time of all writes and reads.
    pub fn time(&self) -> Duration {
        self.write + self.read
    }
}

/// Bytes of a request, as FUSE sends them.
const REQUEST: usize = 128 << 10;

/// Writes all files from end to end, then reads all of them and compares. Files are whole blocks.
/// Errors: [`Kind::Corrupt`] if a read does not return the written data.
pub fn measure_files(
    subject: MeasuredScheme,
    block_size: usize,
    cache: Option<(CacheKind, usize)>,
    files: &[Vec<u8>],
) -> Result<CostFigures> {
    let mut figures = CostFigures::default();
    let mut held: Vec<(Box<dyn MeasuredFile>, CountingMemory)> = Vec::with_capacity(files.len());
    for (number, content) in (0..).zip(files) {
        let blocks = (content.len() / block_size) as u64;
        let us = CountingMemory::new(block_size, blocks);
        let mut file = subject.file(number, block_size, cache);
        let began = Instant::now();
        for (at, run) in content.chunks(REQUEST).enumerate() {
            file.write(&us, (at * REQUEST / block_size) as u64, run)?;
        }
        file.close(&us)?;
        figures.write += began.elapsed();
        figures.written += blocks;
        figures.write_us += us.take_accessed();
        held.push((file, us));
    }
    let mut room = vec![0; REQUEST];
    for (content, (file, us)) in files.iter().zip(&held) {
        for (at, run) in content.chunks(REQUEST).enumerate() {
            let room = &mut room[..run.len()];
            let began = Instant::now();
            file.read(us, (at * REQUEST / block_size) as u64, room)?;
            figures.read += began.elapsed();
            if room != run {
                return Err(Error::new(Kind::Corrupt, format!("{} returned other bytes", subject.name())));
            }
        }
        figures.checked += (content.len() / block_size) as u64;
        figures.read_us += us.take_accessed();
        figures.stored_us += us.stored();
    }
    Ok(figures)
}
