//! Flat bytes striped over the objects of an object store.
//!
//! Object n holds the bytes from n * 4 MiB; an absent object reads as zeros. Object 0 ends, behind
//! its stripe, in a record of the length. So a small medium is one object, and needs no keys, which
//! some stores lack.
//!
//! Invariants kept here:
//! - Bytes beyond the recorded length (in object 0: up to the record) read as zeros: they are
//!   zeroed before the length shrinks, and never written past it. So growing is one small write.
//! - Every write is durable when it returns, as the store's transactions are.

use crate::{
    KeySelection, Medium, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent, WriteExtent,
    check_range, pieces,
};
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the medium per object.
const STRIPE: u64 = 4 << 20;
/// The start of the record; its last byte is the version of the layout.
const MAGIC: [u8; 8] = *b"lacunaS\x01";
/// Bytes of the record: magic, stripe size and length, 8 bytes each, little-endian.
const RECORD_LEN: usize = 24;
/// Objects that are zeroed at once.
const AT_ONCE: usize = 64;

/// A [`Medium`] on numbered objects. The caller ensures that there is only one writer.
pub struct StripedMedium {
    store: Arc<dyn ObjectStore>,
    /// Locked for writing while it changes, so that no write passes a new end.
    len: RwLock<u64>,
}

fn record(len: u64) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    record[..8].copy_from_slice(&MAGIC);
    record[8..16].copy_from_slice(&STRIPE.to_le_bytes());
    record[16..].copy_from_slice(&len.to_le_bytes());
    record
}

impl StripedMedium {
    /// Creates a medium of `len` zero bytes in an empty store.
    ///
    /// Errors: [`Kind::Exists`] if there is one.
    pub fn create(store: Arc<dyn ObjectStore>, len: u64) -> Result<Self> {
        let record = record(len);
        let steps = vec![ObjectStep::Create, ObjectStep::Write { offset: STRIPE, data: &record }];
        store
            .apply_one(ObjectTransaction { object: 0, steps })
            .map_err(|e| e.context("cannot make a striped medium"))?;
        Ok(StripedMedium { store, len: RwLock::new(len) })
    }

    /// Opens the medium in a store.
    ///
    /// Errors: [`Kind::NotFound`] if there is none.
    pub fn open(store: Arc<dyn ObjectStore>) -> Result<Self> {
        let what = "cannot open a striped medium";
        let mut found = [0; RECORD_LEN];
        let extents = vec![ReadExtent { offset: STRIPE, buf: &mut found }];
        let answer = store
            .query_one(Query { object: 0, extents, keys: KeySelection::None })
            .map_err(|e| e.context(what))?;
        let len = u64::from_le_bytes(*found.last_chunk().expect("the record ends in the length"));
        if answer.version.is_none() {
            return Err(Error::new(Kind::NotFound, what)
                .found("no object 0")
                .hint("check the name, or create a disk there first"));
        }
        if found != record(len) {
            return Err(Error::new(Kind::NotFound, what)
                .found("an object 0 without the record of a length")
                .expected("one made by lacuna"));
        }
        Ok(StripedMedium { store, len: RwLock::new(len) })
    }

    /// Opens the medium in a store with a length of `len` bytes, and ignores its record, which may
    /// be lost. [`set_len`](Medium::set_len) writes a new record.
    pub fn with_len(store: Arc<dyn ObjectStore>, len: u64) -> Self {
        StripedMedium { store, len: RwLock::new(len) }
    }

    /// Makes a range read as zeros. Object 0 keeps its record.
    fn zero(&self, range: Range<u64>) -> Result<()> {
        let pieces = pieces(range.start, range.end - range.start, STRIPE);
        let mut transactions = pieces.map(|(object, within, _)| {
            let (offset, len) = (within.start as u64, within.len() as u64);
            let whole = len == STRIPE && object != 0;
            let step = if whole { ObjectStep::Remove } else { ObjectStep::Zero { offset, len } };
            ObjectTransaction { object, steps: vec![step] }
        });
        loop {
            let some: Vec<_> = transactions.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            self.store.apply(&some).into_iter().try_for_each(|done| done.map(drop))?;
        }
    }
}

impl Medium for StripedMedium {
    fn len(&self) -> u64 {
        *self.len.read()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let len = self.len();
        let mut queries: BTreeMap<u64, Vec<ReadExtent<'_>>> = BTreeMap::new();
        for extent in batch {
            check_range(extent.offset, extent.buf.len() as u64, len)?;
            let mut rest = &mut *extent.buf;
            for (object, within, _) in pieces(extent.offset, rest.len() as u64, STRIPE) {
                let (buf, further) = std::mem::take(&mut rest).split_at_mut(within.len());
                queries.entry(object).or_default().push(ReadExtent { offset: within.start as u64, buf });
                rest = further;
            }
        }
        let mut queries: Vec<_> = queries
            .into_iter()
            .map(|(object, extents)| Query { object, extents, keys: KeySelection::None })
            .collect();
        self.store.query(&mut queries).into_iter().try_for_each(|found| found.map(drop))
    }

    /// The store has no page in the cache of this host.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let len = self.len.read();
        let mut transactions: BTreeMap<u64, Vec<ObjectStep<'_>>> = BTreeMap::new();
        for extent in batch {
            check_range(extent.offset, extent.data.len() as u64, *len)?;
            for (object, within, at) in pieces(extent.offset, extent.data.len() as u64, STRIPE) {
                let step = ObjectStep::Write { offset: within.start as u64, data: &extent.data[at] };
                transactions.entry(object).or_default().push(step);
            }
        }
        let transactions: Vec<_> =
            transactions.into_iter().map(|(object, steps)| ObjectTransaction { object, steps }).collect();
        self.store.apply(&transactions).into_iter().try_for_each(|done| done.map(drop))
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write(batch)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let end = self.len.read();
        check_range(offset, len, *end)?;
        self.zero(offset..offset + len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut now = self.len.write();
        if len < *now {
            self.zero(len..*now)?;
        }
        let record = record(len);
        let steps = vec![ObjectStep::Write { offset: STRIPE, data: &record }];
        self.store
            .apply_one(ObjectTransaction { object: 0, steps })
            .map_err(|e| e.context(format!("cannot set the length to {len} bytes")))?;
        *now = len;
        Ok(())
    }
}
