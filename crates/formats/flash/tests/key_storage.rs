//! The share of the flash that keys take, over many geometries, and a full disk with the fewest
//! possible keys.

mod fixture;

use fixture::{CreatedDisk, master, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_flash::{FlashDisk, Params};
use lacuna_nand::{ChipGeometry, FlashGeometry};
use lacuna_sim::Rng;

/// Issue 17: keys take at most 0.8 % of the flash, including spare blocks, for 256 bits, and 0.4 %
/// for 128 bits. The area is a whole number of erase blocks, at least two.
#[test]
fn keys_take_at_most_their_share_of_the_flash() {
    for page in [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536] {
        for pages in [30, 62, 126, 254, 510] {
            for lebs in [300, 1000, 1571, 4096, 65_000] {
                for (key_len, share) in [(32, 0.008), (16, 0.004)] {
                    for spare in [50, 70, 150, 300] {
                        let flash = FlashGeometry { page, leb_len: page * pages, lebs };
                        if flash.leb_len < 2 * 4096 {
                            continue;
                        }
                        let Ok(params) = Params::fitting(flash, key_len, spare) else { continue };
                        let most = (f64::from(lebs) * share).ceil().max(2.0);
                        let what = format!("{params:?}, spare {spare}");
                        assert!(f64::from(params.key_blocks()) <= most, "{what}: {}", params.key_blocks());
                        let keys = u64::from(params.key_blocks()) * u64::from(params.keys_per_block());
                        assert!(keys >= params.blocks + params.blocks / 64, "{what}: {keys} keys");
                    }
                }
            }
        }
    }
}

/// A full disk works under uniform overwrites, with and without purges, even if every key that can
/// be renewed is needed.
#[test]
fn a_full_disk_with_few_keys_to_spare_takes_overwrites() {
    for (spare, epoch) in [(50, 0), (50, 300), (200, 3000)] {
        let chip = ChipGeometry { page: 2048, pages: 16, blocks: 420 };
        let CreatedDisk { flash, params, random, .. } = CreatedDisk::on(chip, 32, spare);
        let disk = FlashDisk::open(flash, &params, &master(), &options(1 << 20, random)).unwrap();
        let mut rng = Rng::new(1);
        let mut versions = vec![0u64; params.blocks as usize];
        let content = |block: u64, version: u64| -> Vec<u8> {
            let word = (version << 32 | block).to_le_bytes();
            word.iter().copied().cycle().take(BLOCK_SIZE).collect()
        };
        for number in 0..6 * params.blocks {
            // Once from start to end, then at random.
            let block = if number < params.blocks { number } else { rng.below(params.blocks) };
            versions[block as usize] = number;
            disk.write(BlockAddr(block), &content(block, number)).unwrap();
            if epoch > 0 && number % epoch == 0 {
                disk.purge().unwrap();
                assert_eq!(disk.recoverable(), 0);
            }
        }
        disk.flush().unwrap();
        let mut found = vec![0; BLOCK_SIZE];
        for (block, version) in (0..).zip(&versions) {
            disk.read(BlockAddr(block), &mut found).unwrap();
            assert!(found == content(block, *version), "block {block}");
        }
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
        disk.close().unwrap();
    }
}
