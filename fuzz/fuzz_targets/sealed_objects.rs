//! A sealed disk on objects that an adversary altered, or in a store that sometimes answers queries
//! with earlier objects, with other lists and with other moments at a snapshot: opening, reading,
//! checking, rolling back, writing and closing return a result or an error. With gcm, data that
//! reads was once written there; in the snapshot, before the snapshot was created. New data that
//! was flushed is read back, unless the store lies or an object is altered again.
#![no_main]

use lacuna_contracts::{BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_fuzz::bytes::InputCursor;
use lacuna_fuzz::objects_image::{ObjectsImage, SNAPSHOT, SNAPSHOT_PHASE, image, open};
use lacuna_fuzz::sealed_image::{
    BLOCKS, NEW, PHASES, each_readable_block, is_content, was_written_until, write,
};
use lacuna_sealed_objects::ObjectDisk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = InputCursor::new(input);
    let image = image(input.byte());
    let extra = input.byte();
    let lies = (extra >= 0x80).then(|| input.u32());
    let lying = lies.is_some();
    let mut pool = image.altered(&mut input);
    lies.into_iter().for_each(|seed| image.start_lying(&mut pool, seed));
    let authenticated = image.params.cipher.authenticates();

    if let Ok(past) = open(&pool, &image.params, 6, true) {
        check_disk(&past, authenticated, SNAPSHOT_PHASE);
        let _ = past.close();
    }
    let Ok(disk) = open(&pool, &image.params, 7, false) else { return };
    check_disk(&disk, authenticated, PHASES);
    let _ = disk.extents(BlockAddr(0), BLOCKS);
    if extra & 2 == 2 && disk.rollback(SNAPSHOT).is_ok() {
        // A lying store may return blocks from before the rollback.
        check_disk(&disk, authenticated, if lying { PHASES } else { SNAPSHOT_PHASE });
    }

    let first = u64::from(extra) % (BLOCKS - 300);
    let ranges = [(first, 3), (SEGMENT_BLOCKS + 1, 1), (first + 20, 256)];
    let written = ranges.map(|(first, count)| write(&disk, NEW, first, count).is_ok());
    if extra & 1 == 1 {
        let _ = disk.discard(BlockAddr(SEGMENT_BLOCKS + 10), 4);
    }
    let flushed = disk.flush().is_ok();
    let _ = disk.close();
    drop(disk);
    ObjectsImage::stop_lying(&mut pool);
    let Ok(disk) = open(&pool, &image.params, 8, false) else {
        assert!(!flushed || lying, "a disk that took a flush does not open again");
        return;
    };
    for ((first, count), written) in ranges.into_iter().zip(written) {
        if written && flushed {
            each_readable_block(&disk, first, count, |block, data| {
                // Data that was written while the store lied may be lost, but no block reads as
                // another one.
                let known = is_content(block, data, NEW)
                    || (lying && (!authenticated || was_written_until(block, data, PHASES)));
                assert!(known, "block {block} lost flushed data");
            });
        }
    }
});

/// Checks and reads the disk. Each block of an authenticated disk must have the content of a phase
/// up to `until`.
fn check_disk(disk: &ObjectDisk, authenticated: bool, until: u8) {
    let mut seen = 0;
    let report = disk
        .check(
            |done| {
                seen = done;
                Ok(())
            },
            |_| {},
        )
        .expect("memory for 16 MiB");
    assert_eq!((seen, report.good + report.unwritten + report.bad), (BLOCKS, BLOCKS));
    each_readable_block(disk, 0, BLOCKS, |block, data| {
        let known = !authenticated || was_written_until(block, data, until);
        assert!(known, "block {block} reads as something never written there");
    });
}
