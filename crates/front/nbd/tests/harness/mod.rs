//! Shared by the tests of this crate: a disk in memory with switches, a running server, and a small
//! client.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod client;

use client::RawClient;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, ByteDisk, Disk, Error, Extent, Kind, Result, Status};
use lacuna_nbd::{Exports, Listen, NbdServer, ServerSettings, StopHandle};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread::JoinHandle;

/// A disk in memory.
pub(crate) struct GatedDisk {
    bytes: RwLock<Vec<u8>>,
    written: RwLock<Vec<bool>>,
    read_only: bool,
    /// Reads and writes of this block fail as corrupt.
    pub bad_block: AtomicU64,
    pub flushes: AtomicU64,
    pub writes: AtomicU64,
    /// While closed, flushes wait.
    gate: Mutex<bool>,
    gate_moved: Condvar,
    pub at_gate: AtomicU64,
    /// Writes wait at the gate as well.
    pub gate_writes: AtomicBool,
    pub closed: AtomicBool,
}

impl GatedDisk {
    pub(crate) fn new(blocks: usize) -> Arc<Self> {
        Self::with(blocks, false)
    }

    pub(crate) fn with(blocks: usize, read_only: bool) -> Arc<Self> {
        Arc::new(GatedDisk {
            bytes: RwLock::new(vec![0; blocks * BLOCK_SIZE]),
            written: RwLock::new(vec![false; blocks]),
            read_only,
            bad_block: AtomicU64::new(u64::MAX),
            flushes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            gate: Mutex::new(true),
            gate_moved: Condvar::new(),
            at_gate: AtomicU64::new(0),
            gate_writes: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        self.bytes.read().unwrap().clone()
    }

    pub(crate) fn byte_disk(self: &Arc<Self>) -> ByteDisk {
        ByteDisk::new(self.clone())
    }

    pub(crate) fn exports(self: &Arc<Self>) -> Exports {
        Exports::levels([self.byte_disk()])
    }

    pub(crate) fn open_gate(&self, open: bool) {
        *self.gate.lock().unwrap() = open;
        self.gate_moved.notify_all();
    }

    fn pass_gate(&self) {
        self.at_gate.fetch_add(1, Ordering::SeqCst);
        let mut open = self.gate.lock().unwrap();
        while !*open {
            open = self.gate_moved.wait(open).unwrap();
        }
        self.at_gate.fetch_sub(1, Ordering::SeqCst);
    }

    fn check(&self, first: BlockAddr, count: u64) -> Result<()> {
        if (first.0..first.0 + count).contains(&self.bad_block.load(Ordering::SeqCst)) {
            return Err(Error::new(Kind::Corrupt, "a block does not verify"));
        }
        Ok(())
    }
}

impl Disk for GatedDisk {
    fn blocks(&self) -> u64 {
        self.written.read().unwrap().len() as u64
    }
    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.check(first, (buf.len() / BLOCK_SIZE) as u64)?;
        let at = first.0 as usize * BLOCK_SIZE;
        buf.copy_from_slice(&self.bytes.read().unwrap()[at..at + buf.len()]);
        Ok(())
    }
    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.check(first, (data.len() / BLOCK_SIZE) as u64)?;
        if self.gate_writes.load(Ordering::SeqCst) {
            self.pass_gate();
        }
        let at = first.0 as usize * BLOCK_SIZE;
        self.bytes.write().unwrap()[at..at + data.len()].copy_from_slice(data);
        self.written.write().unwrap()[first.0 as usize..][..data.len() / BLOCK_SIZE].fill(true);
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        let at = first.0 as usize * BLOCK_SIZE;
        self.bytes.write().unwrap()[at..at + count as usize * BLOCK_SIZE].fill(0);
        self.written.write().unwrap()[first.0 as usize..][..count as usize].fill(false);
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.pass_gate();
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let written = self.written.read().unwrap();
        let range = &written[first.0 as usize..][..count as usize];
        // Extents are deliberately not merged: neighbours may have the same state.
        Ok(range.iter().map(|written| Extent { blocks: 1, written: *written }).collect())
    }
    fn status(&self) -> Status {
        Status::default()
    }
    fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// A server in a thread of its own, stopped on drop.
pub(crate) struct ServerThread {
    pub directory: tempfile::TempDir,
    pub uri: String,
    pub stop: StopHandle,
    thread: Option<JoinHandle<Result<()>>>,
}

impl ServerThread {
    /// Serves on a unix socket in a fresh directory.
    pub(crate) fn unix(exports: Exports, settings: ServerSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(directory.path().join("nbd.sock"));
        Self::start(directory, &listen, exports, settings)
    }

    pub(crate) fn start(
        directory: tempfile::TempDir,
        listen: &Listen,
        exports: Exports,
        settings: ServerSettings,
    ) -> Self {
        let server = NbdServer::bind(std::slice::from_ref(listen), exports, settings).unwrap();
        let (uri, stop) = (server.uris().remove(0), StopHandle::new().unwrap());
        let handle = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&handle)));
        ServerThread { directory, uri, stop, thread }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd.sock")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits for the server to end after it was told to stop.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("server thread").expect("server");
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.stop();
        if !std::thread::panicking() {
            self.join();
        }
    }
}

/// A disk of this number of blocks, its server, and a client of it.
pub(crate) fn served(blocks: usize, structured: bool) -> (Arc<GatedDisk>, ServerThread, RawClient) {
    let disk = GatedDisk::new(blocks);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    let client = RawClient::connect(&server.socket(), structured);
    (disk, server, client)
}

/// Runs a program and requires success.
pub(crate) fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
