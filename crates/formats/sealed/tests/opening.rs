//! The reads of an opening, and its second handle on the medium.

mod fixture;

use fixture::{create, meta_at, open_with, options, params, status, write};
use lacuna_contracts::{Disk, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sealed::{OpenOptions, Params};
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A medium in memory that notes the ranges that it is to fetch. It cannot be opened once more.
struct FetchingMedium {
    memory: MemoryMedium,
    fetched: Mutex<Vec<Range<u64>>>,
}

impl MediumInterceptor for FetchingMedium {
    fn inner(&self) -> &dyn Medium {
        &self.memory
    }

    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        Err(Error::new(Kind::Io, "the medium cannot be opened once more"))
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.fetched.lock().unwrap().push(offset..offset + len);
    }
}

fn medium(params: &Params) -> Arc<InterceptedMedium<FetchingMedium>> {
    let medium = InterceptedMedium(FetchingMedium {
        memory: MemoryMedium::new(params.geometry().end()),
        fetched: Mutex::default(),
    });
    create(&medium, params);
    Arc::new(medium)
}

/// An opening after a crash has the medium fetch the metadata that the replayed blocks change.
#[test]
fn the_metadata_of_replayed_blocks_is_fetched() {
    const REPLAYED: [u64; 3] = [5, 900, SEGMENT_BLOCKS + 3];
    for cipher in [Cipher::XtsRandom, Cipher::Gcm] {
        let params = params(cipher, 2 * SEGMENT_BLOCKS);
        let medium = medium(&params);
        let disk = open_with(medium.clone(), &params, options(1)).unwrap();
        REPLAYED.iter().for_each(|block| write(&disk, *block, 1, 1).unwrap());
        disk.close().unwrap();
        drop(disk);
        let pages = REPLAYED.map(|block| meta_at(&*medium, &params, block).start as u64 / 4096 * 4096);
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        REPLAYED.iter().for_each(|block| write(&disk, *block, 1, 2).unwrap());
        disk.flush().unwrap();
        drop(disk);
        medium.0.fetched.lock().unwrap().clear();
        drop(open_with(medium.clone(), &params, options(3)).unwrap());
        let fetched = medium.0.fetched.lock().unwrap();
        for page in pages {
            assert!(fetched.contains(&(page..page + 4096)), "{}, page at {page}", cipher.name());
        }
    }
}

/// A disk whose medium cannot be opened once more works all the same, and its status says that no
/// checkpoint is made beside commits.
#[test]
fn the_status_tells_of_a_missing_second_handle() {
    let params = params(Cipher::Gcm, 2 * SEGMENT_BLOCKS);
    let background = OpenOptions { background: true, ..options(1) };
    let disk = open_with(medium(&params), &params, background).unwrap();
    assert_eq!(status(&disk, "checkpoints_beside_commits"), 0);
    write(&disk, 5, 1, 1).unwrap();
    disk.close().unwrap();
}
