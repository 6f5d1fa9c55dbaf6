//! How fast an oblivious disk on a file is, driven directly: `throughput DIRECTORY [MiB of the medium]`. Prints MB/s of level 0,
//! and of level 1 with level 0 written as much.

use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Secret};
use lacuna_crypto::SystemRandom;
use lacuna_medium::{FileMedium, Medium};
use lacuna_oblivious::{LevelDisk, Levels, Oblivious, OpenOptions, Params, Plan};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHUNK: u64 = 64;

fn rate(blocks: u64, since: Instant) -> f64 {
    (blocks * BLOCK_SIZE as u64) as f64 / 1e6 / since.elapsed().as_secs_f64()
}

fn write(level: &LevelDisk, first: u64, count: u64, data: &[u8]) {
    level.write(BlockAddr(first), &data[..count as usize * BLOCK_SIZE]).expect("a write");
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let path = Path::new(&args[1]).join("throughput.disk");
    let mib: u64 = args.get(2).map_or(1024, |mib| mib.parse().expect("a number of MiB"));
    let _absent = std::fs::remove_file(&path);
    let params = Params::plan(mib << 20, Plan::DEFAULT).expect("a plan");
    let medium: Arc<dyn Medium> = Arc::new(FileMedium::create(&path, params.medium_len()).expect("a file"));
    let masters = [Secret::copy_from(&[1; 32]), Secret::copy_from(&[2; 32])];
    let random = Arc::new(SystemRandom::new().expect("randomness"));
    Oblivious::create(&medium, &params, &masters, &[3; 16], random.clone(), random.clone()).expect("a disk");
    let options = OpenOptions {
        budget: Budget::default(),
        read_only: false,
        background: true,
        cover_timeout: Duration::from_secs(10),
        public_random: random.clone(),
        filler: random,
    };
    let disk = Arc::new(Oblivious::open(medium, &params, &masters, &[3; 16], options).expect("it opens"));
    let levels = disk.levels();
    let data = vec![7; CHUNK as usize * BLOCK_SIZE];
    let blocks = levels[0].blocks() / CHUNK * CHUNK;
    for round in ["first", "again"] {
        let since = Instant::now();
        (0..blocks / CHUNK).for_each(|at| write(&levels[0], at * CHUNK, CHUNK, &data));
        levels[0].flush().expect("a flush");
        println!("level 0, {round}: {:.1} MB/s", rate(blocks, since));
    }
    let hidden = levels[1].blocks() / 8 * 8;
    let since = Instant::now();
    for at in 0..hidden / 8 {
        write(&levels[1], at * 8, 8, &data);
        write(&levels[0], at * 8, 8, &data);
    }
    println!("level 1 with level 0: {:.1} MB/s", rate(hidden, since));
    let since = Instant::now();
    let mut block = vec![0; BLOCK_SIZE];
    let reads = 200_000;
    for n in 0..reads {
        levels[0].read(BlockAddr(n * 7919 % blocks), &mut block).expect("a read");
    }
    println!("level 0, random reads: {:.1} MB/s", rate(reads, since));
    disk.close().unwrap_or_else(|e| println!("{e}"));
    let _gone = std::fs::remove_file(&path);
}
