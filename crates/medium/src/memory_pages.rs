//! The bytes of one object in memory: pages that copies share until one of them changes.

use std::sync::Arc;

const PAGE: usize = 16 << 10;

/// Bytes of any length; pages that were never written take no room.
#[derive(Clone, Default)]
pub(crate) struct Pages {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
    /// Bytes of the last page past this are zeros.
    len: u64,
}

impl Pages {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from `offset`; what lies past the end is zeros.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        for_each_page(offset, buf.len() as u64, |index, within, done| {
            let part = &mut buf[done..done + within.len()];
            match self.pages.get(index) {
                Some(Some(page)) => part.copy_from_slice(&page[within]),
                _ => part.fill(0),
            }
        });
    }

    /// Writes `data` at `offset`, lengthening as needed.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if end > self.len {
            self.set_len(end);
        }
        for_each_page(offset, data.len() as u64, |index, within, done| {
            let page = self.pages[index].get_or_insert_with(|| Arc::new([0; PAGE]));
            let count = within.len();
            Arc::make_mut(page)[within].copy_from_slice(&data[done..done + count]);
        });
    }

    /// Makes a range read as zeros without lengthening.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len);
        if offset >= end {
            return;
        }
        for_each_page(offset, end - offset, |index, within, _| {
            let slot = &mut self.pages[index];
            if within.len() == PAGE {
                *slot = None;
            } else if let Some(page) = slot {
                Arc::make_mut(page)[within].fill(0);
            }
        });
    }

    /// Cuts or lengthens; new bytes are zeros.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.zero(len, self.len.saturating_sub(len));
        self.pages.resize(len.div_ceil(PAGE as u64) as usize, None);
        self.len = len;
    }
}

/// Calls `f` with each page that a range touches: its index, the range in it, and the bytes done before.
fn for_each_page(offset: u64, len: u64, mut f: impl FnMut(usize, std::ops::Range<usize>, usize)) {
    let mut done = 0;
    while done < len {
        let at = offset.saturating_add(done);
        let start = (at % PAGE as u64) as usize;
        let part = (PAGE - start).min((len - done) as usize);
        f((at / PAGE as u64) as usize, start..start + part, done as usize);
        done += part as u64;
    }
}
