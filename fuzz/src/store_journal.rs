//! Stores with a superblock and a journal forged by an adversary with the keys, sealed and chained
//! as in `docs/format/vault.md`, in a folder that may answer some reads with other records.

use crate::bytes::InputCursor;
use crate::lying::requested_sim_lies;
use lacuna_contracts::{LeWriter, Result, Secret};
use lacuna_crypto::{SeededRandom, SivKey, XAES_NONCE, XaesKey, derive, keyed_hash};
use lacuna_medium::{Folder, FolderFile};
use lacuna_sim::{CrashFolder, Lies};
use lacuna_vault_store::{
    JournalSize, MemoryAnchor, ObjectId, PAGE, Recovered, Store, StoreBacking, StoreKeys, StoreOptions,
};
use std::sync::Arc;

const UUID: [u8; 16] = [1; 16];
const SIZE: JournalSize = JournalSize { checkpoint_at: 256 * PAGE as u64, max: 4096 * PAGE as u64 };
/// Pages of zeros in a new journal file.
const PREPARED: usize = 10;
/// Numbers that may overflow in arithmetic.
const EXTREME: [u64; 6] =
    [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, i64::MAX as u64 - 1, (1 << 51) + 1];
/// Maximum records of one input.
const RECORDS: usize = 8;
/// Bytes of a superblock file, and bytes before its sealed part.
const SLOT: usize = 16384;
const SUPER_HEAD: usize = 48;
/// Bytes of a record before its sealed part, offset of the tag in them, and length of a tag.
const HEADER: usize = 96;
const HEADER_TAG: usize = 80;
const TAG: usize = 16;

/// The number of an object, and a number that belongs to it.
type NumberPair = (u64, u64);

/// Creates a store in an empty folder with a superblock and a journal that the input forges, after
/// five bytes that may ask for lies. Checks that a store that opens has the same state or is
/// refused when the folder lies, and that committed writes are present when it is opened again.
///
/// # Panics
///
/// If a check fails.
pub fn use_forged(input: &[u8]) {
    let mut input = InputCursor::new(input);
    let lies = requested_sim_lies(&mut input);
    let lying = CrashFolder::new();
    if lies.is_some() {
        lying.keep_history();
    }
    StoreForger::new(&lying).forge(input);
    let folder: Arc<dyn Folder> = Arc::new(lying.clone());
    let anchor = Arc::new(MemoryAnchor::default());
    let open = |seed| open(&folder, &anchor, seed, false);
    let Ok((mut store, _)) = open(2) else { return };
    if let Some(lies) = lies {
        drop(store);
        open_under_lies(&lying, &anchor, lies);
        let Ok((again, _)) = open(5) else { return };
        store = again;
    }
    let mut pages = vec![0; 3 * PAGE];
    for object in (0..12).map(ObjectId) {
        let _ = store.read(object, 0, &mut pages);
    }
    let _ = (store.write(ObjectId(1), 1, &pages), store.truncate(ObjectId(2), 1), store.remove(ObjectId(3)));
    let Ok(new) = store.new_object() else { return };
    let written = vec![0x5a; PAGE];
    let done = store.write(new, 2, &written).and_then(|()| store.commit(b"puts", None));
    if done.is_err() {
        return;
    }
    let shows = |store: &Store| {
        let mut found = vec![0; PAGE];
        store.read(new, 2, &mut found).expect("the folder reads");
        assert_eq!(found, written);
    };
    drop(store);
    let (store, found) = open(3).expect("it was open, and everything was committed");
    assert_eq!(found.puts.last().map(Vec::as_slice), Some(&b"puts"[..]));
    shows(&store);
    let done = store.commit(&[], Some(b"root")).and_then(|()| store.close());
    drop(store);
    let (store, found) = open(4).expect("it was open, and everything was committed");
    shows(&store);
    if done.is_ok() {
        assert_eq!((found.root.as_deref(), found.puts.len()), (Some(&b"root"[..]), 0));
    }
}

/// Opens a store while its folder answers some reads with other records or with forged ones. Each
/// attempt gives the state that the anchor remembers, with all commits since its root, or an error.
fn open_under_lies(lying: &CrashFolder, anchor: &Arc<MemoryAnchor>, lies: Lies) {
    let folder: Arc<dyn Folder> = Arc::new(lying.clone());
    let look = |seed| open(&folder, anchor, seed, true).map(|(_, found)| found);
    let Ok(honest) = look(10) else { return };
    lying.set_lies(Some(&lies), |_| true);
    lying.set_name_lies((lies.per_mille < 100).then_some(lies));
    for seed in 11..14 {
        if let Ok(found) = look(seed) {
            assert_eq!(found.state.number, honest.state.number, "another state passes for the newest");
            assert_eq!((&found.root, &found.puts), (&honest.root, &honest.puts), "something was left out");
        }
    }
    lying.set_lies(None, |_| true);
    lying.set_name_lies(None);
}

fn open(
    folder: &Arc<dyn Folder>,
    anchor: &Arc<MemoryAnchor>,
    seed: u64,
    read_only: bool,
) -> Result<(Store, Recovered)> {
    let base = StoreBacking {
        folder: folder.clone(),
        anchor: anchor.clone(),
        random: Arc::new(SeededRandom::new(seed)),
        clock: Arc::new(|| 1),
        uuid: UUID,
    };
    let keys = StoreKeys::derive(&master(), &UUID);
    Store::open(base, keys, &StoreOptions { read_only, journal: SIZE, ..StoreOptions::default() })
}

fn master() -> Secret<32> {
    Secret::copy_from(&[1; 32])
}

/// A page of a journal file.
#[derive(Clone, Copy)]
struct JournalPage {
    file: usize,
    page: u32,
}

impl JournalPage {
    fn offset(self) -> u64 {
        u64::from(self.page) * PAGE as u64
    }
}

/// The last commit.
struct LastCommit {
    number: u64,
    digest: [u8; 32],
}

/// The files of a store in a folder, and the keys that seal them.
struct StoreForger {
    journal: [Arc<dyn FolderFile>; 2],
    superblocks: [Arc<dyn FolderFile>; 2],
    seal: XaesKey,
    headers: Secret<32>,
    chain: Secret<32>,
    pages: SivKey,
}

impl StoreForger {
    fn new(folder: &dyn Folder) -> StoreForger {
        let file = |name: &str, len: usize| {
            let file = folder.create(name).expect("an empty folder");
            write(&*file, 0, &vec![0; len]);
            file
        };
        StoreForger {
            journal: ["journal.0", "journal.1"].map(|name| file(name, PREPARED * PAGE)),
            superblocks: ["super.0", "super.1"].map(|name| file(name, SLOT)),
            seal: XaesKey::new(&derive(&master(), "vault commits", &UUID)),
            headers: derive(&master(), "vault record headers", &UUID),
            chain: derive(&master(), "vault commit chain", &UUID),
            pages: SivKey::derive(&master(), "vault journaled pages", &UUID),
        }
    }

    /// Writes a superblock, and then records until the input ends.
    fn forge(&self, mut input: InputCursor<'_>) {
        let (facts, root) = (commit_state(&mut input), root(&mut input));
        let mut last = LastCommit { number: number(&mut input), digest: [1; 32] };
        let mut at = JournalPage { file: usize::from(input.byte() & 1), page: 0 };
        let mut text = TextWriter::default();
        text.number(last.number).bytes(&last.digest).bytes(&[2; 32]).count(at.file).bytes(&facts);
        text.root(root);
        self.write_superblocks(&text.0);
        for _ in 0..RECORDS {
            if input.is_empty() {
                return;
            }
            (last, at) = self.forge_record(&mut input, &last, at);
        }
    }

    fn write_superblocks(&self, text: &[u8]) {
        let nonce = [1; XAES_NONCE];
        let mut slot = vec![0; SUPER_HEAD];
        LeWriter(&mut slot).put(0, b"lacunasb").u64(8, 1).put(16, &nonce).u32(40, (text.len() + TAG) as u32);
        let sealed = self.seal(&nonce, &slot, text);
        slot.extend(sealed);
        assert!(slot.len() <= SLOT, "a superblock of {} bytes", slot.len());
        self.superblocks.iter().for_each(|file| write(&**file, 0, &slot));
    }

    /// Writes a record and the pages that it lists. Returns its commit, and the place of the next
    /// record.
    fn forge_record(
        &self,
        input: &mut InputCursor<'_>,
        last: &LastCommit,
        mut at: JournalPage,
    ) -> (LastCommit, JournalPage) {
        let session = u64::from(input.byte() & 1);
        let mut text = TextWriter::default();
        text.bytes(&commit_state(input)).pairs(&list(input, pair));
        let removals = list(input, number);
        text.count(removals.len());
        for object in removals {
            text.number(object);
        }
        let (root, pages) = (root(input), list(input, pair));
        text.count(pages.len());
        for (object, page) in pages {
            let content = [page as u8; PAGE];
            let sequence = u64::from(at.page);
            let tag = if input.byte() == 0xff { [0; TAG] } else { self.page_tag(sequence, &content) };
            write(&*self.journal[at.file], at.offset(), &content);
            text.number(object).number(page).count(at.page as usize).number(sequence).bytes(&tag);
            at.page += 1;
        }
        let puts = if root.is_none() { vec![7; usize::from(input.byte() % 3)] } else { vec![] };
        let step = if input.byte() == 0xff { number(input) } else { 1 };
        let begins_checkpoint = root.is_some();
        text.root(root).count(puts.len()).bytes(&puts);
        let (bytes, commit) = self.record(session, at, last, step, &text.0);
        write(&*self.journal[at.file], at.offset(), &bytes);
        at.page += (bytes.len() / PAGE) as u32;
        if begins_checkpoint {
            at = JournalPage { file: 1 - at.file, page: 0 };
        }
        (commit, at)
    }

    /// A record that follows `last`, with a number that is higher by `step`, and its commit.
    fn record(
        &self,
        session: u64,
        at: JournalPage,
        last: &LastCommit,
        step: u64,
        text: &[u8],
    ) -> (Vec<u8>, LastCommit) {
        let number = last.number.saturating_add(step);
        let mut bytes = vec![0; HEADER];
        LeWriter(&mut bytes)
            .put(0, b"lacunarc")
            .u64(8, number)
            .u64(16, session)
            .put(24, &last.digest)
            .u32(56, at.page)
            .u32(60, (text.len() + TAG) as u32)
            .u32(64, at.file as u32);
        let tag = keyed_hash(&self.headers, &[&bytes[..HEADER_TAG]]);
        LeWriter(&mut bytes).put(HEADER_TAG, &tag[..TAG]);
        // The last 12 bytes of the nonce are those of the header at offset 68: zeros.
        let mut nonce = [0; XAES_NONCE];
        LeWriter(&mut nonce).u64(0, session).u32(8, number as u32);
        let sealed = self.seal(&nonce, &bytes, text);
        let digest = keyed_hash(&self.chain, &[&bytes[..], &sealed[..]]);
        bytes.extend(sealed);
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        (bytes, LastCommit { number, digest })
    }

    /// The encrypted text followed by its tag.
    fn seal(&self, nonce: &[u8; XAES_NONCE], bound: &[u8], text: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; text.len()];
        let tag = self.seal.seal(nonce, bound, text, &mut sealed).expect("memory for a cipher");
        sealed.extend(tag);
        sealed
    }

    fn page_tag(&self, sequence: u64, content: &[u8]) -> [u8; TAG] {
        let mut counter = [0; 16];
        LeWriter(&mut counter).u64(0, sequence);
        self.pages.tag(&counter, &[], content)
    }
}

fn write(file: &dyn FolderFile, offset: u64, bytes: &[u8]) {
    file.write_at(offset, bytes).expect("a folder without faults");
}

/// The text of a record or of a superblock.
#[derive(Default)]
struct TextWriter(Vec<u8>);

impl TextWriter {
    fn bytes(&mut self, bytes: &[u8]) -> &mut TextWriter {
        self.0.extend(bytes);
        self
    }

    fn number(&mut self, number: u64) -> &mut TextWriter {
        self.bytes(&number.to_le_bytes())
    }

    /// Appends a number of four bytes.
    fn count(&mut self, count: usize) -> &mut TextWriter {
        self.bytes(&(count as u32).to_le_bytes())
    }

    fn pairs(&mut self, pairs: &[NumberPair]) -> &mut TextWriter {
        self.count(pairs.len());
        for (object, pages) in pairs {
            self.number(*object).number(*pages);
        }
        self
    }

    fn root(&mut self, root: Option<Vec<u8>>) -> &mut TextWriter {
        self.count(usize::from(root.is_some()));
        let root = root.unwrap_or_default();
        self.count(root.len()).bytes(&root)
    }
}

/// A small number, or an extreme one.
fn number(input: &mut InputCursor<'_>) -> u64 {
    match input.byte() {
        byte @ 0..0xe0 => byte.into(),
        byte => EXTREME[usize::from(byte) % EXTREME.len()],
    }
}

fn pair(input: &mut InputCursor<'_>) -> NumberPair {
    (number(input), number(input))
}

fn list<T>(input: &mut InputCursor<'_>, one: impl Fn(&mut InputCursor<'_>) -> T) -> Vec<T> {
    (0..input.byte() % 4).map(|_| one(input)).collect()
}

fn root(input: &mut InputCursor<'_>) -> Option<Vec<u8>> {
    (input.byte() % 4 == 3).then(|| vec![9; 20])
}

/// The commit state, as encoded in a text.
fn commit_state(input: &mut InputCursor<'_>) -> Vec<u8> {
    let next_object = number(input);
    let (machine, time) = ([input.byte() % 3; 16], number(input));
    let limit = next_object.saturating_add(number(input));
    let others = list(input, |input| ([input.byte() % 3; 16], number(input)));
    let mut text = TextWriter::default();
    text.bytes(&machine).number(time).number(next_object).number(limit).count(others.len());
    for (machine, number) in others {
        text.bytes(&machine).number(number).bytes(&[3; 32]).bytes(&[4; 32]);
    }
    text.pairs(&list(input, pair));
    text.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    #[test]
    fn a_forged_store_is_refused_or_used() {
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let mut input = rng.bytes(200);
            // Mostly small numbers, because random ones are refused early.
            let small = 1 + seed % 16;
            input.iter_mut().filter(|byte| **byte < 0xf0).for_each(|byte| *byte %= small as u8 + 1);
            input[0] = 40;
            let lies = [if seed % 2 == 0 { 0x80 } else { 0 }, seed as u8, 0, (seed / 4 % 2) as u8, 0];
            use_forged(&[&lies[..], &input[..]].concat());
        }
    }

    /// A sensible forged store opens and is read.
    #[test]
    fn a_consistent_forgery_opens() {
        let facts = [40, 1, 9, 100, 0, 0];
        // The superblock has no root, commit 5 and the first file. The record has a session, no
        // cuts and no removals, no root, a page, its tag, and puts.
        let superblock = [&facts[..], &[0, 5, 0]].concat();
        let record = [&[1][..], &facts, &[0, 0, 0, 1, 2, 1, 1, 1, 1]].concat();
        let folder: Arc<dyn Folder> = Arc::new(CrashFolder::new());
        StoreForger::new(&*folder).forge(InputCursor::new(&[superblock, record].concat()));
        let (store, found) = open(&folder, &Arc::default(), 1, false).unwrap();
        assert_eq!((found.records, found.state.number, found.puts), (1, 6, vec![vec![7]]));
        let mut page = vec![0; PAGE];
        store.read(ObjectId(2), 1, &mut page).unwrap();
        assert!(page == [1; PAGE]);
    }
}
