//! A small client that can send invalid messages.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;

pub(crate) const ACK: u32 = 1;
pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
pub(crate) const ERR_POLICY: u32 = (1 << 31) + 2;
pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;

/// A reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A simple reply, or a structured one without content.
    Done,
    /// The error number.
    Failed(u32),
    /// The data read.
    Data(Vec<u8>),
    /// Length and state of each extent.
    Extents(Vec<(u32, u32)>),
}

pub(crate) struct RawClient {
    pub stream: UnixStream,
    pub structured: bool,
    pub size: u64,
    pub flags: u16,
    cookie: u64,
}

impl RawClient {
    /// Connects and exchanges the first flags.
    pub(crate) fn greet(socket: &Path, flags: u32) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&flags.to_be_bytes())?;
        Ok(RawClient { stream, structured: false, size: 0, flags: 0, cookie: 0 })
    }

    /// Negotiates with GO.
    pub(crate) fn connect(socket: &Path, structured: bool) -> Self {
        let mut client = Self::greet(socket, 3).unwrap();
        if structured {
            assert_eq!(client.option(OPT_STRUCTURED_REPLY, &[]).last().unwrap().0, ACK);
            client.structured = true;
            let replies = client.option(OPT_SET_META_CONTEXT, &meta_query("", &["base:allocation"]));
            assert_eq!(replies.last().unwrap().0, ACK);
        }
        client.go("");
        client
    }

    pub(crate) fn go(&mut self, name: &str) {
        let replies = self.option(OPT_GO, &info_query(name));
        assert_eq!(replies.last().unwrap().0, ACK);
        let export = &replies.iter().find(|(kind, data)| *kind == 3 && data[..2] == [0, 0]).unwrap().1;
        self.size = u64::from_be_bytes(export[2..10].try_into().unwrap());
        self.flags = u16::from_be_bytes(export[10..12].try_into().unwrap());
    }

    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Sends an option and returns all replies, including the last.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.take::<8>(), 0x0003_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(u32::from_be_bytes(self.take()), option);
            let kind = u32::from_be_bytes(self.take());
            let mut data = vec![0; u32::from_be_bytes(self.take()) as usize];
            self.stream.read_exact(&mut data).unwrap();
            replies.push((kind, data));
            if kind == ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn header(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    }

    /// Sends a request and returns its cookie.
    pub(crate) fn send(&mut self, flags: u16, command: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = Self::header(flags, command, self.cookie, offset, length);
        bytes.extend(payload);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    /// Receives the next reply; `read` gives the length of the READ with that cookie, if it was
    /// one.
    pub(crate) fn receive(&mut self, read: impl Fn(u64) -> Option<usize>) -> (u64, Reply) {
        let magic = u32::from_be_bytes(self.take());
        if magic == 0x6744_6698 {
            let error = u32::from_be_bytes(self.take());
            let cookie = u64::from_be_bytes(self.take());
            return match read(cookie) {
                _ if error != 0 => (cookie, Reply::Failed(error)),
                Some(len) => {
                    assert!(!self.structured, "a READ must be answered in chunks");
                    let mut data = vec![0; len];
                    self.stream.read_exact(&mut data).unwrap();
                    (cookie, Reply::Data(data))
                }
                None => (cookie, Reply::Done),
            };
        }
        assert_eq!(magic, 0x668e_33ef);
        assert!(self.structured);
        assert_eq!(u16::from_be_bytes(self.take()), 1, "one chunk answers all");
        let kind = u16::from_be_bytes(self.take());
        let cookie = u64::from_be_bytes(self.take());
        let mut data = vec![0; u32::from_be_bytes(self.take()) as usize];
        self.stream.read_exact(&mut data).unwrap();
        let reply = match kind {
            0 => Reply::Done,
            1 => Reply::Data(data.split_off(8)),
            5 => {
                assert_eq!(data[..4], 1u32.to_be_bytes());
                let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
                Reply::Extents(data[4..].chunks(8).map(|c| (word(&c[..4]), word(&c[4..]))).collect())
            }
            _ => Reply::Failed(u32::from_be_bytes(data[..4].try_into().unwrap())),
        };
        (cookie, reply)
    }

    /// Sends one request and returns its reply.
    pub(crate) fn call(
        &mut self,
        flags: u16,
        command: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Reply {
        let cookie = self.send(flags, command, offset, length, payload);
        let read = (command == READ).then_some(length as usize);
        let (got, reply) = self.receive(|_| read);
        assert_eq!(got, cookie);
        reply
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        match self.call(0, READ, offset, length, &[]) {
            Reply::Data(data) => data,
            Reply::Done if length == 0 => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.call(0, WRITE, offset, data.len() as u32, data), Reply::Done);
    }

    /// Whether the server has closed the connection; reads the remaining bytes first.
    pub(crate) fn closed(mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok() || rest.is_empty()
    }
}

pub(crate) fn info_query(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(2u16.to_be_bytes());
    data.extend(1u16.to_be_bytes());
    data.extend(3u16.to_be_bytes());
    data
}

pub(crate) fn meta_query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}
