//! A client made of prepared bytes, for fuzzing and tests.

use crate::stream::Transport;
use parking_lot::Mutex;
use std::io::{self, IoSlice, Read, Write};

/// A client made of prepared bytes, whose replies are counted and dropped.
pub(crate) struct Replay<'a> {
    input: Mutex<&'a [u8]>,
    sent: Mutex<u64>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Replay { input: Mutex::new(input), sent: Mutex::new(0) }
    }

    pub(crate) fn sent(&self) -> u64 {
        *self.sent.lock()
    }
}

impl Transport for Replay<'_> {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.lock().read(buf)
    }

    fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        *self.sent.lock() += len as u64;
        Ok(())
    }

    fn send_now(&self, slices: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
        self.send(slices)?;
        *slices = &mut [];
        Ok(())
    }

    fn hang_up(&self) {
        *self.input.lock() = &[];
    }
}

impl Read for &Replay<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf)
    }
}

impl Write for &Replay<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(&mut [IoSlice::new(data)])?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
