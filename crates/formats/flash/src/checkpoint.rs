//! Checkpoints: the root of the index, the table of the log and the key state map. With them
//! opening reads only the part of the log that was written since.
//!
//! There are two places for checkpoints, used in turn. The content of a checkpoint is encrypted and
//! authenticated as one piece; its head is written last. Invariants:
//! 1. The older checkpoint is overwritten only while the newer one is whole.
//! 2. Opening never falls back to the older checkpoint, whatever was damaged: that would be a
//!    rollback.

use crate::ids::{KeyBlock, NodePlace};
use crate::index::Index;
use crate::key_storage::{KeyStorage, RecoverableKeys};
use crate::log::leb_table::LebUse;
use crate::log::log_writer::LogWriter;
use crate::log::{AppendPosition, Log, damaged};
use crate::params::Layout;
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result, Secret};
use lacuna_crypto::{HedgedNonce, RandomSource, XAES_NONCE, XaesKey, derive};
use lacuna_nand::{Flash, Leb};
use parking_lot::Mutex;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"lacflash";
const VERSION: u32 = 1;
/// Bytes of the head that the tag authenticates, beside the content.
const BOUND_LEN: usize = 24;
const HEAD_LEN: usize = BOUND_LEN + XAES_NONCE + 16;
/// Bytes before the parts of variable length.
const FRONT_LEN: usize = 64;
/// Offset of the floor of sequence numbers.
const FLOOR_AT: usize = 48;
const PURGING: u32 = 1;
const DAMAGED: u32 = 1 << 31;
/// Bytes for each block of the log: the number of live nodes, and the last group.
const TABLE_ENTRY: usize = 12;
/// All numbers stay below this, so that counting never overflows.
const MAX_NUMBER: u64 = 1 << 48;

/// The fields of a checkpoint itself, beside the state of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointHeader {
    /// Where replay begins.
    pub(crate) position: AppendPosition,
    /// The last complete purge.
    pub(crate) epoch: u64,
    /// Whether a purge has begun and is not complete.
    pub(crate) purging: bool,
    /// Deleted keys that were replaced, by a purge or between two purges, and may have a superseded
    /// copy on the flash.
    pub(crate) undrained: RecoverableKeys,
    /// Openings that were cut before their own checkpoint may have used sequence numbers below
    /// this. It counts if it is above the sequence number of the position.
    pub(crate) floor: u64,
}

/// The newest checkpoint.
pub(crate) struct NewestCheckpoint {
    pub(crate) header: CheckpointHeader,
    /// Fresh blocks of keys.
    pub(crate) fresh: Vec<KeyBlock>,
    content: Vec<u8>,
}

/// Reads and writes checkpoints.
pub(crate) struct Checkpoints {
    flash: Arc<dyn Flash>,
    layout: Layout,
    key: XaesKey,
    nonces: HedgedNonce,
    random: Arc<dyn RandomSource>,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<KeyStorage>,
    /// The number of the last checkpoint.
    number: Mutex<u64>,
}

impl Checkpoints {
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
        log: Arc<Log>,
        index: Arc<Index>,
        keys: Arc<KeyStorage>,
    ) -> Checkpoints {
        let key = XaesKey::new(&derive(master, "flash checkpoint", b""));
        let nonces = HedgedNonce::derive(master, "flash checkpoint nonce", b"");
        Checkpoints { flash, layout, key, nonces, random, log, index, keys, number: Mutex::new(0) }
    }

    /// Writes a checkpoint. The caller holds the writer's lock, or is creating or opening the disk.
    /// The log must have room for the dirty pages of the index.
    pub(crate) fn write(&self, log_writer: &LogWriter, epoch: u64, purging: bool) -> Result<()> {
        self.write_now(log_writer, epoch, purging).map_err(|e| e.context("checkpoint"))
    }

    fn write_now(&self, log_writer: &LogWriter, epoch: u64, purging: bool) -> Result<()> {
        log_writer.write_dirty_index()?;
        let Some(position) = self.log.position() else { return Ok(()) };
        let mut number = self.number.lock();
        let undrained = self.keys.undrained();
        let content = self.pack(&CheckpointHeader { position, epoch, purging, undrained, floor: 0 });
        self.put(*number + 1, &content)?;
        *number += 1;
        self.log.note_checkpoint();
        Ok(())
    }

    /// Rewrites the newest checkpoint, with the note that sequence numbers below `floor` may have
    /// been used.
    pub(crate) fn raise_floor(&self, newest: NewestCheckpoint, floor: u64) -> Result<()> {
        let NewestCheckpoint { mut content, .. } = newest;
        LeWriter(&mut content).u64(FLOOR_AT, floor);
        let mut number = self.number.lock();
        self.put(*number + 1, &content).map_err(|e| e.context("checkpoint"))?;
        *number += 1;
        Ok(())
    }

    fn pack(&self, marks: &CheckpointHeader) -> Vec<u8> {
        let at = marks.position;
        let mut out = vec![0; FRONT_LEN];
        let fresh = self.keys.fresh();
        // The number of all keys fits 32 bits; this count may not, since a key may be replaced many
        // times.
        let count = |keys: u64| u32::try_from(keys).unwrap_or(u32::MAX);
        LeWriter(&mut out)
            .u32(0, at.leb)
            .u32(4, at.unit)
            .u32(8, at.next)
            .u32(12, if marks.purging { PURGING } else { 0 })
            .u64(16, at.sequence)
            .u64(24, marks.epoch)
            .u32(32, fresh.len() as u32)
            .u32(36, count(marks.undrained.max))
            .u32(40, count(marks.undrained.known))
            .u64(FLOOR_AT, marks.floor);
        fresh.iter().for_each(|block| out.extend(block.to_le_bytes()));
        self.index.root().iter().for_each(|place| out.extend(place.to_le_bytes()));
        self.log.with_table(|table| {
            for leb in 0..table.len() {
                let damaged = if table.usage(leb) == LebUse::Damaged { DAMAGED } else { 0 };
                out.extend((table.live(leb) | damaged).to_le_bytes());
                out.extend(table.written(leb).to_le_bytes());
            }
        });
        self.keys.pack(&mut out);
        out
    }

    /// Loads the content of a checkpoint into the parts; `None` for content that this version does
    /// not write.
    pub(crate) fn unpack(&self, content: &[u8]) -> Option<(CheckpointHeader, Vec<KeyBlock>)> {
        let record = LeReader(content.get(..FRONT_LEN)?);
        let position = AppendPosition {
            leb: record.u32(0),
            unit: record.u32(4),
            next: record.u32(8),
            sequence: record.u64(16),
        };
        let flags = record.u32(12);
        let undrained = RecoverableKeys { max: record.u32(36).into(), known: record.u32(40).into() };
        let (epoch, floor) = (record.u64(24), record.u64(FLOOR_AT));
        let marks = CheckpointHeader { position, epoch, purging: flags == PURGING, undrained, floor };
        let zeros = record.is_zero(44..FLOOR_AT) && record.is_zero(FLOOR_AT + 8..);
        let sound = flags <= PURGING && undrained.known <= undrained.max && zeros;
        if !sound || [position.sequence, epoch, floor].iter().any(|number| *number >= MAX_NUMBER) {
            return None;
        }
        let part = |at: usize, len: u64| content.get(at..at.checked_add(usize::try_from(len).ok()?)?);
        let mut at = FRONT_LEN;
        let fresh = part(at, 4 * u64::from(record.u32(32)))?;
        at += fresh.len();
        let fresh: Vec<u32> = fresh.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let root = part(at, 8 * u64::from(self.layout.index_pages))?;
        for (page, place) in (0..).zip(root.as_chunks::<8>().0) {
            self.index.set_root(page, NodePlace::unpack(u64::from_le_bytes(*place))).ok()?;
        }
        at += root.len();
        let table = part(at, TABLE_ENTRY as u64 * u64::from(self.layout.log.1))?;
        at += table.len();
        for (leb, entry) in (0..).zip(table.as_chunks::<TABLE_ENTRY>().0) {
            self.unpack_leb(leb, LeReader(entry))?;
        }
        at += self.keys.unpack(content.get(at..)?)?;
        let sound = at == content.len() && fresh.iter().all(|block| *block < self.layout.keys.1);
        sound.then(|| (marks, fresh.into_iter().map(KeyBlock).collect()))
    }

    /// Loads an entry of the table of the log.
    fn unpack_leb(&self, leb: u32, entry: LeReader<'_>) -> Option<()> {
        let live = entry.u32(0) & !DAMAGED;
        let used = match (entry.u32(0) & DAMAGED, live) {
            (0, 0) => LebUse::Free,
            (0, _) => LebUse::Closed,
            _ => LebUse::Damaged,
        };
        self.log.with_table(|table| {
            table.set_live(leb, live);
            table.set_usage(leb, used);
            table.note_written(leb, entry.u64(4));
        });
        // No block has more nodes than units.
        (live <= self.layout.units).then_some(())
    }

    /// Reads the newest checkpoint.
    ///
    /// Errors: [`Kind::Corrupt`] if there is none, if it does not verify, or if its version is
    /// unknown.
    pub(crate) fn read(&self) -> Result<NewestCheckpoint> {
        let (number, half, head) = self.newest()?;
        let content = self.content(half, &head)?.ok_or_else(|| damaged("the newest checkpoint"))?;
        *self.number.lock() = number;
        let (marks, fresh) = self.unpack(&content).ok_or_else(|| damaged("the checkpoint"))?;
        Ok(NewestCheckpoint { header: marks, fresh, content })
    }

    /// Number, place and head of the newest checkpoint. A place with a damaged head is an error:
    /// skipping it would open the other checkpoint, a rollback.
    fn newest(&self) -> Result<(u64, u32, [u8; HEAD_LEN])> {
        let mut heads = vec![];
        for half in 0..2 {
            let mut head = [0; HEAD_LEN];
            self.flash.read(self.leb(half, 0), 0, &mut head)?;
            if head == [0xff; HEAD_LEN] {
                continue;
            }
            let record = LeReader(&head);
            let (version, number) = (record.u32(8), record.u64(16));
            if head[..8] != *MAGIC {
                return Err(damaged("the head of a checkpoint"));
            }
            if version != VERSION {
                return Err(Error::new(Kind::Corrupt, "this disk has another version")
                    .found(format!("version {version}"))
                    .expected(format!("version {VERSION}"))
                    .hint("open it with the version of lacuna that wrote it"));
            }
            if number % 2 != u64::from(half) || number >= MAX_NUMBER {
                return Err(damaged("the head of a checkpoint"));
            }
            heads.push((number, half, head));
        }
        heads.sort_unstable_by_key(|(number, ..)| *number);
        match heads[..] {
            // The first checkpoint of a disk has no older one.
            [first] if first.0 == 1 => Ok(first),
            [older, newer] if newer.0 == older.0 + 1 => Ok(newer),
            _ => Err(damaged("a checkpoint")),
        }
    }

    fn content(&self, half: u32, head: &[u8; HEAD_LEN]) -> Result<Option<Vec<u8>>> {
        let record = LeReader(head);
        let len = record.u32(12) as usize;
        let first = self.layout.page as usize;
        let leb_len = self.layout.leb_len as usize;
        if len > self.layout.checkpoints.1 as usize * leb_len - first {
            return Ok(None);
        }
        let mut content = vec![0; len];
        let (mut done, mut leb, mut offset) = (0, 0, first);
        while done < len {
            let part = (leb_len - offset).min(len - done);
            self.flash.read(self.leb(half, leb), offset as u32, &mut content[done..done + part])?;
            (done, leb, offset) = (done + part, leb + 1, 0);
        }
        let (nonce, tag) = (record.array(BOUND_LEN), record.array(BOUND_LEN + XAES_NONCE));
        let opened = self.key.open_in_place(&nonce, &head[..BOUND_LEN], &mut content, &tag)?;
        Ok(opened.is_ok().then_some(content))
    }

    fn put(&self, number: u64, plain: &[u8]) -> Result<()> {
        let half = (number % 2) as u32;
        let page = self.layout.page as usize;
        let mut head = vec![0xff; page];
        LeWriter(&mut head).put(0, MAGIC).u32(8, VERSION).u32(12, plain.len() as u32).u64(16, number);
        let mut nonce = [0; XAES_NONCE];
        self.random.fill(&mut nonce);
        let nonce = self.nonces.hedge(nonce, &number.to_le_bytes(), plain);
        let mut content = vec![0; plain.len()];
        let tag = self.key.seal(&nonce, &head[..BOUND_LEN], plain, &mut content)?;
        LeWriter(&mut head).put(BOUND_LEN, &nonce).put(BOUND_LEN + XAES_NONCE, &tag);
        debug_assert!(page + content.len() <= (self.layout.checkpoints.1 * self.layout.leb_len) as usize);
        let leb_len = self.layout.leb_len as usize;
        let (start, rest) = content.split_at(content.len().min(leb_len - page));
        for (leb, part) in (1..).zip(rest.chunks(leb_len)) {
            self.flash.change(self.leb(half, leb), &padded(part.to_vec(), page))?;
        }
        head.extend_from_slice(start);
        self.flash.change(self.leb(half, 0), &padded(head, page)).map_err(|e| self.write_error(e, number))
    }

    /// The error of a head that the flash did not take. It counts as a refusal only if the head is
    /// not on the flash: otherwise the next checkpoint with the same number would overwrite the
    /// newest one.
    fn write_error(&self, e: Error, number: u64) -> Error {
        if !e.kind().is_refusal() {
            return e;
        }
        let mut head = [0; HEAD_LEN];
        let read = self.flash.read(self.leb((number % 2) as u32, 0), 0, &mut head);
        if read.is_ok() && LeReader(&head).u64(16) != number { e } else { e.of_sync() }
    }

    fn leb(&self, half: u32, number: u32) -> Leb {
        Leb(self.layout.checkpoints.0 + half * self.layout.checkpoints.1 + number)
    }
}

fn padded(mut bytes: Vec<u8>, page: usize) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(page), 0xff);
    bytes
}
