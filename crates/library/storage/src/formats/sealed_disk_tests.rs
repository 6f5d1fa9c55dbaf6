//! A power cut at any operation of a growth, with concurrent writes, leaves the old disk or the new
//! one, with all flushed data.

use super::*;
use lacuna_contracts::{BLOCK_SIZE, Budget, SecretVec};
use lacuna_crypto::{Argon2Cost, Cipher, SeededRandom};
use lacuna_header::{FormatId, NewHeader, NewHeaderSpec, medium_len};
use lacuna_levels::DiskKeys;
use lacuna_sim::{CrashMedium, MediumImage, Rng};
use std::sync::atomic::AtomicBool;

const OLD: u64 = 2048;
const NEW: u64 = 5000;

struct CreatedImage {
    image: MediumImage,
    params: SealedParams,
    uuid: Uuid,
    master: Secret<32>,
}

impl CreatedImage {
    fn new() -> CreatedImage {
        let params = SealedParams::plan(Cipher::Gcm, OLD, None).unwrap();
        let end = params.geometry().end();
        let medium = CrashMedium::new(medium_len(end));
        let levels = [vec![SecretVec::new(b"key".to_vec())]];
        let new = NewHeaderSpec {
            format: FormatId::SEALED,
            params: params.encode().to_vec(),
            end,
            cost: Argon2Cost::new(8, 1, 1).unwrap(),
            levels: &levels,
            uuid: None,
        };
        let header = NewHeader::build(new, &SeededRandom::new(1)).unwrap();
        let contents =
            |made: &lacuna_header::OpenHeader| SealedDisk::create(&medium, &params, &made.master_keys[0]);
        let made = header.write(&medium, contents).unwrap();
        let (uuid, master) = (made.header.uuid, made.master_keys[0].clone());
        CreatedImage { image: medium.durable_image(), params, uuid, master }
    }

    fn open(&self, medium: &Arc<CrashMedium>, params: &SealedParams) -> GrowableSealedDisk {
        let keys = DiskKeys { keys: std::slice::from_ref(&self.master), uuid: &self.uuid.0 };
        let opening = OpenDiskOptions { budget: Budget::bytes(4 << 20), ..OpenDiskOptions::default() };
        let medium: Arc<dyn Medium> = medium.clone();
        GrowableSealedDisk::open(
            &medium,
            params,
            &OpenContext { keys, options: opening, rescue: false, keeper: None, keeps_cached: false },
        )
        .unwrap()
    }

    /// Grows a disk during writes, with a power cut after `cut` operations. Returns whether it grew
    /// before the cut, and the remaining image.
    fn grow(&self, cut: u64) -> (bool, MediumImage) {
        let medium = Arc::new(CrashMedium::from_image(self.image.clone()));
        let held = OpenDiskHeader::new(medium.clone(), false, false);
        let disk = self.open(&medium, &self.params);
        disk.write(BlockAddr(0), &block(1)).unwrap();
        disk.write(BlockAddr(OLD - 1), &block(2)).unwrap();
        disk.flush().unwrap();
        medium.cut_after(cut);
        let done = AtomicBool::new(false);
        let grown = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 1;
                while !done.load(Ordering::Relaxed) && disk.write(BlockAddr(at), &block(3)).is_ok() {
                    at = at % 100 + 1;
                    std::thread::yield_now();
                }
            });
            let grown = disk.grow(&held, Some(NEW * BLOCK_SIZE as u64));
            done.store(true, Ordering::Relaxed);
            grown
        });
        if let Ok(params) = &grown {
            assert_eq!((params.describe().size, disk.blocks()), (NEW * BLOCK_SIZE as u64, NEW));
        }
        drop(disk);
        (grown.is_ok(), medium.after_cut(&mut Rng::new(cut)))
    }
}

fn block(seed: u8) -> Vec<u8> {
    vec![seed; BLOCK_SIZE]
}

#[test]
fn a_power_cut_during_growth_leaves_the_old_or_the_new_size() {
    let made = CreatedImage::new();
    let (mut olds, mut news) = (0, 0);
    for cut in 0..600 {
        let (grew, left) = made.grow(cut);
        let medium = Arc::new(CrashMedium::from_image(left));
        let header = open_by_key(&*medium, made.uuid, &made.master).unwrap().header;
        let params = SealedParams::parse(&header.params).unwrap();
        match params.blocks {
            OLD if !grew => olds += 1,
            NEW => news += 1,
            other => panic!("cut {cut}: {other} blocks, grew: {grew}"),
        }
        let disk = made.open(&medium, &params);
        let mut read = block(0);
        for (at, seed) in [(0, 1), (OLD - 1, 2)] {
            disk.read(BlockAddr(at), &mut read).unwrap();
            assert!(read == block(seed), "cut {cut}: block {at}");
        }
        for at in 1..=100 {
            disk.read(BlockAddr(at), &mut read).unwrap();
            assert!(read == block(0) || read == block(3), "cut {cut}: block {at}");
        }
        disk.write(BlockAddr(params.blocks - 1), &block(4)).unwrap();
        Disk::close(&disk).unwrap();
        if grew {
            break;
        }
    }
    assert!(olds > 5 && news > 1, "both outcomes were reached: {olds}, {news}");
}

#[test]
fn the_header_of_another_disk_is_refused() {
    let made = CreatedImage::new();
    let medium = Arc::new(CrashMedium::from_image(made.image.clone()));
    let other = Secret::copy_from(&[9; 32]);
    for (uuid, master) in [(Uuid([1; 16]), &made.master), (made.uuid, &other)] {
        assert_eq!(open_by_key(&*medium, uuid, master).err().unwrap().kind(), Kind::Corrupt);
    }
}
