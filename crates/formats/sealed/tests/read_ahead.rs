//! The medium fetches a stream of reads before the disk reads it.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Keeps the ranges that are read soon.
struct NotingMedium {
    inner: Arc<MemoryMedium>,
    noted: Mutex<Vec<Range<u64>>>,
}

impl MediumInterceptor for NotingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.inner
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.noted.lock().unwrap().push(offset..offset + len);
    }
}

#[test]
fn a_stream_of_reads_is_fetched_before_it_is_read() {
    const READ: u64 = 32;
    let params = params(Cipher::XtsRandom, 6 * SEGMENT_BLOCKS);
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    write(&disk, 0, 2 * SEGMENT_BLOCKS, 1).unwrap();
    disk.close().unwrap();

    let noting = NotingMedium { inner: inner.clone(), noted: Mutex::default() };
    let medium = Arc::new(InterceptedMedium(noting));
    let disk = open_with(medium.clone(), &params, options(2)).unwrap();
    let mut out = vec![0; READ as usize * BLOCK_SIZE];
    for first in (0..2 * SEGMENT_BLOCKS).step_by(READ as usize) {
        // The second read shows that there is a stream.
        for block in [first, first + READ - 1].into_iter().filter(|_| first >= 2 * READ) {
            let (data, meta) = (data_at(&*inner, &params, block), meta_at(&*inner, &params, block));
            let noted = medium.0.noted.lock().unwrap();
            let is_noted = |at: usize| noted.iter().any(|range| range.contains(&(at as u64)));
            assert!(is_noted(data.start) && is_noted(meta.start), "block {block}");
        }
        disk.read(BlockAddr(first), &mut out).unwrap();
        assert_eq!(stamp_of(first, &out[..BLOCK_SIZE]), Some(1), "block {first}");
    }
}
