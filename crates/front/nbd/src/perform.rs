//! Performs one request on the disk and makes its reply.

use crate::extents::{block_status, in_range};
use crate::negotiate::ExportSession;
use crate::reporter::Reporter;
use crate::wire::{MAX_REQUEST, NbdCommand, NbdErrno, NbdRequest, ReplyHeader};
use lacuna_contracts::{ByteDisk, Error, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};

/// Unit of writing zeros and of filling caches.
const PIECE: usize = 1 << 20;

/// A reply: its header and its body.
pub(crate) struct Reply {
    pub(crate) header: ReplyHeader,
    pub(crate) body: ReplyBody,
}

/// The body of a reply, after its header.
pub(crate) enum ReplyBody {
    /// Nothing.
    Empty,
    /// The data read, in the memory of the request.
    Data,
    /// Extent descriptors.
    Extents(Vec<u8>),
}

/// How much memory a request needs in addition to its header.
pub(crate) fn memory_needed(request: &NbdRequest) -> usize {
    match request.command {
        NbdCommand::Read | NbdCommand::Write => request.length as usize,
        NbdCommand::Cache => (request.length as usize).min(PIECE),
        NbdCommand::WriteZeroes if request.no_hole() => (request.length as usize).min(PIECE),
        _ => 0,
    }
}

/// Performs `request`; `memory` holds its payload, or receives its data. Only operations that may
/// take very long and may be abandoned check `stopping`.
pub(crate) fn perform(
    session: &ExportSession,
    report: Option<&Reporter>,
    stopping: &AtomicBool,
    request: &NbdRequest,
    memory: &mut [u8],
) -> Reply {
    match try_perform(session, stopping, request, memory) {
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
pub(crate) fn refusal(session: &ExportSession, request: &NbdRequest, errno: NbdErrno) -> Reply {
    Reply { header: ReplyHeader::error(request.cookie, errno, session.structured), body: ReplyBody::Empty }
}

/// The protocol requires ENOSPC, as for a full disk, when a write goes past the end.
fn errno(request: &NbdRequest, error: &Error) -> NbdErrno {
    match request.command {
        NbdCommand::Write | NbdCommand::WriteZeroes if error.kind() == Kind::Usage => NbdErrno::NO_SPACE,
        _ => NbdErrno::of(error),
    }
}

fn try_perform(
    session: &ExportSession,
    stopping: &AtomicBool,
    request: &NbdRequest,
    memory: &mut [u8],
) -> Result<Reply> {
    let disk = &session.disk;
    let (offset, length) = (request.offset, u64::from(request.length));
    match request.command {
        NbdCommand::Read => {
            disk.read_at(offset, memory)?;
            let header = if session.structured {
                ReplyHeader::data(request.cookie, offset, request.length)
            } else {
                ReplyHeader::simple(request.cookie, 0)
            };
            return Ok(Reply { header, body: ReplyBody::Data });
        }
        NbdCommand::BlockStatus => {
            let extents = block_status(disk, offset, length, request.only_one())?;
            let header = ReplyHeader::block_status(request.cookie, extents.len() as u32);
            return Ok(Reply { header, body: ReplyBody::Extents(extents) });
        }
        NbdCommand::Write => disk.write_at(offset, memory)?,
        NbdCommand::WriteZeroes if request.no_hole() => {
            if !write_real_zeroes(disk, stopping, offset, length, memory)? {
                return Ok(refusal(session, request, NbdErrno::SHUTTING_DOWN));
            }
        }
        NbdCommand::WriteZeroes => disk.write_zeroes(offset, length)?,
        NbdCommand::Trim => disk.discard(offset, length)?,
        NbdCommand::Flush => disk.flush()?,
        NbdCommand::Cache => fill_caches(disk, stopping, offset, length, memory)?,
        NbdCommand::Disconnect | NbdCommand::Unknown(_) => {
            return Err(Error::new(Kind::Usage, "an unknown request"));
        }
    }
    if request.fua()
        && matches!(request.command, NbdCommand::Write | NbdCommand::WriteZeroes | NbdCommand::Trim)
    {
        disk.flush()?;
    }
    Ok(Reply { header: ReplyHeader::simple(request.cookie, 0), body: ReplyBody::Empty })
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
    for_each_piece(stopping, offset, length, memory.len(), |at, len| disk.write_at(at, &memory[..len]))
}

/// Reads the beginning of the range to fill the caches.
fn fill_caches(
    disk: &ByteDisk,
    stopping: &AtomicBool,
    offset: u64,
    length: u64,
    memory: &mut [u8],
) -> Result<()> {
    if !in_range(disk, offset, length) {
        return Err(Error::new(Kind::Usage, "request outside the disk"));
    }
    let length = length.min(u64::from(MAX_REQUEST));
    for_each_piece(stopping, offset, length, memory.len(), |at, len| disk.read_at(at, &mut memory[..len]))
        .map(|_| ())
}

/// Returns `false` if the server stops and pieces remain.
fn for_each_piece(
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
