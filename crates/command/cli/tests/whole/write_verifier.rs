//! Clients that write self-describing blocks until their server dies, and then check the contents
//! of the disk.

use crate::nbd_client::Client;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 4096;

/// A self-describing block: its address, the version, and bytes that depend on both.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut state =
        block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    let mut bytes = Vec::with_capacity(BLOCK);
    bytes.extend(block.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    while bytes.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// The version of a block, 0 if it was never written; `None` for a mixture.
fn version_in(block: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let whole = if version == 0 { bytes.iter().all(|b| *b == 0) } else { bytes == content(block, version) };
    whole.then_some(version)
}

/// Pseudorandom numbers from a seed that is not 0.
pub(crate) struct Xorshift(pub u64);

impl Xorshift {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A writer's record of its blocks: the last version sent and the last version flushed of each.
pub(crate) struct WriteVerifier {
    export: &'static str,
    first: u64,
    /// Number of blocks of the longest run that it writes.
    longest: u64,
    sent: Vec<u64>,
    flushed: Vec<u64>,
    version: u64,
    keeps_acknowledged: bool,
}

impl WriteVerifier {
    /// Makes the record for unwritten blocks of an export.
    pub(crate) fn new(export: &'static str, blocks: Range<u64>, longest: u64) -> WriteVerifier {
        let none = vec![0; (blocks.end - blocks.start) as usize];
        WriteVerifier {
            export,
            first: blocks.start,
            longest,
            sent: none.clone(),
            flushed: none,
            version: 0,
            keeps_acknowledged: false,
        }
    }

    /// Expects acknowledged writes to survive the death of the server, flushed or not.
    pub(crate) fn keep_acknowledged(&mut self) {
        self.keeps_acknowledged = true;
    }

    fn blocks(&self) -> u64 {
        self.sent.len() as u64
    }

    /// Writes short and long runs of blocks, with occasional flushes, until the server dies.
    pub(crate) fn write_until_death(&mut self, socket: &Path, dice: &mut Xorshift, acknowledged: &AtomicU64) {
        let Ok(mut client) = Client::connect_to(socket, self.export) else { return };
        while self.write(&mut client, dice).is_ok() {
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a short or long run of blocks, and flushes at times.
    pub(crate) fn write(&mut self, client: &mut Client, dice: &mut Xorshift) -> io::Result<()> {
        let most = if dice.below(8) == 0 { self.longest } else { 6 };
        let count = 1 + dice.below(most);
        let at = dice.below(self.blocks() - count + 1);
        self.version += 1;
        let mut data = Vec::with_capacity(count as usize * BLOCK);
        for block in at..at + count {
            data.extend(content(self.first + block, self.version));
            self.sent[block as usize] = self.version;
        }
        client.write_at((self.first + at) * BLOCK as u64, &data)?;
        if self.keeps_acknowledged {
            self.flushed[at as usize..(at + count) as usize].fill(self.version);
        }
        if dice.below(12) == 0 {
            // A flush covers all earlier acknowledged writes, and all of them are from this thread.
            client.flush()?;
            self.flushed.copy_from_slice(&self.sent);
        }
        Ok(())
    }

    /// Checks that every block holds one whole version in the allowed range, and takes that version
    /// as the flushed one.
    pub(crate) fn verify(&mut self, client: &mut Client, what: &str) {
        let all = self.blocks();
        for (at, blocks) in (0..all).step_by(256).map(|at| (at, 256.min(all - at))) {
            let first = self.first + at;
            let data = client.read_at(first * BLOCK as u64, blocks as usize * BLOCK).unwrap();
            for (block, bytes) in (at..).zip(data.chunks_exact(BLOCK)) {
                let (sent, flushed) = (self.sent[block as usize], self.flushed[block as usize]);
                let name = self.first + block;
                let version = version_in(name, bytes);
                let version = version.unwrap_or_else(|| panic!("{what}: block {name} is a mixture"));
                assert!(
                    (flushed..=sent).contains(&version),
                    "{what}: block {name} holds version {version}; flushed was {flushed}, sent {sent}"
                );
                self.flushed[block as usize] = version;
                self.sent[block as usize] = version;
            }
        }
    }
}
