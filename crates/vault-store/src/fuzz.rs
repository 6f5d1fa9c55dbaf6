//! Reading what somebody with the keys made up: for fuzzing.

use crate::anchor::MemoryAnchor;
use crate::content::{
    Changes, Commit, Facts, JournaledPage, ObjectPages, record_from_bytes, record_to_bytes, super_from_bytes,
    super_to_bytes,
};
use crate::ids::{ObjectId, PAGE};
use crate::journal::{Journal, JournalSize, Place};
use crate::keys::StoreKeys;
use crate::options::{StoreBase, StoreOptions};
use crate::record;
use crate::store::Store;
use crate::superblock::SuperFiles;
use lacuna_core::Secret;
use lacuna_crypto::SeededRandom;
use lacuna_medium::Folder;
use std::sync::Arc;

const UUID: [u8; 16] = [1; 16];
const JOURNAL: JournalSize = JournalSize { due: 256 * PAGE as u64, most: 4096 * PAGE as u64 };
/// Numbers at which arithmetic breaks.
const EXTREME: [u64; 6] =
    [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, i64::MAX as u64 - 1, (1 << 51) + 1];
/// Records that one input makes up.
const RECORDS: usize = 8;

/// Parses the input as the texts of a record and of a superblock, as if their seals had verified: what parses is written as it
/// was read.
pub fn fuzz_commits(input: &[u8]) {
    if let Ok((facts, changes)) = record_from_bytes(input) {
        assert_eq!(record_to_bytes(&facts, &changes), input);
    }
    if let Ok(found) = super_from_bytes(input) {
        let written = super_to_bytes(&found.commit, &found.facts, found.root.as_deref(), found.area);
        assert_eq!(written, input);
    }
}

/// Makes a store in an empty folder whose superblock and journal the input makes up, sealed and chained as they should be. If it
/// opens, what is written to it and committed is there when it is opened again.
///
/// # Panics
///
/// If that is not so.
pub fn fuzz_journal(input: &[u8], folder: &Arc<dyn Folder>) {
    make(&mut Input(input), &**folder);
    let anchor = Arc::new(MemoryAnchor::default());
    let open = |seed| {
        let base = StoreBase {
            folder: folder.clone(),
            anchor: anchor.clone(),
            random: Arc::new(SeededRandom::new(seed)),
            now: Arc::new(|| 1),
            uuid: UUID,
        };
        Store::open(base, keys(), &StoreOptions { journal: JOURNAL, ..StoreOptions::default() })
    };
    let Ok((store, _)) = open(2) else { return };
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

fn keys() -> StoreKeys {
    StoreKeys::derive(&Secret::copy_from(&[1; 32]), &UUID)
}

/// Writes the files of a store.
fn make(input: &mut Input<'_>, folder: &dyn Folder) {
    let keys = keys();
    let journal = Journal::create(folder, JOURNAL).expect("an empty folder");
    let (facts, root) = (input.facts(), input.root());
    let mut last =
        Commit { machine: facts.machine, number: input.number(), digest: [1; 32], before: [2; 32] };
    let mut at = Place { area: input.byte() & 1, page: 0 };
    let mut superblock = SuperFiles::create(folder).expect("an empty folder");
    let text = super_to_bytes(&last, &facts, root.as_deref(), at.area);
    superblock.write_text(&keys, &SeededRandom::new(1), &text).expect("it fits its slot");
    for _ in 0..RECORDS {
        if input.0.is_empty() {
            return;
        }
        (last, at) = make_record(input, &keys, &journal, (&last, at));
    }
}

/// Writes a record and the pages that it lists. Gives its commit, and where the next may stand.
fn make_record(
    input: &mut Input<'_>,
    keys: &StoreKeys,
    journal: &Journal,
    (last, mut at): (&Commit, Place),
) -> (Commit, Place) {
    let session = u64::from(input.byte() & 1);
    let facts = input.facts();
    let mut changes = Changes {
        cuts: input.list(Input::pair),
        removals: input.list(Input::number),
        root: input.root(),
        ..Changes::default()
    };
    for (object, number) in input.list(Input::pair) {
        let content = [number as u8; PAGE];
        let (place, sequence) = (at.page, u64::from(at.page));
        let tag = if input.byte() == 0xff { [0; 16] } else { keys.page_tag(sequence, &content) };
        journal.write(at, &content).expect("the folder writes");
        changes.pages.push(JournaledPage { object, page: number, place, sequence, tag });
        at.page += 1;
    }
    if changes.root.is_none() {
        changes.puts = vec![7; usize::from(input.byte() % 3)];
    }
    let step = if input.byte() == 0xff { input.number() } else { 1 };
    let number = last.number.saturating_add(step);
    let plain = record_to_bytes(&facts, &changes);
    let (bytes, digest) =
        record::seal(keys, session, at, (number, &last.digest), &plain).expect("it can be sealed");
    journal.write(at, &bytes).expect("the folder writes");
    at.page += (bytes.len() / PAGE) as u32;
    if changes.root.is_some() {
        at = Place { area: 1 - at.area, page: 0 };
    }
    (Commit { machine: facts.machine, number, digest, before: last.digest }, at)
}

/// What is left of the input. Past its end everything is 0.
struct Input<'i>(&'i [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A small number, or an extreme one.
    fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..0xe0 => byte.into(),
            byte => EXTREME[usize::from(byte) % EXTREME.len()],
        }
    }

    fn pair(&mut self) -> ObjectPages {
        (self.number(), self.number())
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() % 4).map(|_| one(self)).collect()
    }

    fn root(&mut self) -> Option<Vec<u8>> {
        (self.byte() % 4 == 3).then(|| vec![9; 20])
    }

    fn facts(&mut self) -> Facts {
        let next_object = self.number();
        Facts {
            machine: [self.byte() % 3; 16],
            time: self.number(),
            next_object,
            object_limit: next_object.saturating_add(self.number()),
            table: self.list(|input| Commit {
                machine: [input.byte() % 3; 16],
                number: input.number(),
                digest: [3; 32],
                before: [4; 32],
            }),
            appendable: self.list(Input::pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::{CrashFolder, Rng};

    #[test]
    fn stores_that_somebody_made_up_are_refused_or_used() {
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let mut input = rng.bytes(200);
            // Mostly small numbers: random ones are refused at once.
            let small = 1 + seed % 16;
            input.iter_mut().filter(|byte| **byte < 0xf0).for_each(|byte| *byte %= small as u8 + 1);
            input[0] = 40;
            let folder: Arc<dyn Folder> = Arc::new(CrashFolder::new());
            fuzz_journal(&input, &folder);
        }
    }
}
