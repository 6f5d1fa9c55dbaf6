//! The bytes of one object in memory, in pages that copies share until one of them changes.

use lacuna_medium::pieces;
use std::sync::Arc;

const PAGE: usize = 16 << 10;

/// Bytes of any length; pages that were never written use no memory.
#[derive(Clone, Default)]
pub(crate) struct PagedBytes {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
    /// The length. Bytes of the last page beyond it are zeros.
    len: u64,
}

impl PagedBytes {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from `offset`; bytes past the end are zeros.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        for (page, within, at) in pieces(offset, buf.len() as u64, PAGE as u64) {
            match self.pages.get(page as usize) {
                Some(Some(page)) => buf[at].copy_from_slice(&page[within]),
                _ => buf[at].fill(0),
            }
        }
    }

    /// Writes `data` at `offset`, and lengthens as needed.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if end > self.len {
            self.set_len(end);
        }
        for (page, within, at) in pieces(offset, data.len() as u64, PAGE as u64) {
            let page = self.pages[page as usize].get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within].copy_from_slice(&data[at]);
        }
    }

    /// Makes a range read as zeros without lengthening.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len);
        for (page, within, _) in pieces(offset, end.saturating_sub(offset), PAGE as u64) {
            let slot = &mut self.pages[page as usize];
            if within.len() == PAGE {
                *slot = None;
            } else if let Some(page) = slot {
                Arc::make_mut(page)[within].fill(0);
            }
        }
    }

    /// Cuts or lengthens; new bytes are zeros.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.zero(len, self.len.saturating_sub(len));
        self.pages.resize(len.div_ceil(PAGE as u64) as usize, None);
        self.len = len;
    }
}
