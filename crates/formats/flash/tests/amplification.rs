//! The write amplification of a full disk under random overwrites, by the spare part of its log:
//! the table of `docs/flash.md`, which the default is based on. `LACUNA_SPARES=all` measures and
//! prints every row.

mod fixture;

use fixture::{CreatedDisk, counter, master, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_flash::{FlashDisk, Params};
use lacuna_nand::{ChipGeometry, Mapping};
use lacuna_sim::Rng;
use lacuna_testkit::format_page::FormatPage;

/// Small, but with enough erase blocks that the few reserved ones hardly matter.
const CHIP: ChipGeometry = ChipGeometry { page: 4096, pages: 16, blocks: 1024 };
/// A chip with the default geometry, for the share of it that a disk gets.
const LARGE: ChipGeometry = ChipGeometry { page: 4096, pages: 64, blocks: 16384 };

/// A row of the table: the costs for a spare part of the log.
struct Cost {
    /// The share of a large chip that the disk gets.
    share: f64,
    /// Blocks written to the log for each block that a client overwrites.
    written: f64,
    /// Bytes erased for each byte that a client overwrites.
    erased: f64,
}

/// Fills a disk, overwrites it at random until the log is in a steady state, and then measures
/// further overwrites.
fn measure(spare: u32) -> Cost {
    let CreatedDisk { chip, flash, params, random, .. } = CreatedDisk::on(CHIP, 32, spare);
    let disk = FlashDisk::open(flash, &params, &master(), &options(4 << 20, random)).unwrap();
    let data = vec![1; BLOCK_SIZE];
    (0..params.blocks).for_each(|block| disk.write(BlockAddr(block), &data).unwrap());
    let mut rng = Rng::new(1);
    let mut overwrite = |count: u64| {
        (0..count).for_each(|_| disk.write(BlockAddr(rng.below(params.blocks)), &data).unwrap());
        disk.flush().unwrap();
    };
    let counts = || (counter(&disk, "nodes_copied").unwrap(), chip.erasures().iter().sum::<u64>());
    overwrite(2 * params.blocks);
    let before = counts();
    overwrite(params.blocks);
    let after = counts();
    let large = Params::fitting(Mapping::geometry_on(LARGE, 0), 32, spare).unwrap();
    Cost {
        share: (large.blocks * BLOCK_SIZE as u64) as f64 / LARGE.len() as f64,
        written: 1.0 + (after.0 - before.0) as f64 / params.blocks as f64,
        erased: ((after.1 - before.1) * CHIP.block_len()) as f64 / (params.blocks * BLOCK_SIZE as u64) as f64,
    }
}

#[test]
fn the_page_has_the_cost_of_spare() {
    let page = FormatPage::read("../flash");
    let all = std::env::var("LACUNA_SPARES").is_ok();
    let (mut measured, mut wrong) = (0, vec![]);
    for row in page.rows("Spare") {
        // The row with the least wear and the default are enough to show that the table belongs to
        // this code.
        if !all && !["0.28", "0.15 (default)"].contains(&row[0].as_str()) {
            continue;
        }
        let spare: f64 = row[0].split(' ').next().unwrap().parse().unwrap();
        let cost = measure((spare * 1000.0).round() as u32);
        let found = [cost.share, cost.written, cost.erased].map(|number| format!("{number:.2}"));
        println!("| {} | {} |", row[0], found.join(" | "));
        measured += 1;
        wrong.extend((row[1..] != found).then(|| row[0].clone()));
    }
    assert!(measured >= 2 && wrong.is_empty(), "{wrong:?}");
}
