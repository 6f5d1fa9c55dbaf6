//! Shows that a UBI volume of a real kernel keeps the contract of `Flash`, on a chip that the
//! kernel simulates. Runs itself in a guest; skipped with a message if no guest can run.

use lacuna_contracts::Kind;
use lacuna_nand::{Flash, Leb, UbiVolume, Unerased};
use lacuna_sim::Rng;
use lacuna_testkit::GuestImage;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Set in a guest: the part of the test to run there.
const PART: &str = "LACUNA_GUEST_PART";
const VOLUME: &str = "/dev/ubi0_0";
/// The whole chip below the volume, as read by an adversary with the seized chip.
const CHIP: &str = "/dev/mtd0";
const ERASE_BLOCK: u64 = 128 << 10;
const BAD: &str = "/sys/class/ubi/ubi0/bad_peb_count";
/// Ends UBI's background erasures, so that blocks are erased only on a call.
const NO_BACKGROUND: &str = "/sys/kernel/debug/ubi/ubi0/tst_disable_bgt";

/// Four chips of 64 blocks: one without faults; one with ten pages that cannot be decoded after the
/// first read; one where every fourth block fails its third erasure; one with two blocks that were
/// bad from the start.
const COMMANDS: &str = r#"
part() {
    ubiattach -m 0 >/dev/null && ubimkvol /dev/ubi0 -N test -S 40 >/dev/null
    echo "volume: $(cat /sys/class/ubi/ubi0_0/usable_eb_size) bytes, pages of $(cat /sys/class/ubi/ubi0/min_io_size)"
    LACUNA_GUEST_PART=$1 /guest/program real_volumes_keep_the_contract --exact --nocapture --test-threads 1
    echo "guest: $1 ended with $?"
    ubidetach -m 0 && rmmod nandsim
}
load ubi
nand_chip overridesize=6
part contract
nand_chip overridesize=6 gravepages=325:1,645:1,965:1,1285:1,1605:1,1925:1,2245:1,2565:1,2885:1,3205:1
part decay
nand_chip overridesize=6 weakblocks=$(seq -s , 8 4 60 | sed 's/,/:2,/g'):2
part wear
nand_chip overridesize=6 badblocks=20,41
part leftover
"#;

#[test]
fn real_volumes_keep_the_contract() {
    match std::env::var(PART).as_deref() {
        Ok("contract") => contract(),
        Ok("decay") => decay(),
        Ok("wear") => wear(),
        Ok("leftover") => leftover(),
        Ok(other) => panic!("no part is called {other}"),
        Err(_) => in_a_guest(),
    }
}

fn in_a_guest() {
    if let Some(why) = GuestImage::unavailable_reason() {
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let guest = GuestImage::new(dir.path(), COMMANDS, &[&program]);
    let said = guest.boot(&GuestImage::new_flash(dir.path(), 1 << 20)).finish();
    println!("{said}");
    for part in ["contract", "decay", "wear", "leftover"] {
        assert!(said.contains(&format!("guest: {part} ended with 0")), "{part}");
    }
}

fn open() -> UbiVolume {
    UbiVolume::open(Path::new(VOLUME), false).unwrap()
}

fn content(volume: &UbiVolume, block: Leb) -> Vec<u8> {
    let mut content = vec![0; volume.geometry().leb_len as usize];
    volume.read(block, 0, &mut content).unwrap();
    content
}

fn noise(seed: u64, pages: u32, volume: &UbiVolume) -> Vec<u8> {
    let mut random = Rng::new(seed);
    (0..pages * volume.geometry().page / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// Tells for each content whether it is anywhere on the chip, bad blocks included.
fn on_chip(all: &[Vec<u8>]) -> Vec<bool> {
    let mut chip = vec![];
    std::fs::File::open(CHIP).unwrap().read_to_end(&mut chip).unwrap();
    assert!(chip.len() >= 1 << 20, "the whole chip");
    // Every content begins on a page.
    all.iter().map(|bytes| chip.chunks(512).any(|part| part.starts_with(&bytes[..64]))).collect()
}

fn contract() {
    let volume = open();
    let geometry = volume.geometry();
    println!("{geometry:?}");
    assert_eq!((geometry.page, geometry.lebs), (2048, 39));
    assert!(geometry.leb_len > 120_000 && geometry.leb_len.is_multiple_of(2048));
    programs_and_changes(&volume);
    keeps_old_copies_until_drained(&volume);
    shares(&volume);
    many_at_once(&volume);
    refuses(&volume);
}

fn programs_and_changes(volume: &UbiVolume) {
    let (page, leb_len) = (volume.geometry().page, volume.geometry().leb_len as usize);
    let block = Leb(7);
    assert!(content(volume, block).iter().all(|byte| *byte == 0xff) && !volume.is_mapped(block).unwrap());
    let first = noise(1, 3, volume);
    let second = noise(2, 5, volume);
    volume.program(block, 0, &first).unwrap();
    volume.program(block, 3 * page, &second).unwrap();
    let mut expected = [first, second].concat();
    expected.resize(leb_len, 0xff);
    assert_eq!(content(volume, block), expected);
    assert!(volume.is_mapped(block).unwrap());
    // A change replaces the whole content, and programming continues behind the new content.
    let mut changed = noise(3, 2, volume);
    volume.change(block, &changed).unwrap();
    let behind = noise(4, 1, volume);
    volume.program(block, 2 * page, &behind).unwrap();
    changed.extend(&behind);
    changed.resize(leb_len, 0xff);
    assert_eq!(content(volume, block), changed);
    // A whole block, the last one.
    let whole = noise(5, volume.geometry().leb_len / page, volume);
    volume.change(Leb(38), &whole).unwrap();
    assert_eq!(content(volume, Leb(38)), whole);
    volume.unmap(block).unwrap();
    assert!(content(volume, block).iter().all(|byte| *byte == 0xff) && !volume.is_mapped(block).unwrap());
    volume.change(Leb(38), &[]).unwrap();
    assert!(!volume.is_mapped(Leb(38)).unwrap());
    assert_eq!(volume.erase(block).unwrap(), vec![]);
    println!("programs and changes: as promised");
}

fn keeps_old_copies_until_drained(volume: &UbiVolume) {
    std::fs::write(NO_BACKGROUND, "1").unwrap();
    let old: Vec<Vec<u8>> = (10..13).map(|seed| noise(seed, 4, volume)).collect();
    volume.change(Leb(3), &old[0]).unwrap();
    volume.change(Leb(3), &old[1]).unwrap();
    volume.program(Leb(4), 0, &old[2]).unwrap();
    volume.unmap(Leb(4)).unwrap();
    volume.sync().unwrap();
    assert_eq!(on_chip(&old), [true; 3], "a change and a sync erase nothing");
    assert_eq!(volume.drain().unwrap(), vec![]);
    assert_eq!(on_chip(&old), [false, true, false], "superseded copies go, current ones stay");
    std::fs::write(NO_BACKGROUND, "0").unwrap();
    println!("old copies: on the chip after a change and a sync, gone after the drain");
}

/// Shows that another program may read the volume while it is written.
fn shares(volume: &UbiVolume) {
    assert_eq!(UbiVolume::open(Path::new(VOLUME), false).err().unwrap().kind(), Kind::Busy);
    let reader = UbiVolume::open(Path::new(VOLUME), true).unwrap();
    let data = noise(20, 6, volume);
    volume.program(Leb(9), 0, &data).unwrap();
    assert_eq!(content(&reader, Leb(9))[..data.len()], data);
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(reader);
    });
    let data = noise(21, 6, volume);
    volume.change(Leb(9), &data).unwrap();
    leaving.join().unwrap();
    assert_eq!(content(volume, Leb(9))[..data.len()], data);
    println!("a reader: changes wait for it to leave");
}

fn many_at_once(volume: &UbiVolume) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let block = Leb(20 + thread);
                for round in 0..6 {
                    let seed = u64::from(100 * thread + round);
                    let (first, second) = (noise(seed, 2, volume), noise(seed + 50, 3, volume));
                    volume.change(block, &first).unwrap();
                    volume.program(block, 2 * volume.geometry().page, &second).unwrap();
                    let found = content(volume, block);
                    assert!(found.starts_with(&[first, second].concat()), "block {block:?}, round {round}");
                    if round % 3 == thread % 3 {
                        assert_eq!(volume.drain().unwrap(), vec![]);
                    }
                }
            });
        }
    });
    println!("four threads: each finds its own writes");
}

fn refuses(volume: &UbiVolume) {
    let geometry = volume.geometry();
    let page = noise(30, 1, volume);
    // The last block of the volume is reserved for draining.
    assert!(volume.program(Leb(geometry.lebs), 0, &page).is_err());
    assert!(volume.program(Leb(0), geometry.leb_len, &page).is_err());
    assert!(volume.read(Leb(0), geometry.leb_len - 1, &mut [0; 2]).is_err());
    for other in ["/dev/ubi0", "/dev/mtd0", "/dev/null"] {
        let refused = UbiVolume::open(Path::new(other), false).err().unwrap();
        assert_eq!(refused.kind(), Kind::NotFound, "{other}: {refused}");
    }
    assert_eq!(UbiVolume::open(Path::new("/dev/ubi7_7"), false).err().unwrap().kind(), Kind::NotFound);
    println!("paths that are no volume: refused");
}

/// Shows that pages that cannot be decoded, as after a power cut, read as zeros, and their
/// neighbours read unchanged.
fn decay() {
    let volume = open();
    let pages = volume.geometry().leb_len / volume.geometry().page;
    let mut decayed = 0;
    for block in (0..volume.geometry().lebs).map(Leb) {
        let data = noise(block.0.into(), pages, &volume);
        volume.program(block, 0, &data).unwrap();
        for _ in 0..4 {
            let found = content(&volume, block);
            for (found, written) in found.chunks(2048).zip(data.chunks(2048)) {
                assert!(found == written || found.iter().all(|byte| *byte == 0), "block {block:?}");
                decayed += u32::from(found != written);
            }
        }
    }
    assert!(decayed > 0, "no page was decayed");
    println!("decayed pages: {decayed} times one read as zeros");
}

/// Shows that worn blocks, which UBI marks as bad, hold no old content: the simulated chip loses
/// the content even if the erasure fails.
fn wear() {
    let bad = || std::fs::read_to_string(BAD).unwrap().trim().parse::<u32>().unwrap();
    std::fs::write(NO_BACKGROUND, "1").unwrap();
    let volume = open();
    for round in 0..60 {
        let versions: Vec<_> = (0..4).map(|block| noise(1000 * block + round, 3, &volume)).collect();
        for (block, version) in (0..).zip(&versions) {
            volume.change(Leb(block), version).unwrap();
        }
        volume.unmap(Leb(3)).unwrap();
        assert_eq!(volume.drain().unwrap(), vec![]);
        assert_eq!(on_chip(&versions), [true, true, true, false]);
        if bad() > 3 {
            println!("worn blocks: {} are bad after {round} rounds, and nothing old is in them", bad());
            return;
        }
    }
    panic!("only {} blocks went bad", bad());
}

/// Shows that the drain returns the content of a block that went bad with it, although UBI does not
/// report it.
fn leftover() {
    let volume = open();
    let leaves = |block: Leb, seed: u64, bad: u64| {
        let old = noise(seed, 3, &volume);
        volume.change(block, &old).unwrap();
        // Simulates a failed erasure: the whole block stays.
        let chip = std::fs::OpenOptions::new().read(true).write(true).open(CHIP).unwrap();
        let mut found = vec![0; ERASE_BLOCK as usize];
        let at = (0..64).map(|number| number * ERASE_BLOCK).find(|at| {
            chip.read_exact_at(&mut found, *at).unwrap();
            found.chunks(512).any(|part| part.starts_with(&old[..64]))
        });
        assert!(at.is_some_and(|at| at != bad * ERASE_BLOCK), "block {block:?} on the chip");
        chip.write_all_at(&found, bad * ERASE_BLOCK).unwrap();
        volume.change(block, &noise(seed + 1, 1, &volume)).unwrap();
        let mut content = old;
        content.resize(volume.geometry().leb_len as usize, 0xff);
        Unerased { leb: Some(block), content }
    };
    let copies = [leaves(Leb(5), 40, 20), leaves(Leb(6), 50, 41)];
    let kept = volume.drain_of(&|copy| copy.leb == Some(Leb(6))).unwrap();
    assert_eq!(kept, copies[1..], "the wanted copies");
    assert_eq!(volume.drain().unwrap(), copies[..1], "and the rest for the next");
    assert_eq!(volume.drain().unwrap(), vec![], "each is told once");
    drop(volume);
    assert_eq!(open().drain().unwrap(), copies, "and to each that opens the volume");
    println!("copies left in bad blocks: reported, block for block");
    // Without access to the chip, the drain cannot tell.
    std::fs::rename(CHIP, "/dev/hidden").unwrap();
    let refused = open().drain().unwrap_err();
    assert_eq!(refused.kind(), Kind::PurgeIncomplete);
    println!("{refused}");
}
