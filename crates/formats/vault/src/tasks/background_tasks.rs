//! Background tasks, done in pieces while the vault is in use: conversion of files to another
//! scheme, and removal of the pages of large files.
//!
//! Each piece is a transaction of its own, so no caller waits longer for it than for a large write,
//! and commits come between pieces. Unfinished work continues after the next opening: a file being
//! removed is an orphan until it is gone, and a half converted file is converted when it is used.

use crate::commits::group_commit::GroupCommit;
use crate::content::file_contents::{ATOMIC, FileContents};
use crate::names::paths;
use crate::namespace::tables::{self, Table};
use crate::space_budget::SpaceRequest;
use crate::tasks::task_queue::TaskQueue;
use crate::{FileKind, FsError, FsResult};
use lacuna_contracts::Kind;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The thread of the tasks, until it is dropped.
pub(crate) struct BackgroundTasks {
    queue: Arc<TaskQueue>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundTasks {
    pub(crate) fn start(
        commits: Arc<GroupCommit>,
        contents: Arc<FileContents>,
    ) -> std::io::Result<BackgroundTasks> {
        let queue = contents.tasks.clone();
        let tasks = queue.clone();
        let thread = std::thread::Builder::new().name("lacuna-bg".into()).spawn(move || {
            while let Some(ino) = tasks.pop() {
                // It may have been queued again before its conversion failed.
                let is_kept = || contents.is_being_removed(ino).is_ok_and(|is_leaving| !is_leaving);
                if tasks.is_postponed(ino) && is_kept() {
                    continue;
                }
                // If the file system is full, or writing has ended, the work continues after the
                // next opening.
                if let Err(FsError::Storage(e)) = run_task(&commits, &contents, ino, &|| tasks.is_closed())
                    && !e.kind().is_refusal()
                    && e.kind() != Kind::FailStop
                {
                    tasks.postpone(ino);
                    let path = paths::path_of(&contents.inodes, &contents.namespace, ino);
                    let (path, why) = (path.display(), e.summary());
                    contents.services.log(&format!("the background work on {path} is postponed: {why}"));
                }
            }
        })?;
        queue.open();
        Ok(BackgroundTasks { queue, thread: Some(thread) })
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported there.
            let _ended = thread.join();
        }
    }
}

/// Does all work of a file, one transaction at a time.
pub(crate) fn run_task(
    commits: &GroupCommit,
    contents: &FileContents,
    ino: u64,
    ended: &dyn Fn() -> bool,
) -> FsResult<()> {
    let mut from = tables::of_inode(Table::Us, ino);
    while !ended() {
        let leaving = contents.is_being_removed(ino)?;
        let reserve = if leaving { SpaceRequest::Removal } else { SpaceRequest::Write(ATOMIC as u64) };
        let _transaction = commits.begin(reserve)?;
        if !run_step(contents, ino, &mut from)? {
            break;
        }
    }
    Ok(())
}

/// Does a piece of work. Returns whether there is more. `from` is the first key of the pages to be
/// removed.
fn run_step(contents: &FileContents, ino: u64, from: &mut Vec<u8>) -> FsResult<bool> {
    let inode = match contents.inodes.get(ino) {
        Err(FsError::Errno(_)) => return Ok(false),
        found => found?,
    };
    let mut body = inode.body.write();
    if body.is_removed || body.record.kind != FileKind::File {
        return Ok(false);
    }
    if !body.record.is_being_removed() {
        return contents.convert(&inode, &mut body);
    }
    let prefix = tables::of_inode(Table::Us, ino);
    if contents.namespace.remove_some(from, &prefix)? {
        return Ok(true);
    }
    body.record.has_us = false;
    contents.remove(&inode, &mut body)?;
    contents.namespace.put(&tables::orphan(ino), None);
    Ok(false)
}
