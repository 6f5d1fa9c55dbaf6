//! A second reader of a disk, written from `docs/format/flash.md` and `docs/format/nand.md`: finds
//! the checkpoint, replays the log, decrypts keys and blocks. It shares only the derivation of keys
//! and the ciphers with the code.

#[path = "../../../../base/nand/tests/by_page/mod.rs"]
mod lebs;

use lebs::Lebs;

use lacuna_contracts::Secret;
use lacuna_crypto::{GcmKey, SivHash, SivKey, XaesKey, XtsKey, derive};
use lacuna_testkit::format_page::{Fields, FormatPage, number};
use std::collections::{BTreeMap, BTreeSet};

/// The place of a node, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) unit: u64,
    pub(crate) ordinal: u64,
    pub(crate) key: u64,
}

impl Place {
    fn of(bytes: &[u8]) -> Option<Place> {
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
        (word != 0).then(|| Place { unit: part(bits[0]) - 1, ordinal: part(bits[1]), key: part(bits[2]) })
    }
}

/// First LEB and number of LEBs of each area, and lengths that follow from them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Areas {
    pub(crate) keys: (u32, u32),
    pub(crate) checkpoints: (u32, u32),
    pub(crate) log: (u32, u32),
    pub(crate) page_keys: u64,
    pub(crate) leb_keys: u64,
    pub(crate) index_pages: u64,
}

/// The fields of the parameters.
pub(crate) struct Parameters {
    pub(crate) key_len: u64,
    pub(crate) blocks: u64,
    pub(crate) most_blocks: u64,
    pub(crate) page: u64,
    pub(crate) leb_len: u64,
    pub(crate) lebs: u64,
}

impl Parameters {
    pub(crate) fn read(bytes: &[u8]) -> Parameters {
        let fields = FormatPage::read("flash").fields("Parameters").of_len(bytes.len());
        fields.assert_zeros(bytes);
        assert_eq!(fields.number(bytes, "version"), 1);
        let value = |name: &str| fields.number(bytes, name);
        Parameters {
            key_len: value("key length"),
            blocks: value("blocks"),
            most_blocks: value("most blocks"),
            page: value("page"),
            leb_len: value("leb length"),
            lebs: value("lebs"),
        }
    }

    /// The areas, computed as in the section of that name.
    pub(crate) fn areas(&self) -> Areas {
        let doc = FormatPage::read("flash");
        let leb = self.leb_len / self.page * self.page;
        let header = doc.constant("copies of the header") * doc.constant("header bytes").div_ceil(leb);
        let page_keys = (self.page - 16) / self.key_len;
        let leb_keys = leb / self.page * page_keys;
        let index_pages = self.most_blocks.div_ceil(doc.constant("fanout"));
        let m = (self.most_blocks / 64).max(128);
        let n = (self.most_blocks / 8).max(m);
        let lebs_for = |more: u64| (self.most_blocks + more).div_ceil(leb_keys);
        let keys = (self.lebs * self.key_len / 4000).max(lebs_for(m)).min(lebs_for(n)).max(2);
        let left = self.lebs - header - keys;
        let checkpoint =
            self.page + 64 + 8 * keys + 8 * index_pages + 12 * left + keys * 2 * (1 + leb_keys.div_ceil(8));
        let checkpoint = checkpoint.div_ceil(leb);
        let log = header + keys + 2 * checkpoint;
        let pair = |a: u64, b: u64| (a as u32, b as u32);
        Areas {
            keys: pair(header, keys),
            checkpoints: pair(header + keys, checkpoint),
            log: pair(log, self.lebs - log),
            page_keys,
            leb_keys,
            index_pages,
        }
    }
}

/// The keys of a disk, by the names in the table.
struct Keys {
    page: XtsKey,
    tail: Secret<32>,
    log: XaesKey,
    index: (GcmKey, SivKey),
    tags: SivHash,
    checkpoint: XaesKey,
}

impl Keys {
    fn derive(master: &Secret<32>) -> Keys {
        let label = |key: &str| {
            let row = FormatPage::read("flash").named("Keys", key);
            row.split("label `").nth(1).unwrap().split('`').next().unwrap().to_owned()
        };
        Keys {
            page: XtsKey::new(&derive(master, &label("page key"), b"")).unwrap(),
            tail: derive(master, &label("tail"), b""),
            log: XaesKey::new(&derive(master, &label("log key"), b"")),
            index: (
                GcmKey::new(&derive(master, &label("index key"), b"")).unwrap(),
                SivKey::derive(master, &label("index tags"), b""),
            ),
            tags: SivHash::derive(master, &label("node tags"), b""),
            checkpoint: XaesKey::new(&derive(master, &label("checkpoint key"), b"")),
        }
    }
}

/// A group of the log.
pub(crate) struct Group {
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
    pub(crate) params: Parameters,
    pub(crate) areas: Areas,
    keys: Keys,
    unit: usize,
    /// The place of every written block.
    pub(crate) index: BTreeMap<u64, Place>,
    /// Used keys, and deleted ones.
    pub(crate) used: BTreeSet<u64>,
    pub(crate) deleted: BTreeSet<u64>,
    /// The last finished purge, and whether one has begun since.
    pub(crate) epoch: u64,
    pub(crate) purging: bool,
    /// Live nodes and last group of each LEB of the log, from the checkpoint.
    pub(crate) log_table: Vec<(u64, u64)>,
    /// The groups that were replayed.
    pub(crate) groups: Vec<Group>,
}

impl SecondReader {
    /// Reads the file of a chip that holds a disk with these parameters.
    pub(crate) fn read(file: &[u8], params: &[u8], master: &Secret<32>) -> SecondReader {
        let params = Parameters::read(params);
        let lebs = Lebs::read(file);
        assert_eq!([params.page, params.leb_len], [lebs.page as u64, lebs.leb_len as u64]);
        let mut reader = SecondReader {
            doc: FormatPage::read("flash"),
            areas: params.areas(),
            unit: lebs.page.min(4096),
            lebs,
            params,
            keys: Keys::derive(master),
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
        let head = self.doc.fields("Checkpoint").of_len(64);
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
        assert!(newest[head.end()..start].iter().all(|byte| *byte == 0xff));
        let mut content = newest[start..start + head.number(newest, "length") as usize].to_vec();
        let (nonce, tag) = (head.get(newest, "nonce"), head.get(newest, "tag"));
        let bound = &newest[..head["nonce"].start];
        let (nonce, tag) = (nonce.try_into().unwrap(), tag.try_into().unwrap());
        self.keys.checkpoint.open_in_place(nonce, bound, &mut content, tag).unwrap().expect("a checkpoint");
        content
    }

    fn replay(&mut self, content: &[u8]) {
        let front = self.doc.fields("Content of a checkpoint").of_len(64);
        front.assert_zeros(content);
        let value = |name: &str| front.number(content, name);
        (self.epoch, self.purging) = (value("epoch"), value("flags") == 1);
        assert!(value("undrained known") <= value("undrained"));
        let mut rest = &content[front.end()..];
        let mut take = |len: u64| {
            let (taken, left) = rest.split_at(len as usize);
            rest = left;
            taken
        };
        let fresh: Vec<u64> = take(4 * value("fresh")).chunks(4).map(number).collect();
        let mut root: Vec<Option<Place>> =
            take(8 * self.areas.index_pages).chunks(8).map(Place::of).collect();
        let entry = self.doc.fields("Entry of a LEB of the log").of_len(12);
        self.log_table = take(entry.end() as u64 * u64::from(self.areas.log.1))
            .chunks(entry.end())
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
        root: &mut [Option<Place>],
        fresh: &mut BTreeSet<u64>,
    ) -> BTreeMap<u64, BTreeMap<u64, Option<Place>>> {
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
        group: &Group,
        root: &mut [Option<Place>],
        fresh: &mut BTreeSet<u64>,
        changes: &mut BTreeMap<u64, BTreeMap<u64, Option<Place>>>,
    ) {
        let fanout = self.doc.constant("fanout");
        let mut change = |block: u64, place: Option<Place>| {
            changes.entry(block / fanout).or_default().insert(block, place);
        };
        match self.kind(group.kind).as_str() {
            "nodes" => {
                let fields = self.doc.fields("Entry of a node").of_len(40);
                for (ordinal, entry) in (0..).zip(&group.entries) {
                    let (target, key) = (fields.number(entry, "target"), fields.number(entry, "key"));
                    let place = Place { unit: group.unit, ordinal, key };
                    if target >> 31 == 1 {
                        let page = target & ((1 << 31) - 1);
                        root[page as usize] = Some(Place { key: 0, ..place });
                        changes.remove(&page);
                        continue;
                    }
                    changes.entry(target / fanout).or_default().insert(target, Some(place));
                    self.is(key, true, false);
                    if let Some(old) = Place::of(fields.get(entry, "replaced")).filter(|old| old.key != key) {
                        self.is(old.key, false, true);
                    }
                }
            }
            "discard" => {
                let fields = self.doc.fields("Entry of a discard").of_len(16);
                for entry in &group.entries {
                    fields.assert_zeros(entry);
                    change(fields.number(entry, "block"), None);
                    let place = Place::of(fields.get(entry, "place")).unwrap();
                    self.is(place.key, false, true);
                }
            }
            "purge starts" => {
                fresh.clear();
                self.purging = true;
            }
            "renewed" => {
                let fields = self.doc.fields("Entry of a renewal").of_len(16);
                for entry in &group.entries {
                    fields.assert_zeros(entry);
                    let leb = fields.number(entry, "keys");
                    fresh.insert(leb);
                    let keys = leb * self.areas.leb_keys..(leb + 1) * self.areas.leb_keys;
                    self.deleted.retain(|key| !keys.contains(key));
                }
            }
            "purge finished" => {
                let fields = self.doc.fields("Entry of a purge").of_len(16);
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
    fn group_at(&self, leb: u64, unit: u64, sequence: u64) -> Option<Group> {
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
    pub(crate) fn group(&self, unit: u64) -> Option<Group> {
        let fields = self.doc.fields("Group").of_len(64);
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
        let (entries, zeros) = header[fields.end()..].split_at(len * value("count") as usize);
        assert!(zeros.iter().all(|byte| *byte == 0));
        Some(Group {
            unit,
            kind: value("kind"),
            sequence: value("sequence"),
            next: value("next"),
            checksum: value("checksum"),
            entries: entries.chunks(len).map(<[u8]>::to_vec).collect(),
        })
    }

    fn is_whole(&self, group: &Group) -> bool {
        let nodes = &self.rest_of_leb(group.unit)[self.unit..][..group.entries.len() * 4096];
        u64::from(crc32fast::hash(nodes)) == group.checksum
    }

    fn read_index(&mut self, root: &[Option<Place>]) {
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
                self.index.extend(Place::of(bytes).map(|place| (block, place)));
            }
        }
    }

    /// The entry of a node, and the node.
    fn node(&self, place: Place) -> (Vec<u8>, Vec<u8>) {
        let group = self.group(place.unit).expect("a group");
        let node = self.rest_of_leb(place.unit)[self.unit + place.ordinal as usize * 4096..][..4096].to_vec();
        (group.entries[place.ordinal as usize].clone(), node)
    }

    /// The key at a position in the key storage area, extended to 32 bytes.
    fn key(&self, key: u64) -> Secret<32> {
        let area = &self.areas;
        let leb = self.lebs.content(area.keys.0 + (key / area.leb_keys) as u32);
        let page = (key % area.leb_keys / area.page_keys) as usize * self.lebs.page;
        let salt = self.doc.fields("Page of keys").of_len(16)["salt"].clone();
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
        let (key, tags) = (GcmKey::new(&key).unwrap(), SivKey::under(&self.keys.tags, key.expose()));
        let data = associated(0, block, fields.get(&entry, "sequence"));
        let tag = fields.get(&entry, "tag").try_into().unwrap();
        tags.open_in_place(&key, &[0; 16], &data, &mut node, tag).expect("a block");
        Some(node)
    }
}

/// The associated data of a node.
fn associated(kind: u8, target: u64, sequence: &[u8]) -> Vec<u8> {
    [&[kind][..], &(target as u32).to_le_bytes(), sequence].concat()
}
