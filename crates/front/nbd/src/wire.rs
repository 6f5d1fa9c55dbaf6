//! The protocol's numbers, and the parsing and building of its fixed-size messages. Pure functions
//! over bytes.

use lacuna_contracts::{Error, Kind};

pub(crate) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub(crate) const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1;
pub(crate) const HANDSHAKE_NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_META_CONTEXT: u32 = 4;
const REP_ERROR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
pub(crate) const REP_ERR_POLICY: u32 = REP_ERROR + 2;
pub(crate) const REP_ERR_INVALID: u32 = REP_ERROR + 3;
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
pub(crate) const REP_ERR_TOO_BIG: u32 = REP_ERROR + 9;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_NAME: u16 = 1;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

const FLAG_HAS_FLAGS: u16 = 1;
const FLAG_READ_ONLY: u16 = 1 << 1;
const FLAG_SEND_FLUSH: u16 = 1 << 2;
const FLAG_SEND_FUA: u16 = 1 << 3;
const FLAG_SEND_TRIM: u16 = 1 << 5;
const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
const FLAG_SEND_DF: u16 = 1 << 7;
const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
const FLAG_SEND_CACHE: u16 = 1 << 10;

const CMD_FLAG_FUA: u16 = 1;
const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
const CMD_FLAG_DF: u16 = 1 << 2;
const CMD_FLAG_REQ_ONE: u16 = 1 << 3;

const CHUNK_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_BLOCK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = (1 << 15) + 1;

/// State of an unwritten extent: a hole that reads as zeros.
pub(crate) const STATE_HOLE_ZERO: u32 = 3;

/// The only metadata context, and the number that this server gives it.
pub(crate) const CONTEXT_NAME: &str = "base:allocation";
pub(crate) const CONTEXT_ID: u32 = 1;

/// The longest READ or WRITE that is served.
pub const MAX_REQUEST: u32 = 64 << 20;
/// Bytes in a request header.
pub const REQUEST_LEN: usize = 28;

/// The export's transmission flags.
pub(crate) fn transmission_flags(read_only: bool, structured: bool) -> u16 {
    let mut flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_CAN_MULTI_CONN | FLAG_SEND_CACHE;
    flags |= if read_only { FLAG_READ_ONLY } else { FLAG_SEND_FUA | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES };
    if structured {
        flags |= FLAG_SEND_DF;
    }
    flags
}

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Read a range.
    Read,
    /// Write the payload that follows.
    Write,
    /// End the connection.
    Disconnect,
    /// Make everything acknowledged durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Read a range into the caches.
    Cache,
    /// Make a range read as zeros.
    WriteZeroes,
    /// Report which parts of a range are written.
    BlockStatus,
    /// An unknown command number.
    Unknown(u16),
}

/// A request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    flags: u16,
    /// The command.
    pub command: NbdCommand,
    /// The client's name for the request, repeated in the reply.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

/// The bytes are not a request; the rest of the stream cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARequest;

/// An error number of the protocol, as replies carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdErrno(pub(crate) u32);

impl NbdErrno {
    const NOT_PERMITTED: NbdErrno = NbdErrno(libc::EPERM as u32);
    const FAILED: NbdErrno = NbdErrno(libc::EIO as u32);
    pub(crate) const INVALID: NbdErrno = NbdErrno(libc::EINVAL as u32);
    pub(crate) const OVERFLOW: NbdErrno = NbdErrno(libc::EOVERFLOW as u32);
    pub(crate) const NO_MEMORY: NbdErrno = NbdErrno(libc::ENOMEM as u32);
    pub(crate) const SHUTTING_DOWN: NbdErrno = NbdErrno(libc::ESHUTDOWN as u32);
    pub(crate) const NO_SPACE: NbdErrno = NbdErrno(libc::ENOSPC as u32);

    /// The closest number to `error` among the few that the protocol knows. Each kind is listed, so
    /// that the compiler reports a new kind without a number.
    pub fn of(error: &Error) -> Self {
        match error.kind() {
            Kind::Usage => NbdErrno::INVALID,
            Kind::Passphrase | Kind::Permission | Kind::ReadOnly => NbdErrno::NOT_PERMITTED,
            Kind::Memory => NbdErrno::NO_MEMORY,
            Kind::NoSpace => NbdErrno::NO_SPACE,
            Kind::NotFound
            | Kind::Busy
            | Kind::Corrupt
            | Kind::RolledBack
            | Kind::Io
            | Kind::FailStop
            | Kind::Exists
            | Kind::Changed
            | Kind::Fenced
            | Kind::TimedOut
            | Kind::PurgeIncomplete
            | Kind::NoCover
            | Kind::Other => NbdErrno::FAILED,
        }
    }
}

impl NbdRequest {
    /// Parses a header. Only a wrong magic number is an error: any other invalid field gets a
    /// reply.
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Result<Self, NotARequest> {
        if u32_at(bytes, 0) != REQUEST_MAGIC {
            return Err(NotARequest);
        }
        let command = match u16_at(bytes, 6) {
            0 => NbdCommand::Read,
            1 => NbdCommand::Write,
            2 => NbdCommand::Disconnect,
            3 => NbdCommand::Flush,
            4 => NbdCommand::Trim,
            5 => NbdCommand::Cache,
            6 => NbdCommand::WriteZeroes,
            7 => NbdCommand::BlockStatus,
            other => NbdCommand::Unknown(other),
        };
        Ok(NbdRequest {
            flags: u16_at(bytes, 4),
            command,
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }

    /// Refuses requests that the negotiated protocol does not allow. The disk checks the range.
    pub(crate) fn check(&self, structured: bool, allocation: bool) -> Result<(), NbdErrno> {
        let own_flags = match self.command {
            NbdCommand::Read if structured => CMD_FLAG_DF,
            NbdCommand::WriteZeroes => CMD_FLAG_NO_HOLE,
            NbdCommand::BlockStatus => CMD_FLAG_REQ_ONE,
            _ => 0,
        };
        if self.flags & !(own_flags | CMD_FLAG_FUA) != 0 {
            return Err(NbdErrno::INVALID);
        }
        match self.command {
            NbdCommand::Unknown(_) => Err(NbdErrno::INVALID),
            NbdCommand::BlockStatus if !allocation || self.length == 0 => Err(NbdErrno::INVALID),
            NbdCommand::Read if self.length > MAX_REQUEST && self.flags & CMD_FLAG_DF != 0 => {
                Err(NbdErrno::OVERFLOW)
            }
            NbdCommand::Read | NbdCommand::Write if self.length > MAX_REQUEST => Err(NbdErrno::INVALID),
            _ => Ok(()),
        }
    }

    pub(crate) fn fua(&self) -> bool {
        self.flags & CMD_FLAG_FUA != 0
    }

    pub(crate) fn no_hole(&self) -> bool {
        self.flags & CMD_FLAG_NO_HOLE != 0
    }

    pub(crate) fn only_one(&self) -> bool {
        self.flags & CMD_FLAG_REQ_ONE != 0
    }
}

/// The fixed part of a reply, at most 28 bytes.
#[derive(Clone, Copy)]
pub(crate) struct ReplyHeader {
    bytes: [u8; 28],
    len: usize,
}

impl ReplyHeader {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// A simple reply; `error` 0 is success.
    pub(crate) fn simple(cookie: u64, error: u32) -> Self {
        let mut head = ReplyHeader { bytes: [0; 28], len: 0 };
        head.push(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.push(&error.to_be_bytes());
        head.push(&cookie.to_be_bytes());
        head
    }

    fn chunk(cookie: u64, kind: u16, len: u32) -> Self {
        let mut head = ReplyHeader { bytes: [0; 28], len: 0 };
        head.push(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        head.push(&CHUNK_DONE.to_be_bytes());
        head.push(&kind.to_be_bytes());
        head.push(&cookie.to_be_bytes());
        head.push(&len.to_be_bytes());
        head
    }

    /// The only chunk of a READ; `len` bytes follow. A data chunk is never empty, so a reply
    /// without data is a chunk of type NONE.
    pub(crate) fn data(cookie: u64, offset: u64, len: u32) -> Self {
        if len == 0 {
            return Self::chunk(cookie, CHUNK_NONE, 0);
        }
        let mut head = Self::chunk(cookie, CHUNK_OFFSET_DATA, len + 8);
        head.push(&offset.to_be_bytes());
        head
    }

    /// The only chunk of a BLOCK_STATUS; `len` bytes of descriptors follow.
    pub(crate) fn block_status(cookie: u64, len: u32) -> Self {
        let mut head = Self::chunk(cookie, CHUNK_BLOCK_STATUS, len + 4);
        head.push(&CONTEXT_ID.to_be_bytes());
        head
    }

    /// A failure without a message: the text of a disk's error stays on the server's side.
    pub(crate) fn error(cookie: u64, errno: NbdErrno, structured: bool) -> Self {
        if !structured {
            return Self::simple(cookie, errno.0);
        }
        let mut head = Self::chunk(cookie, CHUNK_ERROR, 6);
        head.push(&errno.0.to_be_bytes());
        head.push(&0u16.to_be_bytes());
        head
    }
}

fn u16_at(bytes: &[u8; REQUEST_LEN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; REQUEST_LEN], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8; REQUEST_LEN], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u16, command: u16, length: u32) -> [u8; REQUEST_LEN] {
        let mut bytes = Vec::new();
        bytes.extend(REQUEST_MAGIC.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
        bytes.extend(0x1122_3344_5566_7788_u64.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.try_into().unwrap()
    }

    #[test]
    fn a_header_is_read_field_by_field() {
        let request = NbdRequest::parse(&header(1, 1, 512)).unwrap();
        assert_eq!(request.command, NbdCommand::Write);
        assert!(request.fua());
        assert_eq!(request.cookie, 0x0102_0304_0506_0708);
        assert_eq!(request.offset, 0x1122_3344_5566_7788);
        assert_eq!(request.length, 512);
        let mut wrong = header(0, 0, 0);
        wrong[0] ^= 1;
        assert_eq!(NbdRequest::parse(&wrong), Err(NotARequest));
    }

    #[test]
    fn requests_that_were_not_negotiated_are_refused() {
        let check = |flags, command, length, structured, allocation| {
            NbdRequest::parse(&header(flags, command, length)).unwrap().check(structured, allocation)
        };
        assert_eq!(check(0, 99, 0, true, true), Err(NbdErrno::INVALID));
        assert_eq!(check(CMD_FLAG_DF, 0, 1, false, false), Err(NbdErrno::INVALID));
        assert_eq!(check(CMD_FLAG_DF, 0, 1, true, false), Ok(()));
        assert_eq!(check(CMD_FLAG_DF, 0, MAX_REQUEST + 1, true, false), Err(NbdErrno::OVERFLOW));
        assert_eq!(check(0, 1, MAX_REQUEST + 1, true, false), Err(NbdErrno::INVALID));
        assert_eq!(check(0, 1, MAX_REQUEST, true, false), Ok(()));
        assert_eq!(check(0, 7, 1, true, false), Err(NbdErrno::INVALID));
        assert_eq!(check(CMD_FLAG_REQ_ONE, 7, 1, true, true), Ok(()));
        assert_eq!(check(CMD_FLAG_REQ_ONE, 4, u32::MAX, true, true), Err(NbdErrno::INVALID));
        assert_eq!(check(0, 4, u32::MAX, true, true), Ok(()));
    }

    #[test]
    fn errors_map_to_protocol_numbers() {
        let of_kinds = [
            (Kind::ReadOnly, 1),
            (Kind::Permission, 1),
            (Kind::Memory, 12),
            (Kind::Usage, 22),
            (Kind::NoSpace, 28),
            (Kind::Corrupt, 5),
            (Kind::Busy, 5),
        ];
        for (kind, errno) in of_kinds {
            assert_eq!(NbdErrno::of(&Error::new(kind, "x")).0, errno);
        }
    }
}
