//! A sealed disk on a medium that an adversary altered, or that answers some reads with earlier
//! contents: opening, reading, checking, writing and closing return a result or an error. With gcm,
//! data that reads was once written there; new data that was flushed is read back, unless the
//! medium lies or is altered again.
#![no_main]

use lacuna_contracts::{BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_fuzz::bytes::InputCursor;
use lacuna_fuzz::lying::{LyingMedium, ReadLies, decode_lies};
use lacuna_fuzz::sealed_image::{
    BLOCKS, NEW, each_readable_block, image, is_content, open, was_written, write,
};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|input: &[u8]| {
    let mut input = InputCursor::new(input);
    let selector = input.byte();
    let image = image(selector >> 1);
    let extra = input.byte();
    let lies = if extra >= 0x80 { decode_lies(&mut input) } else { ReadLies::new() };
    let medium = Arc::new(image.altered(&mut input));
    let lying = !lies.is_empty();
    let seen_by_disk = Arc::new(LyingMedium::new(medium.clone(), image.past(), lies));
    let Ok(disk) = open(seen_by_disk, &image.params, 7, selector & 1 == 1) else { return };
    let authenticated = image.params.cipher.authenticates();

    let mut seen = 0;
    let report = lacuna_contracts::check_disk(
        &disk,
        |done| {
            seen = done;
            Ok(())
        },
        |_| {},
    )
    .expect("memory for 1 MiB");
    assert_eq!((seen, report.good + report.unwritten + report.bad), (BLOCKS, BLOCKS));
    each_readable_block(&disk, 0, BLOCKS, |block, data| {
        let known = !authenticated || was_written(block, data);
        assert!(known, "block {block} reads as something never written there");
    });
    let _ = disk.extents(BlockAddr(0), BLOCKS);
    if disk.is_read_only() {
        return;
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
    let Ok(disk) = open(medium, &image.params, 8, false) else {
        assert!(!flushed || lying, "a disk that took a flush does not open again");
        return;
    };
    for ((first, count), written) in ranges.into_iter().zip(written) {
        if written && flushed {
            each_readable_block(&disk, first, count, |block, data| {
                // Data that was written while the medium lied may be lost, but no block reads as
                // another one.
                let known =
                    is_content(block, data, NEW) || (lying && (!authenticated || was_written(block, data)));
                assert!(known, "block {block} lost flushed data");
            });
        }
    }
});
