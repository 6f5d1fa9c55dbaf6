//! Random operations on a vault and on the model at once.

use super::model::{FsModel, Node};
use lacuna_sim::Rng;
use lacuna_vault::{
    AllocateMode, AttrChanges, FileKind, FsError, FsResult, NewNode, RenameMode, SeekTo, SetXattrMode, Vault,
};

/// The longest file of a workload.
pub const LONGEST: u64 = 400 << 10;

/// The result of one operation.
#[derive(Debug, PartialEq, Eq)]
pub enum StepResult {
    /// The vault and the model did the same.
    Same,
    /// A write was short, in both.
    Short,
    /// The vault's storage failed, and the caller got this error number. The model is unchanged.
    Failed(i32),
    /// Both did the same, and it was a sync: everything before is durable.
    Durable,
}

const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"c", b"d", b"e", b"some longer name.txt", b"f", b"g", b"\xff\xfe not text"];
const XATTRS: [&[u8]; 3] = [b"user.one", b"user.two", b"security.capability"];

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

fn any(rng: &mut Rng, model: &FsModel, kind: Option<FileKind>) -> u64 {
    let fitting = |node: &&(u64, FileKind)| kind.is_none_or(|kind| node.1 == kind);
    let all: Vec<(u64, FileKind)> = model.nodes.iter().map(|(ino, node)| (*ino, node.kind)).collect();
    let some: Vec<&(u64, FileKind)> = all.iter().filter(fitting).collect();
    // Sometimes a number without a node.
    if some.is_empty() || rng.chance(1, 100) {
        999_999
    } else {
        some[rng.below(some.len() as u64) as usize].0
    }
}

fn name(rng: &mut Rng) -> Vec<u8> {
    if rng.chance(1, 200) { vec![b'x'; 256] } else { pick(rng, &NAMES).to_vec() }
}

/// Bytes to write: random, text or zeros.
pub fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    match rng.below(4) {
        0 | 1 => rng.bytes(len),
        2 => {
            let word = format!("line {} of the text\n", rng.below(1000));
            word.bytes().cycle().take(len).collect()
        }
        _ => vec![0; len],
    }
}

/// The offset and length of a piece of a file.
fn piece(rng: &mut Rng) -> (u64, usize) {
    let offset = match rng.below(4) {
        0 => 0,
        1 => rng.below(20_000),
        2 => rng.below(60) * 4096,
        _ => rng.below(LONGEST - 20_000),
    };
    let len = match rng.below(8) {
        0..4 => rng.below(5000),
        4..6 => rng.below(8) * 4096,
        6 => rng.below(20_000),
        _ => rng.below(60) * 4096 + rng.below(2) * rng.below(4096),
    };
    (offset, len.min(LONGEST - offset) as usize)
}

/// Compares a change: the vault's result comes first; if its storage did not fail, the model must
/// give the same.
fn both<T: std::fmt::Debug>(
    context: &str,
    vault: FsResult<T>,
    model: &mut FsModel,
    work: impl FnOnce(&mut FsModel, Option<&T>) -> Result<(), i32>,
) -> StepResult {
    match vault {
        Err(e @ (FsError::Storage(_) | FsError::Errno(libc::ENOSPC | libc::EDQUOT))) => {
            StepResult::Failed(e.errno())
        }
        Ok(value) => {
            assert_eq!(work(model, Some(&value)), Ok(()), "{context}: found {value:?}");
            StepResult::Same
        }
        Err(FsError::Errno(errno)) => {
            let mut copy = model.clone();
            assert_eq!(work(&mut copy, None), Err(errno), "{context}");
            StepResult::Same
        }
    }
}

/// Does random operations. Returns how many failed or were short.
pub fn work(vault: &Vault, model: &mut FsModel, rng: &mut Rng, steps: u64) -> u64 {
    let mut failed = 0;
    for _ in 0..steps {
        if !matches!(step(vault, model, rng, 40), StepResult::Same | StepResult::Durable) {
            failed += 1;
        }
    }
    failed
}

/// Does one random operation on both.
pub fn step(vault: &Vault, model: &mut FsModel, rng: &mut Rng, syncs: u64) -> StepResult {
    if rng.chance(syncs, 1000) {
        let ino = any(rng, model, Some(FileKind::File));
        let synced = if rng.chance(1, 2) { vault.sync() } else { vault.fsync(ino) };
        return match synced {
            Ok(()) => StepResult::Durable,
            Err(FsError::Errno(libc::ENOENT)) => StepResult::Same,
            Err(FsError::Errno(errno)) => panic!("sync: {errno}"),
            Err(e @ FsError::Storage(_)) => StepResult::Failed(e.errno()),
        };
    }
    match rng.below(100) {
        0..12 => make(vault, model, rng),
        12..42 => write(vault, model, rng),
        42..50 => resize(vault, model, rng),
        50..62 => read(vault, model, rng),
        62..66 => seek(vault, model, rng),
        66..74 => remove(vault, model, rng),
        74..82 => rename(vault, model, rng),
        82..85 => link(vault, model, rng),
        85..90 => attributes(vault, model, rng),
        90..95 => xattrs(vault, model, rng),
        _ => openings(vault, model, rng),
    }
}

fn make(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let (parent, name) = (any(rng, model, Some(FileKind::Directory)), name(rng));
    let target = bytes(rng, 30);
    let new = match rng.below(12) {
        0..3 => NewNode::Directory,
        3 => NewNode::Symlink(&target),
        4 => NewNode::Fifo,
        5 => NewNode::CharDevice(7),
        _ => NewNode::File,
    };
    let mode = pick(rng, &[0o644, 0o755, 0o2755, 0o4711, 0o600]);
    let made = vault.create_node(parent, &name, new, mode, 10, 20);
    both(&format!("make {parent} {name:?} {new:?}"), made, model, |model, attr| {
        model.may_make(parent, &name)?;
        let mut node = Node::new(new.kind(), mode, parent);
        (node.uid, node.gid) = (10, 20);
        if let NewNode::Symlink(target) = new {
            node.target = target.to_vec();
        }
        model.make(attr.map_or(0, |attr| attr.ino), parent, &name, node);
        Ok(())
    })
}

fn write(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let kind = if rng.chance(1, 50) { None } else { Some(FileKind::File) };
    let ino = any(rng, model, kind);
    let (mut offset, len) = piece(rng);
    if rng.chance(1, 3) {
        offset = model.nodes.get(&ino).map_or(0, |node| node.data.len() as u64).min(LONGEST - len as u64);
    }
    let data = bytes(rng, len);
    let written = vault.write(ino, offset, &data);
    let short = written.as_ref().is_ok_and(|written| *written < len);
    let done = both(&format!("write {ino} {offset}+{len}"), written, model, |model, written| {
        model.write(ino, offset, &data[..written.map_or(len, |written| *written)])
    });
    if short { StepResult::Short } else { done }
}

fn resize(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let ino = any(rng, model, Some(FileKind::File));
    let (offset, len) = piece(rng);
    if rng.chance(1, 2) {
        let changes = AttrChanges { size: Some(offset), ..AttrChanges::default() };
        let done = vault.set_attr(ino, &changes);
        return both(&format!("truncate {ino} {offset}"), done, model, |model, _| {
            model.truncate(ino, offset)
        });
    }
    let kinds = [AllocateMode::Punch, AllocateMode::Punch, AllocateMode::ZeroRange, AllocateMode::ZeroKeep];
    let how = pick(rng, &kinds);
    let done = vault.allocate(ino, how, offset, len as u64);
    both(&format!("allocate {ino} {how:?} {offset}+{len}"), done, model, |model, _| {
        model.allocate(ino, how, offset, len as u64)
    })
}

fn read(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let ino = any(rng, model, Some(FileKind::File));
    let (offset, len) = piece(rng);
    let mut buf = vec![0xee; len];
    let found = vault.read(ino, offset, &mut buf);
    both(&format!("read {ino} {offset}+{len}"), found, model, |model, read| {
        let expected = model.read(ino, offset, len)?;
        if let Some(read) = read {
            assert_eq!(*read, expected.len(), "read {ino} {offset}+{len}");
            assert!(buf[..*read] == expected[..], "read {ino} {offset}+{len} gives other bytes");
        }
        Ok(())
    })
}

fn seek(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let ino = any(rng, model, Some(FileKind::File));
    let (offset, _) = piece(rng);
    let to = pick(rng, &[SeekTo::Data, SeekTo::Hole]);
    let found = vault.seek(ino, offset, to);
    both(&format!("seek {ino} {offset} {to:?}"), found, model, |model, found| {
        let expected = model.seek(ino, offset, to)?;
        assert!(
            found.is_none_or(|found| *found == expected),
            "seek {ino} {offset} {to:?}: {found:?}, {expected}"
        );
        Ok(())
    })
}

fn remove(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let (parent, name) = (any(rng, model, Some(FileKind::Directory)), name(rng));
    if rng.chance(1, 3) {
        return both(&format!("rmdir {parent} {name:?}"), vault.rmdir(parent, &name), model, |model, _| {
            model.rmdir(parent, &name)
        });
    }
    both(&format!("unlink {parent} {name:?}"), vault.unlink(parent, &name), model, |model, _| {
        model.unlink(parent, &name)
    })
}

fn rename(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let directory = |rng: &mut Rng| any(rng, model, Some(FileKind::Directory));
    let (from, to) = ((directory(rng), name(rng)), (directory(rng), name(rng)));
    let whiteout = |replaces| RenameMode::Whiteout { replaces, uid: 10, gid: 20 };
    let modes = [
        RenameMode::Replace,
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
        whiteout(true),
        whiteout(false),
    ];
    let mode = pick(rng, &modes);
    let done = vault.rename(from.0, &from.1, to.0, &to.1, mode);
    both(&format!("rename {from:?} {to:?} {mode:?}"), done, model, |model, done| {
        model.rename((from.0, &from.1), (to.0, &to.1), mode)?;
        let is_whiteout = matches!(mode, RenameMode::Whiteout { .. });
        // A node that is moved over itself stays.
        if is_whiteout && done.is_some() && model.lookup(from.0, &from.1).is_err() {
            let left = vault.lookup(from.0, &from.1).unwrap();
            let mut node = Node::new(FileKind::CharDevice, 0, from.0);
            (node.uid, node.gid) = (10, 20);
            model.make(left.ino, from.0, &from.1, node);
        }
        Ok(())
    })
}

fn link(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let (ino, parent, name) = (any(rng, model, None), any(rng, model, Some(FileKind::Directory)), name(rng));
    both(&format!("link {ino} {parent} {name:?}"), vault.link(ino, parent, &name), model, |model, _| {
        model.link(ino, parent, &name)
    })
}

fn attributes(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let ino = any(rng, model, None);
    if rng.chance(1, 2) {
        let mode = pick(rng, &[0o644, 0o6755, 0o2770, 0o1777]);
        let done = vault.set_attr(ino, &AttrChanges { mode: Some(mode), ..AttrChanges::default() });
        return both(&format!("chmod {ino} {mode:o}"), done, model, |model, _| {
            model.nodes.get_mut(&ino).map(|node| node.mode = mode).ok_or(libc::ENOENT)
        });
    }
    let (uid, gid) = (rng.below(5) as u32, rng.below(5) as u32);
    let done = vault.set_attr(ino, &AttrChanges { uid: Some(uid), gid: Some(gid), ..AttrChanges::default() });
    both(&format!("chown {ino}"), done, model, |model, _| model.chown(ino, uid, gid))
}

fn xattrs(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    let (ino, name) = (any(rng, model, None), pick(rng, &XATTRS));
    match rng.below(8) {
        0..4 => {
            let len = if rng.chance(1, 20) { 60_000 } else { rng.below(300) as usize };
            let value = bytes(rng, len);
            let how = pick(rng, &[SetXattrMode::Any, SetXattrMode::Create, SetXattrMode::Replace]);
            let done = vault.set_xattr(ino, name, &value, how);
            both(&format!("setxattr {ino} {how:?}"), done, model, |model, _| {
                model.set_xattr(ino, name, &value, how)
            })
        }
        4..6 => both(&format!("removexattr {ino}"), vault.remove_xattr(ino, name), model, |model, _| {
            model.remove_xattr(ino, name)
        }),
        6 => {
            let found = vault.get_xattr(ino, name);
            both(&format!("getxattr {ino}"), found, model, |model, found| {
                let expected = model.node(ino)?.xattrs.get(name).ok_or(libc::ENODATA)?;
                assert!(found.is_none_or(|found| found == expected));
                Ok(())
            })
        }
        _ if rng.chance(1, 2) => both(&format!("convert {ino}"), vault.convert(ino), model, |_, _| Ok(())),
        _ => {
            let choice = pick(rng, &[&b"mt"[..], b"rand", b"comp", b"auto"]);
            let done = vault.set_xattr(ino, lacuna_vault::INTEGRITY_XATTR, choice, SetXattrMode::Any);
            both(&format!("integrity {ino}"), done, model, |model, _| model.set_choice(ino, choice))
        }
    }
}

fn openings(vault: &Vault, model: &mut FsModel, rng: &mut Rng) -> StepResult {
    if rng.chance(1, 2) {
        let ino = any(rng, model, None);
        return both(&format!("open {ino}"), vault.acquire_handle(ino), model, |model, _| model.opened(ino));
    }
    let open: Vec<u64> = model.open.keys().copied().collect();
    if !open.is_empty() {
        let ino = pick(rng, &open);
        vault.release_handle(ino);
        model.closed(ino);
    }
    StepResult::Same
}
