//! Checkpoints: the root of the index, the table of the log and the key state map, so that opening reads no more of the log than
//! what was written since.
//!
//! There are two places for them, used in turn. Invariant: the older one is overwritten only while the newer one is whole. What a
//! checkpoint holds is encrypted and authenticated as one piece; its head is written last.

use crate::index::Index;
use crate::keys::Keys;
use crate::leb_table::LebUse;
use crate::log::{Log, Position, damaged};
use crate::numbers::{KeyBlock, Place};
use crate::params::Layout;
use crate::placer::Placer;
use lacuna_core::{Record, RecordMut, Result, Secret};
use lacuna_crypto::{GcmKey, RandomSource, derive};
use lacuna_nand::{Flash, Leb};
use parking_lot::Mutex;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"lacflash";
const HEAD: usize = 64;
/// What stands before the parts of variable length.
const FRONT: usize = 64;

/// What a checkpoint says beside what it gives to the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Where replay begins.
    pub(crate) position: Position,
    /// The last purge that is complete.
    pub(crate) epoch: u64,
    /// A purge has begun and is not complete.
    pub(crate) purging: bool,
}

/// Writes checkpoints.
pub(crate) struct Checkpoints {
    flash: Arc<dyn Flash>,
    layout: Layout,
    key: GcmKey,
    random: Arc<dyn RandomSource>,
    log: Arc<Log>,
    index: Arc<Index>,
    keys: Arc<Keys>,
    /// The number of the last one.
    number: Mutex<u64>,
}

impl Checkpoints {
    pub(crate) fn new(
        flash: Arc<dyn Flash>,
        layout: Layout,
        master: &Secret<32>,
        random: Arc<dyn RandomSource>,
        (log, index, keys): (Arc<Log>, Arc<Index>, Arc<Keys>),
    ) -> Result<Checkpoints> {
        let key = GcmKey::new(&derive(master, "flash checkpoint", b""))?;
        Ok(Checkpoints { flash, layout, key, random, log, index, keys, number: Mutex::new(0) })
    }

    /// Writes one. The caller is the one that writes; the log has room for the dirty pages of the index.
    pub(crate) fn write(&self, placer: &Placer, epoch: u64, purging: bool) -> Result<()> {
        while self.index.dirty() > 0 {
            placer.place_index()?;
        }
        let Some(position) = self.log.position() else { return Ok(()) };
        let mut number = self.number.lock();
        let content = self.pack(&Marks { position, epoch, purging });
        self.put(*number + 1, &content)?;
        *number += 1;
        self.log.checkpointed();
        Ok(())
    }

    fn pack(&self, marks: &Marks) -> Vec<u8> {
        let at = marks.position;
        let mut out = vec![0; FRONT];
        let fresh = self.keys.fresh();
        RecordMut(&mut out)
            .u32(0, at.leb)
            .u32(4, at.unit)
            .u32(8, at.next)
            .u32(12, u32::from(marks.purging))
            .u64(16, at.sequence)
            .u64(24, marks.epoch)
            .u32(32, fresh.len() as u32);
        fresh.iter().for_each(|block| out.extend(block.to_le_bytes()));
        self.index.root().iter().for_each(|place| out.extend(place.to_le_bytes()));
        self.log.with_table(|table| {
            for leb in 0..table.len() {
                let damaged = u32::from(table.used(leb) == LebUse::Damaged) << 31;
                out.extend((table.live(leb) | damaged).to_le_bytes());
            }
        });
        self.keys.pack(&mut out);
        out
    }

    /// Gives the parts what a checkpoint holds.
    fn unpack(&self, content: &[u8]) -> Option<(Marks, Vec<KeyBlock>)> {
        let record = Record(content.get(..FRONT)?);
        let position = Position {
            leb: record.u32(0),
            unit: record.u32(4),
            next: record.u32(8),
            sequence: record.u64(16),
        };
        let marks = Marks { position, epoch: record.u64(24), purging: record.u32(12) != 0 };
        let words = |at: usize, count: usize| {
            let bytes = content.get(at..at.checked_add(count.checked_mul(4)?)?)?;
            Some(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>())
        };
        let mut at = FRONT;
        let fresh = words(at, record.u32(32) as usize)?;
        at += 4 * fresh.len();
        let root = content.get(at..at + 8 * self.layout.index_pages as usize)?;
        for (page, place) in (0..).zip(root.as_chunks::<8>().0) {
            self.index.set_root(page, Place::unpack(u64::from_le_bytes(*place))).ok()?;
        }
        at += root.len();
        let table = words(at, self.layout.log.1 as usize)?;
        at += 4 * table.len();
        self.log.with_table(|lebs| {
            for (leb, word) in (0..).zip(table) {
                let live = word & !(1 << 31);
                lebs.set_live(leb, live);
                lebs.set_used(
                    leb,
                    match (word >> 31, live) {
                        (1, _) => LebUse::Damaged,
                        (_, 0) => LebUse::Free,
                        _ => LebUse::Closed,
                    },
                );
            }
        });
        at += self.keys.unpack(content.get(at..)?)?;
        (at == content.len()).then(|| (marks, fresh.into_iter().map(KeyBlock).collect()))
    }

    /// Reads the newest whole one.
    ///
    /// Errors: [`lacuna_core::Kind::Corrupt`] if there is none.
    pub(crate) fn read(&self) -> Result<(Marks, Vec<KeyBlock>)> {
        let mut heads = vec![];
        for half in 0..2 {
            let mut head = [0; HEAD];
            self.flash.read(self.leb(half, 0), 0, &mut head)?;
            let record = Record(&head);
            if head[..8] == *MAGIC {
                heads.push((record.u64(8), half, head));
            }
        }
        heads.sort_unstable_by_key(|(number, ..)| std::cmp::Reverse(*number));
        for (number, half, head) in heads {
            let Some(content) = self.content(half, &head)? else { continue };
            *self.number.lock() = number;
            return self.unpack(&content).ok_or_else(|| damaged("the checkpoint"));
        }
        Err(damaged("every checkpoint"))
    }

    fn content(&self, half: u32, head: &[u8; HEAD]) -> Result<Option<Vec<u8>>> {
        let record = Record(head);
        let len = record.u32(16) as usize;
        let first = self.layout.page.max(HEAD as u32) as usize;
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
        let (nonce, tag) = (record.array::<12>(20), record.array::<16>(32));
        let data = record.u64(8).to_le_bytes();
        let opened = self.key.open_in_place(&nonce, &data, &mut content, &tag);
        Ok(opened.is_ok().then_some(content))
    }

    fn put(&self, number: u64, plain: &[u8]) -> Result<()> {
        let half = (number % 2) as u32;
        let mut nonce = [0; 12];
        self.random.fill(&mut nonce);
        let mut content = vec![0; plain.len()];
        let tag = self.key.seal(&nonce, &number.to_le_bytes(), plain, &mut content);
        let page = self.layout.page as usize;
        let first = page.max(HEAD);
        let mut head = vec![0xff; first];
        RecordMut(&mut head)
            .put(0, MAGIC)
            .u64(8, number)
            .u32(16, plain.len() as u32)
            .put(20, &nonce)
            .put(32, &tag);
        let leb_len = self.layout.leb_len as usize;
        let (start, rest) = content.split_at(content.len().min(leb_len - first));
        for (leb, part) in (1..).zip(rest.chunks(leb_len)) {
            self.flash.change(self.leb(half, leb), &padded(part.to_vec(), page))?;
        }
        head.extend_from_slice(start);
        self.flash.change(self.leb(half, 0), &padded(head, page))
    }

    fn leb(&self, half: u32, number: u32) -> Leb {
        Leb(self.layout.checkpoints.0 + half * self.layout.checkpoints.1 + number)
    }
}

fn padded(mut bytes: Vec<u8>, page: usize) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(page), 0xff);
    bytes
}
