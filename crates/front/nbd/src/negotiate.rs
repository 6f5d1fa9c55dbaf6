//! The fixed newstyle negotiation, over any stream that reads and writes.

use crate::exports::{Export, Exports};
use crate::wire::{
    CONTEXT_ID, CONTEXT_NAME, GREETING_MAGIC, HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES, INFO_BLOCK_SIZE,
    INFO_EXPORT, INFO_NAME, MAX_REQUEST, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO, OPT_INFO, OPT_LIST,
    OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, REP_ACK, REP_ERR_INVALID, REP_ERR_POLICY, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG,
    REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO, REP_META_CONTEXT, REP_SERVER, transmission_flags,
};
use lacuna_contracts::{BLOCK_SIZE, ByteDisk};
use std::io::{self, ErrorKind, Read, Write};

/// The longest option payload that is parsed.
const MAX_OPTION: u32 = 64 << 10;
/// The longest option payload that is skipped; a longer one ends the connection.
const MAX_SKIPPED_OPTION: u32 = 1 << 20;

/// The state of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// The server has no certificate.
    Unavailable,
    /// The client may ask for TLS.
    Offered,
    /// All options except STARTTLS and ABORT are refused until the client has asked for TLS.
    Required,
    /// The stream is already encrypted.
    Active,
}

/// How a negotiation ended.
pub enum HandshakeOutcome {
    /// The client chose an export: transmission begins.
    Transmit(ExportSession),
    /// The client was told to begin the TLS handshake; afterwards option negotiation starts again.
    StartTls(ClientFlags),
    /// The client left.
    Left,
}

/// The result of a negotiation.
pub struct ExportSession {
    pub(crate) disk: ByteDisk,
    pub(crate) level: usize,
    pub(crate) export: String,
    pub(crate) structured: bool,
    pub(crate) allocation: bool,
}

/// The client's first flags.
#[derive(Clone, Copy, Debug)]
pub struct ClientFlags {
    no_zeroes: bool,
}

/// Runs a whole negotiation. Errors: `InvalidData` when the client breaks the protocol
/// irrecoverably, and the errors of the stream.
pub fn handshake<S: Read + Write>(
    stream: &mut S,
    exports: &Exports,
    tls: TlsState,
) -> io::Result<HandshakeOutcome> {
    let greeting = exchange_flags(stream)?;
    negotiate(stream, exports, tls, greeting)
}

/// Exchanges the first flags.
pub fn exchange_flags<S: Read + Write>(stream: &mut S) -> io::Result<ClientFlags> {
    let mut hello = Vec::with_capacity(18);
    hello.extend(GREETING_MAGIC.to_be_bytes());
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend((HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    stream.flush()?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES) != 0 {
        return Err(broken("unknown client flags"));
    }
    Ok(ClientFlags { no_zeroes: flags & u32::from(HANDSHAKE_NO_ZEROES) != 0 })
}

/// Answers options until the client chooses an export, asks for TLS, or leaves.
pub fn negotiate<S: Read + Write>(
    stream: &mut S,
    exports: &Exports,
    tls: TlsState,
    greeting: ClientFlags,
) -> io::Result<HandshakeOutcome> {
    let mut negotiation =
        Negotiation { exports, tls, greeting, structured: false, context: None, out: Vec::new() };
    loop {
        let mut head = [0; 16];
        if !read_or_end(stream, &mut head)? {
            return Ok(HandshakeOutcome::Left);
        }
        let (magic, rest) = head.split_at(8);
        if magic != OPTION_MAGIC.to_be_bytes() {
            return Err(broken("not an option"));
        }
        let option = be32(&rest[..4]);
        let next = match read_payload(stream, be32(&rest[4..]))? {
            Some(data) => negotiation.answer(option, &data)?,
            None if option == OPT_EXPORT_NAME => return Err(broken("export name too long")),
            None => negotiation.refuse(option, REP_ERR_TOO_BIG),
        };
        stream.write_all(&negotiation.out)?;
        stream.flush()?;
        negotiation.out.clear();
        if let Some(outcome) = next {
            return Ok(outcome);
        }
    }
}

struct Negotiation<'a> {
    exports: &'a Exports,
    tls: TlsState,
    greeting: ClientFlags,
    structured: bool,
    /// The export of the selected `base:allocation` context.
    context: Option<Vec<u8>>,
    out: Vec<u8>,
}

impl Negotiation<'_> {
    fn answer(&mut self, option: u32, data: &[u8]) -> io::Result<Option<HandshakeOutcome>> {
        if self.tls == TlsState::Required && !matches!(option, OPT_STARTTLS | OPT_ABORT) {
            if option == OPT_EXPORT_NAME {
                return Err(broken("an export was chosen without TLS"));
            }
            return Ok(self.refuse(option, REP_ERR_TLS_REQD));
        }
        Ok(match option {
            OPT_EXPORT_NAME => return self.export_name(data).map(Some),
            OPT_ABORT => {
                self.reply(option, REP_ACK, &[]);
                Some(HandshakeOutcome::Left)
            }
            OPT_LIST => self.list(data),
            OPT_STARTTLS => self.start_tls(data),
            OPT_INFO | OPT_GO => self.info(option, data),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.acknowledge(option)
            }
            OPT_STRUCTURED_REPLY => self.refuse(option, REP_ERR_INVALID),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.refuse(option, REP_ERR_UNSUP),
        })
    }

    fn export_name(&mut self, name: &[u8]) -> io::Result<HandshakeOutcome> {
        let export = self.exports.get(name).ok_or_else(|| broken("no such export"))?.clone();
        let disk = &export.disk;
        self.out.extend(disk.len().to_be_bytes());
        self.out.extend(transmission_flags(disk.is_read_only(), self.structured).to_be_bytes());
        if !self.greeting.no_zeroes {
            self.out.extend([0; 124]);
        }
        Ok(HandshakeOutcome::Transmit(self.session(name, export)))
    }

    fn session(&self, name: &[u8], Export { disk, level }: Export) -> ExportSession {
        ExportSession {
            disk,
            level,
            export: String::from_utf8_lossy(name).into_owned(),
            structured: self.structured,
            allocation: self.context.as_deref() == Some(name),
        }
    }

    fn list(&mut self, data: &[u8]) -> Option<HandshakeOutcome> {
        if !data.is_empty() {
            return self.refuse(OPT_LIST, REP_ERR_INVALID);
        }
        let exports = self.exports;
        for name in exports.names() {
            let mut entry = (name.len() as u32).to_be_bytes().to_vec();
            entry.extend(name.as_bytes());
            self.reply(OPT_LIST, REP_SERVER, &entry);
        }
        self.acknowledge(OPT_LIST)
    }

    fn start_tls(&mut self, data: &[u8]) -> Option<HandshakeOutcome> {
        match self.tls {
            TlsState::Unavailable => self.refuse(OPT_STARTTLS, REP_ERR_POLICY),
            TlsState::Active => self.refuse(OPT_STARTTLS, REP_ERR_INVALID),
            TlsState::Offered | TlsState::Required if !data.is_empty() => {
                self.refuse(OPT_STARTTLS, REP_ERR_INVALID)
            }
            TlsState::Offered | TlsState::Required => {
                self.reply(OPT_STARTTLS, REP_ACK, &[]);
                Some(HandshakeOutcome::StartTls(self.greeting))
            }
        }
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Option<HandshakeOutcome> {
        let Some((name, wanted)) = parse_info(data) else {
            return self.refuse(option, REP_ERR_INVALID);
        };
        let Some(found) = self.exports.get(name).cloned() else {
            return self.refuse(option, REP_ERR_UNKNOWN);
        };
        let disk = &found.disk;
        let mut export = INFO_EXPORT.to_be_bytes().to_vec();
        export.extend(disk.len().to_be_bytes());
        export.extend(transmission_flags(disk.is_read_only(), self.structured).to_be_bytes());
        self.reply(option, REP_INFO, &export);
        let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [BLOCK_SIZE as u32, BLOCK_SIZE as u32, MAX_REQUEST] {
            sizes.extend(size.to_be_bytes());
        }
        self.reply(option, REP_INFO, &sizes);
        if wanted.chunks_exact(2).any(|kind| kind == INFO_NAME.to_be_bytes()) {
            let mut own_name = INFO_NAME.to_be_bytes().to_vec();
            own_name.extend(name);
            self.reply(option, REP_INFO, &own_name);
        }
        self.acknowledge(option);
        (option == OPT_GO).then(|| HandshakeOutcome::Transmit(self.session(name, found)))
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) -> Option<HandshakeOutcome> {
        let select = option == OPT_SET_META_CONTEXT;
        if select {
            self.context = None;
        }
        let parsed = parse_meta_context(data).filter(|_| self.structured || !select);
        let Some((name, queries)) = parsed else {
            return self.refuse(option, REP_ERR_INVALID);
        };
        if self.exports.get(name).is_none() {
            return self.refuse(option, REP_ERR_UNKNOWN);
        }
        let exact = queries.iter().any(|query| *query == CONTEXT_NAME.as_bytes());
        let matched =
            if select { exact } else { exact || queries.is_empty() || queries.contains(&&b"base:"[..]) };
        if matched {
            let mut entry = if select { CONTEXT_ID } else { 0 }.to_be_bytes().to_vec();
            entry.extend(CONTEXT_NAME.as_bytes());
            self.reply(option, REP_META_CONTEXT, &entry);
        }
        if select && matched {
            self.context = Some(name.to_vec());
        }
        self.acknowledge(option)
    }

    fn acknowledge(&mut self, option: u32) -> Option<HandshakeOutcome> {
        self.reply(option, REP_ACK, &[]);
        None
    }

    fn refuse(&mut self, option: u32, error: u32) -> Option<HandshakeOutcome> {
        self.reply(option, error, &[]);
        None
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.extend(option.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend((data.len() as u32).to_be_bytes());
        self.out.extend(data);
    }
}

/// Parses INFO or GO into name and wanted kinds: `u32 length, name, u16 count, count * u16`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = split_counted(data)?;
    let (count, kinds) = rest.split_first_chunk::<2>()?;
    (kinds.len() == usize::from(u16::from_be_bytes(*count)) * 2).then_some((name, kinds))
}

/// Parses LIST or SET of contexts into name and queries: `u32 length, name, u32 count, count * (u32
/// length, query)`.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = split_counted(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, after) = split_counted(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

fn split_counted(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize)
}

/// Reads an option's payload; `None` if it was too long and was skipped.
fn read_payload<S: Read>(stream: &mut S, len: u32) -> io::Result<Option<Vec<u8>>> {
    if len <= MAX_OPTION {
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        return Ok(Some(data));
    }
    if len > MAX_SKIPPED_OPTION {
        return Err(broken("option too long"));
    }
    let skipped = io::copy(&mut stream.take(u64::from(len)), &mut io::sink())?;
    if skipped == u64::from(len) { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Like `read_exact`, but returns `false` at an end before the first byte.
fn read_or_end<S: Read>(stream: &mut S, buf: &mut [u8]) -> io::Result<bool> {
    let first = loop {
        match stream.read(buf) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if first == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut buf[first..])?;
    Ok(true)
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_payloads_are_read_whole_or_not_at_all() {
        assert_eq!(parse_info(b"\0\0\0\x01x\0\x01\0\x03"), Some((&b"x"[..], &b"\0\x03"[..])));
        assert_eq!(parse_info(b"\0\0\0\x01x\0\x02\0\x03"), None);
        assert_eq!(parse_info(b"\xff\xff\xff\xffx"), None);
        let (name, queries) = parse_meta_context(b"\0\0\0\0\0\0\0\x01\0\0\0\x02ab").unwrap();
        assert_eq!((name, queries), (&b""[..], vec![&b"ab"[..]]));
        assert_eq!(parse_meta_context(b"\0\0\0\0\xff\xff\xff\xff\0\0\0\x02ab"), None);
        assert_eq!(parse_meta_context(b"\0\0\0\0\0\0\0\0x"), None);
    }
}
