//! The ring and the journal on the medium: the record of a batch, and its head twice.
//!
//! Invariant: the record and both copies of the head go to the medium in one request. A batch
//! counts if a copy of its head verifies and the ring has the record that was written with this
//! head.

use crate::batch::head::{JournalHead, PublicHead};
use crate::cells::place::{BatchSeq, StashSlot};
use crate::params::Params;
use lacuna_contracts::{BLOCK_SIZE, Result, Secret};
use lacuna_levels::retry;
use lacuna_medium::{Medium, WriteExtent};
use std::sync::Arc;

/// Copies of the journal.
pub(crate) const COPIES: u64 = 2;

/// The ring of records, and the two copies of the journal of heads. It has no state: the caller
/// writes one batch after another.
pub(crate) struct Journal {
    medium: Arc<dyn Medium>,
    params: Params,
}

impl Journal {
    pub(crate) fn new(medium: Arc<dyn Medium>, params: Params) -> Journal {
        Journal { medium, params }
    }

    /// Writes a batch. It is durable after a later sync.
    pub(crate) fn append(&self, head: &[u8; BLOCK_SIZE], public: &PublicHead, record: &[u8]) -> Result<()> {
        let record = WriteExtent { offset: self.params.record_offset(public.seq), data: record };
        let head = |copy| WriteExtent { offset: self.params.head_offset(public.seq, copy), data: head };
        self.medium.write(&[record, head(0), head(1)])
    }

    /// The head of batch `seq`, if the journal still has one that `fits`. One readable copy is
    /// enough.
    pub(crate) fn head(
        &self,
        level0: &Secret<32>,
        seq: BatchSeq,
        fits: impl Fn(&JournalHead) -> bool,
    ) -> Result<Option<JournalHead>> {
        let mut failed = Vec::new();
        for copy in 0..COPIES {
            let mut block = [0; BLOCK_SIZE];
            if let Err(e) = retry(|| self.medium.read_at(self.params.head_offset(seq, copy), &mut block)) {
                failed.push(e);
                continue;
            }
            let head = JournalHead::open(&self.params, level0, &block)?;
            if let Some(head) = head.filter(|head| head.public.seq == seq && fits(head)) {
                return Ok(Some(head));
            }
        }
        // Both copies become durable together: if the readable copy is another head, this one never
        // was.
        if failed.len() == 2 { failed.pop().map_or(Ok(None), Err) } else { Ok(None) }
    }

    /// Reads a part of a copy of the journal as raw blocks, starting with the head of batch
    /// `first`. An unreadable block becomes zeros, unless all of them are unreadable: the other
    /// copy may have it, and otherwise the search from the batches before it reaches its place.
    /// Errors: that of the medium if it reads nothing, and a refusal of the system.
    pub(crate) fn read_heads(&self, first: BatchSeq, copy: u64, buf: &mut [u8]) -> Result<()> {
        let Err(e) = self.medium.read_at(self.params.head_offset(first, copy), buf) else { return Ok(()) };
        let mut given = false;
        for (seq, block) in (first.0..).map(BatchSeq).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            match retry(|| self.medium.read_at(self.params.head_offset(seq, copy), block)) {
                Ok(()) => given = true,
                // It cannot be read at the moment, and is not lost.
                Err(e) if e.kind().is_refusal() => return Err(e),
                Err(_) => block.fill(0),
            }
        }
        if given { Ok(()) } else { Err(e) }
    }

    /// Whether the ring has the record of a batch. A record that the medium cannot read whole
    /// counts as present: only its unreadable part is lost, which is less than everything that was
    /// flushed with it. Errors: a refusal of the system.
    pub(crate) fn has_record(&self, head: &JournalHead) -> Result<bool> {
        let mut record = vec![0; self.params.record_len() as usize];
        let offset = self.params.record_offset(head.public.seq);
        match retry(|| self.medium.read_at(offset, &mut record)) {
            Ok(()) => Ok(head.has_record(&record)),
            // A power cut tears a record; at the moment nothing shows whether it did.
            Err(e) if e.kind().is_refusal() => Err(e),
            Err(_) => Ok(true),
        }
    }

    /// Reads a slot of the stash of batch `seq`.
    pub(crate) fn read_stash(&self, seq: BatchSeq, slot: StashSlot, out: &mut [u8]) -> Result<()> {
        retry(|| self.medium.read_at(self.params.stash_offset(seq, slot), out))
    }
}
