//! The second reader: reads a protected file by the tables of `docs/format/integrity.md`. From the
//! crate it uses only IsRand and the unpacking of blocks.

use crate::fixture::Stored;
use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, Hctr2Key, SivKey, XtsKey, derive, keyed_hash};
use lacuna_integrity::{Part, decompress, is_random_looking};
use lacuna_testkit::format_page::{FormatPage, number};
use std::cell::RefCell;
use std::collections::BTreeSet;

type Tag = [u8; 16];
type Counter = (u64, u32);

/// The keys of a file.
struct Keys {
    file: Secret<32>,
    /// The label of the block keys.
    blocks: String,
    tags: SivKey,
    tree: Secret<32>,
    wide: Hctr2Key,
    pages: Hctr2Key,
    plain: XtsKey,
}

impl Keys {
    fn by_page(page: &FormatPage, file: u64) -> Keys {
        let rows = page.rows("Keys");
        let label =
            |key: &str| rows.iter().find(|row| row[0] == key).unwrap_or_else(|| panic!("{key}"))[2].clone();
        let file: Secret<32> = derive(&Secret::copy_from(&[7; 32]), &label("file"), &file.to_le_bytes());
        Keys {
            blocks: label("blocks"),
            tags: SivKey::derive(&file, &label("block tags"), &[]),
            tree: derive(&file, &label("tree"), &[]),
            wide: Hctr2Key::new(&derive(&file, &label("wide blocks"), &[])).unwrap(),
            pages: Hctr2Key::new(&derive(&file, &label("pages"), &[])).unwrap(),
            plain: XtsKey::new(&derive(&file, &label("plain blocks"), &[])).unwrap(),
            file,
        }
    }

    fn stream(&self, (session, _): Counter) -> AesBlock {
        AesBlock::new(&derive(&self.file, &self.blocks, &session.to_le_bytes()))
    }

    /// Decrypts a block that has a tag; the tag binds `bound` and the counter.
    fn open(&self, counter: Counter, bound: &[u8], sealed: &[u8], tag: &Tag, plain: &mut [u8]) -> Option<()> {
        let (session, pass) = counter;
        let counter_bytes = [&session.to_le_bytes()[..], &pass.to_le_bytes(), &[0; 4]].concat();
        let stream = self.stream(counter);
        self.tags.open(&stream, &counter_bytes.try_into().unwrap(), bound, sealed, tag, plain).ok()
    }

    fn tag(&self, level: u8, bytes: &[u8]) -> Tag {
        *keyed_hash(&self.tree, &[&[level], bytes]).first_chunk().unwrap()
    }
}

/// A section of TS.
struct Section {
    scheme: u64,
    blocks: u64,
    /// Counters of blocks, as intervals.
    intervals: Vec<(u64, Counter)>,
    /// Whether MT-EINT has counters in pages.
    dense: bool,
    leaves: u64,
    /// The root, or the leaves.
    tree: Result<Tag, Vec<Tag>>,
}

pub(crate) struct SecondReader<'s> {
    page: FormatPage,
    stored: &'s Stored,
    keys: Keys,
    blocks: u64,
    block_size: usize,
    /// The section of the scheme; of a file in conversion, the section of MT-EINT and then that of
    /// the layer below.
    sections: Vec<Section>,
    met: RefCell<BTreeSet<(Part, u64)>>,
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, len: u64) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(len as usize);
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: u64) -> u64 {
        number(self.take(len))
    }

    fn tag(&mut self) -> Tag {
        self.take(16).try_into().unwrap()
    }

    fn leb128(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.number(1);
            value |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!("it ends at a byte below 128")
    }
}

impl<'s> SecondReader<'s> {
    pub(crate) fn new(trusted: &[u8], stored: &'s Stored, file: u64) -> Self {
        let page = FormatPage::read("integrity");
        let head = page.fields("Head of TS");
        assert!(trusted.len() as u64 <= page.constant("most of TS"));
        assert_eq!(head.number(trusted, "version"), page.constant("version"));
        head.assert_zeros(trusted);
        let (blocks, schemes) = (head.number(trusted, "blocks"), head.number(trusted, "scheme"));
        let block_size = 1 << head.number(trusted, "block size");
        let keys = Keys::by_page(&page, file);
        let mut bytes = Bytes(&trusted[head.byte_len()..]);
        let mut reader = SecondReader {
            page,
            stored,
            keys,
            blocks,
            block_size,
            sections: vec![],
            met: RefCell::default(),
        };
        match (schemes >> 4).checked_sub(1) {
            None => {
                let only = reader.section(schemes & 15, blocks, &mut bytes);
                reader.sections.push(only);
            }
            Some(other) => {
                let mt = reader.scheme("MT-EINT");
                let top = reader.section(mt, blocks, &mut bytes);
                let scheme = if schemes & 15 == mt { other } else { schemes & 15 };
                let blocks = bytes.number(8);
                let under = reader.section(scheme, blocks, &mut bytes);
                reader.sections.extend([top, under]);
            }
        }
        assert!(bytes.0.is_empty(), "TS is longer than the page says");
        reader
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The pages that were read, and the other pages that the format page explains.
    pub(crate) fn pages_met(&self) -> BTreeSet<(Part, u64)> {
        let mut met = self.met.borrow().clone();
        for section in &self.sections {
            if section.scheme == self.scheme("MT-EINT") {
                // All pages of the tree, and all pages of counters: they may outlive the leaf pages
                // of their blocks.
                (0..8).for_each(|level| self.meet_tree(section, 0, level, &mut met));
                met.extend(
                    self.stored.pages.keys().filter(|(part, _)| section.dense && *part == Part::Counters),
                );
            } else {
                let base = self.page.constant("level of RTree") as u8;
                (0..8).for_each(|level| self.meet_tree(section, base, level, &mut met));
                let entries = self.entries("order");
                let order = |(part, page): &&(Part, u64)| {
                    *part == Part::Order && *page < section.leaves.div_ceil(entries)
                };
                met.extend(self.stored.pages.keys().filter(order));
                let position =
                    |(part, page): &&(Part, u64)| *part == Part::Position && page * entries < section.blocks;
                met.extend(self.stored.pages.keys().filter(position));
            }
        }
        met
    }

    fn meet_tree(&self, section: &Section, base: u8, level: u8, met: &mut BTreeSet<(Part, u64)>) {
        let pages = section.leaves.div_ceil(128u64.pow(u32::from(level) + 1));
        let part = Part::Tree(base + level);
        met.extend(self.stored.pages.keys().filter(|(p, page)| *p == part && *page < pages));
    }

    /// The content of a block. `None` if it does not verify.
    pub(crate) fn block(&self, block: u64) -> Option<Vec<u8>> {
        for section in self.sections.iter().filter(|section| block < section.blocks) {
            let counter = self.counter(section, block);
            if section.scheme == self.scheme("MT-EINT") {
                match self.leaf(section, 0, block) {
                    leaf if leaf == [0; 16] => {}
                    leaf if leaf == [0xfe; 16] => break,
                    leaf => return self.tagged(block, counter, &leaf),
                }
            } else if counter != (0, 0) {
                return self.selective(section, block, counter);
            }
        }
        Some(vec![0; self.block_size])
    }

    fn scheme(&self, name: &str) -> u64 {
        self.page.number("Schemes", name)
    }

    fn entries(&self, part: &str) -> u64 {
        let rows = self.page.rows("Parts of US");
        rows.iter().find(|row| row[0] == part).unwrap()[3].parse().unwrap()
    }

    fn section(&self, scheme: u64, blocks: u64, bytes: &mut Bytes<'_>) -> Section {
        let flags = bytes.number(1);
        assert!(flags < 4);
        let mt = scheme == self.scheme("MT-EINT");
        let mut leaves = blocks;
        let intervals;
        if mt {
            if flags & 1 != 0 {
                bytes.number(4);
            }
            let len = bytes.number(1);
            assert!(len <= self.page.constant("counters of MT-EINT in TS"));
            intervals = intervals_in_ts(bytes.take(len));
        } else {
            leaves = bytes.number(8);
            bytes.take(8);
            intervals = if flags & 1 == 0 {
                let len = bytes.number(1);
                assert!(len <= self.page.constant("counters of the others in TS"));
                intervals_in_ts(bytes.take(len))
            } else {
                let (count, hashes) = (bytes.number(4), [bytes.tag(), bytes.tag()]);
                assert!(count <= self.page.constant("most intervals"));
                let starts = self.array(0, count as usize * 8, hashes[0]);
                let values = self.array(1, count as usize * 12, hashes[1]);
                let starts = starts.chunks_exact(8).map(number);
                let value = |value: &[u8]| (number(&value[..8]), number(&value[8..]) as u32);
                starts.zip(values.chunks_exact(12).map(value)).collect()
            };
        }
        let tree = if flags & 2 == 0 {
            Ok(bytes.tag())
        } else {
            assert!(leaves <= self.page.constant("leaves in TS"));
            Err((0..leaves).map(|_| bytes.tag()).collect())
        };
        Section { scheme, blocks, intervals, dense: mt && flags & 1 != 0, leaves, tree }
    }

    fn array(&self, which: u64, len: usize, hash: Tag) -> Vec<u8> {
        let mut bytes = vec![];
        for page in 0..len.div_ceil(2048) as u64 {
            bytes.extend(self.decrypted("intervals", Part::Intervals, page * 2 + which));
        }
        bytes.truncate(len);
        assert_eq!(self.keys.tag(128 + which as u8, &bytes), hash);
        bytes
    }

    /// The plaintext of an encrypted page; empty if it is absent.
    fn decrypted(&self, name: &str, part: Part, page: u64) -> Vec<u8> {
        let Some(sealed) = self.stored.pages.get(&(part, page)) else { return vec![] };
        self.met.borrow_mut().insert((part, page));
        let number = self.page.number("Parts of US", name) as u8;
        let mut plain = vec![0; sealed.len()];
        let tweak = [&[number][..], &page.to_le_bytes()].concat();
        self.keys.pages.decrypt(&tweak, sealed, &mut plain);
        plain
    }

    /// An entry of an array in US.
    fn entry(&self, name: &str, part: Part, index: u64, len: usize) -> Vec<u8> {
        let entries = self.entries(name);
        let mut page = self.decrypted(name, part, index / entries);
        page.resize(entries as usize * len, 0);
        page[(index % entries) as usize * len..][..len].to_vec()
    }

    fn counter(&self, section: &Section, block: u64) -> Counter {
        if section.dense {
            let entry = self.entry("counters", Part::Counters, block, 12);
            if entry != [0; 12] {
                return (number(&entry[..8]), number(&entry[8..]) as u32);
            }
        }
        let after = section.intervals.partition_point(|(start, _)| *start <= block);
        section.intervals[after - 1].1
    }

    fn leaf(&self, section: &Section, base: u64, leaf: u64) -> Tag {
        let root = match &section.tree {
            Err(leaves) => return leaves[leaf as usize],
            Ok(root) => *root,
        };
        let mut levels = 1;
        while 128u64.pow(levels) < section.leaves {
            levels += 1;
        }
        let mut tag = root;
        for level in (0..levels).rev() {
            if tag == [0; 16] {
                return tag;
            }
            let part = Part::Tree((base + u64::from(level)) as u8);
            let bytes = &self.stored.pages[&(part, leaf / 128u64.pow(level + 1))];
            assert_eq!(self.keys.tag(level as u8, bytes), tag, "level {level}");
            let at = (leaf / 128u64.pow(level) % 128) as usize * 16;
            tag = bytes.get(at..at + 16).map_or([0; 16], |entry| entry.try_into().unwrap());
        }
        tag
    }

    fn tagged(&self, block: u64, counter: Counter, tag: &Tag) -> Option<Vec<u8>> {
        let mut plain = vec![0; self.block_size];
        let sealed = self.stored.blocks.get(&block)?;
        self.keys.open(counter, &block.to_le_bytes(), sealed, tag, &mut plain)?;
        Some(plain)
    }

    fn selective(&self, section: &Section, block: u64, counter: Counter) -> Option<Vec<u8>> {
        let position = number(&self.entry("position", Part::Position, block, 8));
        if let Some(leaf) = position.checked_sub(1) {
            assert_eq!(number(&self.entry("order", Part::Order, leaf, 8)), block);
            let tag = self.leaf(section, self.page.constant("level of RTree"), leaf);
            return self.tagged(block, counter, &tag);
        }
        let sealed = self.stored.blocks.get(&block)?;
        let mut plain = vec![0; self.block_size];
        if section.scheme == self.scheme("RAND-EINT") {
            let tweak =
                [&block.to_le_bytes()[..], &counter.0.to_le_bytes(), &counter.1.to_le_bytes()].concat();
            self.keys.wide.decrypt(&tweak, sealed, &mut plain);
            return (!is_random_looking(&plain)).then_some(plain);
        }
        if section.scheme == self.scheme("COMP-EINT") {
            let (text, tag) = sealed.split_last_chunk::<16>()?;
            let mut packed = vec![0; text.len()];
            let data = [&block.to_le_bytes()[..], &[1]].concat();
            self.keys.open(counter, &data, text, tag, &mut packed)?;
            decompress(&packed, &mut plain)?;
            return Some(plain);
        }
        assert_eq!(counter, (0, 2));
        self.keys.plain.session().decrypt(&u128::from(block).to_le_bytes(), sealed, &mut plain);
        Some(plain)
    }
}

fn intervals_in_ts(bytes: &[u8]) -> Vec<(u64, Counter)> {
    let mut bytes = Bytes(bytes);
    let count = bytes.number(1);
    let sessions: Vec<u64> = (0..count).map(|_| bytes.number(8)).collect();
    assert!(sessions.is_sorted() && !sessions.contains(&0));
    let (count, mut start) = (bytes.number(1), 0);
    let mut intervals = vec![];
    for _ in 0..count {
        let session = (bytes.number(1) as usize).checked_sub(1).map_or(0, |at| sessions[at]);
        let pass = bytes.leb128() as u32;
        start += bytes.leb128();
        intervals.push((start, (session, pass)));
    }
    assert!(bytes.0.is_empty());
    intervals
}
