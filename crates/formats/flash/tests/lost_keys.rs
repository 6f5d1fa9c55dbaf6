//! A page of keys that is unreadable from time to time: its keys are never replaced by bytes of a
//! failed read.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind, ManualClock, Result, Secret};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params, header_lebs};
use lacuna_medium::MemoryMedium;
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Leb, Mapping, SimulatedChip, Unerased, WearModel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 64 };

/// Flash with pages of keys that read as zeros for a while, as UBI returns pages with uncorrectable
/// errors.
struct DecayingFlash {
    below: Mapping,
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
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(GEOMETRY)));
    SimulatedChip::create(&*medium, GEOMETRY, WearModel::default(), 1).unwrap();
    let chip = Arc::new(SimulatedChip::open(medium, 1).unwrap());
    Mapping::create(&*chip, 1).unwrap();
    let flash =
        Arc::new(DecayingFlash { below: Mapping::open(chip).unwrap(), decayed: AtomicBool::new(false) });
    let as_flash: Arc<dyn Flash> = flash.clone();
    let params = Params::fitting(flash.geometry(), 32, 100).unwrap();
    let (master, random) =
        (Secret::copy_from(&[7; 32]), Arc::new(SeededRandom::new(1)) as Arc<dyn RandomSource>);
    FlashDisk::create(&as_flash, &params, &master, &random).unwrap();
    let options = OpenOptions {
        // Small enough that pages of keys leave their cache.
        budget: Budget::bytes(1 << 14),
        read_only: false,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random,
        kept: None,
    };
    let open = || FlashDisk::open(as_flash.clone(), &params, &master, &options).unwrap();
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
