//! One random operation.

use lacuna_sim::Rng;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};

/// Number of files that are open at once.
pub(super) const SLOTS: usize = 6;
/// Names of entries.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "a longer name of an entry"];
/// Names of extended attributes.
const ATTRIBUTES: [&str; 4] = ["user.one", "user.two", "user.three", "trusted.four"];

/// How bytes are read or written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum IoMethod {
    Plain,
    Direct,
    Mapped,
}

/// The kind of written data: the protection of a file depends on its content.
#[derive(Clone, Copy, Debug)]
pub(super) enum DataKind {
    Noise,
    Text,
    Zeros,
}

#[derive(Clone, Debug)]
pub(super) enum FsOp {
    Create { path: String, mode: u32, exclusive: bool },
    MakeDirectory { path: String, mode: u32 },
    MakePipe { path: String },
    Symlink { path: String, target: String },
    Link { from: String, to: String },
    Unlink { path: String },
    RemoveDirectory { path: String },
    Rename { from: String, to: String, how: RenameFlags },
    Chmod { path: String, mode: u32 },
    Chown { path: String, uid: u32, gid: u32 },
    SetTimes { path: String, secs: i64, nanos: i64 },
    SetAttribute { path: String, name: &'static str, len: usize, seed: u64 },
    RemoveAttribute { path: String, name: &'static str },
    Stat { path: String },
    List { path: String },
    ReadLink { path: String },
    Open { slot: usize, path: String, flags: OFlags },
    Close { slot: usize },
    Read { slot: usize, offset: u64, len: usize, way: IoMethod },
    Write { slot: usize, offset: u64, len: usize, way: IoMethod, kind: DataKind, seed: u64 },
    SetLength { slot: usize, len: u64 },
    Allocate { slot: usize, how: FallocateFlags, offset: u64, len: u64 },
    Copy { from: usize, from_at: u64, to: usize, to_at: u64, len: usize },
    CheckHoles { slot: usize },
    Sync { slot: usize },
    Settle { slot: usize },
    StatOpen { slot: usize },
    SyncAll,
}

type MakeOp = fn(&mut Rng) -> FsOp;

/// Weights of the operations: two thirds work on open files.
const WEIGHTS: [(u64, MakeOp); 28] = [
    (6, |r| FsOp::Create { path: path(r), mode: mode(r), exclusive: r.chance(1, 2) }),
    (5, |r| FsOp::MakeDirectory { path: path(r), mode: mode(r) }),
    (1, |r| FsOp::MakePipe { path: path(r) }),
    (2, |r| FsOp::Symlink { path: path(r), target: target(r) }),
    (4, |r| FsOp::Link { from: path(r), to: path(r) }),
    (5, |r| FsOp::Unlink { path: path(r) }),
    (3, |r| FsOp::RemoveDirectory { path: path(r) }),
    (7, |r| FsOp::Rename { from: path(r), to: path(r), how: rename_mode(r) }),
    (2, |r| FsOp::Chmod { path: path(r), mode: mode(r) }),
    (1, |r| FsOp::Chown { path: path(r), uid: r.below(3) as u32, gid: r.below(3) as u32 }),
    (2, |r| FsOp::SetTimes {
        path: path(r),
        secs: r.below(1 << 31) as i64,
        nanos: r.below(1_000_000_000) as i64,
    }),
    (3, |r| FsOp::SetAttribute {
        path: path(r),
        name: attribute(r),
        len: r.below(60) as usize,
        seed: r.next_u64(),
    }),
    (1, |r| FsOp::RemoveAttribute { path: path(r), name: attribute(r) }),
    (4, |r| FsOp::Stat { path: path(r) }),
    (3, |r| FsOp::List { path: path(r) }),
    (1, |r| FsOp::ReadLink { path: path(r) }),
    (14, |r| FsOp::Open { slot: slot(r), path: path(r), flags: flags(r) }),
    (4, |r| FsOp::Close { slot: slot(r) }),
    (22, |r| FsOp::Read { slot: slot(r), offset: offset(r), len: len(r), way: way(r) }),
    (30, |r| {
        let kind = [DataKind::Noise, DataKind::Text, DataKind::Text, DataKind::Zeros][r.below(4) as usize];
        FsOp::Write { slot: slot(r), offset: offset(r), len: len(r), way: way(r), kind, seed: r.next_u64() }
    }),
    (9, |r| FsOp::SetLength { slot: slot(r), len: offset(r) }),
    (9, |r| FsOp::Allocate { slot: slot(r), how: allocation(r), offset: offset(r), len: len(r) as u64 }),
    (6, |r| FsOp::Copy { from: slot(r), from_at: offset(r), to: slot(r), to_at: offset(r), len: len(r) }),
    (4, |r| FsOp::CheckHoles { slot: slot(r) }),
    (4, |r| FsOp::Sync { slot: slot(r) }),
    (8, |r| FsOp::Settle { slot: slot(r) }),
    (6, |r| FsOp::StatOpen { slot: slot(r) }),
    (1, |_| FsOp::SyncAll),
];

impl FsOp {
    pub(super) fn random(random: &mut Rng) -> FsOp {
        let mut at = random.below(WEIGHTS.iter().map(|(weight, _)| weight).sum());
        for (weight, make) in WEIGHTS {
            if at < weight {
                return make(random);
            }
            at -= weight;
        }
        unreachable!("the number is below the sum")
    }
}

fn one<T: Copy>(random: &mut Rng, among: &[T]) -> T {
    among[random.below(among.len() as u64) as usize]
}

/// A path of one to three names, mostly short.
fn path(random: &mut Rng) -> String {
    let depth = one(random, &[1, 1, 1, 2, 2, 3]);
    (0..depth).map(|_| one(random, &NAMES)).collect::<Vec<_>>().join("/")
}

fn target(random: &mut Rng) -> String {
    let up = if random.chance(1, 3) { "../" } else { "" };
    format!("{up}{}", path(random))
}

fn mode(random: &mut Rng) -> u32 {
    one(random, &[0o644, 0o600, 0o755, 0o2755, 0o4711, 0o1777, 0o000])
}

fn attribute(random: &mut Rng) -> &'static str {
    one(random, &ATTRIBUTES)
}

fn rename_mode(random: &mut Rng) -> RenameFlags {
    let any = RenameFlags::empty();
    one(random, &[any, any, any, RenameFlags::NOREPLACE, RenameFlags::EXCHANGE])
}

fn slot(random: &mut Rng) -> usize {
    random.below(SLOTS as u64) as usize
}

fn way(random: &mut Rng) -> IoMethod {
    one(random, &[IoMethod::Plain, IoMethod::Plain, IoMethod::Plain, IoMethod::Direct, IoMethod::Mapped])
}

fn flags(random: &mut Rng) -> OFlags {
    let access = one(random, &[OFlags::RDWR, OFlags::RDWR, OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY]);
    let more = [OFlags::empty(), OFlags::CREATE, OFlags::CREATE, OFlags::TRUNC, OFlags::APPEND, OFlags::SYNC];
    // Opening a pipe does not wait for its other end.
    access | one(random, &more) | OFlags::NONBLOCK | OFlags::CLOEXEC
}

/// A byte offset in a file, often at the end of a block.
fn offset(random: &mut Rng) -> u64 {
    let most = one(random, &[10_000, 70_000, 300_000, 2_000_000]);
    let at = random.below(most);
    match random.below(4) {
        0 => at / 4096 * 4096,
        1 => (at / 4096 * 4096 + random.below(3)).saturating_sub(1),
        _ => at,
    }
}

fn len(random: &mut Rng) -> usize {
    let most = one(random, &[100, 5000, 20_000, 150_000, 600_000]);
    let len = random.below(most) as usize;
    if random.chance(1, 3) { (len / 4096 + 1) * 4096 } else { len }
}

fn allocation(random: &mut Rng) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE | keep;
    let zero = FallocateFlags::ZERO_RANGE;
    one(random, &[punch, punch, punch, zero, zero | keep])
}
