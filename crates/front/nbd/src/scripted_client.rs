//! A client of prepared bytes, for fuzz targets and tests.

use crate::exports::Exports;
use crate::memory::ServerMemory;
use crate::negotiate::{HandshakeOutcome, TlsState, handshake};
use crate::stream::Transport;
use crate::transmit::{Connection, ThreadLimits};
use lacuna_contracts::ByteDisk;
use parking_lot::Mutex;
use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::AtomicBool;

/// A client of prepared bytes; its replies are counted and dropped.
pub(crate) struct ScriptedClient<'a> {
    input: Mutex<&'a [u8]>,
    sent: Mutex<u64>,
}

impl<'a> ScriptedClient<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        ScriptedClient { input: Mutex::new(input), sent: Mutex::new(0) }
    }

    pub(crate) fn sent(&self) -> u64 {
        *self.sent.lock()
    }
}

/// Serves a client that sends `bytes` and then leaves, in this thread, to completion: negotiation,
/// then transmission of `disk` as exports `""` and `"0"`. Returns how many bytes the client would
/// have received.
///
/// The cost of reads and of real zeros grows with the length of the requests, so fuzz targets
/// should use a small disk.
pub fn serve(bytes: &[u8], disk: ByteDisk) -> u64 {
    let client = ScriptedClient::new(bytes);
    if let Ok(HandshakeOutcome::Transmit(session)) =
        handshake(&mut &client, &Exports::levels([disk]), TlsState::Offered)
    {
        let limits = ThreadLimits { workers: 1, max_workers: 1 };
        let memory = ServerMemory::new(64 << 20);
        Connection::new(&client, session, None, &AtomicBool::new(false), limits, memory.of(0)).run();
    }
    client.sent()
}

impl Transport for ScriptedClient<'_> {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.lock().read(buf)
    }

    fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        *self.sent.lock() += len as u64;
        Ok(())
    }

    fn try_send(&self, slices: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
        self.send(slices)?;
        *slices = &mut [];
        Ok(())
    }

    fn hang_up(&self) {
        *self.input.lock() = &[];
    }
}

impl Read for &ScriptedClient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf)
    }
}

impl Write for &ScriptedClient<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send(&mut [IoSlice::new(data)])?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
