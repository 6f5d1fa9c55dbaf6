//! A page of keys that is unreadable from time to time: its keys are never replaced by bytes of a
//! failed read.

mod fixture;

use fixture::{CreatedDisk, SMALL, master, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, header_lebs};
use lacuna_nand::{Flash, FlashGeometry, Leb, Unerased};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Flash with pages of keys that read as zeros for a while, as UBI returns pages with uncorrectable
/// errors.
struct DecayingFlash {
    below: Arc<dyn Flash>,
    decayed: AtomicBool,
}

impl Flash for DecayingFlash {
    fn geometry(&self) -> FlashGeometry {
        self.below.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        let first = header_lebs(self.geometry());
        if self.decayed.load(Ordering::Relaxed) && (first..first + 2).contains(&block.0) {
            buf.fill(0);
            return Ok(());
        }
        self.below.read(block, offset, buf)
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.below.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.below.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.below.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.below.is_mapped(block)
    }
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        self.below.drain_of(wanted)
    }
}

#[test]
fn a_page_of_keys_that_reads_as_zeros_once_loses_nothing() {
    let CreatedDisk { flash: below, params, random, .. } = CreatedDisk::on(SMALL, 32, 100);
    let flash = Arc::new(DecayingFlash { below, decayed: AtomicBool::new(false) });
    // Small enough that pages of keys leave their cache.
    let options = options(1 << 14, random);
    let open = || FlashDisk::open(flash.clone(), &params, &master(), &options).unwrap();
    let content = |block: u64| vec![block as u8 + 1; BLOCK_SIZE];
    let disk = open();
    for block in 0..100 {
        disk.write(BlockAddr(block), &content(block)).unwrap();
    }
    disk.flush().unwrap();
    disk.discard(BlockAddr(0), 10).unwrap();
    drop(disk);
    let disk = open();
    flash.decayed.store(true, Ordering::Relaxed);
    assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
    flash.decayed.store(false, Ordering::Relaxed);
    drop(disk);
    let disk = open();
    disk.purge().unwrap();
    let mut found = vec![0; BLOCK_SIZE];
    for block in 10..100 {
        disk.read(BlockAddr(block), &mut found).unwrap();
        assert!(found == content(block), "block {block}");
    }
    assert!(disk.check_keys().unwrap().is_empty());
    disk.close().unwrap();
}
