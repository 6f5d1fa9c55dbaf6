//! Purges of flash with erase blocks that went bad with their contents: data that stays readable
//! for ever is reported, or encrypted again.

mod fixture;

use fixture::{RecordingFlash, TestDisk, master, overwrite, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, header_lebs};
use lacuna_nand::{Flash, FlashGeometry, Leb, Unerased};
use lacuna_sim::versions::run_content;
use parking_lot::Mutex;
use std::sync::Arc;

/// Flash that reports copies that it could not erase. A test adds the copies, once or always.
struct UnerasableFlash {
    flash: Arc<RecordingFlash>,
    unerased: Mutex<Vec<Unerased>>,
    /// A block of keys that goes bad with its contents whenever it is replaced.
    always: Option<Leb>,
}

impl UnerasableFlash {
    fn open(
        test_disk: &mut TestDisk,
        always: impl FnOnce(Leb) -> Option<Leb>,
    ) -> (Arc<UnerasableFlash>, FlashDisk) {
        let (_, flash, _) = test_disk.flash();
        let always = always(Leb(header_lebs(flash.geometry())));
        let stubborn = Arc::new(UnerasableFlash { flash, unerased: Mutex::default(), always });
        let disk =
            FlashDisk::open(stubborn.clone(), &test_disk.params, &master(), &test_disk.options()).unwrap();
        (stubborn, disk)
    }

    /// The present content of an erase block.
    fn copy(&self, leb: Leb) -> Unerased {
        let mut content = vec![0; self.geometry().leb_len as usize];
        self.read(leb, 0, &mut content).unwrap();
        Unerased { leb: Some(leb), content }
    }
}

impl Flash for UnerasableFlash {
    fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.flash.read(block, offset, buf)
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.flash.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.flash.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.flash.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.flash.is_mapped(block)
    }
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        let mut unerased = self.flash.drain_of(wanted)?;
        unerased.extend(self.unerased.lock().extract_if(.., |copy| wanted(copy)));
        unerased.extend(self.always.map(|leb| self.copy(leb)));
        Ok(unerased)
    }
}

#[test]
fn unerasable_keys_are_reported() {
    let mut test_disk = TestDisk::small(11);
    let (_, disk) = UnerasableFlash::open(&mut test_disk, Some);
    overwrite(&disk, 0, 9);
    let failed = disk.purge().unwrap_err();
    assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{failed}");
    assert!(failed.to_string().contains("destroy"), "{failed}");
    assert!(disk.purge_status().purges == 0 && disk.recoverable() >= 9);
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
}

/// Keys in an erase block that went bad do not matter if the nodes under them are gone, nor nodes
/// without their keys. Both together do.
#[test]
fn versions_readable_with_their_keys_are_reported() {
    for (keys, log) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut test_disk = TestDisk::small(12);
        let (flash, disk) = UnerasableFlash::open(&mut test_disk, |_| None);
        write(&disk, 0, 20, 1).unwrap();
        disk.flush().unwrap();
        let first = header_lebs(test_disk.params.flash);
        let behind = first + test_disk.params.key_blocks();
        let range = if keys { first } else { behind }..if log { test_disk.params.flash.lebs } else { behind };
        let copies: Vec<Unerased> = range.map(|leb| flash.copy(Leb(leb))).collect();
        flash.unerased.lock().extend(copies);
        write(&disk, 0, 9, 2).unwrap();
        let purged = disk.purge();
        if keys && log {
            let failed = purged.unwrap_err();
            assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{failed}");
            assert!(failed.to_string().contains("went bad with versions of 20 blocks"), "{failed}");
            assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
            continue;
        }
        // Live nodes have other keys now, including those written under keys in the copy.
        assert_eq!(purged.unwrap().rewritten, if keys { 20 } else { 0 }, "keys: {keys}, log: {log}");
        assert_eq!(disk.recoverable(), 0);
        let mut found = vec![0; 20 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == [run_content(0, 9, 2), run_content(9, 11, 1)].concat());
        disk.close().unwrap();
    }
}
