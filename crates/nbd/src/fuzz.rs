//! The seam for fuzz targets.

use crate::exports::Exports;
use crate::memory::ServerMemory;
use crate::negotiate::{Outcome, TlsState, handshake};
use crate::replay::Replay;
use crate::transmit::{Connection, Crew};
use lacuna_core::ByteDisk;
use std::sync::atomic::AtomicBool;

/// Serves a client that sends `bytes` and then leaves, in this thread, to completion: negotiation, then
/// transmission of `disk` as exports `""` and `"0"`. Returns how many bytes the client would have got.
///
/// Reads and real zeros cost what the requests ask for, so fuzz targets do best with a small disk.
pub fn fuzz_serve(bytes: &[u8], disk: ByteDisk) -> u64 {
    let client = Replay::new(bytes);
    if let Ok(Outcome::Transmit(session)) =
        handshake(&mut &client, &Exports::levels([disk]), TlsState::Offered)
    {
        let crew = Crew { workers: 1, max_workers: 1 };
        let memory = ServerMemory::new(64 << 20);
        Connection::new(&client, session, None, &AtomicBool::new(false), crew, memory.of(0)).run();
    }
    client.sent()
}
