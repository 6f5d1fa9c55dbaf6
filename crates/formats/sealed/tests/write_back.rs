//! The medium writes the segments of a stream back before a flush asks for it.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sealed::Params;
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::sync::{Arc, Mutex};

/// Keeps the ranges that are synced soon.
struct NotingMedium {
    inner: Arc<MemoryMedium>,
    noted: Mutex<Vec<(u64, u64)>>,
}

impl MediumInterceptor for NotingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.inner
    }

    fn will_sync(&self, offset: u64, len: u64) {
        self.noted.lock().unwrap().push((offset, len));
    }
}

#[test]
fn a_whole_segment_of_a_stream_is_written_back_once_and_not_beside_a_commit() {
    // The third copy-on-write segment makes a commit due.
    let params = Params { spare: 8, ..params(Cipher::XtsRandom, 6 * SEGMENT_BLOCKS) };
    let noting = NotingMedium { inner: new_disk(&params), noted: Mutex::default() };
    let medium = Arc::new(InterceptedMedium(noting));
    let disk = open_with(medium.clone(), &params, options(1)).unwrap();
    let noted = || std::mem::take(&mut *medium.0.noted.lock().unwrap());
    let slot = |number: u32| (params.geometry().data_of(number), SEGMENT_BLOCKS * BLOCK_SIZE as u64);

    write(&disk, 0, SEGMENT_BLOCKS - 64, 1).unwrap();
    assert!(noted().is_empty());
    write(&disk, SEGMENT_BLOCKS - 64, 64, 1).unwrap();
    assert_eq!(noted(), [slot(0)]);
    write(&disk, 0, 64, 2).unwrap();
    assert!(noted().is_empty(), "it was whole before");
    write(&disk, SEGMENT_BLOCKS, SEGMENT_BLOCKS, 3).unwrap();
    assert_eq!(noted(), [slot(1)]);
    write(&disk, 2 * SEGMENT_BLOCKS, SEGMENT_BLOCKS, 4).unwrap();
    assert!(noted().is_empty(), "the commit syncs it");
    for (block, stamp) in [(0, 2), (64, 1), (SEGMENT_BLOCKS, 3), (3 * SEGMENT_BLOCKS - 1, 4)] {
        assert_eq!(stamp_of(block, &read(&disk, block).unwrap()), Some(stamp), "block {block}");
    }
}
