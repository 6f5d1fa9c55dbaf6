//! A medium in memory that keeps only pages that are not zero and shares them between copies.

use lacuna_core::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

const PAGE: usize = 4096;

/// Bytes in shared pages. Every write is durable at once.
pub struct SparseMedium(RwLock<State>);

#[derive(Clone)]
struct State {
    len: u64,
    pages: HashMap<u64, Arc<[u8; PAGE]>>,
}

impl SparseMedium {
    /// A medium of `len` zero bytes.
    pub fn new(len: u64) -> Self {
        SparseMedium(RwLock::new(State { len, pages: HashMap::new() }))
    }

    /// A copy that shares its pages until one side changes them.
    pub fn snapshot(&self) -> SparseMedium {
        SparseMedium(RwLock::new(self.0.read().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Changes a range in place. What lies past the end is left out.
    pub fn alter(&self, offset: u64, len: usize, mut change: impl FnMut(u64, &mut [u8])) {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let len = (len as u64).min(state.len.saturating_sub(offset)) as usize;
        for (page, within, done) in pieces(offset, len) {
            let bytes = Arc::make_mut(state.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE])));
            change(offset + done as u64, &mut bytes[within]);
        }
    }

    /// Offsets of the pages in `range` that are not zero, in order.
    pub fn used_pages(&self, range: Range<u64>) -> Vec<u64> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut used: Vec<u64> =
            state.pages.keys().map(|p| p * PAGE as u64).filter(|at| range.contains(at)).collect();
        used.sort_unstable();
        used
    }
}

/// The pages that a range touches: page number, bytes within it, bytes of the range before it.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = (PAGE - within).min(len - done);
        let piece = (at / PAGE as u64, within..within + part, done);
        done += part;
        (part > 0).then_some(piece)
    })
}

fn check(offset: u64, size: u64, len: u64) -> Result<()> {
    match offset.checked_add(size) {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::new(Kind::Io, "access past the end of the medium")
            .found(format!("offset {offset}, length {size}"))
            .expected(format!("an end at or before byte {len}"))),
    }
}

impl Medium for SparseMedium {
    fn len(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        for extent in batch {
            check(extent.offset, extent.buf.len() as u64, state.len)?;
            for (page, within, done) in pieces(extent.offset, extent.buf.len()) {
                let out = &mut extent.buf[done..done + within.len()];
                match state.pages.get(&page) {
                    Some(bytes) => out.copy_from_slice(&bytes[within]),
                    None => out.fill(0),
                }
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            check(extent.offset, extent.data.len() as u64, self.len())?;
            self.alter(extent.offset, extent.data.len(), |at, out| {
                let from = (at - extent.offset) as usize;
                out.copy_from_slice(&extent.data[from..from + out.len()]);
            });
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        check(offset, len, state.len)?;
        let first_whole = offset.div_ceil(PAGE as u64);
        let end_whole = (offset + len) / PAGE as u64;
        state.pages.retain(|page, bytes| {
            let start = page * PAGE as u64;
            if (first_whole..end_whole).contains(page) {
                return false;
            }
            let from = offset.saturating_sub(start).min(PAGE as u64) as usize;
            let to = (offset + len).saturating_sub(start).min(PAGE as u64) as usize;
            if from < to {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
            true
        });
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if len < self.len() {
            self.discard(len, self.len() - len)?;
        }
        self.0.write().unwrap_or_else(PoisonError::into_inner).len = len;
        Ok(())
    }
}
