//! What is left in the memory of a server of what clients wrote and read: searched as root, in the process as it runs.

use crate::nbd_client::Client;
use crate::scene::{Closing, Scene, can_mount, have, noise, skipped, wait_until};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Bytes of each block that are looked for.
const MARK: usize = 48;

/// What all marks begin with.
const FIRST: [u8; 8] = [0x9c, 0x31, 0xe7, 0x5a, 0xd2, 0x0b, 0x86, 0xf4];

/// The start of a block that is told from all others by its number.
fn mark(number: u64) -> [u8; MARK] {
    [&FIRST[..], &number.to_le_bytes(), &noise(number, MARK - 16)].concat().try_into().unwrap()
}

/// Blocks with their marks, which are all that is in them.
fn marked(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|number| mark(number).repeat(4096usize.div_ceil(MARK))[..4096].to_vec()).collect()
}

/// Whether the memory of other processes may be read here.
fn can_search() -> bool {
    let readable = rustix::process::geteuid().is_root() && File::open("/proc/1/mem").is_ok();
    if !readable {
        skipped("the memory of other processes may not be read");
    }
    readable
}

/// How many of the blocks of these numbers the memory of a process holds, or parts of them.
fn found(process: u32, numbers: std::ops::Range<u64>) -> usize {
    // Blocks repeat their mark, so that any part of one that is as long as two marks has a whole one, wherever it begins.
    let mut seen = BTreeSet::new();
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    for map in maps.lines().filter(|map| map.contains(" rw") && !map.contains("[v")) {
        let (from, to) = map.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut at = number(from);
        while at < number(to) {
            let mut bytes = vec![0; (number(to) - at).min(1 << 20) as usize];
            // What cannot be read has no content: pages of a stack that were never used.
            if memory.read_exact_at(&mut bytes, at).is_ok() {
                for part in bytes.windows(MARK).filter(|part| part[0] == FIRST[0] && part.starts_with(&FIRST))
                {
                    let number = u64::from_le_bytes(part[8..16].try_into().unwrap());
                    if numbers.contains(&number) && part == mark(number) {
                        seen.insert(number);
                    }
                }
            }
            at += 1 << 20;
        }
    }
    seen.len()
}

/// Writes and reads marked blocks in requests of many lengths, some of which do not begin with a block.
fn use_blocks(client: &mut Client, numbers: std::ops::Range<u64>) {
    let at = |number: u64| (number - numbers.start) * 4096;
    for number in numbers.clone() {
        client.write_at(at(number), &marked(number..number + 1)).unwrap();
    }
    let all = marked(numbers.clone());
    client.write_at(0, &all).unwrap();
    client.write_at(4096 + 512, &all[4096 + 512..4096 + 3584]).unwrap();
    client.flush().unwrap();
    for len in [4096, 64 << 10, 300 << 10, all.len()] {
        assert!(client.read_at(0, len).unwrap() == all[..len]);
    }
    assert!(client.read_at(1000, 5000).unwrap() == all[1000..6000]);
}

#[test]
fn no_purged_block_and_no_request_of_an_idle_client_stays_in_memory() {
    if !can_search() {
        return;
    }
    let scene = Scene::new();
    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    let serving = scene.serve_disk("nand:chip.img", &["--purge-period", "0"]);
    let process = serving.process();
    let mut client = Client::connect(&serving.socket).unwrap();
    use_blocks(&mut client, 0..256);
    // Not written yet, so that the search finds what is there.
    client.write_at(2 << 20, &marked(256..266)).unwrap();
    assert!(found(process, 256..266) == 10, "the search finds nothing");
    client.flush().unwrap();
    client.discard(0, 4 << 20).unwrap();
    client.flush().unwrap();
    scene.lacuna(&["purge", "nand:chip.img"]).code(0);
    assert_eq!(found(process, 0..266), 0, "after a purge, while the client is connected");
    // Of what is not deleted nothing stays when the client does nothing more, nor when it has left.
    use_blocks(&mut client, 300..400);
    wait_until("an idle server forgets what its client wrote", || found(process, 300..400) == 0);
    use_blocks(&mut client, 400..500);
    drop(client);
    wait_until("a server forgets what a client wrote that left", || found(process, 400..500) == 0);
    assert_eq!(serving.stop(), 0);
}

#[test]
fn nothing_that_was_read_through_fuse_stays_in_memory() {
    if !can_search() || !can_mount("/dev/fuse") || !have("fusermount3") {
        return;
    }
    let scene = Scene::new();
    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    let serving = scene.serve_disk("nand:chip.img", &[]);
    use_blocks(&mut Client::connect(&serving.socket).unwrap(), 0..256);
    assert_eq!(serving.stop(), 0);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = Closing(&scene, &["mnt"]);
    scene.lacuna(&["open", "nand:chip.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
    let process = status["servers"][0]["pid"].as_u64().unwrap() as u32;
    let disk = File::open(scene.path("mnt/disk")).unwrap();
    let mut all = vec![0; 1 << 20];
    disk.read_exact_at(&mut all, 0).unwrap();
    assert!(all == marked(0..256));
    disk.read_exact_at(&mut all[..5000], 100).unwrap();
    drop(disk);
    wait_until("a server forgets what was read", || found(process, 0..256) == 0);
    scene.lacuna(&["close", "mnt"]).code(0);
}
