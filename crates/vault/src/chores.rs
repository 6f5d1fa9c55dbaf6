//! What is done a piece at a time while the vault is in use: files that are converted to another scheme, and the pages of large
//! files that were removed.
//!
//! Each piece is a turn of its own, so nobody waits longer for it than for a large write, and commits come between. Whatever is
//! left when the vault is closed goes on when it is open again: a removed file is among the orphans until it is gone, and a file
//! that is half converted is taken up when it is used.

use crate::commits::Commits;
use crate::contents::{ATOMIC, Contents};
use crate::due::Due;
use crate::namespace::tables::{self, Table};
use crate::paths;
use crate::{FileKind, FsError, FsResult};
use lacuna_core::Kind;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The thread that does them, until it is dropped.
pub(crate) struct Chores {
    due: Arc<Due>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(crate) fn start(commits: Arc<Commits>, contents: Arc<Contents>) -> std::io::Result<Chores> {
        let due = contents.due.clone();
        let work = due.clone();
        let thread = std::thread::Builder::new().name("lacuna chores".into()).spawn(move || {
            while let Some(ino) = work.next() {
                // After a full file system, or a failure that ended all writing, it goes on after the next opening.
                if let Err(FsError::Storage(e)) = all_of(&commits, &contents, ino, &|| work.has_ended())
                    && !e.kind().is_refusal()
                    && e.kind() != Kind::FailStop
                {
                    let path = paths::path_of(&contents.ground, ino);
                    contents
                        .ground
                        .say(&format!("what is left to be done for {path} is put off: {}", e.finding()));
                }
            }
        })?;
        due.serve();
        Ok(Chores { due, thread: Some(thread) })
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.due.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told where it happened.
            let _ended = thread.join();
        }
    }
}

/// Does everything that a file has to be done, a turn at a time.
pub(crate) fn all_of(
    commits: &Commits,
    contents: &Contents,
    ino: u64,
    ended: &dyn Fn() -> bool,
) -> FsResult<()> {
    let mut from = tables::of_inode(Table::Us, ino);
    while !ended() {
        let leaving = contents.is_leaving(ino)?;
        let _turn = if leaving { commits.enter()? } else { commits.enter_to_add(ATOMIC as u64)? };
        if !piece(contents, ino, &mut from)? {
            break;
        }
    }
    Ok(())
}

/// Does a piece. Whether there is more. `from` is where the pages begin that are to be removed.
fn piece(contents: &Contents, ino: u64, from: &mut Vec<u8>) -> FsResult<bool> {
    let inode = match contents.ground.inodes.get(ino) {
        Err(FsError::Errno(_)) => return Ok(false),
        found => found?,
    };
    let mut body = inode.body.write();
    if body.gone || body.record.kind != FileKind::File {
        return Ok(false);
    }
    if !body.record.is_leaving() {
        return contents.convert(&inode, &mut body);
    }
    let prefix = tables::of_inode(Table::Us, ino);
    if contents.ground.namespace.remove_some(from, &prefix)? {
        return Ok(true);
    }
    body.record.has_us = false;
    contents.remove(&inode, &mut body)?;
    contents.ground.namespace.put(&tables::orphan(ino), None);
    Ok(false)
}
