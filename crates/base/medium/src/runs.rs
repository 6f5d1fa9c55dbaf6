//! Grouping of extents into requests.

use crate::{ReadExtent, WriteExtent};

/// The most bytes between two extents of one request: reading that much more costs less than
/// another request.
const MOST_BETWEEN: u64 = 32 << 10;
/// The most bytes of one request, unless a single extent has more.
pub(crate) const MOST_AT_ONCE: u64 = 256 << 10;

/// Whether `next` begins at the end of `one`.
pub(crate) fn are_adjacent(one: &ReadExtent<'_>, next: &ReadExtent<'_>) -> bool {
    one.offset + one.buf.len() as u64 == next.offset
}

/// The ranges of the extents of a batch: offsets and lengths.
pub(crate) fn places(batch: &[WriteExtent<'_>]) -> impl Iterator<Item = (u64, u64)> {
    batch.iter().map(|extent| (extent.offset, extent.data.len() as u64))
}

/// Splits a batch into runs that one request each can read, gaps included. A run has consecutive
/// extents in ascending order with small gaps.
pub fn near_runs<'b, 'e>(batch: &'b mut [ReadExtent<'e>]) -> impl Iterator<Item = &'b mut [ReadExtent<'e>]> {
    let mut rest = batch;
    std::iter::from_fn(move || {
        let count = run_len(rest);
        if count == 0 {
            return None;
        }
        let (run, further) = std::mem::take(&mut rest).split_at_mut(count);
        rest = further;
        Some(run)
    })
}

/// The number of extents, starting with the first, that make a run.
fn run_len(batch: &[ReadExtent<'_>]) -> usize {
    let Some(first) = batch.first() else { return 0 };
    let mut end = end_of(first);
    let near = |next: &&ReadExtent<'_>| {
        let between = next.offset.checked_sub(end);
        end = end_of(next);
        between.is_some_and(|bytes| bytes <= MOST_BETWEEN) && end - first.offset <= MOST_AT_ONCE
    };
    1 + batch[1..].iter().take_while(near).count()
}

fn end_of(extent: &ReadExtent<'_>) -> u64 {
    extent.offset.saturating_add(extent.buf.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of extents in each run of these extents, given as offset and length.
    fn runs(extents: &[(u64, usize)]) -> Vec<usize> {
        let mut memory: Vec<Vec<u8>> = extents.iter().map(|(_, len)| vec![0; *len]).collect();
        let bufs = extents.iter().zip(&mut memory);
        let mut batch: Vec<_> = bufs.map(|((offset, _), buf)| ReadExtent { offset: *offset, buf }).collect();
        near_runs(&mut batch).map(|run| run.len()).collect()
    }

    #[test]
    fn near_extents_form_one_run_and_a_step_back_starts_another() {
        assert_eq!(runs(&[]), [0; 0]);
        // The blocks of a group, and the page of their metadata.
        assert_eq!(runs(&[(0, 4096), (4096, 4096), (20480, 4096), (32768, 64), (32832, 64)]), [5]);
        // A gap of the maximum width, a wider one, a step back, and one offset twice.
        let (near, far) = (4096 + (32 << 10), 8192 + (64 << 10) + 1);
        assert_eq!(runs(&[(0, 4096), (near, 4096), (far, 4096), (far - 1, 1), (far - 1, 1)]), [2, 1, 1, 1]);
    }

    #[test]
    fn a_run_has_no_more_than_one_request_reads() {
        let adjacent: Vec<(u64, usize)> = (0..130).map(|at| (at * 4096, 4096)).collect();
        assert_eq!(runs(&adjacent), [64, 64, 2]);
        assert_eq!(runs(&[(0, 1 << 20), (1 << 20, 4096), (u64::MAX - 1, 64)]), [1, 1, 1]);
    }
}
