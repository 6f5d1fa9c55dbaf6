//! The check of a vault: reads and verifies the namespace, every entry, and every block of every
//! file.

use crate::content::file_contents::{FileContents, read_run};
use crate::names::directories;
use crate::names::paths;
use crate::namespace::Namespace;
use crate::namespace::tables::{self, Table};
use crate::nodes::acl;
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::inodes::Inode;
use crate::options::{BadFile, CheckReport, FileStat};
use crate::{BLOCK, FileKind, FsError, FsResult};
use lacuna_contracts::{Error, Kind, Result, WipeOnDrop};
use lacuna_integrity::FailedBlock;
use lacuna_vault_store::ObjectId;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The number of inodes per scan, and of bytes per read.
const STEP: usize = 256;
const PIECE: usize = 1 << 20;
const MOST: u64 = (PIECE / BLOCK) as u64;

/// The result of verifying.
type CheckResult = std::result::Result<(), FailedBlock>;

/// The protection of one file.
pub(crate) fn file_stat(contents: &FileContents, ino: u64) -> FsResult<FileStat> {
    let inode = contents.inodes.get(ino)?;
    let (body, _) = contents.lock_for_reading(&inode)?;
    let record = &body.record;
    let choice = record.choice.unwrap_or(contents.default_choice());
    let opened;
    let protected = if let Some(open) = &body.file {
        &open.protected
    } else {
        opened = contents.open_file(ino, record)?;
        &opened.protected
    };
    let usage = protected.usage(&contents.storage_of(ino, record))?;
    Ok(FileStat {
        scheme: usage.scheme,
        choice,
        trusted_bytes: usage.trusted,
        untrusted_bytes: usage.untrusted,
        blocks: record.size.div_ceil(BLOCK as u64),
        random_looking: usage.random_looking,
        intervals: usage.intervals,
        backing: (record.object != 0).then(|| contents.store.object_name(ObjectId(record.object))),
        mtime: record.mtime,
    })
}

/// Verifies everything; calls `progress` with the number of finished nodes and of all nodes.
pub(crate) fn check(contents: &FileContents, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let names = FileNames { path: "(namespace)".into(), backing: contents.namespace.backing() };
    let (blocks, single) =
        contents.namespace.verify(&mut |block, error| bad(&names, Some(block), &mut report, error))?;
    report.blocks += blocks;
    report.single_copy_pages = single;
    if report.bad_count > 0 {
        // A damaged namespace cannot guide the check of files.
        return Ok(report);
    }
    let mut total = 0;
    each_inode(&contents.namespace, &mut |_, _| total += 1)?;
    let mut done = 0;
    progress(done, total);
    let mut buf = WipeOnDrop::new(vec![0u8; PIECE]);
    each_inode(&contents.namespace, &mut |ino, record| {
        if record.kind == FileKind::File {
            report.files += 1;
            check_file(contents, ino, &mut report, &mut buf);
        }
        check_lists(contents, ino, record, &mut report);
        done += 1;
        progress(done, total.max(done));
    })?;
    check_entries(contents, &mut report)?;
    Ok(report)
}

/// Calls `each` with every inode of the namespace.
fn each_inode(namespace: &Namespace, each: &mut dyn FnMut(u64, &InodeRecord)) -> Result<()> {
    let prefix = [Table::Inodes as u8];
    let mut from = prefix.to_vec();
    loop {
        let pairs = namespace.scan(&from, &prefix, STEP)?;
        for (key, value) in &pairs {
            each(tables::inode_of(key), &InodeRecord::parse(value)?);
        }
        let Some((last, _)) = pairs.last().filter(|_| pairs.len() == STEP) else { return Ok(()) };
        from.clone_from(last);
        from.push(0);
    }
}

/// Checks that the access control lists of a node parse.
fn check_lists(contents: &FileContents, ino: u64, record: &InodeRecord, report: &mut CheckReport) {
    if let Err(e) = acl::verify(&contents.namespace, ino, record) {
        let path = paths::path_of(&contents.inodes, &contents.namespace, ino);
        bad(&FileNames { path, backing: contents.namespace.backing() }, None, report, &e);
    }
}

fn check_file(contents: &FileContents, ino: u64, report: &mut CheckReport, buf: &mut [u8]) {
    let inode = match contents.inodes.get(ino) {
        Ok(inode) => inode,
        // It was removed meanwhile.
        Err(FsError::Errno(_)) => return,
        Err(FsError::Storage(e)) => return bad(&FileNames::of(contents, ino), None, report, &e),
    };
    let mut file = FileCheck { contents, inode, names: None, at: 0, most: MOST };
    while file.check_next_run(report, buf) {}
}

/// The check of one file.
struct FileCheck<'a> {
    contents: &'a FileContents,
    inode: Arc<Inode>,
    /// The names of the file, once it had a bad block.
    names: Option<FileNames>,
    /// The next block.
    at: u64,
    /// Blocks per read: few after a bad block, since the blocks read behind a bad one are read
    /// again.
    most: u64,
}

impl FileCheck<'_> {
    /// Verifies the next run of data. Returns whether there is more.
    fn check_next_run(&mut self, report: &mut CheckReport, buf: &mut [u8]) -> bool {
        let (first, blocks, checked) = match self.read(buf) {
            Err(FsError::Errno(_)) | Ok(None) => return false,
            Err(FsError::Storage(e)) => {
                self.bad(None, report, &e);
                return false;
            }
            Ok(Some(read)) => read,
        };
        let Err(failed) = checked else {
            (self.at, self.most) = (first + blocks, (self.most * 2).min(MOST));
            report.blocks += blocks;
            return true;
        };
        report.blocks += failed.block - first;
        // A read of several blocks can fail at any of them: the next read is of this block alone.
        (self.at, self.most) = (failed.block, 1);
        if blocks == 1 {
            self.at += 1;
            self.bad(Some(failed.block), report, &failed.error);
        }
        true
    }

    /// Reads the next run of data: its first block, its length, and whether it verifies. `None` at
    /// the end.
    fn read(&self, buf: &mut [u8]) -> FsResult<Option<(u64, u64, CheckResult)>> {
        let (body, _) = self.contents.lock_for_reading(&self.inode)?;
        let Some(open) = &body.file else { return Ok(None) };
        let file = &open.protected;
        let space = self.contents.storage_of(self.inode.ino, &body.record);
        // If data cannot be told from holes, tries every block.
        let first = file.seek(&space, self.at, true).unwrap_or(Some(self.at));
        let Some(first) = first.filter(|first| *first < file.blocks()) else { return Ok(None) };
        let blocks = (file.blocks() - first).min(self.most);
        let checked = read_run(file, &space, first, &mut buf[..blocks as usize * BLOCK]);
        Ok(Some((first, blocks, checked)))
    }

    fn bad(&mut self, block: Option<u64>, report: &mut CheckReport, why: &Error) {
        let place = self.names.get_or_insert_with(|| FileNames::of(self.contents, self.inode.ino));
        bad(place, block, report, why);
    }
}

/// The names of a file for the user.
struct FileNames {
    path: OsString,
    backing: String,
}

impl FileNames {
    fn of(contents: &FileContents, ino: u64) -> FileNames {
        let object = contents.inodes.get(ino).map_or(0, |inode| inode.body.read().record.object);
        let backing = if object == 0 { String::new() } else { contents.store.object_name(ObjectId(object)) };
        FileNames { path: paths::path_of(&contents.inodes, &contents.namespace, ino), backing }
    }
}

fn bad(place: &FileNames, block: Option<u64>, report: &mut CheckReport, why: &Error) {
    let FileNames { path, backing } = place;
    // Adjacent blocks with equal reasons become one run, so a reason must not name its block.
    let (whole, named) = (why.summary(), block.map(|block| format!("block {block} ")).unwrap_or_default());
    let reason = whole.strip_prefix(&named).unwrap_or(&whole);
    let (path, backing, kind, reason) = (path.clone(), backing.clone(), why.kind(), reason.to_owned());
    report.add(BadFile { path, backing, block, blocks: 1, kind, reason });
}

/// Checks that every entry names a node.
fn check_entries(contents: &FileContents, report: &mut CheckReport) -> Result<()> {
    let prefix = [Table::Entries as u8];
    let mut lost: Vec<(u64, Vec<u8>, String)> = vec![];
    let scanned =
        directories::scan(&contents.namespace, prefix.to_vec(), &prefix, &mut |directory, _, entry| {
            let found = contents.inodes.get(entry.ino).map(|inode| inode.body.read().record.kind);
            let why = match found {
                Ok(kind) if kind == entry.kind => return true,
                Ok(_) => "the entry names a node of another kind".into(),
                Err(FsError::Errno(_)) => "the entry names a missing node".into(),
                Err(FsError::Storage(e)) => e.summary(),
            };
            lost.push((directory, entry.name.clone(), why));
            true
        });
    scanned.map_err(|e| match e {
        FsError::Storage(e) => e,
        FsError::Errno(_) => Error::new(Kind::Other, "cannot read the directories of the vault"),
    })?;
    for (directory, name, why) in lost {
        let mut path = paths::path_of(&contents.inodes, &contents.namespace, directory);
        path.push("/");
        path.push(OsStr::from_bytes(&name));
        report.add(BadFile {
            path,
            backing: contents.namespace.backing(),
            block: None,
            blocks: 1,
            kind: Kind::Corrupt,
            reason: why,
        });
    }
    Ok(())
}
