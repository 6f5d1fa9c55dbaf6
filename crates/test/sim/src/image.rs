//! A sparse image of a medium whose copies share pages until one of them is written.

use crate::operation::RunDigest;
use lacuna_contracts::Result;
use lacuna_medium::{check_range, pieces};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Bytes per page of a [`MediumImage`].
pub const PAGE_SIZE: u64 = 4096;

/// The bytes of one page.
pub(crate) type ImagePage = [u8; PAGE_SIZE as usize];

static ZEROS: ImagePage = [0; PAGE_SIZE as usize];
/// A shared page of zeros.
static UNWRITTEN: LazyLock<Arc<ImagePage>> = LazyLock::new(|| Arc::new(ZEROS));

/// The bytes of a medium. Pages that were never written read as zeros and take no memory; a copy
/// costs one pointer per written page.
#[derive(Clone, Default)]
pub struct MediumImage {
    len: u64,
    pages: BTreeMap<u64, Arc<ImagePage>>,
}

impl MediumImage {
    /// An image of `len` zero bytes.
    pub fn new(len: u64) -> Self {
        MediumImage { len, pages: BTreeMap::new() }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the image holds no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of pages that take memory.
    pub fn resident_pages(&self) -> usize {
        self.pages.len()
    }

    /// Whether a page takes memory.
    pub(crate) fn is_resident(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// The content of a page; zeros if it was never written.
    pub(crate) fn page(&self, page: u64) -> Arc<ImagePage> {
        self.pages.get(&page).unwrap_or(&UNWRITTEN).clone()
    }

    /// The numbers of the written pages, in order.
    pub fn written_pages(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Fills `buf` with the bytes at `offset`. Past the end is an error.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(offset, buf.len() as u64, self.len)?;
        for (page, within, out) in pieces(offset, buf.len() as u64, PAGE_SIZE) {
            match self.pages.get(&page) {
                Some(bytes) => buf[out].copy_from_slice(&bytes[within]),
                None => buf[out].fill(0),
            }
        }
        Ok(())
    }

    /// Writes `data` at `offset`. Past the end is an error.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(offset, data.len() as u64, self.len)?;
        for (page, within, from) in pieces(offset, data.len() as u64, PAGE_SIZE) {
            if within.len() as u64 == PAGE_SIZE {
                let mut whole = ZEROS;
                whole.copy_from_slice(&data[from]);
                self.pages.insert(page, Arc::new(whole));
            } else {
                let bytes = self.pages.entry(page).or_insert_with(|| Arc::new(ZEROS));
                Arc::make_mut(bytes)[within].copy_from_slice(&data[from]);
            }
        }
        Ok(())
    }

    /// Zeros a range, and frees the pages that it covers completely. Past the end is an error.
    pub fn zero(&mut self, offset: u64, size: u64) -> Result<()> {
        check_range(offset, size, self.len)?;
        let end = offset + size;
        let touched = self.pages.range(offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE));
        for page in touched.map(|(&page, _)| page).collect::<Vec<_>>() {
            let start = page * PAGE_SIZE;
            let (from, to) = (offset.max(start) - start, end.min(start + PAGE_SIZE) - start);
            if to - from == PAGE_SIZE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[from as usize..to as usize].fill(0);
            }
        }
        Ok(())
    }

    /// Changes the length. Bytes past the new end are lost; new bytes read as zeros.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE_SIZE));
            let within = (len % PAGE_SIZE) as usize;
            if within > 0
                && let Some(bytes) = self.pages.get_mut(&(len / PAGE_SIZE))
            {
                Arc::make_mut(bytes)[within..].fill(0);
            }
        }
        self.len = len;
    }

    /// The whole image as flat bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len as usize];
        for (&page, bytes) in &self.pages {
            let start = (page * PAGE_SIZE) as usize;
            let take = out.len().saturating_sub(start).min(PAGE_SIZE as usize);
            out[start..start + take].copy_from_slice(&bytes[..take]);
        }
        out
    }

    /// The numbers of the pages where two images differ, in order.
    pub fn changed_pages(&self, other: &MediumImage) -> Vec<u64> {
        let mut changed = Vec::new();
        for (&page, bytes) in &self.pages {
            match other.pages.get(&page) {
                Some(theirs) if Arc::ptr_eq(bytes, theirs) || bytes == theirs => {}
                None if **bytes == ZEROS => {}
                _ => changed.push(page),
            }
        }
        let only_theirs = other.pages.iter().filter(|(page, _)| !self.pages.contains_key(page));
        changed.extend(only_theirs.filter(|(_, bytes)| ***bytes != ZEROS).map(|(&page, _)| page));
        changed.sort_unstable();
        changed
    }

    /// A digest: equal for images with the same bytes, and almost never for other images. Not a
    /// cryptographic hash.
    pub fn digest(&self) -> u64 {
        let mut digest = RunDigest::new();
        digest.add_word(self.len);
        for (&page, bytes) in self.pages.iter().filter(|(_, bytes)| ***bytes != ZEROS) {
            digest.add_word(page);
            digest.add_bytes(&bytes[..]);
        }
        digest.0
    }

    /// Shares the pages of `other` that a range touches, without copying bytes.
    pub(crate) fn share_pages(&mut self, other: &MediumImage, offset: u64, size: u64) {
        for (page, _, _) in pieces(offset, size, PAGE_SIZE) {
            match other.pages.get(&page) {
                Some(bytes) => self.pages.insert(page, bytes.clone()),
                None => self.pages.remove(&page),
            };
        }
    }
}

impl From<Vec<u8>> for MediumImage {
    fn from(bytes: Vec<u8>) -> Self {
        let mut image = MediumImage::new(bytes.len() as u64);
        for (page, chunk) in bytes.chunks(PAGE_SIZE as usize).enumerate() {
            if chunk.iter().any(|&b| b != 0) {
                let mut whole = ZEROS;
                whole[..chunk.len()].copy_from_slice(chunk);
                image.pages.insert(page as u64, Arc::new(whole));
            }
        }
        image
    }
}

impl PartialEq for MediumImage {
    fn eq(&self, other: &MediumImage) -> bool {
        self.len == other.len && self.changed_pages(other).is_empty()
    }
}

impl Eq for MediumImage {}

impl std::fmt::Debug for MediumImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MediumImage")
            .field("len", &self.len)
            .field("resident_pages", &self.pages.len())
            .field("digest", &format_args!("{:016x}", self.digest()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    /// An image behaves like flat bytes under random operations.
    #[test]
    fn an_image_behaves_like_flat_bytes() {
        let mut rng = Rng::new(3);
        for _ in 0..50 {
            let mut flat = vec![0u8; 50_000];
            let mut image = MediumImage::new(50_000);
            for _ in 0..60 {
                let len = flat.len() as u64;
                let at = rng.below(len);
                let size = rng.below((len - at).min(20_000) + 1);
                match rng.below(8) {
                    0 => {
                        let to = 20_000 + rng.below(60_000);
                        flat.resize(to as usize, 0);
                        image.set_len(to);
                    }
                    1..=3 => {
                        flat[at as usize..(at + size) as usize].fill(0);
                        image.zero(at, size).unwrap();
                    }
                    _ => {
                        let data = rng.bytes(size as usize);
                        flat[at as usize..(at + size) as usize].copy_from_slice(&data);
                        image.write(at, &data).unwrap();
                    }
                }
            }
            let mut read = vec![1; flat.len()];
            image.read(0, &mut read).unwrap();
            assert!(read == flat && image.to_vec() == flat);
            assert_eq!(image, MediumImage::from(flat));
        }
    }

    #[test]
    fn copies_do_not_see_each_other() {
        let mut a = MediumImage::from(vec![1; 3 * 4096]);
        let b = a.clone();
        a.write(4096, &[2; 10]).unwrap();
        assert_eq!(a.changed_pages(&b), [1]);
        assert_eq!(b.changed_pages(&a), [1]);
        assert_eq!(b.to_vec(), vec![1; 3 * 4096]);
        assert_ne!(a.digest(), b.digest());
    }

    #[test]
    fn zeros_written_and_zeros_never_written_are_the_same() {
        let mut a = MediumImage::new(8192);
        a.write(0, &[0; 8192]).unwrap();
        assert_eq!(a.digest(), MediumImage::new(8192).digest());
        assert_eq!(a, MediumImage::new(8192));
        a.zero(0, 8192).unwrap();
        assert_eq!(a.resident_pages(), 0);
    }

    #[test]
    fn accesses_past_the_end_are_refused() {
        let mut image = MediumImage::new(100);
        assert!(image.read(99, &mut [0; 2]).is_err());
        assert!(image.write(u64::MAX, &[0; 2]).is_err());
        assert!(image.zero(0, 101).is_err());
        assert!(image.write(100, &[]).is_ok());
    }
}
