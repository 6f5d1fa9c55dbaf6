//! The system calls on the medium are the same whether levels above a depth are absent, idle, read
//! or busy: the real program under `strace`, with the same work on the levels up to that depth each
//! time.
//!
//! `LACUNA_TRACES` sets the number of traced sessions per format (default 12), twelve for each
//! seed; `LACUNA_SEED` the first seed (default 0). Even seeds use depth 0, odd ones depth 1. The
//! digest covers the calls that are compared in order.
//!
//! Of all system calls on the file of the medium that change it or make it durable, the tests
//! compare:
//! - `deniable`: its writes and discards, with offset and length, in order. The calling thread does
//!   not matter.
//! - `oblivious`: the writes to ring and journal, in the same way. Cells are drawn at random: of
//!   the writes in place, only that each is of a whole group of cells, and their number within
//!   [`TOLERANCE`]: batches that are brought in place together may have drawn the same group, which
//!   is then written once.
//! - The number of syncs, which is at most the number that level 0 causes: one for each of its
//!   flushes with pending data, and the syncs due as stripes or batches are written. A thread
//!   of its own makes these, and a late sync serves for two, so their number and their positions
//!   among the writes vary with the load of the machine. If hidden flushes made syncs, there would
//!   be more, because a busy hidden level is flushed again and again: in the sessions with many
//!   flushes of level 0, if each made its own; in the session with few of them, if only each that
//!   waits for a stripe or batch did.
//!
//! Of the file they compare size, mode, owner, access time and links, and the space taken; with
//! `oblivious` the space depends on the drawn cells.

use crate::harness::{Scene, is_program_available, noise, skip_unless, skipped, wait_until};
use crate::nbd_client::Client;
use crate::write_verifier::Xorshift;
use lacuna_deniable::{Params as DeniableParams, StripeGeometry};
use lacuna_oblivious::{Params, Plan};
use lacuna_testkit::env_number;
use std::fs::{self, FileTimes, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

const BLOCK: u64 = 4096;
const SIZE: u64 = 96 << 20;
/// Number of blocks of level 0 that are used.
const BLOCKS: u64 = 600;
/// Number of blocks of each hidden level that are used: no more than closing carries along, because
/// a session that loses data ends like one with a failed medium.
const HIDDEN_BLOCKS: u64 = 24;
/// Random numbers may differ by this fraction: one in `TOLERANCE`.
const TOLERANCE: u64 = 10;
/// Syncs of opening and closing, including those of its cover.
const OPEN_CLOSE_SYNCS: u64 = 24;
/// Minimum number of hidden flushes that succeed in a session with a busy hidden level.
const HIDDEN_FLUSHES: u64 = 3;
/// Number of levels of a disk with all of them.
const LEVELS: usize = 3;
/// The files with their passphrases. The file of level 0 already exists.
const KEYS: [&str; LEVELS] = ["key", "second", "third"];
const CALLS: &str =
    "trace=pwrite64,pwritev,pwritev2,write,writev,fsync,fdatasync,fallocate,ftruncate,sync_file_range,msync";

/// The work on the levels above the depth during the work on the other levels.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HiddenActivity {
    Absent,
    Idle,
    Read,
    Busy,
}

/// The depth of the known levels, and the seed of all sessions' work.
#[derive(Clone, Copy)]
struct TraceRound {
    depth: usize,
    seed: u64,
}

/// The work on level 0 in a session.
#[derive(Clone, Copy)]
struct PublicWork {
    seed: u64,
    operations: u64,
    /// Number of flushes in twelve operations.
    flushes: u64,
    /// Time between two operations.
    pause: Duration,
}

/// The work of the sessions of a disk, one after another.
const SESSIONS: [PublicWork; 3] = [
    PublicWork { seed: 5, operations: 250, flushes: 2, pause: Duration::ZERO },
    PublicWork { seed: 6, operations: 250, flushes: 2, pause: Duration::ZERO },
    // Slow enough that a hidden flush can come between two stripes or batches.
    PublicWork { seed: 7, operations: 500, flushes: 0, pause: Duration::from_millis(5) },
];

/// One system call on the medium: its name and its range of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MediumCall {
    name: String,
    offset: u64,
    len: u64,
}

impl MediumCall {
    fn is_sync(&self) -> bool {
        matches!(self.name.as_str(), "fsync" | "fdatasync" | "sync_file_range" | "msync")
    }
}

/// Parses a line of the trace; `None` for the end of a call that began before, and for another
/// file.
fn parse(line: &str) -> Option<MediumCall> {
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
            // `pwritev2` has flags after the offset.
            (number(last[usize::from(name == "pwritev2")])?, lens.sum::<Option<u64>>()?)
        }
        "fsync" | "fdatasync" => (0, 0),
        // None of these is used today; if one appears, it is compared as text.
        _ => return Some(MediumCall { name: line.to_owned(), offset: 0, len: 0 }),
    };
    Some(MediumCall { name: name.to_owned(), offset, len })
}

/// The work on the known levels: the same operations, one after another, for the same seed. Returns
/// the number of flushes of level 0 with pending data.
fn known_work(socket: &Path, work: PublicWork, depth: usize) -> u64 {
    let mut client = Client::connect_to(socket, "0").unwrap();
    let mut deeper: Vec<Client> =
        (1..=depth).map(|level| Client::connect_to(socket, &level.to_string()).unwrap()).collect();
    let (mut dice, mut flushes, mut changed) = (Xorshift(work.seed), 0, false);
    for operation in 0..work.operations {
        let count = 1 + dice.below(16);
        let at = dice.below(BLOCKS - count) * BLOCK;
        let len = (count * BLOCK) as usize;
        let kind = dice.below(12);
        let is_flush = kind >= 12 - work.flushes;
        match kind {
            _ if is_flush => client.flush().unwrap(),
            8 => client.discard(at, len).unwrap(),
            9 => drop(client.read_at(at, len).unwrap()),
            _ => client.write_at(at, &noise(work.seed + operation, len)).unwrap(),
        }
        if operation.is_multiple_of(8) {
            let at = operation / 8 % HIDDEN_BLOCKS * BLOCK;
            deeper.iter_mut().for_each(|client| client.write_at(at, &noise(operation, 4096)).unwrap());
        }
        flushes += u64::from(is_flush && changed);
        changed = if is_flush { false } else { changed || kind != 9 };
        std::thread::sleep(work.pause);
    }
    client.flush().unwrap();
    flushes + 1
}

/// Work on a hidden level until `done`. Requests without cover fail, and this is ignored.
fn hidden_work(socket: &Path, export: &str, hidden: HiddenActivity, done: &AtomicBool) {
    let mut client = Client::connect_to(socket, export).unwrap();
    let mut dice = Xorshift(99);
    while !done.load(Ordering::Relaxed) {
        let count = 1 + dice.below(8);
        let at = dice.below(HIDDEN_BLOCKS - count) * BLOCK;
        let len = (count * BLOCK) as usize;
        let _ = match dice.below(8) {
            _ if hidden == HiddenActivity::Read => client.read_at(at, len).map(drop),
            0..5 => client.write_at(at, &noise(at, len)),
            5 => client.discard(at, len),
            6 => client.read_at(at, len).map(drop),
            _ => client.flush(),
        };
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Flushes of a hidden level, one after another, until `done`: many more than the due syncs.
/// Returns the number of successful flushes.
fn hidden_flushes(socket: &Path, export: &str, done: &AtomicBool) -> u64 {
    let mut client = Client::connect_to(socket, export).unwrap();
    let mut flushed = 0;
    while !done.load(Ordering::Relaxed) {
        flushed += u64::from(client.flush().is_ok());
        std::thread::sleep(Duration::from_millis(1));
    }
    flushed
}

/// Tells the threads on hidden levels that the public work has ended, also if it fails.
struct StopAtEnd<'d>(&'d AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves the disk once under `strace`; returns the calls on the medium.
fn session(scene: &Scene, work: PublicWork, hidden: HiddenActivity, depth: usize) -> TracedSession {
    let trace = scene.path("trace");
    let mut command = Command::new("strace");
    // The child process is the server, and the tracer runs beside it (`-D`), so that signals reach
    // the server.
    command.args(["-D", "-f", "-y", "-q", "-s", "0", "-o", trace.to_str().unwrap(), "-e", CALLS]);
    // All lengths of a call with many buffers.
    command.args(["-e", "abbrev=none"]);
    command.arg(env!("CARGO_BIN_EXE_lacuna")).args(["-q", "serve", "disk.img", "--socket", "nbd.sock"]);
    command.args(["--cover-timeout", "1", "--key-file"]);
    command.arg(if hidden == HiddenActivity::Absent { KEYS[depth] } else { KEYS[LEVELS - 1] });
    let server = scene.serve_command(&mut command);
    let done = AtomicBool::new(false);
    let flushes = std::thread::scope(|scope| {
        let mut flushing = Vec::new();
        if matches!(hidden, HiddenActivity::Read | HiddenActivity::Busy) {
            for level in depth + 1..LEVELS {
                let (server, done, export) = (&server, &done, level.to_string());
                let same = export.clone();
                scope.spawn(move || hidden_work(&server.socket, &export, hidden, done));
                if hidden == HiddenActivity::Busy {
                    flushing.push(scope.spawn(move || hidden_flushes(&server.socket, &same, done)));
                }
            }
        }
        let flushes = {
            let _ended = StopAtEnd(&done);
            known_work(&server.socket, work, depth)
        };
        for flushed in flushing {
            let flushed = flushed.join().unwrap();
            assert!(flushed >= HIDDEN_FLUSHES, "{flushed} hidden flushes succeeded");
        }
        flushes
    });
    let process = server.process().to_string();
    // Data that still waits for cover is carried along with the cover of the close.
    assert_eq!(server.stop(), 0);
    let traced = || fs::read_to_string(&trace).unwrap();
    let ended = |line: &str| line.contains(" +++ exited") && line.split(' ').next() == Some(&process);
    wait_until("the end of the trace", || traced().lines().any(ended));
    TracedSession { calls: traced().lines().filter_map(parse).collect(), flushes }
}

/// The calls on the medium in one session, and the number of flushes of level 0.
struct TracedSession {
    calls: Vec<MediumCall>,
    flushes: u64,
}

/// The calls of the sessions on a new medium, and the observable properties of its file afterwards.
struct TraceResult {
    sessions: Vec<TracedSession>,
    file: [u64; 6],
    blocks: u64,
}

fn trace_sessions(format: &str, hidden: HiddenActivity, round: TraceRound) -> TraceResult {
    let scene = Scene::new();
    KEYS[1..].iter().for_each(|key| fs::write(scene.path(key), key).unwrap());
    let levels = if hidden == HiddenActivity::Absent { 1 + round.depth } else { LEVELS };
    let (size, count) = (SIZE.to_string(), levels.to_string());
    let mut options = vec!["--format", format, "--size", &size, "--cover", "0", "--levels", &count];
    KEYS[1..levels].iter().for_each(|key| options.extend(["--key-file", *key]));
    scene.create("disk.img", &options).code(0);
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.set_times(FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(1_000_000))).unwrap();
    // Busy at first, so that there is data to read.
    let before = if hidden == HiddenActivity::Absent { hidden } else { HiddenActivity::Busy };
    let [first, rest @ ..] = SESSIONS.map(|work| PublicWork { seed: work.seed + 1000 * round.seed, ..work });
    let mut sessions = vec![session(&scene, first, before, round.depth)];
    sessions.extend(rest.map(|work| session(&scene, work, hidden, round.depth)));
    let meta = fs::metadata(scene.path("disk.img")).unwrap();
    let accessed = meta.atime() as u64;
    assert_eq!(accessed, 1_000_000, "{hidden:?}: the access time changed");
    let owner = (u64::from(meta.uid()), u64::from(meta.gid()));
    let file = [meta.len(), u64::from(meta.mode()), owner.0, owner.1, accessed, meta.nlink()];
    TraceResult { sessions, file, blocks: meta.blocks() }
}

/// Compares the observations with hidden levels to those without: the `ordered` calls of a session
/// one by one, and all calls by `compared`. `due` is the number of syncs that its writes cause, in
/// addition to those of its flushes.
fn compare(
    format: &str,
    ordered: impl Fn(&MediumCall) -> bool,
    compared: impl Fn(&[MediumCall], &[MediumCall]) -> Result<(), String>,
    due: impl Fn(&[MediumCall]) -> u64,
) {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root may trace a program that makes no core dumps");
    }
    skip_unless!(is_program_available("strace"));
    let presences = [HiddenActivity::Idle, HiddenActivity::Read, HiddenActivity::Busy];
    let in_a_round = (SESSIONS.len() * (1 + presences.len())) as u64;
    let rounds = env_number("LACUNA_TRACES", in_a_round).div_ceil(in_a_round);
    let (first, mut digest) = (env_number("LACUNA_SEED", 0), DefaultHasher::new());
    for round in (first..first + rounds).map(|seed| TraceRound { depth: (seed % 2) as usize, seed }) {
        // A failed round is printed last.
        println!("{format}, depth {}: LACUNA_SEED={} plays this round first", round.depth, round.seed);
        let absent = trace_sessions(format, HiddenActivity::Absent, round);
        assert!(absent.sessions.iter().all(|session| session.calls.len() > 50));
        let calls = absent.sessions.iter().flat_map(|session| &session.calls);
        calls.filter(|call| ordered(call)).for_each(|call| call.hash(&mut digest));
        for hidden in presences {
            let present = trace_sessions(format, hidden, round);
            let what = format!("{format}, depth {}, LACUNA_SEED={}, {hidden:?}", round.depth, round.seed);
            for (number, (without, with)) in absent.sessions.iter().zip(&present.sessions).enumerate() {
                let calls = without.calls.iter().filter(|call| ordered(call));
                same("calls", calls, with.calls.iter().filter(|call| ordered(call)))
                    .and_then(|()| compared(&without.calls, &with.calls))
                    .and_then(|()| no_more_syncs(with, due(&without.calls)))
                    .unwrap_or_else(|e| panic!("{what}, session {number}: {e}"));
            }
            assert_eq!(absent.file, present.file, "{what}: the visible part of the file");
            near("space taken", TOLERANCE, absent.blocks, present.blocks)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    println!("{format}: {} traces, seed {first}, digest {:016x}", rounds * in_a_round, digest.finish());
}

/// Compares calls in order.
fn same<'a>(
    what: &str,
    without: impl Iterator<Item = &'a MediumCall>,
    with: impl Iterator<Item = &'a MediumCall>,
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

/// Checks that there are no more syncs than level 0 causes: one for each flush, and the `due` ones
/// of its writes.
fn no_more_syncs(session: &TracedSession, due: u64) -> Result<(), String> {
    let syncs = session.calls.iter().filter(|call| call.is_sync()).count() as u64;
    let most = session.flushes + due + OPEN_CLOSE_SYNCS;
    if syncs <= most {
        return Ok(());
    }
    Err(format!("{syncs} syncs, at most {most} are due: {} flushes, {due} with writes", session.flushes))
}

/// Compares numbers that vary a little with chance or with the load of the machine.
fn near(what: &str, tolerance: u64, without: u64, with: u64) -> Result<(), String> {
    if without.abs_diff(with) <= without / tolerance {
        return Ok(());
    }
    Err(format!("{what}: {without} without, {with} with"))
}

#[test]
fn calls_of_deniable_do_not_depend_on_hidden_levels() {
    const SPARE: u16 = 200;
    let params = DeniableParams::plan(SIZE, StripeGeometry::DEFAULT, SPARE, 0).unwrap();
    let stripe = params.geometry.blocks() * BLOCK;
    compare(
        "deniable",
        |call| !call.is_sync(),
        |_, _| Ok(()),
        // One sync per half gap.
        |calls| calls.iter().filter(|call| call.len == stripe).count() as u64 / (u64::from(params.gap) / 2),
    );
}

#[test]
fn calls_of_oblivious_do_not_depend_on_hidden_levels() {
    /// Bytes of a group of eight cells, and the written bytes of it: the blocks, and 64 bytes of
    /// metadata for each.
    const GROUP: u64 = 9 * BLOCK;
    const WRITTEN: u64 = 8 * (BLOCK + 64);
    let params = Params::plan(SIZE, Plan { cover_millis: 0, ..Plan::DEFAULT }).unwrap();
    let cells = params.end() - params.cells / 8 * GROUP;
    // The calls on ring and journal.
    let ordered = |call: &MediumCall| !call.is_sync() && call.offset < cells;
    let in_place = |calls: &[MediumCall]| {
        let mut groups = 0;
        for call in calls.iter().filter(|call| !call.is_sync() && call.offset >= cells) {
            if call.len != WRITTEN || !(call.offset - cells).is_multiple_of(GROUP) {
                return Err(format!("not a group of cells: {call:?}"));
            }
            groups += 1;
        }
        Ok(groups)
    };
    compare(
        "oblivious",
        ordered,
        |without, with| near("groups", TOLERANCE, in_place(without)?, in_place(with)?),
        |calls| {
            // A batch is a write to the ring and one to each copy of the journal. A part of the
            // ring is synced when it ends, and again if a later batch needs it in place before the
            // next part ends.
            let batches = calls.iter().filter(|call| ordered(call)).count() as u64 / 3;
            2 * batches / (u64::from(params.ring) / 6)
        },
    );
}
