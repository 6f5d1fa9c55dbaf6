//! The cover of a closing: what a disk writes before its last stripe or batch, so that hidden
//! levels get rid of what is pending.
//!
//! Deniability contract: how much it is and at what pace it is written follow from public
//! parameters alone, so that a closing takes as long, and leaves as much on the medium, whatever
//! levels exist.

use lacuna_contracts::Result;
use std::time::{Duration, Instant};

/// The most bytes that it writes: the queues of hidden levels of the default length fit into the
/// stripes of so much.
const MOST_BYTES: u64 = 128 << 20;
/// Bytes that it writes in a second at an even pace.
const SPEED: u64 = 16 << 20;
/// The most bytes between two syncs: flushes of hidden levels wait for those.
const UNTIL_SYNC: u64 = 4 << 20;
/// The least syncs, and the least time at an even pace: to unmount a file system takes several
/// flushes, one after another.
const LEAST_SYNCS: u64 = 8;
const LEAST: Duration = Duration::from_secs(1);

/// How fast it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the medium takes it: no new request comes to the disk any more.
    AtOnce,
    /// At even distances, 16 MiB in a second or, if it is less than that, all in one second: a file
    /// system that is being unmounted still writes.
    Even,
}

/// The cover of a closing, in stripes or batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosingCover {
    count: u64,
    bytes_of_each: u64,
}

impl ClosingCover {
    /// In stripes or batches of so many bytes, and no more than `most` of them: each of them takes
    /// a step towards the loss of levels that are not open.
    pub fn new(bytes_of_each: u64, most: u64) -> ClosingCover {
        ClosingCover { count: (MOST_BYTES / bytes_of_each).min(most).max(1), bytes_of_each }
    }

    /// How many stripes or batches it is.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// So many stripes or batches after it are of the same closing: beats, and what unmounting a
    /// file system writes. It is not written once more after them.
    pub fn few(&self) -> u64 {
        16 + self.count / 4
    }

    /// Calls `write` for each of them, and tells it whether what was written is to be made durable
    /// with it.
    pub fn write(&self, pace: Pace, mut write: impl FnMut(bool) -> Result<()>) -> Result<()> {
        let until_sync = (UNTIL_SYNC / self.bytes_of_each).min(self.count / LEAST_SYNCS).max(1);
        let pause = match pace {
            Pace::AtOnce => Duration::ZERO,
            Pace::Even => Duration::from_micros(
                (self.bytes_of_each * 1_000_000 / SPEED).max(LEAST.as_micros() as u64 / self.count),
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
    fn it_is_as_much_as_its_parameters_say_and_ends_durable() {
        for (bytes, most, count) in
            [(256 << 10, 1 << 20, 512), (256 << 10, 31, 31), (1 << 30, 8, 1), (4096, 0, 1)]
        {
            let cover = ClosingCover::new(bytes, most);
            let mut durable = Vec::new();
            cover
                .write(Pace::AtOnce, |sync| {
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
            .write(Pace::AtOnce, |sync| {
                syncs += u64::from(sync);
                Ok(())
            })
            .unwrap();
        assert_eq!(syncs, 32);
        let (mut syncs, few) = (0, ClosingCover::new(256 << 10, 32));
        few.write(Pace::AtOnce, |sync| {
            syncs += u64::from(sync);
            Ok(())
        })
        .unwrap();
        assert_eq!(syncs, LEAST_SYNCS);
        let mut written = 0;
        let failed = cover.write(Pace::Even, |_| {
            written += 1;
            Err(Error::new(Kind::Io, "no more"))
        });
        assert!(failed.is_err() && written == 1);
    }
}
