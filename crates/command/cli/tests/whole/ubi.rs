//! A disk on a UBI volume of a real kernel, on a simulated NAND chip, in a guest where this test
//! program runs itself and uses the real binary. The chip is in the guest's memory; when the
//! guest's power is cut, its contents are saved outside and restored to the chip of the next guest.
//! Skipped, with a message, where no guest can be run.

use crate::harness::{CHEAP, RunOutput, Signal, send, skipped};
use crate::keeper::server_of;
use crate::nbd_client::Client;
use lacuna_testkit::GuestImage;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells this program that it is in a guest, and which part of the test to run there.
const PART: &str = "LACUNA_GUEST_PART";
/// The last number that was flushed before the power was cut.
const FLUSHED: &str = "LACUNA_GUEST_FLUSHED";
const LACUNA: &str = "/guest/lacuna";
const LOCATION: &str = "ubi:/dev/ubi0_0";
const SOCKET: &str = "/tmp/nbd.sock";
const BLOCK: u64 = 4096;
/// Number of blocks that are overwritten repeatedly.
const BLOCKS: u64 = 200;
/// Number of blocks after them that are written once and then deleted.
const SECRETS: u64 = 100;
/// Logical erase blocks of the header; those of keys follow.
const HEADER_LEBS: u32 = 2;

/// UBI's own emulation of a power cut: it stops writing after a number of volume header writes.
const POWER_CUT: &str = "/sys/kernel/debug/ubi/ubi0/tst_emulate_power_cut";

/// UBI's background thread is disabled, so that every erased block was erased on our request.
const ATTACH: &str = r#"
export XDG_RUNTIME_DIR=/tmp
echo correct horse >/tmp/key
load ubi
attach() {
    ubiattach -m 0 >/dev/null
    echo 1 >/sys/kernel/debug/ubi/ubi0/tst_disable_bgt
}
part() {
    LACUNA_GUEST_PART=$1 /guest/whole ubi::a_disk_on_ubi_forgets_and_survives_power_cuts --exact --nocapture --test-threads 1
    echo "guest: $1 ended with $?"
}
"#;

/// A guest that runs these commands after [`ATTACH`].
fn guest(dir: &Path, commands: &str) -> GuestImage {
    let whole = dir.join("whole");
    if !whole.exists() {
        fs::copy(std::env::current_exe().unwrap(), &whole).unwrap();
    }
    GuestImage::new(dir, &format!("{ATTACH}{commands}"), &[&whole, Path::new(env!("CARGO_BIN_EXE_lacuna"))])
}

/// The part that this program is to run, if it is in a guest.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

fn flushed() -> u64 {
    std::env::var(FLUSHED).unwrap().parse().unwrap()
}

/// Programs the chip with the saved contents of another.
fn restore() {
    let mut kept = vec![];
    File::open("/dev/mtd1").unwrap().read_to_end(&mut kept).unwrap();
    let chip = File::options().read(true).write(true).open("/dev/mtd0").unwrap();
    for (number, page) in (0..).zip(kept.chunks_exact(2048)) {
        if page.iter().any(|byte| *byte != 0xff) {
            chip.write_all_at(page, number * 2048).unwrap();
        }
    }
}

#[test]
fn a_disk_on_ubi_forgets_and_survives_power_cuts() {
    let Some(part) = part() else { return with_power_cuts() };
    match part.as_str() {
        "new" => {
            create_and_forget();
            let mut server = GuestServer::start();
            // During UBI's work for these writes, the chip stops accepting writes.
            for (file, value) in [("_min", "30"), ("_max", "0"), ("", "2")] {
                fs::write(format!("{POWER_CUT}{file}"), value).unwrap();
            }
            write_numbers(BLOCKS, &AtomicU64::new(0));
            println!("guest: the power was cut");
            server.kill();
        }
        "restore" => restore(),
        "again" => {
            verify(flushed());
            println!("guest: killed after {}", killed_while_writing(100_000));
        }
        "last" => {
            verify(flushed());
            killed_and_started_again();
        }
        other => panic!("no part is called {other}"),
    }
}

/// Each guest gets the chip as the previous guest left it, with at least the data flushed there.
fn with_power_cuts() {
    if let Some(why) = GuestImage::unavailable_reason() {
        return skipped(&why);
    }
    let dir = tempfile::tempdir().unwrap();
    let flash = GuestImage::new_flash(dir.path(), 16 << 20);
    let mut flushed = String::new();
    for part in ["new", "again", "last"] {
        let before = if part == "new" { "" } else { "part restore\n" };
        let volume = if part == "new" { "ubimkvol /dev/ubi0 -N disk -m >/dev/null\n" } else { "" };
        let commands = format!(
            "export {FLUSHED}={flushed}\nnand_chip overridesize=7 badblocks=30,31,77\nkept_flash\n\
             {before}attach\n{volume}part {part}\ncat /dev/mtd0 >/dev/mtd1\necho guest: the chip is kept\nsleep 1000\n"
        );
        let image = guest(dir.path(), &commands);
        let mut running = image.boot(&flash);
        running.wait_for("guest: the chip is kept");
        let said = running.kill();
        println!("{said}");
        assert!(said.contains(&format!("guest: {part} ended with 0")), "{part}");
        if let Some((_, last)) = said.rsplit_once("flushed: ") {
            last.split_whitespace().next().unwrap().clone_into(&mut flushed);
        }
    }
}

// --- in the guest ---

fn lacuna(args: &[&str]) -> RunOutput {
    RunOutput::from(Command::new(LACUNA).args(args).stdin(Stdio::null()).output().unwrap())
}

/// A server, or its keeper.
struct GuestServer(Child);

impl GuestServer {
    fn start() -> GuestServer {
        GuestServer::start_with(&["--no-keeper"])
    }

    fn start_with(options: &[&str]) -> GuestServer {
        let args = ["serve", LOCATION, "--key-file", "/tmp/key", "--socket", SOCKET];
        let mut server =
            Command::new(LACUNA).args(args).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        assert!(uri.starts_with("nbd+unix:"), "the server said {uri:?}");
        GuestServer(server)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for GuestServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn block_of(number: u64) -> u64 {
    number * 31 % BLOCKS
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Writes ascending numbers, with a flush after every eighth, until the server has died; stores the
/// last flushed number in `flushed`.
fn write_numbers(from: u64, flushed: &AtomicU64) {
    let mut client = Client::connect(Path::new(SOCKET)).unwrap();
    for number in from.. {
        if client.write_at(block_of(number) * BLOCK, &content(number)).is_err() {
            return;
        }
        if number % 8 == 0 {
            if client.flush().is_err() {
                return;
            }
            println!("flushed: {number}");
            flushed.store(number, Ordering::Relaxed);
        }
    }
}

/// The last number that was flushed before the server died, at least 1000 after the first.
fn killed_while_writing(first: u64) -> u64 {
    let flushed = AtomicU64::new(0);
    let mut server = GuestServer::start();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_numbers(first, &flushed));
        while flushed.load(Ordering::Relaxed) < first + 1000 && !writer.is_finished() {
            std::thread::yield_now();
        }
        server.kill();
    });
    assert!(flushed.load(Ordering::Relaxed) >= first + 1000);
    flushed.into_inner()
}

/// Kills servers with writes that were not flushed. The keeper starts each next one on the same
/// volume.
fn killed_and_started_again() {
    let mut keeper = GuestServer::start_with(&[]);
    for round in 1..4 {
        let mut client = Client::connect(Path::new(SOCKET)).unwrap();
        let number_of = |number: u64| round * 1_000_000 + number;
        for number in 0..BLOCKS {
            client.write_at(block_of(number) * BLOCK, &content(number_of(number))).unwrap();
        }
        client.discard(block_of(0) * BLOCK, BLOCK as usize).unwrap();
        send(Signal::KILL, server_of(keeper.0.id()).unwrap());
        let mut client = Client::connect(Path::new(SOCKET)).unwrap();
        for number in 0..BLOCKS {
            let found = client.read_at(block_of(number) * BLOCK, BLOCK as usize).unwrap();
            let expected = if number == 0 { content(0) } else { content(number_of(number)) };
            assert!(found == expected, "round {round}: block {}", block_of(number));
        }
    }
    send(Signal::TERM, keeper.0.id());
    assert!(keeper.0.wait().unwrap().success());
    println!("guest: three servers died and lost nothing");
}

/// Makes a disk and deletes data on it; after a purge the keys of the deleted data are nowhere on
/// the chip.
fn create_and_forget() {
    let mut create = vec!["create", LOCATION, "--format", "flash", "--key-file", "/tmp/key", "--size", "8M"];
    create.extend(CHEAP);
    println!("{}", lacuna(&create).code(0).stderr);
    let server = GuestServer::start();
    let mut client = Client::connect(Path::new(SOCKET)).unwrap();
    for number in 0..SECRETS {
        client.write_at((BLOCKS + number) * BLOCK, &content(number + 1)).unwrap();
    }
    client.flush().unwrap();
    let before = ChipImage::read();
    let old = before.blocks_of_keys();
    client.discard(BLOCKS * BLOCK, (SECRETS * BLOCK) as usize).unwrap();
    client.flush().unwrap();
    let between = ChipImage::read();
    assert!(between.blocks_of_keys() == old, "a discard and a flush alone forget nothing");
    println!("{}", lacuna(&["purge", LOCATION, "--key-file", "/tmp/key"]).code(0).stdout);
    let after = ChipImage::read();
    let new = after.blocks_of_keys();
    let gone: Vec<u32> = old.keys().copied().filter(|leb| old[leb] != new[leb]).collect();
    assert!(!gone.is_empty(), "no block of keys was replaced");
    let pages: HashSet<&[u8]> = gone.iter().flat_map(|leb| old[leb].chunks_exact(512)).collect();
    let pages = pages.into_iter().filter(|page| page.iter().any(|byte| *byte != 0xff)).collect();
    assert!(between.has_any(&pages) && !after.has_any(&pages), "old keys");
    println!("guest: blocks of keys {gone:?} were replaced; of their {} old pages none is left", pages.len());
    assert_eq!(client.read_at((BLOCKS + 1) * BLOCK, 4096).unwrap(), vec![0; 4096]);
    drop(server);
}

/// Checks that each block reads as its last flushed version or a later one, and that the disk is
/// sound.
fn verify(flushed: u64) {
    println!("{}", lacuna(&["check", LOCATION, "--key-file", "/tmp/key"]).code(0).stdout);
    let server = GuestServer::start();
    let mut client = Client::connect(Path::new(SOCKET)).unwrap();
    let mut least: BTreeMap<u64, u64> = BTreeMap::new();
    for number in flushed.saturating_sub(BLOCKS) + 1..=flushed {
        least.insert(block_of(number), number);
    }
    assert_eq!(least.len() as u64, BLOCKS);
    let mut later = 0;
    for (block, number) in least {
        let found = client.read_at(block * BLOCK, BLOCK as usize).unwrap();
        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(found == content(version), "block {block} mixes several versions");
        assert!(
            version >= number && block_of(version) == block,
            "block {block}: {version}, flushed {number}"
        );
        later += u64::from(version > number);
    }
    println!("guest: all of {BLOCKS} blocks are as flushed or newer, {later} newer");
    println!("{}", lacuna(&["purge", LOCATION, "--key-file", "/tmp/key"]).code(0).stdout);
    drop(server);
}

/// The flash as an adversary that seizes it reads it.
struct ChipImage {
    bytes: Vec<u8>,
    block_len: usize,
}

impl ChipImage {
    fn read() -> ChipImage {
        let mtd = fs::read_to_string("/sys/class/ubi/ubi0/mtd_num").unwrap();
        let block_len = fs::read_to_string(format!("/sys/class/mtd/mtd{}/erasesize", mtd.trim())).unwrap();
        let mut bytes = vec![];
        File::open(format!("/dev/mtd{}", mtd.trim())).unwrap().read_to_end(&mut bytes).unwrap();
        ChipImage { bytes, block_len: block_len.trim().parse().unwrap() }
    }

    /// The content of the first key blocks, which the disk has used, by logical block. Of several
    /// copies the newest counts.
    fn blocks_of_keys(&self) -> BTreeMap<u32, &[u8]> {
        let mut found: BTreeMap<u32, (u64, &[u8])> = BTreeMap::new();
        for block in self.bytes.chunks_exact(self.block_len) {
            let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
            // Offsets of the volume header and of the content.
            let (header, content) = (word(16) as usize, word(20) as usize);
            if !block.starts_with(b"UBI#") || !block[header..].starts_with(b"UBI!") {
                continue;
            }
            let (volume, leb) = (word(header + 8), word(header + 12));
            let sequence = u64::from(word(header + 40)) << 32 | u64::from(word(header + 44));
            let is_newer = found.get(&leb).is_none_or(|(other, _)| *other < sequence);
            if volume == 0 && (HEADER_LEBS..HEADER_LEBS + 2).contains(&leb) && is_newer {
                found.insert(leb, (sequence, &block[content..]));
            }
        }
        assert!(!found.is_empty(), "no keys on the chip");
        found.into_iter().map(|(leb, (_, content))| (leb, content)).collect()
    }

    /// Whether any of these pages is anywhere on the chip.
    fn has_any(&self, pages: &HashSet<&[u8]>) -> bool {
        // Headers may shift the content within a page of this length.
        (0..512)
            .step_by(64)
            .any(|shift| self.bytes[shift..].chunks_exact(512).any(|page| pages.contains(page)))
    }
}
