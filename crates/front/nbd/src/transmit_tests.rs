//! Tests which buffers a connection keeps between requests, and which request reuses them.

use super::*;
use crate::exports::Exports;
use crate::memory::ServerMemory;
use crate::negotiate::{HandshakeOutcome, TlsState, handshake};
use crate::scripted_client::ScriptedClient;
use lacuna_contracts::{ByteDisk, Status};
use lacuna_testkit::StatusOnlyDisk;
use std::sync::Arc;

/// Runs `test` with a connection to a disk that shares the memory of a server.
fn with_connection(test: impl FnOnce(&Connection<ScriptedClient>, &Arc<LevelMemory>)) {
    // Flags, then the default export with EXPORT_NAME.
    let hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
    let client = ScriptedClient::new(&hello);
    let exports = Exports::levels([ByteDisk::new(Arc::new(StatusOnlyDisk(Status::default, || Ok(()))))]);
    let Ok(HandshakeOutcome::Transmit(session)) = handshake(&mut &client, &exports, TlsState::Unavailable)
    else {
        panic!("no session");
    };
    let memory = ServerMemory::new(64 << 20);
    let limits = ThreadLimits { workers: 1, max_workers: 1 };
    let stopping = AtomicBool::new(false);
    test(&Connection::new(&client, session, None, &stopping, limits, memory.of(0)), memory.of(0));
}

/// Takes a buffer of `len` bytes for a request; also returns its address.
fn take(connection: &Connection<ScriptedClient>, len: usize) -> (LargeBuffer, *const u8) {
    let mut hands = WorkerState::default();
    connection.acquire_buffer(&mut hands, len).unwrap();
    let large = hands.large.take().unwrap();
    let at = large.bytes.as_ptr();
    (large, at)
}

/// Returns the buffer to the connection.
fn keep(connection: &Connection<ScriptedClient>, large: LargeBuffer) {
    connection.release_buffers(&mut WorkerState { large: Some(large), ..WorkerState::default() });
}

fn spare(connection: &Connection<ScriptedClient>) -> usize {
    connection.spare.len()
}

#[test]
fn a_spare_buffer_serves_the_next_large_request() {
    with_connection(|connection, level| {
        let (first, at) = take(connection, 1 << 20);
        keep(connection, first);
        let (second, again) = take(connection, 512 << 10);
        assert_eq!((again, second.bytes.len(), spare(connection)), (at, 1 << 20, 0));
        keep(connection, second);
        // A buffer that is too small gives up its right to be kept, and no byte is granted twice.
        let (larger, _) = take(connection, 2 << 20);
        assert_eq!((larger.bytes.len(), larger.quota.bytes(), spare(connection)), (2 << 20, 2 << 20, 0));
        drop(larger);
        assert!(level.keep_quota().try_grow_to(2 << 20));
    });
}

#[test]
fn a_buffer_that_is_too_large_to_keep_goes_at_once() {
    with_connection(|connection, _| {
        for len in [MOST_KEPT + 1, 32 << 20, 64 << 20] {
            let mut hands = WorkerState::default();
            connection.acquire_buffer(&mut hands, len).unwrap();
            assert!(hands.shared.is_some(), "{len} bytes without an account");
            // The shared memory is available to the next request once this one has returned its
            // part.
            connection.release_buffers(&mut hands);
            assert!(spare(connection) == 0 && hands.shared.is_none());
        }
    });
}

#[test]
fn a_connection_keeps_four_buffers_at_most() {
    with_connection(|connection, level| {
        let all: Vec<_> = (0..=MOST_SPARE).map(|_| take(connection, MOST_KEPT).0).collect();
        all.into_iter().for_each(|large| keep(connection, large));
        assert_eq!(spare(connection), MOST_SPARE);
        let mut rights: Vec<_> = (0..9).map(|_| level.keep_quota()).collect();
        let granted =
            rights.iter_mut().filter_map(|right| right.try_grow_to(MOST_KEPT).then_some(())).count();
        assert_eq!(granted, 4, "of 32 MiB four buffers hold a half, and no more");
    });
}

#[test]
fn small_requests_share_memory_one_after_the_other() {
    with_connection(|connection, _| {
        let one = || {
            let mut hands = WorkerState::default();
            connection.acquire_buffer(&mut hands, 4096).unwrap();
            let at = hands.memory().as_ptr();
            connection.release_buffers(&mut hands);
            assert!(hands.memory().is_empty(), "a thread that waits has none");
            (connection.small.len(), at)
        };
        let first = one();
        assert_eq!((first.0, first), (1, one()));
    });
}
