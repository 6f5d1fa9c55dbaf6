//! A read-only medium that is truncated or has unreadable places, presented with its full length.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The content of missing places in lenient mode: garbage that lacuna did not write. Not zeros,
/// since in some places zeros mean that nothing was written.
const GARBAGE: u8 = 0xa5;
/// The granularity of probing for readable places.
const PROBE_LEN: usize = 4096;

/// A damaged medium.
///
/// Invariant: a byte that the medium cannot return is an error, or garbage while
/// [`DamagedMedium::is_lenient`]; it is never zero.
pub(crate) struct DamagedMedium {
    medium: Arc<dyn Medium>,
    /// The full length.
    len: u64,
    lenient: AtomicBool,
}

impl DamagedMedium {
    /// A medium that was at least `len` bytes long. `lenient`: missing bytes read as garbage until
    /// [`DamagedMedium::set_strict`]. This is for engines that fail on an error while they open,
    /// and that verify the data that they read.
    pub(crate) fn new(medium: Arc<dyn Medium>, len: u64, lenient: bool) -> DamagedMedium {
        let len = len.max(medium.len());
        DamagedMedium { medium, len, lenient: AtomicBool::new(lenient) }
    }

    /// Makes missing bytes an error.
    pub(crate) fn set_strict(&self) {
        self.lenient.store(false, Ordering::SeqCst);
    }

    fn is_lenient(&self) -> bool {
        self.lenient.load(Ordering::SeqCst)
    }

    fn read_existing(&self, offset: u64, buf: &mut [u8], is_discreet: bool) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end <= self.medium.len() || end > self.len {
            let extent = &mut [ReadExtent { offset, buf }];
            return if is_discreet { self.medium.read_discreetly(extent) } else { self.medium.read(extent) };
        }
        Err(Error::new(Kind::Io, format!("read of {} bytes at byte {offset}", buf.len()))
            .found(format!("the end of the medium at byte {}: it was cut short", self.medium.len())))
    }

    fn read_pieces(&self, offset: u64, buf: &mut [u8], is_discreet: bool) -> Result<()> {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let until_next = PROBE_LEN - (at % PROBE_LEN as u64) as usize;
            let (piece, after) = rest.split_at_mut(until_next.min(rest.len()));
            match self.read_existing(at, piece, is_discreet) {
                Err(e) if e.kind() == Kind::Io => piece.fill(GARBAGE),
                read => read?,
            }
            at += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn read_batch(&self, batch: &mut [ReadExtent<'_>], is_discreet: bool) -> Result<()> {
        for extent in batch {
            // Nothing was ever written beyond the full length.
            let within = extent.offset.saturating_add(extent.buf.len() as u64) <= self.len;
            match self.read_existing(extent.offset, extent.buf, is_discreet) {
                Err(e) if e.kind() == Kind::Io && within && self.is_lenient() => {
                    self.read_pieces(extent.offset, extent.buf, is_discreet)?;
                }
                read => read?,
            }
        }
        Ok(())
    }
}

fn read_only_error() -> Error {
    Error::new(Kind::ReadOnly, "cannot write to a medium during a rescue")
}

impl Medium for DamagedMedium {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read_batch(batch, false)
    }

    fn expect_discreet_reads(&self) -> Result<()> {
        self.medium.expect_discreet_reads()
    }

    /// Deniability contract: a rescue reads hidden levels as an open disk does.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read_batch(batch, true)
    }

    fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
        Err(read_only_error())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget_cached(&self) -> Result<()> {
        self.medium.forget_cached()
    }

    fn expect_random_reads(&self) {
        self.medium.expect_random_reads();
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.medium.will_read(offset, len.min(self.medium.len().saturating_sub(offset)));
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(read_only_error())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(read_only_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;
    use lacuna_testkit::CountingMedium;

    /// A medium with one unreadable block.
    struct BadBlockMedium(MemoryMedium, u64);

    impl Medium for BadBlockMedium {
        fn len(&self) -> u64 {
            self.0.len()
        }

        fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
            let bad = self.1 * PROBE_LEN as u64..(self.1 + 1) * PROBE_LEN as u64;
            let meets = |extent: &ReadExtent<'_>| {
                extent.offset < bad.end && extent.offset + extent.buf.len() as u64 > bad.start
            };
            if batch.iter().any(meets) {
                return Err(Error::new(Kind::Io, "a bad sector"));
            }
            self.0.read(batch)
        }

        fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
            self.read(batch)
        }

        fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
            Err(read_only_error())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
            Err(read_only_error())
        }

        fn set_len(&self, _len: u64) -> Result<()> {
            Err(read_only_error())
        }
    }

    #[test]
    fn missing_bytes_read_as_garbage_or_fail() {
        let content: Vec<u8> = (0..4 * PROBE_LEN).map(|at| (at / PROBE_LEN) as u8).collect();
        let medium = BadBlockMedium(MemoryMedium::from_bytes(content.clone()), 1);
        let remains = DamagedMedium::new(Arc::new(medium), 6 * PROBE_LEN as u64, true);
        assert_eq!(remains.len(), 6 * PROBE_LEN as u64);
        let mut read = vec![0; 6 * PROBE_LEN - 100];
        remains.read_at(100, &mut read).unwrap();
        for (at, byte) in (100..).zip(&read) {
            let expected = if at / PROBE_LEN == 1 || at >= 4 * PROBE_LEN { GARBAGE } else { content[at] };
            assert_eq!(*byte, expected, "byte {at}");
        }
        // A read beyond the full length is a mistake of the caller.
        assert!(remains.read_at(6 * PROBE_LEN as u64 - 1, &mut [0; 2]).is_err());
        remains.set_strict();
        let mut piece = [0; PROBE_LEN];
        for (block, readable) in [(0, true), (1, false), (2, true), (3, true), (4, false), (5, false)] {
            let read = remains.read_at(block * PROBE_LEN as u64, &mut piece);
            assert_eq!(read.map_err(|e| e.kind()), if readable { Ok(()) } else { Err(Kind::Io) }, "{block}");
        }
        assert_eq!(remains.write_at(0, &piece).unwrap_err().kind(), Kind::ReadOnly);
    }

    #[test]
    fn discreet_reads_reach_the_medium_as_such() {
        let block = PROBE_LEN as u64;
        let counting = Arc::new(CountingMedium::new(4 * block));
        for lenient in [false, true] {
            let remains = DamagedMedium::new(Arc::clone(&counting) as Arc<dyn Medium>, 6 * block, lenient);
            let (mut first, mut last) = ([0; PROBE_LEN], [0; PROBE_LEN]);
            let mut batch =
                [ReadExtent { offset: 0, buf: &mut first }, ReadExtent { offset: 3 * block, buf: &mut last }];
            remains.read_discreetly(&mut batch).unwrap();
            assert_eq!(counting.take().offsets, [0, 3 * block]);
            // Beyond the end of the medium.
            let mut rest = [0; 4 * PROBE_LEN];
            let read = remains.read_discreetly(&mut [ReadExtent { offset: 2 * block, buf: &mut rest }]);
            assert_eq!(read.is_ok(), lenient);
            let expected = if lenient { vec![2 * block, 3 * block] } else { Vec::new() };
            assert_eq!(counting.take().offsets, expected);
            remains.read_at(0, &mut first).unwrap();
            assert!(counting.take().offsets.is_empty(), "a read that is not discreet");
        }
    }
}
