//! Performs one request on the disk and makes its reply.

use crate::extents::{describe, in_range};
use crate::negotiate::Session;
use crate::reporter::Reporter;
use crate::wire::{Command, Errno, Head, MAX_REQUEST, Request};
use lacuna_contracts::{ByteDisk, Error, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Unit of writing zeros and of filling caches.
const PIECE: usize = 1 << 20;

/// A reply: its head and its body.
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) body: Body,
}

/// The body of a reply, after its head.
pub(crate) enum Body {
    /// Nothing.
    Empty,
    /// The data read, in the memory of the request.
    Data,
    /// Extent descriptors.
    Extents(Vec<u8>),
}

/// How much memory a request needs in addition to its header.
pub(crate) fn memory_needed(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.length as usize,
        Command::Cache => (request.length as usize).min(PIECE),
        Command::WriteZeroes if request.no_hole() => (request.length as usize).min(PIECE),
        _ => 0,
    }
}

/// Performs `request`; `memory` holds its payload, or receives its data. Only operations that may
/// take very long and may be abandoned check `stopping`.
pub(crate) fn perform(
    session: &Session,
    report: Option<&Reporter>,
    stopping: &AtomicBool,
    request: &Request,
    memory: &mut [u8],
) -> Reply {
    match attempt(session, stopping, request, memory) {
        Ok(reply) => reply,
        Err(error) => {
            if let Some(report) = report
                && !matches!(error.kind(), Kind::Usage | Kind::ReadOnly)
            {
                let range = format!("{} bytes at {}", request.length, request.offset);
                let name = &session.export;
                report(&error.clone().context(format!("export {name:?}: {:?} {range}", request.command)));
            }
            refusal(session, request, errno(request, &error))
        }
    }
}

/// The reply to a request that is not performed.
pub(crate) fn refusal(session: &Session, request: &Request, errno: Errno) -> Reply {
    Reply { head: Head::error(request.cookie, errno, session.structured), body: Body::Empty }
}

/// The protocol requires ENOSPC, as for a full disk, when a write goes past the end.
fn errno(request: &Request, error: &Error) -> Errno {
    match request.command {
        Command::Write | Command::WriteZeroes if error.kind() == Kind::Usage => Errno::NO_SPACE,
        _ => Errno::of(error),
    }
}

fn attempt(session: &Session, stopping: &AtomicBool, request: &Request, memory: &mut [u8]) -> Result<Reply> {
    let disk = &session.disk;
    let (offset, length) = (request.offset, u64::from(request.length));
    match request.command {
        Command::Read => {
            disk.read_at(offset, memory)?;
            let head = if session.structured {
                Head::data(request.cookie, offset, request.length)
            } else {
                Head::simple(request.cookie, 0)
            };
            return Ok(Reply { head, body: Body::Data });
        }
        Command::BlockStatus => {
            let extents = describe(disk, offset, length, request.only_one())?;
            let head = Head::block_status(request.cookie, extents.len() as u32);
            return Ok(Reply { head, body: Body::Extents(extents) });
        }
        Command::Write => disk.write_at(offset, memory)?,
        Command::WriteZeroes if request.no_hole() => {
            if !write_real_zeroes(disk, stopping, offset, length, memory)? {
                return Ok(refusal(session, request, Errno::SHUTTING_DOWN));
            }
        }
        Command::WriteZeroes => disk.write_zeroes(offset, length)?,
        Command::Trim => disk.discard(offset, length)?,
        Command::Flush => disk.flush()?,
        Command::Cache => warm(disk, stopping, offset, length, memory)?,
        Command::Disconnect | Command::Unknown(_) => {
            return Err(Error::new(Kind::Usage, "a request without a meaning"));
        }
    }
    if request.fua() && matches!(request.command, Command::Write | Command::WriteZeroes | Command::Trim) {
        disk.flush()?;
    }
    Ok(Reply { head: Head::simple(request.cookie, 0), body: Body::Empty })
}

/// Writes zeros that occupy space on the medium, for a client that wants no hole. Returns `false`
/// if it was abandoned half way.
fn write_real_zeroes(
    disk: &ByteDisk,
    stopping: &AtomicBool,
    offset: u64,
    length: u64,
    memory: &mut [u8],
) -> Result<bool> {
    if !in_range(disk, offset, length) {
        // Returns the disk's own error, before the first piece is written.
        return disk.write_zeroes(offset, length).map(|()| true);
    }
    memory.fill(0);
    pieces(stopping, offset, length, memory.len(), |at, len| disk.write_at(at, &memory[..len]))
}

/// Reads the beginning of the range to fill the caches.
fn warm(disk: &ByteDisk, stopping: &AtomicBool, offset: u64, length: u64, memory: &mut [u8]) -> Result<()> {
    if !in_range(disk, offset, length) {
        return Err(Error::new(Kind::Usage, "request outside the disk"));
    }
    let length = length.min(u64::from(MAX_REQUEST));
    pieces(stopping, offset, length, memory.len(), |at, len| disk.read_at(at, &mut memory[..len])).map(|_| ())
}

/// Returns `false` if the server stops and pieces remain.
fn pieces(
    stopping: &AtomicBool,
    offset: u64,
    length: u64,
    piece: usize,
    mut each: impl FnMut(u64, usize) -> Result<()>,
) -> Result<bool> {
    let mut done = 0;
    while done < length {
        if done > 0 && stopping.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let part = (length - done).min(piece as u64);
        each(offset + done, part as usize)?;
        done += part;
    }
    Ok(true)
}
