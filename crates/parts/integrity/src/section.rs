//! Sections of TS: the trusted state of one scheme.

use crate::keys::Tag;
use crate::wide_tree::{INLINE, TreeRoot};
use lacuna_contracts::{Error, Kind, Result};

/// A reader of a section.
pub(crate) struct Section<'b>(pub(crate) &'b [u8]);

impl<'b> Section<'b> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| malformed("too few bytes"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().expect("N bytes were taken"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn tag(&mut self) -> Result<Tag> {
        self.array()
    }

    /// A byte string with its length (u8) in front.
    pub(crate) fn short(&mut self) -> Result<&'b [u8]> {
        let len = self.u8()?;
        self.take(len.into())
    }

    /// The two flags at the start of a section: one about its counters, and whether it holds the
    /// leaves of its tree.
    pub(crate) fn flags(&mut self) -> Result<(bool, bool)> {
        match self.u8()? {
            flags @ 0..=3 => Ok((flags & 1 != 0, flags & 2 != 0)),
            flags => Err(malformed(&format!("flags {flags:#x}"))),
        }
    }

    /// The root of a tree, or its leaves (`inline`).
    pub(crate) fn tree(&mut self, inline: bool, leaves: u64) -> Result<TreeRoot> {
        if !inline {
            return Ok(TreeRoot::Page(self.tag()?));
        }
        if leaves > INLINE {
            return Err(malformed(&format!("a tree of {leaves} leaves")));
        }
        let tags = (0..leaves).map(|_| self.tag());
        Ok(TreeRoot::Leaves(tags.collect::<Result<_>>()?))
    }
}

/// The error of malformed TS.
pub(crate) fn malformed(found: &str) -> Error {
    Error::new(Kind::Corrupt, "the trusted storage of a file is not usable")
        .found(found)
        .expected("the bytes that a commit of this file returned")
        .hint("restore the file from a backup")
}

/// A writer of a section.
pub(crate) struct SectionMut(Vec<u8>);

impl SectionMut {
    pub(crate) fn new(counters: bool, inline: bool) -> Self {
        SectionMut(vec![u8::from(counters) | u8::from(inline) << 1])
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    pub(crate) fn tag(&mut self, tag: &Tag) {
        self.0.extend(tag);
    }

    pub(crate) fn short(&mut self, bytes: &[u8]) {
        self.0.push(u8::try_from(bytes.len()).expect("TS has fewer bytes"));
        self.0.extend(bytes);
    }

    pub(crate) fn tree(&mut self, tree: &TreeRoot) {
        match tree {
            TreeRoot::Leaves(leaves) => leaves.iter().for_each(|leaf| self.0.extend(leaf)),
            TreeRoot::Page(root) => self.0.extend(root),
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
