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
pub(super) enum Way {
    Plain,
    Direct,
    Mapped,
}

/// The kind of written data: the protection of a file depends on its content.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Noise,
    Text,
    Zeros,
}

#[derive(Clone, Debug)]
pub(super) enum Act {
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
    Read { slot: usize, offset: u64, len: usize, way: Way },
    Write { slot: usize, offset: u64, len: usize, way: Way, kind: Kind, seed: u64 },
    SetLength { slot: usize, len: u64 },
    Allocate { slot: usize, how: FallocateFlags, offset: u64, len: u64 },
    Copy { from: usize, from_at: u64, to: usize, to_at: u64, len: usize },
    CheckHoles { slot: usize },
    Sync { slot: usize },
    Settle { slot: usize },
    StatOpen { slot: usize },
    SyncAll,
}

type MakeAct = fn(&mut Rng) -> Act;

/// Weights of the operations: two thirds work on open files.
const WEIGHTS: [(u64, MakeAct); 28] = [
    (6, |r| Act::Create { path: path(r), mode: mode(r), exclusive: r.chance(1, 2) }),
    (5, |r| Act::MakeDirectory { path: path(r), mode: mode(r) }),
    (1, |r| Act::MakePipe { path: path(r) }),
    (2, |r| Act::Symlink { path: path(r), target: target(r) }),
    (4, |r| Act::Link { from: path(r), to: path(r) }),
    (5, |r| Act::Unlink { path: path(r) }),
    (3, |r| Act::RemoveDirectory { path: path(r) }),
    (7, |r| Act::Rename { from: path(r), to: path(r), how: rename_mode(r) }),
    (2, |r| Act::Chmod { path: path(r), mode: mode(r) }),
    (1, |r| Act::Chown { path: path(r), uid: r.below(3) as u32, gid: r.below(3) as u32 }),
    (2, |r| Act::SetTimes {
        path: path(r),
        secs: r.below(1 << 31) as i64,
        nanos: r.below(1_000_000_000) as i64,
    }),
    (3, |r| Act::SetAttribute {
        path: path(r),
        name: attribute(r),
        len: r.below(60) as usize,
        seed: r.next_u64(),
    }),
    (1, |r| Act::RemoveAttribute { path: path(r), name: attribute(r) }),
    (4, |r| Act::Stat { path: path(r) }),
    (3, |r| Act::List { path: path(r) }),
    (1, |r| Act::ReadLink { path: path(r) }),
    (14, |r| Act::Open { slot: slot(r), path: path(r), flags: flags(r) }),
    (4, |r| Act::Close { slot: slot(r) }),
    (22, |r| Act::Read { slot: slot(r), offset: offset(r), len: len(r), way: way(r) }),
    (30, |r| {
        let kind = [Kind::Noise, Kind::Text, Kind::Text, Kind::Zeros][r.below(4) as usize];
        Act::Write { slot: slot(r), offset: offset(r), len: len(r), way: way(r), kind, seed: r.next_u64() }
    }),
    (9, |r| Act::SetLength { slot: slot(r), len: offset(r) }),
    (9, |r| Act::Allocate { slot: slot(r), how: allocation(r), offset: offset(r), len: len(r) as u64 }),
    (6, |r| Act::Copy { from: slot(r), from_at: offset(r), to: slot(r), to_at: offset(r), len: len(r) }),
    (4, |r| Act::CheckHoles { slot: slot(r) }),
    (4, |r| Act::Sync { slot: slot(r) }),
    (8, |r| Act::Settle { slot: slot(r) }),
    (6, |r| Act::StatOpen { slot: slot(r) }),
    (1, |_| Act::SyncAll),
];

impl Act {
    pub(super) fn random(random: &mut Rng) -> Act {
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

fn way(random: &mut Rng) -> Way {
    one(random, &[Way::Plain, Way::Plain, Way::Plain, Way::Direct, Way::Mapped])
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
