//! Compares `docs/format/sealed-objects.md` with real objects: parses the tables of the page and
//! uses them to find everything on freshly written disks.

mod fixture;

use fixture::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, derive, keyed_hash};
use lacuna_medium::{KeySelection, ObjectStore, Query, ReadExtent, StripedMedium};
use lacuna_sealed_objects::{ObjectLayout, ObjectParams, VERSION, list_snapshots};
use lacuna_sim::{MemoryObject, MemoryObjects};
use lacuna_testkit::format_page::{Fields, FormatPage, Rows, SealedBlock};
use std::collections::HashMap;
use std::sync::Arc;

const BLOCKS: u64 = 2 * 1024 + 100;

fn page() -> FormatPage {
    FormatPage::read("sealed-objects")
}

fn fields_of(heading: &str, len: usize) -> Fields {
    page().fields(heading).assert_len(len)
}

/// The rows of the last table under a heading.
fn rows(heading: &str) -> Rows {
    page().tables(heading).pop().unwrap()
}

fn constant(name: &str) -> u64 {
    page().constant(name)
}

/// Decrypts as the page describes.
fn decrypt(cipher: Cipher, block: u64, data: &[u8], meta: &[u8]) -> Vec<u8> {
    let bound =
        if cipher == Cipher::Gcm { fields_of("Metadata of gcm", 32).get(meta, "snapshot") } else { &[] };
    SealedBlock { block, data, meta, bound }.decrypt(&page(), cipher, &master(), &UUID)
}

/// Evaluates a formula of the page in x and m: an offset in an object.
fn place(formula: &str, x: u64, m: u64) -> u64 {
    let tokens = formula.replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = tokens.split_whitespace().collect();
    let mut at = 0;
    let value = sum(&tokens, &mut at, x, m);
    assert_eq!(at, tokens.len(), "{formula}");
    value
}

fn sum(tokens: &[&str], at: &mut usize, x: u64, m: u64) -> u64 {
    let mut value = product(tokens, at, x, m);
    while tokens.get(*at) == Some(&"+") {
        *at += 1;
        value += product(tokens, at, x, m);
    }
    value
}

fn product(tokens: &[&str], at: &mut usize, x: u64, m: u64) -> u64 {
    let mut value = 1;
    loop {
        *at += 1;
        value *= match tokens[*at - 1] {
            "x" => x,
            "m" => m,
            "(" => {
                let inner = sum(tokens, at, x, m);
                assert_eq!(tokens[*at], ")");
                *at += 1;
                inner
            }
            number => number.parse().unwrap(),
        };
        if tokens.get(*at) != Some(&"*") {
            return value;
        }
        *at += 1;
    }
}

/// The key for a pattern of the page: literal bytes in backquotes, and the bytes c and i.
fn key(pattern: &str, c: u8, i: u8) -> Vec<u8> {
    let byte = |word: &str| match word {
        "c" => c,
        "i" => i,
        literal => literal.trim_matches('`').as_bytes()[0],
    };
    pattern.split_whitespace().map(byte).collect()
}

/// The page's description of one disk.
struct DescribedDisk {
    params: ObjectParams,
    /// Ciphertext, metadata and seal in the table of layouts.
    layout: Vec<String>,
}

impl DescribedDisk {
    fn from_page(params: ObjectParams) -> DescribedDisk {
        let layout = page()
            .tables("Layouts")
            .remove(0)
            .into_iter()
            .find(|row| row[0] == params.layout.name())
            .unwrap();
        DescribedDisk { params, layout }
    }

    fn meta_size(&self) -> u64 {
        self.params.cipher.meta_size() as u64
    }

    fn data(&self, object: &MemoryObject, x: u64) -> Vec<u8> {
        let at = place(&self.layout[1], x, self.meta_size()) as usize;
        let mut bytes = object.bytes();
        bytes.resize(bytes.len().max(at + BLOCK_SIZE), 0);
        bytes[at..at + BLOCK_SIZE].to_vec()
    }

    /// The metadata of a block, zeros if there is none.
    fn meta(&self, object: &MemoryObject, block: u64) -> Vec<u8> {
        let (x, m) = (block % 1024, self.meta_size() as usize);
        match self.params.layout {
            ObjectLayout::Kv => {
                assert!(self.layout[2].contains("x in 2 bytes, most significant first"));
                object.keys().get(&(x as u16).to_be_bytes().to_vec()).cloned().unwrap_or(vec![0; m])
            }
            ObjectLayout::Adaptive => {
                let per_page = constant("page blocks");
                if self.params.binds_entries() {
                    return self.chained(object, block / 1024, x / per_page, x % per_page);
                }
                let patterns = rows("Layouts");
                let (c, i) = ((x / per_page) as u8, (x % per_page) as u8);
                let at = usize::from(i) * m;
                let page = object.keys().get(&key(&patterns[0][0], c, i));
                let amendment = object.keys().get(&key(&patterns[1][0], c, i));
                let amended = amendment.and_then(|a| a.chunks_exact(1 + m).find(|entry| entry[0] == i));
                let apart = object.keys().get(&key(&patterns[2][0], c, i));
                let here = page.map(|p| &p[at..at + m]);
                let newest = apart.map(|a| &a[..]).or(amended.map(|a| &a[1..])).or(here);
                newest.map_or(vec![0; m], <[u8]>::to_vec)
            }
            _ => {
                let at = place(&self.layout[2], x, self.meta_size()) as usize;
                let mut bytes = object.bytes();
                bytes.resize(bytes.len().max(at + m), 0);
                bytes[at..at + m].to_vec()
            }
        }
    }

    /// The metadata of a block from its chain; verifies the tag of each link.
    fn chained(&self, object: &MemoryObject, number: u64, c: u64, i: u64) -> Vec<u8> {
        let (seal, m) = (self.seal(object), self.meta_size() as usize);
        let (fields, delta_fields) = (fields_of("Seal", 168), fields_of("Chains", 16 + 1 + m));
        let chain: Secret<32> = derive(&master(), "sealed objects chain", &UUID);
        let tag = |n: u8, value: &[u8]| {
            let place = [&number.to_le_bytes()[..], &[c as u8, n]].concat();
            keyed_hash(&chain, &[&place, value])[..16].to_vec()
        };
        let mut wanted = fields.get(&seal, "tags")[c as usize * 16..][..16].to_vec();
        let deltas = fields.get(&seal, "deltas")[c as usize];
        let mut found = None;
        for n in (0..deltas).rev() {
            let value = &object.keys()[&[b'p', c as u8, b'd', n][..]];
            assert_eq!(tag(n, value), wanted, "delta {n} of page {c}");
            let first = delta_fields["entry"].start;
            let entry = value[first..].chunks_exact(1 + m).find(|entry| u64::from(entry[0]) == i);
            found = found.or(entry.map(|entry| entry[1..].to_vec()));
            wanted = delta_fields.get(value, "before").to_vec();
        }
        if wanted == [0; 16] {
            return found.unwrap_or(vec![0; m]);
        }
        let page = &object.keys()[&[b'p', c as u8][..]];
        assert_eq!(tag(255, page), wanted, "page {c}");
        found.unwrap_or_else(|| page[i as usize * m..][..m].to_vec())
    }

    fn seal(&self, object: &MemoryObject) -> Vec<u8> {
        match self.layout[3].strip_prefix("at ") {
            Some(formula) => object.bytes()[place(formula, 0, self.meta_size()) as usize..].to_vec(),
            None => object.keys()[self.layout[3].strip_prefix("key ").unwrap().trim_matches('`').as_bytes()]
                .clone(),
        }
    }
}

/// A disk with a snapshot between two kinds of writes, a discard, and small and large runs.
fn test_disk(cipher: Cipher, layout: ObjectLayout) -> TestDisk {
    let test_disk = TestDisk::new(cipher, layout, BLOCKS);
    test_disk.session(|disk| {
        write(disk, 3, 2, 1);
        write(disk, 64, 64, 1);
        write(disk, 256, 256, 1);
        disk.create_snapshot("first").unwrap();
        write(disk, 1020, 4, 2);
        write(disk, 1024, 1024, 2);
        disk.flush().unwrap();
        write(disk, 258, 1, 2);
        disk.discard(BlockAddr(4), 1).unwrap();
        disk.discard(BlockAddr(1024), 1024).unwrap();
        write(disk, BLOCKS - 1, 1, 2);
    });
    // Once more, in a session without cached pages.
    test_disk.session(|disk| write(disk, 1020, 1, 2));
    if test_disk.params.binds_entries() {
        let object = test_disk.data.object(0).unwrap();
        for key in [&b"p\x02"[..], b"p\x02d\0", b"p\x07d\0", b"p\x07d\x01"] {
            assert!(object.keys().contains_key(key), "no key {key:?}");
        }
    } else if layout == ObjectLayout::Adaptive && cipher.meta_size() > 0 {
        let (object, chunk) = (test_disk.data.object(0).unwrap(), |x| (x / constant("page blocks")) as u8);
        for (pattern, x) in rows("Layouts").iter().zip([256, 258, 1020]) {
            let (c, i) = (chunk(x), (x % constant("page blocks")) as u8);
            assert!(object.keys().contains_key(&key(&pattern[0], c, i)), "no key {}", pattern[0]);
        }
    }
    test_disk
}

#[test]
fn constants_and_parameters_match_the_page() {
    assert_eq!(constant("block"), BLOCK_SIZE as u64);
    assert_eq!(constant("segment blocks"), SEGMENT_BLOCKS);
    assert_eq!(rows("Parameters")[0][3], VERSION.to_string());
    let fields = fields_of("Parameters", 32);
    for (c, cipher) in (0..).zip(Cipher::ALL) {
        assert!(rows("Parameters")[1][3].contains(&format!("{c} = {}", cipher.name())));
        assert!(
            rows("Ciphers").iter().any(|r| r[0] == cipher.name() && r[1] == cipher.meta_size().to_string())
        );
        for (l, layout) in (0..).zip(ObjectLayout::ALL) {
            assert!(rows("Parameters")[2][3].contains(&format!("{l} = {}", layout.name())));
            for blocks in [1, 70_000, 1 << 32] {
                let bytes = ObjectParams::plan(cipher, layout, blocks).unwrap().encode();
                let number = |name| fields.number(&bytes, name);
                let found = (number("version"), number("cipher"), number("blocks"));
                assert_eq!(found, (u64::from(VERSION), c, blocks));
                assert_eq!(number("layout"), if cipher.meta_size() > 0 { l } else { 1 });
                fields.assert_zeros(&bytes);
            }
        }
    }
    assert!(ObjectParams::plan(Cipher::Gcm, ObjectLayout::Kv, (1 << 32) + 1).is_err());
}

#[test]
fn the_length_record_of_the_header_matches_the_page() {
    let store = Arc::new(MemoryObjects::new(false));
    StripedMedium::create(store.clone(), 1 << 20).unwrap();
    let bytes = store.object(0).unwrap().bytes();
    let fields = fields_of("Objects", 24);
    let record = &bytes[4_194_304..];
    assert_eq!((bytes.len(), fields.get(record, "magic")), (4_194_304 + 24, &b"lacunaS\x01"[..]));
    assert_eq!((fields.number(record, "stripe"), fields.number(record, "length")), (4_194_304, 1 << 20));
}

#[test]
fn blocks_and_metadata_match_the_page() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let test_disk = test_disk(cipher, layout);
        let page = DescribedDisk::from_page(test_disk.params);
        for (block, stamp, snapshot) in
            [(3, 1, 0), (64, 1, 0), (127, 1, 0), (1020, 2, 1), (1023, 2, 1), (BLOCKS - 1, 2, 1)]
        {
            let object = test_disk.data.object(block / 1024).unwrap();
            let (data, meta) = (page.data(&object, block % 1024), page.meta(&object, block));
            assert!(decrypt(cipher, block, &data, &meta) == content(block, stamp), "{layout:?} {block}");
            if cipher == Cipher::Gcm {
                assert_eq!(fields_of("Metadata of gcm", 32).number(&meta, "snapshot"), snapshot);
            }
        }
        let object = test_disk.data.object(0).unwrap();
        for unwritten in [0, 4, 5, 63, 128, 1019] {
            assert!(page.meta(&object, unwritten).iter().all(|b| *b == 0));
            assert!(page.data(&object, unwritten).iter().all(|b| *b == 0));
        }
        assert_eq!(test_disk.data.object(1).is_some(), cipher == Cipher::Gcm, "discarded whole");
    }
}

#[test]
fn seals_match_the_page() {
    for layout in ObjectLayout::ALL {
        let test_disk = test_disk(Cipher::Gcm, layout);
        let page = DescribedDisk::from_page(test_disk.params);
        let fields = fields_of("Seal", 168);
        let len = if test_disk.params.binds_entries() { 168 } else { 32 };
        let key: Secret<32> = derive(&master(), "sealed objects seal", &UUID);
        for (number, least) in [(0u64, 3), (1, 2), (2, 1)] {
            let object = test_disk.data.object(number).unwrap();
            let seal = page.seal(&object);
            assert_eq!(seal.len(), len, "nothing is behind the seal");
            let tag = keyed_hash(&key, &[&number.to_le_bytes(), &seal[..16], &seal[32..]]);
            assert_eq!(fields.get(&seal, "tag"), &tag[..16]);
            assert!(fields.number(&seal, "counter") >= least);
            assert_eq!(fields.number(&seal, "counter"), version_counter(&test_disk, number));
            assert_eq!(fields.number(&seal, "snapshot"), 1);
            assert!(seal[12..16].iter().all(|b| *b == 0));
        }
        // An object that was discarded whole contains only its seal.
        let emptied = test_disk.data.object(1).unwrap();
        assert_eq!(emptied.keys().len(), usize::from(layout.needs_keys()));
        let len = emptied.bytes().len();
        assert!(emptied.bytes()[..len - if layout.needs_keys() { 0 } else { 32 }].iter().all(|b| *b == 0));
    }
}

/// A page of the version table by its number, verified.
fn version_page(test_disk: &TestDisk, number: u64) -> Vec<u8> {
    let (at, len) = (number * constant("version page"), constant("version page"));
    let object = constant("version object");
    let page = test_disk.book.object(object).unwrap().bytes()[at as usize..(at + len) as usize].to_vec();
    let fields = fields_of("Version table", 4096);
    assert_eq!(fields.get(&page, "magic"), b"LACVERS1");
    assert_eq!((fields.number(&page, "object"), fields.number(&page, "page")), (object, number));
    let key: Secret<32> = derive(&master(), "sealed objects version table", &UUID);
    assert_eq!(fields.get(&page, "tag"), keyed_hash(&key, &[&page[..32], &page[64..]]));
    page
}

/// A number of a page of the version table.
fn entry(page: &[u8], number: u64) -> u64 {
    let counters = fields_of("Version table", 4096).get(page, "counters").to_vec();
    u64::from_le_bytes(counters[number as usize * 8..][..8].try_into().unwrap())
}

/// The counter of a segment, in the first object of the version table.
fn version_counter(test_disk: &TestDisk, segment: u64) -> u64 {
    let per_page = constant("page counters");
    assert!(segment < per_page * constant("object pages"));
    let head = version_page(test_disk, 0);
    let number = segment / per_page + 1;
    let generation = entry(&head, number - 1);
    if generation == 0 {
        return 0;
    }
    let fields = fields_of("Version table", 4096);
    let page = version_page(test_disk, number);
    assert_eq!(fields.number(&page, "generation"), generation);
    assert!(fields.number(&head, "generation") >= generation);
    assert_eq!(fields.number(&page, "flags"), 0, "closed");
    entry(&page, segment % per_page)
}

#[test]
fn the_version_table_matches_the_page() {
    // A disk with one segment more than one object counts, written at both ends.
    let segments = constant("page counters") * constant("object pages") + 1;
    let test_disk = TestDisk::new(Cipher::Gcm, ObjectLayout::SegmentEnd, segments * SEGMENT_BLOCKS);
    let objects = || test_disk.book.object(constant("version object") + 1);
    assert_eq!(entry(&version_page(&test_disk, 0), constant("object pages")), 2);
    assert_eq!(entry(&version_page(&test_disk, 0), constant("least table")), 1);
    assert_eq!((502..504).map(|n| entry(&version_page(&test_disk, 0), n)).collect::<Vec<_>>(), [0, 0]);
    assert!(objects().is_some() && test_disk.book.object(3).is_none());
    let fields = fields_of("Version table", 4096);
    assert_eq!(fields.number(&version_page(&test_disk, 0), "generation"), 1);
    let last_page = (constant("object pages") - 1) * constant("page counters");
    for segment in [0, 503, 504, last_page, last_page + 503] {
        assert_eq!(version_counter(&test_disk, segment), 0);
        // Each in a session of its own; its counters begin with the generation that opens the page.
        for content in [1, 2] {
            let generation = fields.number(&version_page(&test_disk, 0), "generation") + 1;
            test_disk.write(segment * 1024, 1, content);
            assert_eq!(version_counter(&test_disk, segment), generation * constant("session counters"));
        }
    }
    let before = objects().unwrap().bytes();
    assert_eq!(before.len() as u64, constant("version page"));
    test_disk.write((segments - 1) * 1024, 1, 1);
    assert_eq!(objects().unwrap().bytes().len() as u64, 2 * constant("version page"));
    // The page is open as long as the disk is.
    let disk = test_disk.open();
    write(&disk, 0, 1, 3);
    disk.flush().unwrap();
    assert_eq!(fields.number(&version_page(&test_disk, 1), "flags"), 1);
    disk.close().unwrap();
    assert_eq!(fields.number(&version_page(&test_disk, 1), "flags"), 0);
}

#[test]
fn the_snapshot_table_matches_the_page() {
    for (cipher, layout) in all_ciphers_and_layouts() {
        let test_disk = test_disk(cipher, layout);
        let mut heads = vec![0; 24];
        test_disk.session(|disk| {
            disk.create_snapshot("x").unwrap();
            if cipher.authenticates() {
                let key: Secret<32> = derive(&master(), "sealed objects version table", &UUID);
                let head = version_page(&test_disk, 0);
                heads =
                    keyed_hash(&key, &[fields_of("Version table", 4096).get(&head, "tag")])[..24].to_vec();
                assert_eq!(entry(&head, constant("least table")), 3);
            }
            disk.create_snapshot("2nd:a-b_c.d").unwrap();
            write(disk, 7, 1, 7);
            disk.remove_snapshot("x").unwrap();
        });
        if cipher.authenticates() {
            assert_eq!(entry(&version_page(&test_disk, 0), constant("least table")), 6);
        }
        let (head, record) = (fields_of("Table of snapshots", 64), fields_of("Snapshot record", 128));
        let table = test_disk.book.object(constant("table object")).unwrap().bytes();
        assert_eq!(table.len(), 64 + 2 * 128);
        assert_eq!(head.get(&table, "magic"), b"LACSNAP1");
        assert_eq!((head.number(&table, "newest"), head.number(&table, "count")), (3, 2));
        // One write at creation, one for each snapshot made, two for the removal.
        assert_eq!(head.number(&table, "generation"), 6);
        let key: Secret<32> = derive(&master(), "sealed objects snapshots", &UUID);
        assert_eq!(head.get(&table, "tag"), keyed_hash(&key, &[&table[..32], &table[64..]]));
        head.assert_zeros(&table[..64]);
        let listed = list_snapshots(&*test_disk.book).unwrap();
        for ((bytes, listed), (number, name)) in
            table[64..].chunks(128).zip(listed).zip([(1, "first"), (3, "2nd:a-b_c.d")])
        {
            assert_eq!((record.number(bytes, "number"), record.number(bytes, "state")), (number, 0));
            assert_eq!(record.number(bytes, "name length"), name.len() as u64);
            assert_eq!(record.get(bytes, "name")[..name.len()], *name.as_bytes());
            assert!(record.get(bytes, "name")[name.len()..].iter().all(|b| *b == 0));
            assert_eq!(record.number(bytes, "blocks"), BLOCKS);
            assert_eq!(record.number(bytes, "time"), listed.time);
            assert_eq!(record.number(bytes, "data id"), listed.data_id);
            assert_eq!(record.number(bytes, "book id"), listed.book_id);
            assert_eq!((listed.number, listed.name.as_str()), (number as u32, name));
            record.assert_zeros(bytes);
            if number == 3 {
                assert_eq!(record.get(bytes, "heads"), heads);
            }
            assert_eq!(mark_number(&*test_disk.data.at_snapshot(listed.data_id).unwrap()), number);
        }
        assert_eq!(mark_number(&*test_disk.data), 0);
    }
}

/// The number in the mark of a disk, or of a snapshot's view, verified.
fn mark_number(data: &dyn ObjectStore) -> u64 {
    let (mut bytes, fields) = (vec![0; 64], fields_of("Mark", 64));
    let extents = vec![ReadExtent { offset: 0, buf: &mut bytes }];
    data.query_one(Query { object: constant("mark object"), extents, keys: KeySelection::None }).unwrap();
    let key: Secret<32> = derive(&master(), "sealed objects snapshots", &UUID);
    assert_eq!(fields.get(&bytes, "magic"), b"LACMARK1");
    assert_eq!(fields.get(&bytes, "tag"), keyed_hash(&key, &[&bytes[..32]]));
    fields.assert_zeros(&bytes);
    fields.number(&bytes, "number")
}

#[test]
fn the_costs_of_a_tebibyte_match_the_page() {
    let costs: HashMap<String, u64> =
        rows("What it costs").into_iter().map(|row| (row[0].clone(), row[1].parse().unwrap())).collect();
    let blocks = (1u64 << 40) / 4096;
    let segments = blocks / 1024;
    let pages = segments.div_ceil(constant("page counters"));
    let heads = pages.div_ceil(constant("object pages"));
    assert_eq!(costs["metadata of xts-random in the store"], 16 * blocks);
    assert_eq!(costs["metadata of gcm in the store"], 32 * blocks);
    assert_eq!(costs["seals of adaptive in the store"], 168 * segments);
    assert_eq!(costs["seals of the other layouts in the store"], 32 * segments);
    assert_eq!(costs["version table in the store"], (pages + heads) * constant("version page"));
    assert_eq!(costs["what is known of objects, in memory"], segments / 8);
    assert_eq!(costs["which objects were compared, in memory"], 64 * pages);
    assert_eq!(costs["heads of the version table, in memory"], heads * constant("version page"));
}

#[test]
fn the_metadata_of_lost_blocks_matches_the_page() {
    let mark = vec![u8::try_from(constant("lost")).unwrap(); 32];
    for layout in ObjectLayout::ALL {
        let test_disk = TestDisk::new(Cipher::Gcm, layout, BLOCKS);
        test_disk.session(|disk| (0..BLOCKS).step_by(7).for_each(|block| write(disk, block, 1, 1)));
        test_disk.data.replace(0, None);
        test_disk.data.replace(2, None);
        test_disk.session(|disk| {
            write(disk, 5, 1, 2);
            write(disk, 2048, 1, 2);
            disk.discard(BlockAddr(6), 1).unwrap();
        });
        let [first, last] = [0, 2].map(|n| test_disk.data.object(n).unwrap());
        let meta = |block| meta_of(if block < 1024 { &first } else { &last }, &test_disk.params, block);
        for block in (0..1024).chain(2048..BLOCKS).filter(|block| ![5, 6, 2048].contains(block)) {
            assert_eq!(meta(block), mark, "block {block}");
        }
        assert!(meta(5) != mark && meta(2048) != mark);
        assert!(test_disk.open().read(BlockAddr(6), &mut [1; BLOCK_SIZE]).is_ok());
        // Blocks beyond the end of the disk are not marked.
        if layout == ObjectLayout::SegmentEnd {
            assert_eq!(meta(BLOCKS), vec![0; 32]);
        }
    }
}
