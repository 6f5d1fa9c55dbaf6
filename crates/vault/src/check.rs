//! Reading and verifying everything: the namespace, every entry, and every block of every file.

use crate::contents::{Contents, check_run};
use crate::directories;
use crate::ground::Ground;
use crate::inodes::Inode;
use crate::namespace::tables::{self, Table};
use crate::open_file::FileSpace;
use crate::options::{BadFile, CheckReport, FileStat};
use crate::record::Record;
use crate::store::ObjectId;
use crate::{BLOCK, FileKind, FsError, FsResult, paths};
use lacuna_core::{Error, Kind, Result};
use std::sync::Arc;

/// Inodes that are listed at once, and bytes that are read at once.
const STEP: usize = 256;
const PIECE: usize = 1 << 20;

/// How one file is protected.
pub(crate) fn file_stat(contents: &Contents, ino: u64) -> FsResult<FileStat> {
    let ground = &contents.ground;
    let inode = ground.inodes.get(ino)?;
    let (body, _) = contents.for_reading(&inode)?;
    let record = &body.record;
    let choice = record.choice.unwrap_or(ground.choice);
    let opened;
    let protected = if let Some(open) = &body.file {
        &open.protected
    } else {
        opened = crate::open_file::open(ground, ino, record)?;
        &opened.protected
    };
    let usage = protected.usage(&FileSpace::new(ground, ino, record))?;
    Ok(FileStat {
        scheme: usage.scheme,
        choice,
        trusted_bytes: usage.trusted,
        untrusted_bytes: usage.untrusted,
        blocks: record.size.div_ceil(BLOCK as u64),
        random_looking: usage.random_looking,
        intervals: usage.intervals,
        backing: (record.object != 0).then(|| ground.store.object_name(ObjectId(record.object))),
        mtime: record.mtime,
    })
}

/// Verifies everything; `progress` is told how many nodes are done, and of how many.
pub(crate) fn check(contents: &Contents, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let ground = &contents.ground;
    let mut report = CheckReport::default();
    let backing = ground.namespace.backing();
    report.blocks += ground.namespace.verify(&mut |block, error| {
        let (path, backing, why) = ("(namespace)".into(), backing.clone(), error.finding());
        report.bad.push(BadFile { path, backing, block: Some(block), why });
    });
    if !report.bad.is_empty() {
        // What cannot be trusted is no guide to the files.
        return Ok(report);
    }
    let mut total = 0;
    each_inode(ground, &mut |_, _| total += 1)?;
    let mut done = 0;
    progress(done, total);
    let mut buf = vec![0; PIECE];
    each_inode(ground, &mut |ino, record| {
        if record.kind == FileKind::File {
            report.files += 1;
            check_file(contents, ino, &mut report, &mut buf);
        }
        done += 1;
        progress(done, total.max(done));
    })?;
    check_entries(ground, &mut report)?;
    Ok(report)
}

/// Calls `each` with every inode of the namespace.
fn each_inode(ground: &Ground, each: &mut dyn FnMut(u64, &Record)) -> Result<()> {
    let prefix = [Table::Inodes as u8];
    let mut from = prefix.to_vec();
    loop {
        let pairs = ground.namespace.scan(&from, &prefix, STEP)?;
        for (key, value) in &pairs {
            each(tables::inode_of(key), &Record::parse(value)?);
        }
        let Some((last, _)) = pairs.last().filter(|_| pairs.len() == STEP) else { return Ok(()) };
        from.clone_from(last);
        from.push(0);
    }
}

fn check_file(contents: &Contents, ino: u64, report: &mut CheckReport, buf: &mut [u8]) {
    let inode = match contents.ground.inodes.get(ino) {
        Ok(inode) => inode,
        // It was removed meanwhile.
        Err(FsError::Errno(_)) => return,
        Err(FsError::Storage(e)) => return bad(contents, ino, None, report, &e),
    };
    let mut at = 0;
    while let Some(next) = check_piece(contents, &inode, at, report, buf) {
        at = next;
    }
}

/// Verifies the next run of data. Gives where to go on, if there is more.
fn check_piece(
    contents: &Contents,
    inode: &Arc<Inode>,
    at: u64,
    report: &mut CheckReport,
    buf: &mut [u8],
) -> Option<u64> {
    let (ground, ino) = (&contents.ground, inode.ino);
    let (body, _) = match contents.for_reading(inode) {
        Ok(body) => body,
        Err(FsError::Errno(_)) => return None,
        Err(FsError::Storage(e)) => {
            bad(contents, ino, None, report, &e);
            return None;
        }
    };
    let file = &body.file.as_ref()?.protected;
    let space = FileSpace::new(ground, ino, &body.record);
    // Where it cannot be found out where data are, every block is tried.
    let first = match file.seek(&space, at, true) {
        Ok(found) => found?,
        Err(_) => at,
    };
    let blocks = file.blocks().saturating_sub(first).min((buf.len() / BLOCK) as u64);
    if blocks == 0 {
        return None;
    }
    let failed = check_run(file, &space, first, &mut buf[..blocks as usize * BLOCK]).err();
    let next = failed.as_ref().map_or(first + blocks, |failed| failed.block + 1);
    report.blocks += next - first;
    drop(body);
    if let Some(failed) = failed {
        bad(contents, ino, Some(failed.block), report, &failed.error);
    }
    Some(next)
}

fn bad(contents: &Contents, ino: u64, block: Option<u64>, report: &mut CheckReport, why: &Error) {
    let ground = &contents.ground;
    let object = ground.inodes.get(ino).map_or(0, |inode| inode.body.read().record.object);
    let backing = if object == 0 { String::new() } else { ground.store.object_name(ObjectId(object)) };
    report.bad.push(BadFile { path: paths::path_of(ground, ino), backing, block, why: why.finding() });
}

/// Every entry must name a node.
fn check_entries(ground: &Ground, report: &mut CheckReport) -> Result<()> {
    let prefix = [Table::Entries as u8];
    let mut lost = vec![];
    let scanned =
        directories::scan(&ground.namespace, prefix.to_vec(), &prefix, &mut |directory, _, entry| {
            let found = ground.inodes.get(entry.ino).map(|inode| inode.body.read().record.kind);
            if found.ok() != Some(entry.kind) {
                lost.push((directory, entry.name.clone()));
            }
            true
        });
    scanned.map_err(|e| match e {
        FsError::Storage(e) => e,
        FsError::Errno(_) => Error::new(Kind::Other, "cannot read the directories of the vault"),
    })?;
    for (directory, name) in lost {
        let path = format!("{}/{}", paths::path_of(ground, directory), String::from_utf8_lossy(&name));
        let why = "the entry names a node that is not there".into();
        report.bad.push(BadFile { path, backing: ground.namespace.backing(), block: None, why });
    }
    Ok(())
}
