//! An NBD client that keeps a number of requests in flight on one connection: it fills the depth,
//! then sends one request for each reply. It does not check contents; a reply with an error ends
//! the run.

use crate::serving::job::{Direction, IoJob};
use crate::serving::request_offsets::RequestOffsets;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_sim::Rng;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_ERROR: u32 = 1 << 31;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REQUEST: usize = 28;
const REPLY: usize = 16;
const FLUSH: u16 = 3;

/// Maximum bytes received at once.
const RECEIVE_LEN: usize = 1 << 20;
/// Random bytes from which writes take their contents, at varying offsets.
const CONTENT_LEN: usize = 8 << 20;

/// Time limit of a request; longer than a flush to a slow medium takes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A connection to one export.
pub(crate) struct LoadClient {
    stream: UnixStream,
    received: Vec<u8>,
    written: usize,
}

impl LoadClient {
    /// Connects to an export of a server.
    pub(crate) fn connect(socket: &Path, export: &str) -> Result<LoadClient> {
        let connected = || -> io::Result<LoadClient> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
            stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
            negotiate(&mut stream, export)?;
            Ok(LoadClient { stream, received: vec![0; RECEIVE_LEN], written: 0 })
        };
        connected().map_err(|e| failed("cannot connect to a server", &e))
    }

    /// Sends `count` requests of a job on a disk of `disk` bytes, and calls `replied` with the
    /// latency of each request.
    pub(crate) fn perform(
        &mut self,
        job: IoJob,
        disk: u64,
        places: &mut RequestOffsets,
        count: u64,
        mut replied: impl FnMut(Duration),
    ) -> Result<()> {
        let flush_after = job.fsync.map_or(count, u64::from);
        let mut left = count;
        while left > 0 {
            let batch = left.min(flush_after);
            self.pipeline(job, disk, places, batch, &mut replied)
                .map_err(|e| failed(&format!("cannot do {}", job.name()), &e))?;
            left -= batch;
            if job.fsync.is_some() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Makes acknowledged writes durable.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let mut flushed = || -> io::Result<()> {
            self.stream.write_all(&header(FLUSH, 0, 0, 0))?;
            let mut reply = [0; REPLY];
            self.stream.read_exact(&mut reply)?;
            cookie_of(&reply).map(drop)
        };
        flushed().map_err(|e| failed("cannot flush", &e))
    }

    fn pipeline(
        &mut self,
        job: IoJob,
        disk: u64,
        places: &mut RequestOffsets,
        count: u64,
        replied: &mut impl FnMut(Duration),
    ) -> io::Result<()> {
        let depth = u64::from(job.depth).min(count) as usize;
        let mut sent_at = vec![Instant::now(); depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let (mut to_send, mut to_come) = (count, count);
        // Received bytes in the inbox, and content bytes of the current reply still to come.
        let (mut filled, mut content) = (0, 0);
        // The request with content still to come.
        let mut coming: Option<usize> = None;
        while to_come > 0 {
            let batch = free.len().min(to_send as usize);
            if batch > 0 {
                let slots = free.split_off(free.len() - batch);
                let now = Instant::now();
                slots.iter().for_each(|slot| sent_at[*slot] = now);
                self.send(job, disk, places, &slots)?;
                to_send -= batch as u64;
            }
            let got = self.stream.read(&mut self.received[filled..])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += got;
            let mut at = 0;
            loop {
                let skipped = content.min(filled - at);
                (at, content) = (at + skipped, content - skipped);
                if content > 0 {
                    break;
                }
                if let Some(slot) = coming.take() {
                    let sent: &Instant = sent_at.get(slot).ok_or(io::ErrorKind::InvalidData)?;
                    replied(sent.elapsed());
                    free.push(slot);
                    to_come -= 1;
                }
                if filled - at < REPLY {
                    break;
                }
                let slot = cookie_of(&self.received[at..at + REPLY])? as usize;
                at += REPLY;
                content = if job.direction == Direction::Read { job.size as usize } else { 0 };
                coming = Some(slot);
            }
            self.received.copy_within(at..filled, 0);
            filled -= at;
        }
        Ok(())
    }

    /// Sends one request for each slot, in one batch.
    fn send(
        &mut self,
        job: IoJob,
        disk: u64,
        places: &mut RequestOffsets,
        slots: &[usize],
    ) -> io::Result<()> {
        let size = job.size as usize;
        let writes = job.direction == Direction::Write;
        let headers: Vec<[u8; REQUEST]> = slots
            .iter()
            .map(|slot| header(u16::from(writes), *slot as u64, places.next(job, disk), job.size))
            .collect();
        let mut parts = Vec::with_capacity(2 * slots.len());
        for header in &headers {
            parts.push(IoSlice::new(header));
            if writes {
                // Consecutive writes have different contents.
                let from = self.written * 4160 % (CONTENT_LEN - size);
                self.written += 1;
                parts.push(IoSlice::new(&content()[from..from + size]));
            }
        }
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let sent = self.stream.write_vectored(parts)?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut parts, sent);
        }
        Ok(())
    }
}

/// The contents of all writes, generated once.
fn content() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| Rng::new(9).bytes(CONTENT_LEN))
}

/// Negotiates an export, without options.
fn negotiate(stream: &mut UnixStream, export: &str) -> io::Result<()> {
    stream.read_exact(&mut [0; 18])?;
    let name = export.len() as u32;
    let words = [&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes()[..], b"IHAVEOPT", &OPTION_GO.to_be_bytes()];
    stream.write_all(&words.concat())?;
    let body = [&(6 + name).to_be_bytes()[..], &name.to_be_bytes(), export.as_bytes(), &[0; 2]];
    stream.write_all(&body.concat())?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let kind = word(&head, 12);
        io::copy(&mut Read::by_ref(stream).take(u64::from(word(&head, 16))), &mut io::sink())?;
        if kind == REPLY_ACK {
            return Ok(());
        }
        if kind & REPLY_ERROR != 0 {
            return Err(io::Error::other(format!("the server refuses export {export:?}: {kind:#x}")));
        }
    }
}

fn header(command: u16, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST] {
    let mut header = [0; REQUEST];
    header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&length.to_be_bytes());
    header
}

/// The cookie of a simple reply. Errors: if it is no simple reply, or reports an error.
fn cookie_of(reply: &[u8]) -> io::Result<u64> {
    if word(reply, 0) != REPLY_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a reply"));
    }
    match word(reply, 4) {
        0 => Ok(u64::from(word(reply, 8)) << 32 | u64::from(word(reply, 12))),
        errno => Err(io::Error::from_raw_os_error(errno as i32)),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn failed(what: &str, e: &io::Error) -> Error {
    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return Error::new(Kind::TimedOut, what)
            .found(format!("no reply in {} s", REQUEST_TIMEOUT.as_secs()));
    }
    Error::io(what, e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Serves one connection: answers each read with its length in bytes, writes without content,
    /// and request number `fail_at` with EIO.
    fn serve(listener: &UnixListener, fail_at: u64) -> io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[0; 18])?;
        stream.read_exact(&mut [0; 4 + 8 + 4 + 4 + 6])?;
        stream.write_all(&[&[0; 12][..], &REPLY_ACK.to_be_bytes(), &[0; 4]].concat())?;
        let mut served = 0;
        loop {
            let mut head = [0; REQUEST];
            if stream.read_exact(&mut head).is_err() {
                return Ok(served);
            }
            let (command, length) = (head[7], word(&head, 24) as usize);
            if command == 1 {
                stream.read_exact(&mut vec![0; length])?;
            }
            served += 1;
            let errno = if served == fail_at { 5u32 } else { 0 };
            stream
                .write_all(&[&REPLY_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &head[8..16]].concat())?;
            if command == 0 && errno == 0 {
                stream.write_all(&vec![7; length])?;
            }
        }
    }

    fn with_server(fail_at: u64, use_it: impl FnOnce(&mut LoadClient) -> Result<()>) -> (Result<()>, u64) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, fail_at).unwrap());
            let mut client = LoadClient::connect(&socket, "").unwrap();
            let used = use_it(&mut client);
            drop(client);
            (used, server.join().unwrap())
        })
    }

    #[test]
    fn every_request_is_answered_and_timed_and_flushes_stand_between() {
        let (used, served) = with_server(0, |client| {
            let (mut places, mut latencies) = (RequestOffsets::new(1), Vec::new());
            for (direction, size) in
                [(Direction::Read, 4096), (Direction::Read, 2 << 20), (Direction::Write, 4096)]
            {
                let job = IoJob::of_size(direction, size);
                client.perform(job, 16 << 20, &mut places, 100, |latency| latencies.push(latency))?;
            }
            let synced = IoJob { fsync: Some(32), ..IoJob::of_size(Direction::Write, 4096) };
            client.perform(synced, 16 << 20, &mut places, 70, |latency| latencies.push(latency))?;
            assert_eq!(latencies.len(), 370);
            Ok(())
        });
        used.unwrap();
        assert_eq!(served, 300 + 70 + 3);
    }

    #[test]
    fn an_error_of_the_server_ends_the_run() {
        let (used, _) = with_server(3, |client| {
            let job = IoJob { depth: 1, ..IoJob::of_size(Direction::Read, 4096) };
            client.perform(job, 1 << 20, &mut RequestOffsets::new(1), 10, drop)
        });
        assert!(used.unwrap_err().to_string().contains("random 4 KiB read"));
    }
}
