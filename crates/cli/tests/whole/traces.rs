//! What the system is asked to do to the medium is the same whether hidden levels are absent, idle, read or busy: the real
//! program under `strace`, with the same public work each time.
//!
//! Compared are, of all system calls on the file of the medium that change it or make it durable:
//! - `deniable`: its writes and discards, with offset and length, in order. Which thread makes a call does not matter.
//! - `oblivious`: the writes to ring and journal, in the same way. Cells are drawn at random: of the writes in place, that each
//!   is of a whole group of cells, and how many there are, within [`TOLERANCE`]: batches that are brought in place together may have
//!   drawn the same group, which is then written once.
//! - The number of syncs, within [`SYNC_TOLERANCE`], and not where among the writes they begin: a thread of its own makes them while
//!   the next stripes or batches are written, and one that comes late serves for two. So the number varies with the load of
//!   the machine (54 or 52 of a `deniable` disk, 87 to 103 of an `oblivious` one, with hidden levels absent each time). A
//!   hidden flush that made a sync of its own would double it.
//!
//! And of the file: size, mode, owner, access time and links, and the space taken, which of an `oblivious` disk follows from
//! the cells that were drawn.

use crate::books::Dice;
use crate::nbd_client::Client;
use crate::scene::{Scene, have, noise, skipped, wait_until};
use lacuna_oblivious::{Params, Plan};
use std::fs::{self, FileTimes, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

const BLOCK: u64 = 4096;
const SIZE: u64 = 24 << 20;
/// Blocks of each level that are worked on.
const BLOCKS: u64 = 600;
/// Of so many, numbers that chance decides may differ by one.
const TOLERANCE: u64 = 10;
/// The same for syncs, of which the load of the machine decides how many serve for two.
const SYNC_TOLERANCE: u64 = 4;
/// Public operations of a session.
const OPERATIONS: u64 = 250;
const CALLS: &str =
    "trace=pwrite64,pwritev,pwritev2,write,writev,fsync,fdatasync,fallocate,ftruncate,sync_file_range,msync";

/// What is done on hidden levels while level 0 is worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hidden {
    Absent,
    Idle,
    Read,
    Busy,
}

/// One system call on the medium: its name, and the bytes that it concerns.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    name: String,
    offset: u64,
    len: u64,
}

impl Call {
    fn is_sync(&self) -> bool {
        matches!(self.name.as_str(), "fsync" | "fdatasync" | "sync_file_range" | "msync")
    }
}

/// What a line of the trace says, unless it is the end of a call that began before, or of another file.
fn parse(line: &str) -> Option<Call> {
    let (_, call) = line.split_once(' ')?;
    let (name, arguments) = call.trim_start().split_once('(')?;
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return None;
    }
    let (file, rest) = arguments.split_once('>')?;
    if !file.ends_with("/disk.img") {
        return None;
    }
    let rest = rest.split(" <unfinished").next()?;
    let rest = rest.rsplit_once(") = ").map_or(rest, |(arguments, _)| arguments);
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let last: Vec<&str> = rest.rsplit(", ").collect();
    let (offset, len) = match name {
        "pwrite64" | "fallocate" => {
            let (one, other) = (number(last[0])?, number(last[1])?);
            if name == "pwrite64" { (one, other) } else { (other, one) }
        }
        "pwritev" | "pwritev2" => {
            let lens = rest.split("iov_len=").skip(1).map(|len| number(len.split('}').next()?));
            // After the offset the second has flags.
            (number(last[usize::from(name == "pwritev2")])?, lens.sum::<Option<u64>>()?)
        }
        "fsync" | "fdatasync" => (0, 0),
        // None of these is used today; whatever comes is compared as it stands.
        _ => return Some(Call { name: line.to_owned(), offset: 0, len: 0 }),
    };
    Some(Call { name: name.to_owned(), offset, len })
}

/// The public work: the same operations, one after another, for the same seed.
fn public_work(socket: &Path, seed: u64) {
    let mut client = Client::connect_to(socket, "0").unwrap();
    let mut dice = Dice(seed);
    for operation in 0..OPERATIONS {
        let count = 1 + dice.below(16);
        let at = dice.below(BLOCKS - count) * BLOCK;
        let len = (count * BLOCK) as usize;
        match dice.below(12) {
            0..8 => client.write_at(at, &noise(seed + operation, len)).unwrap(),
            8 => client.discard(at, len).unwrap(),
            9 => drop(client.read_at(at, len).unwrap()),
            _ => client.flush().unwrap(),
        }
    }
    client.flush().unwrap();
}

/// Work on a hidden level until `done`. What finds no cover fails, and nothing comes of it.
fn hidden_work(socket: &Path, export: &str, hidden: Hidden, done: &AtomicBool) {
    let mut client = Client::connect_to(socket, export).unwrap();
    let mut dice = Dice(99);
    while !done.load(Ordering::Relaxed) {
        let count = 1 + dice.below(8);
        let at = dice.below(BLOCKS - count) * BLOCK;
        let len = (count * BLOCK) as usize;
        let _ = match dice.below(8) {
            _ if hidden == Hidden::Read => client.read_at(at, len).map(drop),
            0..5 => client.write_at(at, &noise(at, len)),
            5 => client.discard(at, len),
            6 => client.read_at(at, len).map(drop),
            _ => client.flush(),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Serves the disk once under `strace`; the calls on the medium.
fn session(scene: &Scene, seed: u64, hidden: Hidden) -> Vec<Call> {
    let trace = scene.path("trace");
    let mut command = Command::new("strace");
    // The server is the process that we start, and the tracer one beside it: signals reach the server.
    command.args(["-D", "-f", "-y", "-q", "-s", "0", "-o", trace.to_str().unwrap(), "-e", CALLS]);
    // All lengths of a call that takes many buffers.
    command.args(["-e", "abbrev=none"]);
    command.arg(env!("CARGO_BIN_EXE_lacuna")).args(["-q", "serve", "disk.img", "--socket", "nbd.sock"]);
    command.args(["--cover-timeout", "1", "--key-file"]);
    command.arg(if hidden == Hidden::Absent { "key" } else { "third" });
    let server = scene.served_by(&mut command);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if matches!(hidden, Hidden::Read | Hidden::Busy) {
            for export in ["1", "2"] {
                let (server, done) = (&server, &done);
                scope.spawn(move || hidden_work(&server.socket, export, hidden, done));
            }
        }
        public_work(&server.socket, seed);
        done.store(true, Ordering::Relaxed);
    });
    let process = server.process().to_string();
    // What still waited for cover is lost, and the server says so.
    let code = server.stop();
    assert!(code == 0 || code == 20, "exit code {code}");
    let traced = || fs::read_to_string(&trace).unwrap();
    let ended = |line: &str| line.contains(" +++ exited") && line.split(' ').next() == Some(&process);
    wait_until("the end of the trace", || traced().lines().any(ended));
    traced().lines().filter_map(parse).collect()
}

/// What two sessions did to a new medium, and what can be seen of its file then.
struct Seen {
    sessions: Vec<Vec<Call>>,
    file: [u64; 6],
    blocks: u64,
}

fn see(format: &str, hidden: Hidden) -> Seen {
    let scene = Scene::new();
    let keys = ["second", "third"];
    keys.iter().for_each(|key| fs::write(scene.path(key), key).unwrap());
    let size = SIZE.to_string();
    let mut options = vec!["--format", format, "--size", &size, "--cover", "0"];
    if hidden != Hidden::Absent {
        options.extend(["--levels", "3", "--key-file", "second", "--key-file", "third"]);
    }
    scene.create("disk.img", &options).code(0);
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.set_times(FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(1_000_000))).unwrap();
    // Busy at first, so that there is something to read.
    let before = if hidden == Hidden::Absent { hidden } else { Hidden::Busy };
    let sessions = vec![session(&scene, 5, before), session(&scene, 6, hidden)];
    let meta = fs::metadata(scene.path("disk.img")).unwrap();
    let accessed = meta.atime() as u64;
    assert_eq!(accessed, 1_000_000, "{hidden:?}: the access time changed");
    let owner = (u64::from(meta.uid()), u64::from(meta.gid()));
    let file = [meta.len(), u64::from(meta.mode()), owner.0, owner.1, accessed, meta.nlink()];
    Seen { sessions, file, blocks: meta.blocks() }
}

/// Compares what was seen with hidden levels to what was seen without, by what `compared` makes of the calls of a session.
fn compare(format: &str, compared: impl Fn(&[Call], &[Call]) -> Result<(), String>) {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may trace a program that makes no core dumps");
    }
    if !have("strace") {
        return;
    }
    let absent = see(format, Hidden::Absent);
    assert!(absent.sessions.iter().all(|calls| calls.len() > 50), "{}", absent.sessions[1].len());
    for hidden in [Hidden::Idle, Hidden::Read, Hidden::Busy] {
        let present = see(format, hidden);
        for (number, (without, with)) in absent.sessions.iter().zip(&present.sessions).enumerate() {
            let done = compared(without, with);
            done.and_then(|()| near("syncs", SYNC_TOLERANCE, count_syncs(without), count_syncs(with)))
                .unwrap_or_else(|e| panic!("{format}, {hidden:?}, session {number}: {e}"));
        }
        assert_eq!(absent.file, present.file, "{format}, {hidden:?}: what is seen of the file");
        near("space taken", TOLERANCE, absent.blocks, present.blocks)
            .unwrap_or_else(|e| panic!("{format}, {hidden:?}: {e}"));
    }
}

/// Compares calls in order.
fn same<'a>(
    what: &str,
    without: impl Iterator<Item = &'a Call>,
    with: impl Iterator<Item = &'a Call>,
) -> Result<(), String> {
    let (without, with): (Vec<_>, Vec<_>) = (without.collect(), with.collect());
    let differs = without.iter().zip(&with).position(|(one, other)| one != other);
    if let Some(at) = differs {
        return Err(format!("{what}, number {at}: {:?} without, {:?} with", without[at], with[at]));
    }
    if without.len() == with.len() {
        Ok(())
    } else {
        Err(format!("{what}: {} without, {} with", without.len(), with.len()))
    }
}

fn count_syncs(calls: &[Call]) -> u64 {
    calls.iter().filter(|call| call.is_sync()).count() as u64
}

/// Compares numbers that chance or the load of the machine moves a little.
fn near(what: &str, tolerance: u64, without: u64, with: u64) -> Result<(), String> {
    if without.abs_diff(with) <= without / tolerance {
        return Ok(());
    }
    Err(format!("{what}: {without} without, {with} with"))
}

#[test]
fn deniable() {
    compare("deniable", |without, with| {
        let writes = |call: &&Call| !call.is_sync();
        same("writes", without.iter().filter(writes), with.iter().filter(writes))
    });
}

#[test]
fn oblivious() {
    /// Bytes of a group of eight cells, and those of them that are written: the blocks, and 64 bytes of metadata for each.
    const GROUP: u64 = 9 * BLOCK;
    const WRITTEN: u64 = 8 * (BLOCK + 64);
    let params = Params::plan(SIZE, Plan { cover_millis: 0, ..Plan::DEFAULT }).unwrap();
    let cells = params.medium_len() - params.cells / 8 * GROUP;
    compare("oblivious", |without, with| {
        let ordered = |call: &&Call| !call.is_sync() && call.offset < cells;
        same("ring and journal", without.iter().filter(ordered), with.iter().filter(ordered))?;
        let in_place = |calls: &[Call]| {
            let mut groups = 0;
            for call in calls.iter().filter(|call| !call.is_sync() && call.offset >= cells) {
                if call.len != WRITTEN || !(call.offset - cells).is_multiple_of(GROUP) {
                    return Err(format!("not a group of cells: {call:?}"));
                }
                groups += 1;
            }
            Ok(groups)
        };
        near("groups", TOLERANCE, in_place(without)?, in_place(with)?)
    });
}
