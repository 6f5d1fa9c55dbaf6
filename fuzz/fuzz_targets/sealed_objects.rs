//! A sealed disk whose objects somebody altered, or whose store answers queries with earlier objects at times, lists
//! others, and tells of other times at a snapshot: opening, reading, checking, rolling back, writing and closing end
//! with a result or an error. With gcm, what is read was once written there, and at the snapshot before it was made;
//! what is written and flushed afterwards is read back as long as nobody alters the objects again and the store is
//! honest.
#![no_main]

use lacuna_contracts::{BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_fuzz::bytes::Bytes;
use lacuna_fuzz::objects_image::{Image, SNAPSHOT, SNAPSHOT_PHASE, image, open};
use lacuna_fuzz::sealed_image::{
    BLOCKS, NEW, PHASES, each_readable_block, is_content, was_written_until, write,
};
use lacuna_sealed_objects::ObjectDisk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut input = Bytes::new(input);
    let image = image(input.byte());
    let extra = input.byte();
    let lies = (extra >= 0x80).then(|| input.u32());
    let lying = lies.is_some();
    let mut pool = image.altered(&mut input);
    lies.into_iter().for_each(|seed| image.lie(&mut pool, seed));
    let authenticated = image.params.cipher.authenticates();

    if let Ok(past) = open(&pool, &image.params, 6, true) {
        judge(&past, authenticated, SNAPSHOT_PHASE);
        let _ = past.close();
    }
    let Ok(disk) = open(&pool, &image.params, 7, false) else { return };
    judge(&disk, authenticated, PHASES);
    let _ = disk.extents(BlockAddr(0), BLOCKS);
    if extra & 2 == 2 && disk.rollback(SNAPSHOT).is_ok() {
        // What was rolled back may be told as it was before that.
        judge(&disk, authenticated, if lying { PHASES } else { SNAPSHOT_PHASE });
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
    Image::be_honest(&mut pool);
    let Ok(disk) = open(&pool, &image.params, 8, false) else {
        assert!(!flushed || lying, "a disk that took a flush does not open again");
        return;
    };
    for ((first, count), written) in ranges.into_iter().zip(written) {
        if written && flushed {
            each_readable_block(&disk, first, count, |block, data| {
                // What was written on the strength of lies may be lost with them, but no block is another one's.
                let known = is_content(block, data, NEW)
                    || (lying && (!authenticated || was_written_until(block, data, PHASES)));
                assert!(known, "block {block} lost what was flushed");
            });
        }
    }
});

/// Checks the disk and reads it, asking of each block, if it is authenticated, that it was written there until some
/// phase.
fn judge(disk: &ObjectDisk, authenticated: bool, until: u8) {
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
