//! Tells streams from scattered writes: only streams open copy-on-write segments.

use lacuna_contracts::BlockAddr;
use parking_lot::Mutex;

/// The greatest distance between the end of an earlier write and the start of a write that
/// continues its stream, in lengths of the write. Queued requests arrive slightly out of order.
const WINDOW: u64 = 4;
const REMEMBERED: usize = 8;

/// The ends of recent large writes.
#[derive(Default)]
pub(crate) struct StreamDetector(Mutex<([u64; REMEMBERED], usize)>);

impl StreamDetector {
    /// Notes a large write and returns whether it continues a stream.
    pub(crate) fn note_write(&self, first: BlockAddr, count: u64) -> bool {
        let mut recent = self.0.lock();
        let (ends, next) = &mut *recent;
        let (first, end) = (first.0, first.0 + count);
        let near = ends.iter().position(|&e| e != 0 && e.abs_diff(first) <= WINDOW * count);
        if let Some(place) = near {
            ends[place] = ends[place].max(end);
        } else {
            ends[*next] = end;
            *next = (*next + 1) % REMEMBERED;
        }
        near.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_order_streams_are_detected_and_scattered_writes_are_not() {
        let detector = StreamDetector::default();
        assert!(!detector.note_write(BlockAddr(0), 256));
        for first in [512, 256, 768, 1280, 1024] {
            assert!(detector.note_write(BlockAddr(first), 256));
        }
        let mut x = 1u64;
        let random = (0..1000).filter(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            detector.note_write(BlockAddr((x >> 20) % (1 << 30)), 256)
        });
        assert!(random.count() < 10);
    }
}
