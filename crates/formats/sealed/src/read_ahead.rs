//! Tells which blocks to fetch before a reader asks for them.
//!
//! Invariant: of a stream of reads, each block is fetched at most once.

use crate::address::CHUNK_BLOCKS;
use lacuna_contracts::BlockAddr;
use parking_lot::Mutex;
use std::ops::Range;

/// Blocks that are fetched beyond the end of a stream, in lengths of the read: the medium works on
/// them while earlier blocks are decrypted and copied.
const AHEAD: u64 = 8;
/// The most of these blocks: 2 MiB.
const MOST_AHEAD: u64 = 512;
/// How far before the end of its stream a read may begin, in lengths of the read. Queued requests
/// arrive slightly out of order.
const BEHIND: u64 = 2;
const REMEMBERED: usize = 8;

/// A stream of reads.
#[derive(Clone, Copy, Default)]
struct ReadStream {
    /// The greatest end of its reads; 0 if there was none.
    end: u64,
    /// The end of its fetched blocks.
    fetched: u64,
}

impl ReadStream {
    /// Whether a read of `count` blocks continues it.
    fn continues(&self, first: u64, count: u64) -> bool {
        let earliest = self.end.saturating_sub(BEHIND * count);
        self.end != 0 && (earliest..=self.fetched).contains(&first)
    }
}

/// The latest streams of reads.
#[derive(Default)]
pub(crate) struct ReadAhead(Mutex<([ReadStream; REMEMBERED], usize)>);

impl ReadAhead {
    /// Notes a read of a disk of `blocks` blocks. Returns the blocks to fetch: those of the read,
    /// if it is not one access to the medium anyway; if it continues a stream, blocks beyond the
    /// end of the stream, whenever less than half of the wanted ones are left.
    pub(crate) fn note_read(&self, first: BlockAddr, count: u64, blocks: u64) -> Range<u64> {
        let (first, end) = (first.0, first.0 + count);
        let mut recent = self.0.lock();
        let (streams, next) = &mut *recent;
        let Some(at) = streams.iter().position(|stream| stream.continues(first, count)) else {
            streams[*next] = ReadStream { end, fetched: end };
            *next = (*next + 1) % REMEMBERED;
            return if count >= CHUNK_BLOCKS { first..end } else { end..end };
        };
        let (stream, ahead) = (&mut streams[at], MOST_AHEAD.min(AHEAD * count));
        stream.end = stream.end.max(end);
        let fetched = stream.fetched;
        if fetched < stream.end + ahead / 2 {
            stream.fetched = (stream.end + ahead).min(blocks);
        }
        fetched..stream.fetched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 1 << 20;

    #[test]
    fn a_stream_is_fetched_once_and_before_it_is_read() {
        let ahead = ReadAhead::default();
        let mut fetched = 0;
        // Requests of 1 MiB and of 256 KiB in turns, each second pair swapped.
        let reads =
            [(0, 256), (256, 64), (576, 64), (320, 256), (640, 256), (896, 64), (1216, 64), (960, 256)];
        for (at, (first, count)) in reads.into_iter().enumerate() {
            let range = ahead.note_read(BlockAddr(first), count, BLOCKS);
            assert_eq!(range.start, fetched, "read {at}");
            assert!(at < 2 || fetched >= first + count, "read {at} was not fetched before");
            fetched = range.end;
            assert!(fetched <= first + count + MOST_AHEAD + 256, "read {at}");
        }
    }

    #[test]
    fn a_fetch_ends_with_the_disk() {
        let ahead = ReadAhead::default();
        assert_eq!(ahead.note_read(BlockAddr(0), 100, 300), 0..100);
        assert_eq!(ahead.note_read(BlockAddr(100), 100, 300), 100..300);
        assert!(ahead.note_read(BlockAddr(200), 100, 300).is_empty());
    }

    #[test]
    fn scattered_reads_fetch_at_most_themselves() {
        let ahead = ReadAhead::default();
        let mut x = 1u64;
        let mut fetch = |count| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = (x >> 20) % (1 << 40);
            let range = ahead.note_read(BlockAddr(first), count, u64::MAX);
            (range.start - first, range.end - range.start)
        };
        assert!((0..500).all(|_| fetch(256) == (0, 256)));
        assert!((0..500).all(|_| fetch(16) == (16, 0)));
    }
}
