//! Tells streams from scattered writes, so that only streams open copy-on-write segments.

use std::sync::{Mutex, PoisonError};

/// How far from the end of an earlier write a write may begin and still continue its stream, in lengths of the
/// write: requests at depth arrive out of order, but not by much.
const WINDOW: u64 = 4;
const REMEMBERED: usize = 8;

/// The ends of recent large writes.
#[derive(Default)]
pub(crate) struct StreamDetector(Mutex<([u64; REMEMBERED], usize)>);

impl StreamDetector {
    /// Notes a large write and says whether it continues a stream.
    pub(crate) fn note(&self, first: u64, count: u64) -> bool {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ends, next) = &mut *recent;
        let end = first + count;
        let near = ends.iter().position(|&e| e != 0 && e.abs_diff(first) <= WINDOW * count);
        match near {
            Some(place) => ends[place] = ends[place].max(end),
            None => {
                ends[*next] = end;
                *next = (*next + 1) % REMEMBERED;
            }
        }
        near.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_out_of_order_is_a_stream_and_scattered_writes_are_not() {
        let detector = StreamDetector::default();
        assert!(!detector.note(0, 256));
        for first in [512, 256, 768, 1280, 1024] {
            assert!(detector.note(first, 256));
        }
        let mut x = 1u64;
        let random = (0..1000).filter(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            StreamDetector::note(&detector, (x >> 20) % (1 << 30), 256)
        });
        assert!(random.count() < 10);
    }
}
