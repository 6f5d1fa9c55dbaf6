//! A minimal NBD client that returns error numbers and fails with its server.

use std::io::{self, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;

pub(crate) struct Client(UnixStream);

impl Client {
    pub(crate) fn connect(socket: &Path) -> io::Result<Client> {
        Self::connect_to(socket, "")
    }

    pub(crate) fn connect_to(socket: &Path, export: &str) -> io::Result<Client> {
        let mut client = Client(UnixStream::connect(socket)?);
        client.read::<18>()?;
        // Fixed newstyle, no zeroes; then GO for the export without information requests.
        client.0.write_all(&3u32.to_be_bytes())?;
        client.0.write_all(b"IHAVEOPT")?;
        let name_len = export.len() as u32;
        client.0.write_all(&[OPTION_GO.to_be_bytes(), (6 + name_len).to_be_bytes()].concat())?;
        client.0.write_all(&[&name_len.to_be_bytes(), export.as_bytes(), &[0; 2]].concat())?;
        loop {
            let head = client.read::<20>()?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut body = vec![0; word(16) as usize];
            client.0.read_exact(&mut body)?;
            match word(12) {
                REPLY_ACK => return Ok(client),
                kind if kind & (1 << 31) != 0 => return Err(Error::other(format!("refused: {kind:#x}"))),
                _ => {}
            }
        }
    }

    pub(crate) fn read_at(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(READ, offset, len, &[])?;
        let mut data = vec![0; len];
        self.0.read_exact(&mut data)?;
        Ok(data)
    }

    pub(crate) fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, data.len(), data)
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    pub(crate) fn discard(&mut self, offset: u64, len: usize) -> io::Result<()> {
        self.request(TRIM, offset, len, &[])
    }

    /// Sends a flush without waiting. Until it is answered, later requests may be answered first.
    pub(crate) fn begin_flush(&mut self) -> io::Result<()> {
        self.send(FLUSH, 0, 0, &[])
    }

    fn request(&mut self, command: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<()> {
        self.send(command, offset, len, data)?;
        self.answer()
    }

    fn send(&mut self, command: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<()> {
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(0x2560_9513u32.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(1u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request)
    }

    /// The result of the request that is answered next. The data of a read follows.
    pub(crate) fn answer(&mut self) -> io::Result<()> {
        let reply = self.read::<16>()?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        match i32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            number => Err(Error::from_raw_os_error(number)),
        }
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
