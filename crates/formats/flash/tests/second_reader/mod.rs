//! A second reader of a disk, written from `docs/format/flash.md` and `docs/format/nand.md`: finds
//! the checkpoint, replays the log, decrypts keys and blocks. It shares only the derivation of keys
//! and the ciphers with the code.

#[path = "../../../../base/nand/tests/second_reader/mod.rs"]
mod lebs;
mod params;

use lebs::Lebs;
use params::ParsedAreas;

pub(crate) use params::ParsedParams;

use lacuna_contracts::Secret;
use lacuna_crypto::{AesBlock, SivHash, SivKey, XaesKey, XtsKey, derive};
use lacuna_testkit::format_page::{Fields, FormatPage, number};
use std::collections::{BTreeMap, BTreeSet};

/// The place of a node, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParsedPlace {
    pub(crate) unit: u64,
    pub(crate) ordinal: u64,
    pub(crate) key: u64,
}

impl ParsedPlace {
    fn of(bytes: &[u8]) -> Option<ParsedPlace> {
        let doc = FormatPage::read("flash");
        let bits: Vec<(u32, u32)> = doc
            .rows("Place")
            .iter()
            .map(|row| {
                row[0].split_once(" to ").map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).unwrap()
            })
            .collect();
        let word = number(bytes);
        let part = |(from, to): (u32, u32)| (word >> from) & ((1 << (to - from + 1)) - 1);
        (word != 0).then(|| ParsedPlace {
            unit: part(bits[0]) - 1,
            ordinal: part(bits[1]),
            key: part(bits[2]),
        })
    }
}

/// The keys of a disk, by the names in the table.
struct ParsedKeys {
    page: XtsKey,
    tail: Secret<32>,
    log: XaesKey,
    index: (AesBlock, SivKey),
    tags: SivHash,
    checkpoint: XaesKey,
}

impl ParsedKeys {
    fn derive(master: &Secret<32>) -> ParsedKeys {
        let label = |key: &str| {
            let row = FormatPage::read("flash").value_of("Keys", key);
            row.split("label `").nth(1).unwrap().split('`').next().unwrap().to_owned()
        };
        ParsedKeys {
            page: XtsKey::new(&derive(master, &label("page key"), b"")).unwrap(),
            tail: derive(master, &label("tail"), b""),
            log: XaesKey::new(&derive(master, &label("log key"), b"")),
            index: (
                AesBlock::new(&derive(master, &label("index key"), b"")),
                SivKey::derive(master, &label("index tags"), b""),
            ),
            tags: SivHash::derive(master, &label("node tags"), b""),
            checkpoint: XaesKey::new(&derive(master, &label("checkpoint key"), b"")),
        }
    }
}

/// A group of the log.
pub(crate) struct ParsedGroup {
    /// The number of its header's unit.
    pub(crate) unit: u64,
    pub(crate) kind: u64,
    pub(crate) sequence: u64,
    next: u64,
    checksum: u64,
    /// Its entries, with the length that its kind has.
    pub(crate) entries: Vec<Vec<u8>>,
}

/// A disk.
pub(crate) struct SecondReader {
    doc: FormatPage,
    pub(crate) lebs: Lebs,
    pub(crate) params: ParsedParams,
    pub(crate) areas: ParsedAreas,
    keys: ParsedKeys,
    unit: usize,
    /// The place of every written block.
    pub(crate) index: BTreeMap<u64, ParsedPlace>,
    /// Used keys, and deleted ones.
    pub(crate) used: BTreeSet<u64>,
    pub(crate) deleted: BTreeSet<u64>,
    /// The last finished purge, and whether one has begun since.
    pub(crate) epoch: u64,
    pub(crate) purging: bool,
    /// Live nodes and last group of each LEB of the log, from the checkpoint.
    pub(crate) log_table: Vec<(u64, u64)>,
    /// The groups that were replayed.
    pub(crate) groups: Vec<ParsedGroup>,
}

impl SecondReader {
    /// Reads the file of a chip that holds a disk with these parameters.
    pub(crate) fn read(file: &[u8], params: &[u8], master: &Secret<32>) -> SecondReader {
        let params = ParsedParams::read(params);
        let lebs = Lebs::read(file);
        assert_eq!([params.page, params.leb_len], [lebs.page as u64, lebs.leb_len as u64]);
        let mut reader = SecondReader {
            doc: FormatPage::read("flash"),
            areas: params.areas(),
            unit: lebs.page.min(4096),
            lebs,
            params,
            keys: ParsedKeys::derive(master),
            index: BTreeMap::new(),
            used: BTreeSet::new(),
            deleted: BTreeSet::new(),
            epoch: 0,
            purging: false,
            log_table: vec![],
            groups: vec![],
        };
        let content = reader.checkpoint();
        reader.replay(&content);
        reader
    }

    /// The content of the newest checkpoint.
    fn checkpoint(&self) -> Vec<u8> {
        let head = self.doc.fields("Checkpoint").assert_len(64);
        let (first, each) = self.areas.checkpoints;
        let mut areas = (0..2).map(|area| {
            let start = first + area * each;
            (start..start + each).flat_map(|leb| self.lebs.content(leb)).collect::<Vec<u8>>()
        });
        let areas: [Vec<u8>; 2] = [areas.next().unwrap(), areas.next().unwrap()];
        let has_head = |area: &&Vec<u8>| area[..8] != [0xff; 8];
        let newest = areas.iter().filter(has_head).max_by_key(|area| head.number(area, "number")).unwrap();
        let magic = head.get(newest, "magic");
        assert_eq!((magic, head.number(newest, "version")), (&b"lacflash"[..], 1));
        assert_eq!(areas[(head.number(newest, "number") % 2) as usize], *newest);
        let start = self.lebs.page;
        assert!(newest[head.byte_len()..start].iter().all(|byte| *byte == 0xff));
        let mut content = newest[start..start + head.number(newest, "length") as usize].to_vec();
        let (nonce, tag) = (head.get(newest, "nonce"), head.get(newest, "tag"));
        let bound = &newest[..head["nonce"].start];
        let (nonce, tag) = (nonce.try_into().unwrap(), tag.try_into().unwrap());
        self.keys.checkpoint.open_in_place(nonce, bound, &mut content, tag).unwrap().expect("a checkpoint");
        content
    }

    fn replay(&mut self, content: &[u8]) {
        let front = self.doc.fields("Content of a checkpoint").assert_len(64);
        front.assert_zeros(content);
        let value = |name: &str| front.number(content, name);
        (self.epoch, self.purging) = (value("epoch"), value("flags") == 1);
        assert!(value("undrained known") <= value("undrained"));
        let mut rest = &content[front.byte_len()..];
        let mut take = |len: u64| {
            let (taken, left) = rest.split_at(len as usize);
            rest = left;
            taken
        };
        let fresh: Vec<u64> = take(4 * value("fresh")).chunks(4).map(number).collect();
        let mut root: Vec<Option<ParsedPlace>> =
            take(8 * self.areas.index_pages).chunks(8).map(ParsedPlace::of).collect();
        let entry = self.doc.fields("Entry of a LEB of the log").assert_len(12);
        self.log_table = take(entry.byte_len() as u64 * u64::from(self.areas.log.1))
            .chunks(entry.byte_len())
            .map(|bytes| (entry.number(bytes, "live"), entry.number(bytes, "written")))
            .collect();
        self.read_states(rest);
        let mut fresh: BTreeSet<u64> = fresh.into_iter().collect();
        let changes = self.replay_groups(&front, content, &mut root, &mut fresh);
        self.read_index(&root);
        for (block, place) in changes.into_values().flatten() {
            self.index.remove(&block);
            self.index.extend(place.map(|place| (block, place)));
        }
        for leb in fresh {
            let keys = leb * self.areas.leb_keys..(leb + 1) * self.areas.leb_keys;
            self.deleted.extend(keys.filter(|key| !self.used.contains(key)));
        }
    }

    fn read_states(&mut self, mut rest: &[u8]) {
        let keys = self.areas.leb_keys;
        let byte = |name: &str| {
            let rows = self.doc.rows("Key state map");
            let row = rows.iter().find(|row| row[1].starts_with(name)).unwrap();
            row[0].parse::<u8>().unwrap()
        };
        let [none, all, some] = ["none", "all", "some"].map(byte);
        for leb in 0..u64::from(self.areas.keys.1) {
            for states in [&mut self.used, &mut self.deleted] {
                let said = rest[0];
                rest = &rest[1..];
                let (bits, left) = rest.split_at(if said == some { keys.div_ceil(8) as usize } else { 0 });
                rest = left;
                assert!([none, all, some].contains(&said));
                let is_set =
                    |key: &u64| said == all || said == some && bits[*key as usize / 8] >> (key % 8) & 1 == 1;
                states.extend((0..keys).filter(is_set).map(|key| leb * keys + key));
            }
            let (doubtful, left) = rest.split_at(4);
            rest = left;
            let of_leb = self.deleted.range(leb * keys..(leb + 1) * keys);
            assert!(number(doubtful) <= of_leb.count() as u64, "LEB {leb} of keys");
        }
        assert_eq!(rest, b"");
    }

    /// Replays the log. Returns, for each page of the index, the places of blocks that changed
    /// since the page was written.
    fn replay_groups(
        &mut self,
        front: &Fields,
        content: &[u8],
        root: &mut [Option<ParsedPlace>],
        fresh: &mut BTreeSet<u64>,
    ) -> BTreeMap<u64, BTreeMap<u64, Option<ParsedPlace>>> {
        let value = |name: &str| front.number(content, name);
        let (mut leb, mut unit, mut next, mut sequence) =
            (value("leb"), value("unit"), value("next"), value("sequence"));
        let mut changes = BTreeMap::new();
        loop {
            let group = match self.group_at(leb, unit, sequence) {
                Some(group) => group,
                None => match self.group_at(next, 0, sequence) {
                    Some(group) => {
                        (leb, unit) = (next, 0);
                        group
                    }
                    None => break,
                },
            };
            let nodes = if group.kind == 1 { group.entries.len() } else { 0 };
            let len = (self.unit + nodes * 4096).next_multiple_of(self.lebs.page) / self.unit;
            (unit, next, sequence) = (unit + len as u64, group.next, sequence + 1);
            self.groups.push(group);
        }
        if self.groups.last().is_some_and(|last| last.kind == 1 && !self.is_whole(last)) {
            self.groups.pop();
        }
        let groups = std::mem::take(&mut self.groups);
        groups.iter().for_each(|group| self.apply(group, root, fresh, &mut changes));
        self.groups = groups;
        changes
    }

    fn apply(
        &mut self,
        group: &ParsedGroup,
        root: &mut [Option<ParsedPlace>],
        fresh: &mut BTreeSet<u64>,
        changes: &mut BTreeMap<u64, BTreeMap<u64, Option<ParsedPlace>>>,
    ) {
        let fanout = self.doc.constant("fanout");
        let mut change = |block: u64, place: Option<ParsedPlace>| {
            changes.entry(block / fanout).or_default().insert(block, place);
        };
        match self.kind(group.kind).as_str() {
            "nodes" => {
                let fields = self.doc.fields("Entry of a node").assert_len(40);
                for (ordinal, entry) in (0..).zip(&group.entries) {
                    let (target, key) = (fields.number(entry, "target"), fields.number(entry, "key"));
                    let place = ParsedPlace { unit: group.unit, ordinal, key };
                    if target >> 31 == 1 {
                        let page = target & ((1 << 31) - 1);
                        root[page as usize] = Some(ParsedPlace { key: 0, ..place });
                        changes.remove(&page);
                        continue;
                    }
                    changes.entry(target / fanout).or_default().insert(target, Some(place));
                    self.is(key, true, false);
                    if let Some(old) =
                        ParsedPlace::of(fields.get(entry, "replaced")).filter(|old| old.key != key)
                    {
                        self.is(old.key, false, true);
                    }
                }
            }
            "discard" => {
                let fields = self.doc.fields("Entry of a discard").assert_len(16);
                for entry in &group.entries {
                    fields.assert_zeros(entry);
                    change(fields.number(entry, "block"), None);
                    let place = ParsedPlace::of(fields.get(entry, "place")).unwrap();
                    self.is(place.key, false, true);
                }
            }
            "purge starts" => {
                fresh.clear();
                self.purging = true;
            }
            "renewed" => {
                let fields = self.doc.fields("Entry of a renewal").assert_len(16);
                for entry in &group.entries {
                    fields.assert_zeros(entry);
                    let leb = fields.number(entry, "keys");
                    fresh.insert(leb);
                    let keys = leb * self.areas.leb_keys..(leb + 1) * self.areas.leb_keys;
                    self.deleted.retain(|key| !keys.contains(key));
                }
            }
            "purge finished" => {
                let fields = self.doc.fields("Entry of a purge").assert_len(16);
                fields.assert_zeros(&group.entries[0]);
                (self.epoch, self.purging) = (fields.number(&group.entries[0], "epoch"), false);
            }
            other => panic!("kind {other}"),
        }
    }

    fn is(&mut self, key: u64, used: bool, deleted: bool) {
        for (states, is) in [(&mut self.used, used), (&mut self.deleted, deleted)] {
            if is {
                states.insert(key)
            } else {
                states.remove(&key)
            };
        }
    }

    /// The name of a kind.
    fn kind(&self, kind: u64) -> String {
        let rows = self.doc.rows("Kinds");
        let row = rows.into_iter().find(|row| row[1].starts_with(&format!("{kind}:")));
        row.unwrap_or_else(|| panic!("no kind {kind}")).swap_remove(0)
    }

    /// The group at a unit of a LEB of the log, if it has this sequence number.
    fn group_at(&self, leb: u64, unit: u64, sequence: u64) -> Option<ParsedGroup> {
        let units = (self.lebs.leb_len / self.lebs.page * self.lebs.page / self.unit) as u64;
        let number = (u64::from(self.areas.log.0) + leb) * units + unit;
        (unit < units).then(|| self.group(number)).flatten().filter(|group| group.sequence == sequence)
    }

    /// The bytes of a LEB, starting at a unit.
    fn rest_of_leb(&self, unit: u64) -> Vec<u8> {
        let units = (self.lebs.leb_len / self.lebs.page * self.lebs.page / self.unit) as u64;
        self.lebs.content((unit / units) as u32).split_off((unit % units) as usize * self.unit)
    }

    /// The group with its header in this unit, if there is one.
    pub(crate) fn group(&self, unit: u64) -> Option<ParsedGroup> {
        let fields = self.doc.fields("Group").assert_len(64);
        let mut header = self.rest_of_leb(unit);
        header.truncate(self.unit);
        let nonce = header[fields["nonce"].clone()].try_into().unwrap();
        let tag: [u8; 16] = header[fields["tag"].clone()].try_into().unwrap();
        let body = &mut header[fields["tag"].end..];
        let place = (unit as u32).to_le_bytes();
        self.keys.log.open_in_place(&nonce, &place, body, &tag).unwrap().ok()?;
        fields.assert_zeros(&header);
        let value = |name: &str| fields.number(&header, name);
        assert_eq!(value("version"), 1);
        let len = if self.kind(value("kind")) == "nodes" { 40 } else { 16 };
        let (entries, zeros) = header[fields.byte_len()..].split_at(len * value("count") as usize);
        assert!(zeros.iter().all(|byte| *byte == 0));
        Some(ParsedGroup {
            unit,
            kind: value("kind"),
            sequence: value("sequence"),
            next: value("next"),
            checksum: value("checksum"),
            entries: entries.chunks(len).map(<[u8]>::to_vec).collect(),
        })
    }

    fn is_whole(&self, group: &ParsedGroup) -> bool {
        let nodes = &self.rest_of_leb(group.unit)[self.unit..][..group.entries.len() * 4096];
        u64::from(crc32fast::hash(nodes)) == group.checksum
    }

    fn read_index(&mut self, root: &[Option<ParsedPlace>]) {
        for (page, place) in (0..).zip(root) {
            let Some(place) = place else { continue };
            let (entry, mut node) = self.node(*place);
            let fields = self.doc.fields("Entry of a node");
            assert_eq!(fields.number(&entry, "target"), page | 1 << 31);
            let counter = [fields.get(&entry, "key"), &[0; 12]].concat().try_into().unwrap();
            let tag = fields.get(&entry, "tag").try_into().unwrap();
            let data = associated(1, page, fields.get(&entry, "sequence"));
            let (key, tags) = &self.keys.index;
            let opened = tags.open_in_place(key, &counter, &data, &mut node, tag);
            opened.expect("a page of the index");
            for (block, bytes) in (page * 512..).zip(node.chunks(8)) {
                self.index.extend(ParsedPlace::of(bytes).map(|place| (block, place)));
            }
        }
    }

    /// The entry of a node, and the node.
    fn node(&self, place: ParsedPlace) -> (Vec<u8>, Vec<u8>) {
        let group = self.group(place.unit).expect("a group");
        let node = self.rest_of_leb(place.unit)[self.unit + place.ordinal as usize * 4096..][..4096].to_vec();
        (group.entries[place.ordinal as usize].clone(), node)
    }

    /// The key at a position in the key storage area, extended to 32 bytes.
    fn key(&self, key: u64) -> Secret<32> {
        let area = &self.areas;
        let leb = self.lebs.content(area.keys.0 + (key / area.leb_keys) as u32);
        let page = (key % area.leb_keys / area.page_keys) as usize * self.lebs.page;
        let salt = self.doc.fields("Page of keys").assert_len(16)["salt"].clone();
        let (salt, keys) = leb[page..page + self.lebs.page].split_at(salt.end);
        let mut keys = keys.to_vec();
        self.keys.page.session().decrypt_in_place(salt.try_into().unwrap(), &mut keys);
        let len = self.params.key_len as usize;
        let mut whole = *self.keys.tail.expose();
        whole[..len].copy_from_slice(&keys[(key % area.page_keys) as usize * len..][..len]);
        Secret::copy_from(&whole)
    }

    /// The content of a block; `None` for a hole.
    pub(crate) fn block(&self, block: u64) -> Option<Vec<u8>> {
        let place = self.index.get(&block)?;
        let (entry, mut node) = self.node(*place);
        let fields = self.doc.fields("Entry of a node");
        assert_eq!([fields.number(&entry, "target"), fields.number(&entry, "key")], [block, place.key]);
        let key = self.key(place.key);
        let data = associated(0, block, fields.get(&entry, "sequence"));
        let tag = fields.get(&entry, "tag").try_into().unwrap();
        let opened = self.keys.tags.open_in_place(&AesBlock::new(&key), &[0; 16], &data, &mut node, tag);
        opened.expect("a block");
        Some(node)
    }
}

/// The associated data of a node.
fn associated(kind: u8, target: u64, sequence: &[u8]) -> Vec<u8> {
    [&[kind][..], &(target as u32).to_le_bytes(), sequence].concat()
}
