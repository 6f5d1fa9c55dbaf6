//! A read-only medium that is truncated or has unreadable places, presented with its full length.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The content of missing places in lenient mode: garbage that lacuna did not write. Not zeros,
/// since in some places zeros mean that nothing was written.
const RUBBISH: u8 = 0xa5;
/// The granularity of probing for readable places.
const PIECE: usize = 4096;

/// A damaged medium.
///
/// Invariant: a byte that the medium cannot return is an error, or garbage while
/// [`Remains::is_lenient`]; it is never zero.
pub(crate) struct Remains {
    medium: Arc<dyn Medium>,
    /// The full length.
    len: u64,
    lenient: AtomicBool,
}

impl Remains {
    /// A medium that was at least `len` bytes long. `lenient`: missing bytes read as garbage until
    /// [`Remains::be_strict`]. This is for engines that fail on an error while they open, and that
    /// verify the data that they read.
    pub(crate) fn of(medium: Arc<dyn Medium>, len: u64, lenient: bool) -> Remains {
        let len = len.max(medium.len());
        Remains { medium, len, lenient: AtomicBool::new(lenient) }
    }

    /// Makes missing bytes an error.
    pub(crate) fn be_strict(&self) {
        self.lenient.store(false, Ordering::SeqCst);
    }

    fn is_lenient(&self) -> bool {
        self.lenient.load(Ordering::SeqCst)
    }

    fn read_left(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end <= self.medium.len() || end > self.len {
            return self.medium.read_at(offset, buf);
        }
        Err(Error::new(Kind::Io, format!("read of {} bytes at byte {offset}", buf.len()))
            .found(format!("the end of the medium at byte {}: it was cut short", self.medium.len())))
    }

    fn read_pieces(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let until_next = PIECE - (at % PIECE as u64) as usize;
            let (piece, after) = rest.split_at_mut(until_next.min(rest.len()));
            match self.read_left(at, piece) {
                Err(e) if e.kind() == Kind::Io => piece.fill(RUBBISH),
                read => read?,
            }
            at += piece.len() as u64;
            rest = after;
        }
        Ok(())
    }
}

fn refused() -> Error {
    Error::new(Kind::ReadOnly, "cannot write to a medium that is rescued")
}

impl Medium for Remains {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            // Nothing was ever written beyond the full length.
            let within = extent.offset.saturating_add(extent.buf.len() as u64) <= self.len;
            match self.read_left(extent.offset, extent.buf) {
                Err(e) if e.kind() == Kind::Io && within && self.is_lenient() => {
                    self.read_pieces(extent.offset, extent.buf)?;
                }
                read => read?,
            }
        }
        Ok(())
    }

    fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
        Err(refused())
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
        Err(refused())
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(refused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    /// A medium with one unreadable block.
    struct BadBlock(MemoryMedium, u64);

    impl Medium for BadBlock {
        fn len(&self) -> u64 {
            self.0.len()
        }

        fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
            let bad = self.1 * PIECE as u64..(self.1 + 1) * PIECE as u64;
            let meets = |extent: &ReadExtent<'_>| {
                extent.offset < bad.end && extent.offset + extent.buf.len() as u64 > bad.start
            };
            if batch.iter().any(meets) {
                return Err(Error::new(Kind::Io, "a bad sector"));
            }
            self.0.read(batch)
        }

        fn write(&self, _batch: &[WriteExtent<'_>]) -> Result<()> {
            Err(refused())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
            Err(refused())
        }

        fn set_len(&self, _len: u64) -> Result<()> {
            Err(refused())
        }
    }

    #[test]
    fn what_is_not_there_is_rubbish_or_an_error() {
        let content: Vec<u8> = (0..4 * PIECE).map(|at| (at / PIECE) as u8).collect();
        let medium = BadBlock(MemoryMedium::from_bytes(content.clone()), 1);
        let remains = Remains::of(Arc::new(medium), 6 * PIECE as u64, true);
        assert_eq!(remains.len(), 6 * PIECE as u64);
        let mut read = vec![0; 6 * PIECE - 100];
        remains.read_at(100, &mut read).unwrap();
        for (at, byte) in (100..).zip(&read) {
            let expected = if at / PIECE == 1 || at >= 4 * PIECE { RUBBISH } else { content[at] };
            assert_eq!(*byte, expected, "byte {at}");
        }
        // A read beyond the full length is a mistake of the caller.
        assert!(remains.read_at(6 * PIECE as u64 - 1, &mut [0; 2]).is_err());
        remains.be_strict();
        let mut piece = [0; PIECE];
        for (block, readable) in [(0, true), (1, false), (2, true), (3, true), (4, false), (5, false)] {
            let read = remains.read_at(block * PIECE as u64, &mut piece);
            assert_eq!(read.map_err(|e| e.kind()), if readable { Ok(()) } else { Err(Kind::Io) }, "{block}");
        }
        assert_eq!(remains.write_at(0, &piece).unwrap_err().kind(), Kind::ReadOnly);
    }
}
