//! Failed reads: each fails alone, and cached blocks stay right.

use crate::fixture::*;
use crate::model::*;
use lacuna_contracts::{Budget, Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed::OpenOptions;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, OpKind, Rng};
use std::sync::Arc;

/// A failed read fails only that request.
#[test]
fn a_failed_read_does_not_stop_writing() {
    for cipher in CIPHERS {
        let params = params(cipher, BLOCKS);
        let (image, mut model) = used_disk(&params);
        let medium = Arc::new(FaultMedium::new(Arc::new(CrashMedium::from_image(image))));
        let disk = open_with(medium.clone(), &params, options(3)).unwrap();
        for nth in 1..3 {
            medium.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
            medium.add(Fault::Short { op: OpKind::Read, nth: nth + 1, bytes: 100 });
        }
        let failed = (0..12).filter(|b| read(&disk, *b).is_err_and(|e| e.kind() == Kind::Io)).count();
        assert!(failed >= 3, "{failed}");
        model.assert_allows(&disk, "after failed reads");
        perform(&disk, Op::Write(1, 3), 500, &mut model).unwrap();
        perform(&disk, Op::Flush, 0, &mut model).unwrap();
        disk.close().unwrap();
        model.assert_allows(&open_with(medium, &params, options(4)).unwrap(), "after reopening");
    }
}

/// A failed read of metadata in a cache of a few pages does not confuse the cache's pages.
#[test]
fn metadata_survives_failed_reads_in_a_tiny_cache() {
    // About two blocks in each of 256 pages of metadata.
    let params = params(Cipher::Gcm, 32 * SEGMENT_BLOCKS);
    let places: Vec<u64> = (0..256).map(|n| n * 128 + 65).collect();
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    let mut model = FaultModel::default();
    for &place in &places {
        perform(&disk, Op::Write(place, 2), 1, &mut model).unwrap();
    }
    disk.close().unwrap();
    let medium = Arc::new(FaultMedium::new(inner.clone()));
    let options = OpenOptions { budget: Budget::bytes(1), ..options(2) };
    let disk = open_with(medium.clone(), &params, options).unwrap();
    let mut rng = Rng::new(7);
    let mut failed = 0;
    for stamp in 10..1000 {
        // The second read of a block is that of its metadata, if its page is not in the cache.
        let place = places[rng.below(256) as usize];
        medium.add(Fault::FailNth { op: OpKind::Read, nth: 2, error: Kind::Io });
        failed += u64::from(read(&disk, place).is_err());
        medium.heal();
        read(&disk, place).unwrap();
        perform(&disk, Op::Write(place, 2), stamp, &mut model).unwrap();
        read(&disk, places[rng.below(256) as usize]).unwrap();
        if stamp % 4 == 0 {
            perform(&disk, Op::Flush, 0, &mut model).unwrap();
        }
    }
    assert!(failed > 100, "{failed}");
    perform(&disk, Op::Flush, 0, &mut model).unwrap();
    model.assert_allows(&disk, "after failed reads");
    disk.close().unwrap();
    model.assert_allows(&open(&inner, &params, 3), "after reopening");
}

/// Unreadable metadata keeps its blocks in the journal; other blocks reach their slots, and writing
/// goes on.
#[test]
fn blocks_with_unreadable_metadata_stay_in_the_journal() {
    let params = params(Cipher::Gcm, BLOCKS);
    let (image, mut model) = used_disk(&params);
    let inner = Arc::new(CrashMedium::from_image(image));
    open_with(inner.clone(), &params, options(3)).unwrap().close().unwrap();
    let bad = meta_at(&*inner, &params, 2);
    let medium = Arc::new(FaultMedium::new(inner));
    let range = bad.start as u64..bad.end as u64;
    medium.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
    let disk = open_with(medium.clone(), &params, options(4)).unwrap();
    perform(&disk, Op::Write(1, 3), 500, &mut model).unwrap();
    perform(&disk, Op::Write(SEGMENT_BLOCKS + 1, 2), 501, &mut model).unwrap();
    perform(&disk, Op::Flush, 0, &mut model).unwrap();
    disk.close().unwrap();
    assert!(medium.fired() > 0, "the metadata was not wanted");
    let disk = open_with(medium.clone(), &params, options(5)).unwrap();
    assert!(disk.is_medium_full());
    for block in [1, 3, SEGMENT_BLOCKS + 1] {
        assert!(model.allows(block, stamp_of(block, &read(&disk, block).unwrap()).unwrap()), "block {block}");
    }
    perform(&disk, Op::Write(2, 1), 502, &mut model).unwrap();
    perform(&disk, Op::Flush, 0, &mut model).unwrap();
    medium.heal();
    disk.close().unwrap();
    let disk = open_with(medium, &params, options(6)).unwrap();
    assert!(!disk.is_medium_full());
    model.assert_allows(&disk, "after reopening");
}
