//! Pages of the log that read as zeros: a header in the middle of the log, a page of the index, and
//! headers of nodes with keys that stay readable for ever. Flushed data is intact or reported lost,
//! and a purge reports no more than it achieved.

mod fixture;

use fixture::{TestDisk, counter, master};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, header_lebs};
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Leb, Unerased, WearModel};
use lacuna_sim::versions::{content, run_content};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Flash where some pages read as zeros, and that reports copies that it could not erase.
struct HoledFlash {
    flash: Arc<dyn Flash>,
    holes: Mutex<BTreeSet<(u32, u32)>>,
    unerased: Mutex<Vec<Unerased>>,
    /// Block, page and length of each program since the last look.
    programmed: Mutex<Vec<(u32, u32, usize)>>,
}

impl HoledFlash {
    fn new(test_disk: &mut TestDisk) -> Arc<HoledFlash> {
        let (_, flash, _) = test_disk.flash();
        Arc::new(HoledFlash {
            flash,
            holes: Mutex::default(),
            unerased: Mutex::default(),
            programmed: Mutex::default(),
        })
    }

    fn open(self: &Arc<HoledFlash>, test_disk: &TestDisk) -> Result<FlashDisk> {
        FlashDisk::open(self.clone(), &test_disk.params, &master(), &test_disk.options())
    }

    fn page(&self) -> u32 {
        self.geometry().page
    }

    /// The present content of an erase block.
    fn copy(&self, leb: u32) -> Unerased {
        let mut content = vec![0; self.geometry().leb_len as usize];
        self.flash.read(Leb(leb), 0, &mut content).unwrap();
        Unerased { leb: Some(Leb(leb)), content }
    }
}

impl Flash for HoledFlash {
    fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.flash.read(block, offset, buf)?;
        for (_, page) in self.holes.lock().range((block.0, 0)..=(block.0, u32::MAX)) {
            let hole = page * self.page()..(page + 1) * self.page();
            (offset..)
                .zip(buf.iter_mut())
                .filter(|(at, _)| hole.contains(at))
                .for_each(|(_, byte)| *byte = 0);
        }
        Ok(())
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.programmed.lock().push((block.0, offset / self.page(), data.len()));
        self.flash.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.flash.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.holes.lock().retain(|(leb, _)| *leb != block.0);
        self.flash.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.flash.is_mapped(block)
    }
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        let mut unerased = self.flash.drain_of(wanted)?;
        unerased.extend(self.unerased.lock().extract_if(.., |copy| wanted(copy)));
        Ok(unerased)
    }
}

/// If any header of the log except the last is lost after a crash, the disk is refused, never
/// opened in an older state. Without the last one, the log looks as if the power had failed a
/// little earlier.
#[test]
fn a_lost_header_is_reported() {
    let mut test_disk = TestDisk::small(20);
    let flash = HoledFlash::new(&mut test_disk);
    let disk = flash.open(&test_disk).unwrap();
    flash.programmed.lock().clear();
    let mut stamp = 0;
    let groups = loop {
        stamp += 1;
        disk.write(BlockAddr(stamp % 3), &run_content(stamp % 3, 1, stamp)).unwrap();
        disk.flush().unwrap();
        let groups = flash.programmed.lock().clone();
        let last = groups.last().unwrap().0;
        if stamp > 20 && groups.iter().filter(|(leb, ..)| *leb == last).count() == 3 {
            break groups;
        }
    };
    drop(disk);
    assert!(groups.first().unwrap().0 != groups.last().unwrap().0);
    for (at, (leb, page, _)) in groups.iter().enumerate() {
        let mut crashed = test_disk.copied();
        let flash = HoledFlash::new(&mut crashed);
        flash.holes.lock().insert((*leb, *page));
        let opened = flash.open(&crashed);
        if at + 1 < groups.len() {
            let e = opened.err().unwrap_or_else(|| panic!("opened without group {at} of {}", groups.len()));
            assert!(e.kind() == Kind::Corrupt && e.to_string().contains("a part of the log is lost"), "{e}");
        } else {
            let disk = opened.unwrap();
            for stamp in stamp - 3..stamp {
                let mut found = vec![0; BLOCK_SIZE];
                disk.read(BlockAddr(stamp % 3), &mut found).unwrap();
                assert!(found == content(stamp % 3, stamp));
            }
        }
    }
}

/// If a page of the index is lost, so are its blocks; all other blocks are written, collected and
/// purged as before.
#[test]
fn a_lost_page_of_the_index_does_not_end_writing() {
    let geometry = ChipGeometry { page: 2048, pages: 64, blocks: 128 };
    let mut test_disk = TestDisk::new(geometry, WearModel::default(), 32, 400, 21);
    let flash = HoledFlash::new(&mut test_disk);
    let disk = flash.open(&test_disk).unwrap();
    let blocks = disk.blocks();
    (0..blocks).for_each(|block| disk.write(BlockAddr(block), &content(block, 1)).unwrap());
    // Part of each erase block is not live.
    (0..blocks).step_by(4).for_each(|block| disk.write(BlockAddr(block), &content(block, 2)).unwrap());
    flash.programmed.lock().clear();
    disk.close().unwrap();
    drop(disk);
    let (leb, page, _) =
        *flash.programmed.lock().iter().rfind(|(.., len)| *len > 2048).expect("pages of the index");
    flash.holes.lock().insert((leb, page + 1));
    let disk = flash.open(&test_disk).unwrap();
    let mut found = vec![0; BLOCK_SIZE];
    let is_lost = |block: &u64| disk.read(BlockAddr(*block), &mut found).is_err();
    let lost: BTreeSet<u64> = (0..blocks).filter(is_lost).collect();
    assert!(lost.len() >= 100 && lost.len() <= 512, "{} blocks", lost.len());
    let others: Vec<u64> = (0..blocks).filter(|block| !lost.contains(block)).collect();
    drop(disk);
    let disk = flash.open(&test_disk).unwrap();
    for stamp in 3..9 {
        for block in &others {
            disk.write(BlockAddr(*block), &content(*block, stamp)).unwrap();
        }
        disk.flush().unwrap();
    }
    disk.purge().unwrap();
    assert!(counter(&disk, "erase_blocks_collected").unwrap() > 50 && disk.recoverable() == 0);
    disk.close().unwrap();
    drop(disk);
    let disk = flash.open(&test_disk).unwrap();
    for block in 0..blocks {
        let read = disk.read(BlockAddr(block), &mut found);
        if lost.contains(&block) {
            assert_eq!(read.unwrap_err().kind(), Kind::Corrupt, "block {block}");
        } else {
            assert!(read.is_ok() && found == content(block, 8), "block {block}: {read:?}");
        }
    }
}

/// If a header is unreadable and keys of its nodes stay readable for ever, no purge reports
/// success, whether the nodes lie in the log or in an erase block that went bad.
#[test]
fn nodes_without_a_header_are_exposed() {
    for bad in [false, true] {
        let mut test_disk = TestDisk::small(22);
        let flash = HoledFlash::new(&mut test_disk);
        let disk = flash.open(&test_disk).unwrap();
        flash.programmed.lock().clear();
        disk.write(BlockAddr(0), &run_content(0, 2, 1)).unwrap();
        disk.flush().unwrap();
        let (leb, page, _) = *flash.programmed.lock().last().unwrap();
        let first = header_lebs(test_disk.params.flash);
        let keys = first..first + test_disk.params.key_blocks();
        let mut copies: Vec<Unerased> = keys.map(|leb| flash.copy(leb)).collect();
        if bad {
            let mut copy = flash.copy(leb);
            copy.content[page as usize * 2048..][..2048].fill(0);
            copies.push(copy);
        } else {
            flash.holes.lock().insert((leb, page));
        }
        flash.unerased.lock().extend(copies);
        let failed = disk.purge().unwrap_err();
        assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{failed}");
        let why = if bad { "units of the log that have no header" } else { "damaged and cannot be emptied" };
        assert!(failed.to_string().contains(why), "{failed}");
    }
}
