//! The second reader: opens a vault by the tables of `docs/format/vault.md` and `integrity.md`,
//! without code of the crate.

use crate::file_reader::SecondReader as FileReader;
use crate::fixture::Stored;
use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, SivKey, XaesKey, derive, keyed_hash};
use lacuna_integrity::Part;
use lacuna_testkit::format_page::{FormatPage, number};
use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: usize = 4096;

/// The files of the directory.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;
/// Keys, which begin with their table, and values.
type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, len: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u64 {
        number(self.take(len))
    }

    fn digest(&mut self) -> [u8; 32] {
        self.take(32).try_into().unwrap()
    }

    /// A list of elements of this size, after its count.
    fn list(&mut self, size: usize) -> Vec<&'b [u8]> {
        let count = self.number(4) as usize;
        self.take(count * size).chunks_exact(size).collect()
    }

    /// Bytes after their length.
    fn counted(&mut self) -> &'b [u8] {
        let len = self.number(4) as usize;
        self.take(len)
    }
}

/// A node as the second reader finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub ino: u64,
    pub kind: u64,
    pub mode: u64,
    pub links: u64,
    pub user: u64,
    pub group: u64,
    pub device: u64,
    /// Blocks that are not holes.
    pub data_blocks: u64,
    /// The name of the choice; empty without one.
    pub choice: Vec<u8>,
    pub mtime: (i64, u64),
    pub ctime: (i64, u64),
    pub crtime: (i64, u64),
    pub content: Vec<u8>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// An open vault.
pub(crate) struct SecondReader {
    page: FormatPage,
    files: Files,
    master: Secret<32>,
    uuid: [u8; 16],
    /// The number, digest and machine of the last commit.
    pub last: (u64, [u8; 32], Vec<u8>),
    /// Journaled pages by object and page: the journal file and the page in it.
    journaled: BTreeMap<(u64, u64), (usize, u64)>,
    cuts: BTreeMap<u64, u64>,
    removed: Vec<u64>,
    root: Vec<u8>,
    puts: Vec<Vec<u8>>,
    /// The number of applied records.
    pub records: u64,
}

impl SecondReader {
    pub(crate) fn open(files: Files, master: Secret<32>, uuid: [u8; 16]) -> SecondReader {
        let page = FormatPage::read("vault");
        let mut reader = SecondReader {
            page,
            files,
            master,
            uuid,
            last: (0, [0; 32], vec![]),
            journaled: BTreeMap::new(),
            cuts: BTreeMap::new(),
            removed: vec![],
            root: vec![],
            puts: vec![],
            records: 0,
        };
        let area = reader.superblock();
        reader.journal(area);
        reader
    }

    fn key(&self, name: &str) -> Secret<32> {
        let rows = self.page.rows("Keys");
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(row[1], "32");
        derive(&self.master, &row[2], &self.uuid)
    }

    fn unseal(&self, nonce: [u8; 24], bound: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (text, tag) = sealed.split_last_chunk::<16>()?;
        let mut plain = text.to_vec();
        let key = XaesKey::new(&self.key("seal"));
        key.open_in_place(&nonce, bound, &mut plain, tag).unwrap().is_ok().then_some(plain)
    }

    /// Reads the newest superblock. Returns the journal file of the next record.
    fn superblock(&mut self) -> usize {
        let fields = self.page.fields("Superblock").assert_len(48);
        let size = self.page.constant("file of a superblock") as usize;
        let mut newest: Option<(u64, Vec<u8>)> = None;
        for name in ["super.0", "super.1", "super.2"] {
            let slot = &self.files[name][..size];
            let (sequence, len) = (fields.number(slot, "sequence"), fields.number(slot, "length") as usize);
            let good = fields.get(slot, "magic") == b"lacunasb";
            let nonce = fields.get(slot, "nonce").try_into().unwrap();
            let plain = good.then(|| self.unseal(nonce, &slot[..48], &slot[48..48 + len])).flatten();
            if let Some(plain) = plain
                && newest.as_ref().is_none_or(|(best, _)| sequence > *best)
            {
                fields.assert_zeros(slot);
                newest = Some((sequence, plain));
            }
        }
        let (_, plain) = newest.expect("a superblock that verifies");
        let mut bytes = Bytes(&plain);
        let (number, digest, _before) = (bytes.number(8), bytes.digest(), bytes.digest());
        let area = bytes.number(4) as usize;
        let machine = self.facts(&mut bytes);
        assert_eq!(bytes.number(4), 1, "a root");
        self.root = bytes.counted().to_vec();
        assert!(bytes.0.is_empty());
        self.last = (number, digest, machine);
        area
    }

    /// Checks the facts and returns the machine.
    fn facts(&self, bytes: &mut Bytes<'_>) -> Vec<u8> {
        let machine = bytes.take(16).to_vec();
        let (_time, next, limit) = (bytes.number(8), bytes.number(8), bytes.number(8));
        assert!(
            next <= limit && limit - next <= self.page.constant("most object numbers between two commits")
        );
        assert!(bytes.list(88).len() as u64 <= self.page.constant("most machines"));
        assert!(bytes.list(16).len() as u64 <= self.page.constant("most appendable objects"));
        machine
    }

    fn journal(&mut self, mut area: usize) {
        let fields = self.page.fields("Record").assert_len(96);
        let mut at = 0;
        loop {
            let file = self.files.get(&format!("journal.{area}")).cloned().unwrap_or_default();
            let headers = self.key("headers");
            let follows = |page: &usize| {
                let header = &file[page * PAGE..page * PAGE + 96];
                fields.get(header, "magic") == b"lacunarc"
                    && fields.number(header, "number") > self.last.0
                    && fields.get(header, "before") == self.last.1
                    && fields.number(header, "page") == *page as u64
                    && fields.number(header, "file") == area as u64
                    && keyed_hash(&headers, &[&header[..80]])[..16] == *fields.get(header, "tag")
            };
            let Some(page) = (at..file.len() / PAGE).find(follows) else { return };
            let (header, rest) = file[page * PAGE..].split_at(96);
            fields.assert_zeros(header);
            let sealed = &rest[..fields.number(header, "length") as usize];
            let mut nonce = [0; 24];
            nonce[..8].copy_from_slice(fields.get(header, "session"));
            nonce[8..12].copy_from_slice(&fields.get(header, "number")[..4]);
            nonce[12..].copy_from_slice(fields.get(header, "hedge"));
            let plain = self.unseal(nonce, header, sealed).expect("a record that verifies");
            let digest = keyed_hash(&self.key("chain"), &[header, sealed]);
            at = page + (96 + sealed.len()).div_ceil(PAGE);
            let switched = self.apply(&plain, area, &file);
            self.last = (fields.number(header, "number"), digest, plain[..16].to_vec());
            if switched {
                (area, at) = (1 - area, 0);
            }
        }
    }

    /// Applies a record. Returns whether a checkpoint begins.
    fn apply(&mut self, plain: &[u8], area: usize, file: &[u8]) -> bool {
        let mut bytes = Bytes(plain);
        self.facts(&mut bytes);
        for cut in bytes.list(16) {
            let (object, pages) = (number(&cut[..8]), number(&cut[8..]));
            self.journaled.retain(|(other, page), _| *other != object || *page < pages);
            let before = self.cuts.get(&object).copied().unwrap_or(u64::MAX);
            self.cuts.insert(object, before.min(pages));
        }
        self.removed.extend(bytes.list(8).into_iter().map(number));
        let rows = self.page.rows("Keys");
        let label = &rows.iter().find(|row| row[0] == "pages").unwrap()[2];
        let tags = SivKey::derive(&self.master, label, &self.uuid);
        for listed in bytes.list(44) {
            let mut listed = Bytes(listed);
            let (object, page) = (listed.number(8), listed.number(8));
            let (place, sequence) = (listed.number(4), listed.take(8));
            let mut counter = [0; 16];
            counter[..8].copy_from_slice(sequence);
            let journaled = &file[place as usize * PAGE..][..PAGE];
            assert_eq!(tags.tag(&counter, &[], journaled), listed.0, "a journaled page");
            self.journaled.insert((object, page), (area, place));
        }
        let checkpoint = bytes.number(4) == 1;
        let root = bytes.counted().to_vec();
        let puts = bytes.counted().to_vec();
        assert!(bytes.0.is_empty());
        if checkpoint {
            (self.root, self.puts) = (root, vec![]);
        } else if !puts.is_empty() {
            self.puts.push(puts);
        }
        self.records += 1;
        checkpoint
    }

    /// The name of an object's file.
    pub(crate) fn name(&self, object: u64) -> String {
        self.name_of(u128::from(object))
    }

    /// The names of a doubled object's second and third files.
    fn further_names(&self, object: u64) -> [String; 2] {
        [1, 2].map(|nth: u128| self.name_of(u128::from(object) + (nth << 64)))
    }

    fn name_of(&self, number: u128) -> String {
        let block = AesBlock::new(&self.key("names")).encrypt(number.to_le_bytes());
        let digits = format!("{:032x}", u128::from_be_bytes(block));
        format!("{}/{}", &digits[..2], &digits[2..])
    }

    fn page_of(&self, object: u64, page: u64) -> Vec<u8> {
        assert!(!self.removed.contains(&object));
        if let Some((area, place)) = self.journaled.get(&(object, page)) {
            return self.files[&format!("journal.{area}")][*place as usize * PAGE..][..PAGE].to_vec();
        }
        let cut = self.cuts.get(&object).is_some_and(|cut| page >= *cut);
        let file = self.files.get(&self.name(object)).filter(|_| !cut);
        let from = file.map_or(&[][..], |file| &file[file.len().min(page as usize * PAGE)..]);
        let mut bytes = from[..from.len().min(PAGE)].to_vec();
        bytes.resize(PAGE, 0);
        bytes
    }

    fn pages(&self, object: u64) -> u64 {
        let own = self.files.get(&self.name(object)).map_or(0, |file| file.len().div_ceil(PAGE) as u64);
        let journaled = self.journaled.range((object, 0)..=(object, u64::MAX)).next_back();
        own.max(journaled.map_or(0, |((_, page), _)| page + 1))
    }

    fn part(&self, code: u8) -> Part {
        let rows = self.page.rows("Root");
        let named = rows.iter().find(|row| row[1] == code.to_string()).map(|row| row[0].as_str());
        match named {
            Some("counters") => Part::Counters,
            Some("intervals") => Part::Intervals,
            Some("order") => Part::Order,
            Some("position") => Part::Position,
            _ => Part::Tree(code),
        }
    }

    fn blocks(&self, object: u64) -> BTreeMap<u64, Vec<u8>> {
        (0..self.pages(object)).map(|page| (page, self.page_of(object, page))).collect()
    }

    /// All pairs of the namespace.
    pub(crate) fn namespace(&self) -> Pairs {
        let mut root = Bytes(&self.root);
        assert_eq!(root.number(1), self.page.constant("version"));
        let (len, data, parts) = (root.number(8), root.number(8), root.number(1));
        let mut stored = Stored { blocks: self.blocks(data), ..Stored::default() };
        for _ in 0..parts {
            let (code, object) = (root.number(1) as u8, root.number(8));
            for page in 0..self.pages(object) {
                let bytes = self.page_of(object, page);
                let len = number(&bytes[..2]) as usize;
                if bytes.iter().any(|byte| *byte != 0) {
                    let place = [object.to_le_bytes(), page.to_le_bytes()].concat();
                    let tag = keyed_hash(&self.key("parts"), &[&place, &bytes[..4080]]);
                    assert!(tag[..16] == bytes[4080..], "the tag of page {page} of object {object}");
                    assert!(number(&bytes[4072..4080]) < self.last.0, "a page from the future");
                }
                if len > 0 {
                    stored.pages.insert((self.part(code), page), bytes[2..=len].to_vec());
                }
            }
        }
        let file = FileReader::new(root.0, &stored, 0);
        let block = |n| file.block(n).unwrap_or_else(|| panic!("block {n} of the namespace"));
        let mut bytes: Vec<u8> = (0..file.blocks()).flat_map(block).collect();
        bytes.truncate(len as usize);
        let mut pairs = self.tables(&bytes);
        for puts in &self.puts {
            let mut puts = Bytes(puts);
            assert_eq!(puts.number(1), self.page.constant("version"));
            while !puts.0.is_empty() {
                let len = puts.number(2) as usize;
                let key = puts.take(len).to_vec();
                match puts.number(4) as u32 {
                    u32::MAX => drop(pairs.remove(&key)),
                    len => drop(pairs.insert(key, puts.take(len as usize).to_vec())),
                }
            }
        }
        pairs
    }

    fn tables(&self, database: &[u8]) -> Pairs {
        let backend = redb::backends::InMemoryBackend::new();
        backend.set_len(database.len() as u64).unwrap();
        backend.write(0, database).unwrap();
        let redb = redb::Builder::new().create_with_backend(backend).unwrap();
        let read = redb.begin_read().unwrap();
        let mut pairs = Pairs::new();
        for row in self.page.rows("Namespace") {
            let table = read.open_table(TableDefinition::<&[u8], &[u8]>::new(&row[0])).unwrap();
            for pair in table.iter().unwrap() {
                let (key, value) = pair.unwrap();
                let key = [&[row[1].parse().unwrap()], key.value()].concat();
                pairs.insert(key, value.value().to_vec());
            }
        }
        pairs
    }

    /// Every file of the directory that the format page explains.
    pub(crate) fn explained(&self) -> BTreeSet<String> {
        let listed = ["super.0", "super.1", "super.2", "journal.0", "journal.1"].map(str::to_owned);
        let mut root = Bytes(&self.root[9..]);
        let mut objects = vec![root.number(8)];
        for _ in 0..root.number(1) {
            let _part = root.number(1);
            objects.push(root.number(8));
        }
        let mut further = Vec::new();
        for object in &objects {
            for name in self.further_names(*object) {
                let copy = &self.files[&name];
                assert!(*copy == self.files[&self.name(*object)], "a further file of object {object}");
                further.push(name);
            }
        }
        let fields = self.page.fields("Inode");
        let inodes = self.namespace().into_iter().filter(|(key, _)| key[0] == 1);
        objects.extend(inodes.map(|(_, inode)| fields.number(&inode, "object")).filter(|object| *object > 0));
        let names = objects.into_iter().map(|object| self.name(object));
        listed.into_iter().chain(further).chain(names).collect()
    }

    /// The tree below the root directory, by path.
    pub(crate) fn tree(&self) -> BTreeMap<Vec<u8>, Node> {
        let pairs = self.namespace();
        assert_eq!(pairs[&b"\0version"[..]], [self.page.constant("version") as u8]);
        let mut tree = BTreeMap::new();
        self.directory(&pairs, 1, b"", &mut tree);
        tree
    }

    fn directory(&self, pairs: &Pairs, ino: u64, path: &[u8], tree: &mut BTreeMap<Vec<u8>, Node>) {
        let prefix = [&[2][..], &ino.to_be_bytes()].concat();
        for (key, bucket) in pairs.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix)) {
            let mut bucket = Bytes(bucket);
            while !bucket.0.is_empty() {
                let (slot, kind, ino) = (bucket.number(1), bucket.number(1), bucket.number(8));
                assert!(slot < self.page.constant("slots of a bucket"));
                let len = bucket.number(1) as usize;
                let name = bucket.take(len);
                assert_eq!(self.hash(name).to_be_bytes(), key[9..], "the hash of {name:?}");
                let path = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
                let node = self.node(pairs, ino);
                assert_eq!(node.kind, kind);
                tree.insert(path.clone(), node);
                if kind == 2 {
                    self.directory(pairs, ino, &path, tree);
                }
            }
        }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let key = AesBlock::new(&self.key("name hash"));
        let mut state = [0; 16];
        state[0] = name.len() as u8;
        for piece in name.chunks(16) {
            state = key.encrypt(state);
            state.iter_mut().zip(piece).for_each(|(s, p)| *s ^= p);
        }
        (number(&key.encrypt(state)[..8]) >> 8).max(1)
    }

    fn node(&self, pairs: &Pairs, ino: u64) -> Node {
        let fields = self.page.fields("Inode").assert_len(104);
        let record = &pairs[&[&[1][..], &ino.to_be_bytes()].concat()];
        let field = |name: &str| fields.number(record, name);
        assert_eq!(field("version"), self.page.constant("version"));
        let (trusted, target) = record[104..].split_at(field("length of TS") as usize);
        let prefix = [&[3][..], &ino.to_be_bytes()].concat();
        let named = pairs.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        let xattrs = named.map(|(key, value)| (key[9..].to_vec(), value.clone())).collect();
        let mut content = vec![];
        if !trusted.is_empty() {
            let mut stored = Stored { blocks: self.blocks(field("object")), ..Stored::default() };
            let prefix = [&[4][..], &ino.to_be_bytes()].concat();
            for (key, value) in pairs.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix))
            {
                let page = u64::from_be_bytes(key[10..].try_into().unwrap());
                stored.pages.insert((self.part(key[9]), page), value.clone());
            }
            let file = FileReader::new(trusted, &stored, ino);
            let block = |n| file.block(n).unwrap_or_else(|| panic!("block {n} of inode {ino}"));
            content = (0..file.blocks()).flat_map(block).collect();
        }
        let behind = content.get(field("size") as usize..).unwrap_or_default();
        assert!(behind.iter().all(|byte| *byte == 0), "bytes behind the end of inode {ino}");
        content.resize(field("size") as usize, 0);
        Node {
            ino,
            kind: field("kind"),
            mode: field("mode"),
            links: field("links"),
            user: field("user"),
            group: field("group"),
            device: field("device"),
            data_blocks: field("data blocks"),
            choice: ["", "auto", "mt", "rand", "comp"][field("choice") as usize].into(),
            mtime: (field("mtime seconds") as i64, field("mtime nanoseconds")),
            ctime: (field("ctime seconds") as i64, field("ctime nanoseconds")),
            crtime: (field("crtime seconds") as i64, field("crtime nanoseconds")),
            content,
            target: target.to_vec(),
            xattrs,
        }
    }
}
