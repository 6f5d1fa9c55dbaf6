//! The cover of a closing: stripes or batches that a disk writes before its last one, so that
//! hidden levels can write their pending blocks.
//!
//! Deniability contract: the amount of the cover and its pace follow from public parameters alone,
//! so that a closing takes the same time, and leaves the same amount on the medium, whatever levels
//! exist.

use lacuna_contracts::Result;
use std::time::{Duration, Instant};

/// The most bytes that it writes: the queues of hidden levels of the default length fit into its
/// stripes.
const MAX_COVER_BYTES: u64 = 128 << 20;
/// Bytes per second at an even pace.
const BYTES_PER_SECOND: u64 = 16 << 20;
/// The most bytes between two syncs, which flushes of hidden levels wait for.
const SYNC_INTERVAL_BYTES: u64 = 4 << 20;
/// The fewest syncs, and the shortest time at an even pace: unmounting a file system takes several
/// flushes, one after another.
const MIN_SYNCS: u64 = 8;
const MIN_DURATION: Duration = Duration::from_secs(1);

/// The pace of the cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the medium takes it: no new request comes to the disk any more.
    Immediate,
    /// At even intervals, 16 MiB in a second or, if it is less than that, all within one second: a
    /// file system that is being unmounted still writes.
    Even,
}

/// The cover of a closing, in stripes or batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosingCover {
    count: u64,
    unit_bytes: u64,
}

impl ClosingCover {
    /// Cover of stripes or batches of `unit_bytes` bytes, and no more than `most` of them: each
    /// may overwrite data of levels that are not open.
    pub fn new(bytes_of_each: u64, most: u64) -> ClosingCover {
        ClosingCover { count: (MAX_COVER_BYTES / bytes_of_each).min(most).max(1), unit_bytes: bytes_of_each }
    }

    /// The number of stripes or batches.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The number of stripes or batches after it that belong to the same closing: beats, and writes
    /// of a file system that is being unmounted. The cover is not written again after them.
    pub fn max_trailing(&self) -> u64 {
        16 + self.count / 4
    }

    /// Calls `write` for each stripe or batch. The argument says whether to make everything written
    /// so far durable.
    pub fn write(&self, pace: Pace, mut write: impl FnMut(bool) -> Result<()>) -> Result<()> {
        let until_sync = (SYNC_INTERVAL_BYTES / self.unit_bytes).min(self.count / MIN_SYNCS).max(1);
        let pause = match pace {
            Pace::Immediate => Duration::ZERO,
            Pace::Even => Duration::from_micros(
                (self.unit_bytes * 1_000_000 / BYTES_PER_SECOND)
                    .max(MIN_DURATION.as_micros() as u64 / self.count),
            ),
        };
        let mut next = Instant::now();
        for number in 1..=self.count {
            write(number == self.count || number.is_multiple_of(until_sync))?;
            next += pause;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::{Error, Kind};

    #[test]
    fn closing_cover_has_the_planned_size_and_ends_durable() {
        for (bytes, most, count) in
            [(256 << 10, 1 << 20, 512), (256 << 10, 31, 31), (1 << 30, 8, 1), (4096, 0, 1)]
        {
            let cover = ClosingCover::new(bytes, most);
            let mut durable = Vec::new();
            cover
                .write(Pace::Immediate, |sync| {
                    durable.push(sync);
                    Ok(())
                })
                .unwrap();
            assert_eq!((cover.count(), durable.len() as u64), (count, count));
            assert!(durable.last() == Some(&true));
        }
        let cover = ClosingCover::new(256 << 10, 512);
        let mut syncs = 0;
        cover
            .write(Pace::Immediate, |sync| {
                syncs += u64::from(sync);
                Ok(())
            })
            .unwrap();
        assert_eq!(syncs, 32);
        let (mut syncs, few) = (0, ClosingCover::new(256 << 10, 32));
        few.write(Pace::Immediate, |sync| {
            syncs += u64::from(sync);
            Ok(())
        })
        .unwrap();
        assert_eq!(syncs, MIN_SYNCS);
        let mut written = 0;
        let failed = cover.write(Pace::Even, |_| {
            written += 1;
            Err(Error::new(Kind::Io, "no more"))
        });
        assert!(failed.is_err() && written == 1);
    }
}
