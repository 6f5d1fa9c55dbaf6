//! Speed of the disk without a front end, for profiling: MB/s and operations per second of two
//! threads on a file. Usage: engine_speed FILE [xts|xts-random|gcm|hctr2] [job …]

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Secret};
use lacuna_crypto::{Cipher, SystemRandom};
use lacuna_medium::FileMedium;
use lacuna_sealed::{CachedSlots, OpenOptions, Params, SealedDisk};
use std::sync::Arc;
use std::time::Instant;

const BLOCKS: u64 = 2 << 18;

fn run(
    disk: &Arc<SealedDisk>,
    name: &str,
    blocks: u64,
    random: bool,
    write: bool,
    flush_every: u64,
    total: u64,
) {
    let start = Instant::now();
    let operations = total / blocks;
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let disk = disk.clone();
            scope.spawn(move || {
                let mut x = thread + 77;
                let mut buf = vec![0x5a_u8; blocks as usize * BLOCK_SIZE];
                for i in (thread..operations).step_by(2) {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let slots = BLOCKS / blocks;
                    let slot = if random { (x >> 33) % slots } else { i % slots };
                    buf[0] = i as u8;
                    if write {
                        disk.write(BlockAddr(slot * blocks), &buf).unwrap();
                        if flush_every > 0 && i % flush_every == 0 {
                            disk.flush().unwrap();
                        }
                    } else {
                        disk.read(BlockAddr(slot * blocks), &mut buf).unwrap();
                    }
                }
            });
        }
    });
    let took = start.elapsed().as_secs_f64();
    println!(
        "{name:<24} {:>8.0} MB/s {:>8.0} op/s",
        (operations * blocks) as f64 * 4096.0 / took / 1e6,
        operations as f64 / took
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a file");
    let name = args.next().unwrap_or_else(|| "xts-random".into());
    let jobs: Vec<String> = args.collect();
    let cipher = Cipher::ALL.into_iter().find(|c| c.name() == name).expect("a cipher");
    let params = Params::plan(cipher, BLOCKS, None).unwrap();
    let _ = std::fs::remove_file(&path);
    let medium = FileMedium::create(path.as_ref(), params.geometry().end()).unwrap();
    let master = Secret::copy_from(&[1; 32]);
    SealedDisk::create(&medium, &params, &master).unwrap();
    let options = OpenOptions {
        budget: Budget::default(),
        read_only: false,
        write_through: false,
        background: true,
        random: Arc::new(SystemRandom::new().unwrap()),
        kept: None,
        cached: CachedSlots::Dropped,
    };
    let disk = Arc::new(SealedDisk::open(Arc::new(medium), &params, &master, &[0; 16], options).unwrap());
    let all: [(&str, u64, bool, bool, u64, u64); 8] = [
        ("fill-1m", 256, false, true, 0, BLOCKS),
        ("write-1m", 256, false, true, 0, 2 * BLOCKS),
        ("write-1m-fsync32", 256, false, true, 32, BLOCKS),
        ("randwrite-1m", 256, true, true, 0, BLOCKS),
        ("randwrite-4k", 1, true, true, 0, 200_000),
        ("randwrite-4k-fsync32", 1, true, true, 32, 50_000),
        ("read-1m", 256, false, false, 0, 4 * BLOCKS),
        ("randread-4k", 1, true, false, 0, 500_000),
    ];
    for (name, blocks, random, write, flush, total) in all {
        if name == "fill-1m" || jobs.is_empty() || jobs.iter().any(|j| j == name) {
            run(&disk, name, blocks, random, write, flush, total);
        }
    }
    let start = Instant::now();
    disk.close().unwrap();
    println!("close {:.2} s", start.elapsed().as_secs_f64());
    for item in disk.status().items {
        println!("{} {} {}", item.name, item.value, item.unit);
    }
}
