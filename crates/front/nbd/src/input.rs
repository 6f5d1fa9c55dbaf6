//! The receiving side of a connection: the buffer of received bytes that are not parsed yet.

use crate::stream::Transport;
use crate::wire::REQUEST_LEN;
use lacuna_contracts::wipe;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

const CAPACITY: usize = 64 << 10;

/// A receive buffer, so that requests that arrive together cost one system call.
pub(crate) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The end of the received bytes since the last wipe of the buffer.
    dirty_end: usize,
    /// No more requests are read.
    pub(crate) ended: bool,
    poller: ReadPoller,
}

/// How long a reader polls for the next request before it sleeps. Waking a sleeping thread costs
/// more than most requests, and a client with one request at a time pays that for each.
#[derive(Default)]
struct ReadPoller {
    /// Consecutive polls without a result.
    failed_polls: u32,
    /// Number of requests for which the reader sleeps without polling.
    polls_to_skip: u32,
}

/// Duration of one poll.
const POLL_TIME: Duration = Duration::from_micros(50);

impl ReadPoller {
    /// Returns bytes that arrive during the poll; `None` tells the reader to sleep. Polls become
    /// rare when they keep failing.
    fn poll<T: Transport>(&mut self, transport: &T, buf: &mut [u8]) -> io::Result<Option<usize>> {
        if !T::CAN_POLL {
            return Ok(None);
        }
        if self.polls_to_skip > 0 {
            self.polls_to_skip -= 1;
            return Ok(None);
        }
        let began = Instant::now();
        loop {
            let got = transport.try_recv(buf)?;
            if got.is_some() {
                self.failed_polls = 0;
                return Ok(got);
            }
            if began.elapsed() >= POLL_TIME {
                self.failed_polls = (self.failed_polls + 1).min(10);
                self.polls_to_skip = (1 << self.failed_polls) >> 2;
                return Ok(None);
            }
            // Other threads may have this processor.
            std::thread::yield_now();
        }
    }
}

impl Input {
    pub(crate) fn new() -> Self {
        Input {
            bytes: vec![0; CAPACITY].into_boxed_slice(),
            start: 0,
            end: 0,
            dirty_end: 0,
            ended: false,
            poller: ReadPoller::default(),
        }
    }

    /// Records that the buffer holds bytes up to `end`.
    fn received(&mut self, end: usize) {
        self.end = end;
        self.dirty_end = self.dirty_end.max(end);
    }

    /// Wipes consumed bytes, because payloads of small requests pass through the buffer.
    fn wipe(&mut self) {
        wipe(&mut self.bytes[..self.start]);
        if self.end < self.dirty_end {
            wipe(&mut self.bytes[self.end..self.dirty_end]);
            self.dirty_end = self.end;
        }
    }

    /// Number of bytes that are not parsed yet.
    pub(crate) fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// The next header, if it has been received already. It stays in the buffer.
    pub(crate) fn peek(&self) -> Option<&[u8; REQUEST_LEN]> {
        self.bytes[self.start..self.end].first_chunk()
    }

    /// Waits for the next header; `None` at the end of the stream.
    pub(crate) fn header(&mut self, transport: &impl Transport) -> io::Result<Option<[u8; REQUEST_LEN]>> {
        while self.buffered() < REQUEST_LEN {
            if CAPACITY - self.start < REQUEST_LEN || self.start == self.end {
                self.bytes.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let got = if let Some(got) = self.poller.poll(transport, &mut self.bytes[self.end..])? {
                got
            } else {
                // The next request may take long to arrive.
                self.wipe();
                transport.recv(&mut self.bytes[self.end..])?
            };
            if got == 0 {
                return Ok(None);
            }
            self.received(self.end + got);
        }
        let header = self.peek().copied();
        self.start += REQUEST_LEN;
        Ok(header)
    }

    /// Fills `payload` from the buffer first and then from the stream.
    pub(crate) fn payload(&mut self, transport: &impl Transport, payload: &mut [u8]) -> io::Result<()> {
        let mut done = self.buffered().min(payload.len());
        payload[..done].copy_from_slice(&self.bytes[self.start..self.start + done]);
        self.start += done;
        while done < payload.len() {
            match transport.recv(&mut payload[done..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => done += got,
            }
        }
        Ok(())
    }

    /// Drops the next `len` bytes of the stream.
    pub(crate) fn skip(&mut self, transport: &impl Transport, len: u64) -> io::Result<()> {
        let mut left = len;
        loop {
            let part = (self.buffered() as u64).min(left);
            self.start += part as usize;
            left -= part;
            if left == 0 {
                return Ok(());
            }
            self.start = 0;
            let got = transport.recv(&mut self.bytes)?;
            self.received(got);
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        wipe(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted_client::ScriptedClient;

    #[test]
    fn consumed_bytes_are_wiped_before_the_reader_waits() {
        let mut bytes = vec![7; REQUEST_LEN + 5000];
        bytes.extend([8; REQUEST_LEN]);
        let client = ScriptedClient::new(&bytes);
        let mut input = Input::new();
        input.header(&client).unwrap();
        input.payload(&client, &mut [0; 5000]).unwrap();
        assert!(input.header(&client).unwrap().is_some());
        assert!(input.header(&client).unwrap().is_none());
        assert!(input.bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn headers_and_payloads_come_out_in_order() {
        let mut bytes = Vec::new();
        for i in 0..3000u32 {
            bytes.extend([i as u8; REQUEST_LEN]);
            bytes.extend(vec![!(i as u8); (i % 97) as usize]);
        }
        let client = ScriptedClient::new(&bytes);
        let mut input = Input::new();
        for i in 0..3000u32 {
            assert_eq!(input.header(&client).unwrap().unwrap(), [i as u8; REQUEST_LEN]);
            let len = (i % 97) as usize;
            if i % 2 == 0 {
                input.skip(&client, len as u64).unwrap();
            } else {
                let mut payload = vec![0; len];
                input.payload(&client, &mut payload).unwrap();
                assert!(payload.iter().all(|b| *b == !(i as u8)));
            }
        }
        assert!(input.header(&client).unwrap().is_none());
        assert!(input.skip(&client, 1).is_err());
        assert!(input.payload(&client, &mut [0]).is_err());
    }
}
