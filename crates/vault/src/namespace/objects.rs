//! Where the namespace's own database rests: one object of the store for its blocks, and one for each part of its untrusted
//! storage, a page of a part in a page of the object.
//!
//! A page of a part begins with its length plus one (u16, little-endian); zero is a page that was never written.

use crate::parts::{part_code, part_of};
use crate::store::{ObjectId, PAGE, Store};
use lacuna_core::{Error, Kind, Result};
use lacuna_integrity::{PART_PAGE, Part, Untrusted};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The objects of the namespace's database.
pub(crate) struct NamespaceObjects {
    store: Arc<Store>,
    data: ObjectId,
    /// By the numbers of parts.
    parts: Mutex<BTreeMap<u8, ObjectId>>,
    /// Pages of parts that the store does not have yet: a full one must not fail the protected file half way.
    held: Mutex<BTreeMap<(u8, u64), Vec<u8>>>,
    /// Whether the store was given something that no commit has a root for.
    unrooted: AtomicBool,
}

impl NamespaceObjects {
    /// The objects of a new database.
    pub(crate) fn create(store: Arc<Store>) -> Result<NamespaceObjects> {
        let data = store.new_object()?;
        Ok(NamespaceObjects::new(store, data, BTreeMap::new()))
    }

    fn new(store: Arc<Store>, data: ObjectId, parts: BTreeMap<u8, ObjectId>) -> NamespaceObjects {
        let (parts, unrooted) = (Mutex::new(parts), AtomicBool::new(false));
        NamespaceObjects { store, data, parts, held: Mutex::default(), unrooted }
    }

    /// Whether the store was given something since [`NamespaceObjects::rooted`]. What it refuses for want of space is not there.
    pub(crate) fn is_unrooted(&self) -> bool {
        self.unrooted.load(Ordering::Acquire)
    }

    /// A commit has a root for everything.
    pub(crate) fn rooted(&self) {
        self.unrooted.store(false, Ordering::Release);
    }

    /// Writes to the store. After any other failure than that of space nobody commits any more.
    fn give(&self, object: ObjectId, first: u64, pages: &[u8]) -> Result<()> {
        self.store.write(object, first, pages)?;
        self.unrooted.store(true, Ordering::Release);
        Ok(())
    }

    /// The objects that [`NamespaceObjects::encode`] wrote down, and what follows them.
    pub(crate) fn parse(store: Arc<Store>, bytes: &[u8]) -> Result<(NamespaceObjects, &[u8])> {
        let take = |bytes: &[u8]| Some((u64::from_le_bytes(*bytes.first_chunk()?), bytes.len()));
        let parsed = || {
            let (data, _) = take(bytes)?;
            let (&count, mut rest) = bytes[8..].split_first()?;
            let mut parts = BTreeMap::new();
            for _ in 0..count {
                let (&code, object) = rest.split_first()?;
                part_of(code)?;
                parts.insert(code, ObjectId(take(object)?.0));
                rest = &object[8..];
            }
            Some((ObjectId(data), parts, rest))
        };
        let (data, parts, rest) = parsed().ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot read the root of the namespace")
                .found(format!("{} bytes", bytes.len()))
        })?;
        Ok((NamespaceObjects::new(store, data, parts), rest))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.data.0.to_le_bytes());
        let parts = self.parts.lock();
        out.push(parts.len() as u8);
        for (code, object) in parts.iter() {
            out.push(*code);
            out.extend(object.0.to_le_bytes());
        }
    }

    /// Hands the pages of parts to the store. On an error those that it does not have are still here.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut held = self.held.lock();
        while let Some(entry) = held.first_entry() {
            let (code, page) = *entry.key();
            self.give(self.object(code)?, page, entry.get())?;
            entry.remove();
        }
        Ok(())
    }

    /// The object of a part, made if there is none.
    fn object(&self, code: u8) -> Result<ObjectId> {
        let known = self.parts.lock().get(&code).copied();
        if let Some(object) = known {
            return Ok(object);
        }
        let object = self.store.new_object()?;
        self.parts.lock().insert(code, object);
        Ok(object)
    }

    /// Cuts the object of the blocks to this many.
    pub(crate) fn truncate(&self, blocks: u64) -> Result<()> {
        self.unrooted.store(true, Ordering::Release);
        self.store.truncate(self.data, blocks)
    }

    /// Names of all backing files.
    pub(crate) fn names(&self) -> Vec<String> {
        let parts: Vec<ObjectId> = self.parts.lock().values().copied().collect();
        std::iter::once(self.data).chain(parts).map(|object| self.store.object_name(object)).collect()
    }

    /// Name of the backing file of the blocks.
    pub(crate) fn name(&self) -> String {
        self.store.object_name(self.data)
    }
}

impl Untrusted for NamespaceObjects {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.store.read(self.data, first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.give(self.data, first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        let code = part_code(part);
        let held = self.held.lock().get(&(code, page)).cloned();
        let mut bytes = if let Some(held) = held {
            held
        } else {
            let Some(object) = self.parts.lock().get(&code).copied() else { return Ok(None) };
            let mut bytes = vec![0; PAGE];
            self.store.read(object, page, &mut bytes)?;
            bytes
        };
        let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        if len == 0 {
            return Ok(None);
        }
        bytes.drain(..2);
        // What does not verify is noticed by the reader; a length that is none is not even a page.
        bytes.truncate((len - 1).min(PART_PAGE));
        Ok(Some(bytes))
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        let mut padded = vec![0; PAGE];
        if let Some(bytes) = bytes {
            padded[..2].copy_from_slice(&(bytes.len() as u16 + 1).to_le_bytes());
            padded[2..2 + bytes.len()].copy_from_slice(bytes);
        }
        self.held.lock().insert((part_code(part), page), padded);
        Ok(())
    }
}
