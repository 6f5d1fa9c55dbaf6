//! Damaged or malformed pages: the blocks that they cost, and repair of the file by rewriting or
//! truncating it.

mod fixture;

use fixture::{FileHarness, MemoryUs, keys};
use lacuna_contracts::{Budget, Error, Kind, Result};
use lacuna_integrity::{Choice, Part, ProtectedFile, Scheme, Session, Untrusted};
use lacuna_sim::Rng;
use parking_lot::Mutex;

/// Storage that reports some pages as damaged.
struct DamagedStorage {
    us: MemoryUs,
    pages: Mutex<Vec<(Part, u64)>>,
}

impl Untrusted for DamagedStorage {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.us.read_blocks(first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.us.write_blocks(first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        if self.pages.lock().contains(&(part, page)) {
            return Err(Error::new(Kind::Corrupt, "the test has damaged this page"));
        }
        self.us.read_part(part, page)
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.pages.lock().retain(|damaged| *damaged != (part, page));
        self.us.write_part(part, page, bytes)
    }
}

/// A file of blocks that look random, reopened.
fn random_file(scheme: Scheme, plain: &[u8]) -> (DamagedStorage, ProtectedFile) {
    let mut harness = FileHarness::new(Choice::Fixed(scheme), 128, Budget::bytes(0));
    harness.file.update(&harness.us, 0, plain).unwrap();
    for block in 0..50 {
        // Makes enough counters that MT-EINT keeps them in pages.
        harness.file.update(&harness.us, block * 5, &plain[block as usize * 5 * 128..][..128]).unwrap();
    }
    harness.commit().unwrap();
    let file = ProtectedFile::open(keys(1), &harness.trusted, Session(2), Budget::bytes(0)).unwrap();
    (DamagedStorage { us: harness.us, pages: Mutex::default() }, file)
}

/// Makes a page unusable in one of several ways.
fn damage(us: &DamagedStorage, page: (Part, u64), way: u64) {
    assert!(us.us.stored.lock().pages.contains_key(&page), "{page:?}");
    let bytes = match way {
        0 => vec![],
        1 => vec![7; 3],
        2 => vec![7; 4096],
        3 => vec![7; 2048],
        _ => return us.pages.lock().push(page),
    };
    us.us.stored.lock().pages.insert(page, bytes);
}

#[test]
fn damage_to_unauthenticated_pages_loses_only_their_blocks() {
    let plain = Rng::new(1).bytes(600 * 128);
    let kinds = [
        (Scheme::Rand, Part::Position),
        (Scheme::Rand, Part::Order),
        (Scheme::Comp, Part::Position),
        (Scheme::Comp, Part::Order),
        (Scheme::Mt, Part::Counters),
    ];
    for (way, (scheme, part)) in (0..5).flat_map(|way| kinds.map(|kind| (way, kind))) {
        let what = format!("{scheme:?}, {part:?}, way {way}");
        let (us, mut file) = random_file(scheme, &plain);
        damage(&us, (part, 0), way);
        let check = |file: &ProtectedFile, block: u64, new: Option<u8>| {
            let mut found = [1; 128];
            match file.check(&us, block, &mut found) {
                Ok(()) => {
                    let old = &plain[block as usize * 128..][..128];
                    assert!(new.map_or(found == *old, |byte| found == [byte; 128]), "{what}: block {block}");
                }
                Err(failed) => {
                    assert!(new.is_none() && block < 256, "{what}: block {block}");
                    assert!(failed.error.kind() == Kind::Corrupt && found == [0; 128], "{what}");
                }
            }
        };
        (0..600).for_each(|block| check(&file, block, None));
        // All blocks of the page can be written, and then read.
        file.update(&us, 3, &[b'x'; 20 * 128]).unwrap_or_else(|e| panic!("{what}: {e}"));
        let random = Rng::new(2).bytes(128);
        file.update(&us, 40, &random).unwrap_or_else(|e| panic!("{what}: {e}"));
        (0..600).filter(|b| *b != 40).for_each(|b| check(&file, b, (3..23).contains(&b).then_some(b'x')));
        let mut found = [0; 128];
        file.check(&us, 40, &mut found).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(found == *random);
        // The file can be truncated, punched, committed and emptied.
        damage(&us, (part, 1.min(way % 2)), way);
        file.punch(&us, 10, 5).unwrap_or_else(|e| panic!("{what}: {e}"));
        file.resize(&us, 30).unwrap_or_else(|e| panic!("{what}: {e}"));
        let trusted = file.commit(&us).unwrap();
        file = ProtectedFile::open(keys(1), &trusted, Session(3), Budget::bytes(0)).unwrap();
        file.resize(&us, 0).unwrap_or_else(|e| panic!("{what}: {e}"));
        file.update(&us, 0, &plain).unwrap();
        (0..600).for_each(|block| {
            let mut found = [0; 128];
            file.check(&us, block, &mut found).unwrap_or_else(|e| panic!("{what}, block {block}: {e}"));
            assert!(found == plain[block as usize * 128..][..128]);
        });
    }
}

#[test]
fn a_bad_tag_page_is_repaired_by_one_write_of_all_its_blocks() {
    let size = 4096;
    let mut harness = FileHarness::new(Choice::Fixed(Scheme::Mt), size, Budget::bytes(0));
    harness.file.update(&harness.us, 0, &vec![b'a'; 400 * size]).unwrap();
    harness.commit().unwrap();
    for (page, run) in [(1, 128..256), (1, 100..300), (3, 384..400), (3, 380..410), (0, 0..500)] {
        harness.reopen(true).unwrap();
        harness.us.stored.lock().pages.get_mut(&(Part::Tree(0), page)).unwrap()[3] ^= 1;
        assert!(harness.check(page * 128 + 5, 1).1.is_err());
        // Rewriting a part of the page's blocks is not enough.
        let part = vec![b'b'; 12 * size];
        assert_eq!(
            harness.file.update(&harness.us, page * 128 + 2, &part).unwrap_err().kind(),
            Kind::Corrupt
        );
        let count = run.end - run.start;
        harness.file.update(&harness.us, run.start, &vec![b'b'; count as usize * size]).unwrap();
        harness.commit().unwrap();
        harness.reopen(false).unwrap();
        let (plain, result) = harness.check(0, harness.file.blocks());
        result.unwrap();
        assert!(plain[run.start as usize * size..][..count as usize * size].iter().all(|byte| *byte == b'b'));
    }
    // With any damage the file can be emptied, and then written.
    harness.us.stored.lock().pages.values_mut().for_each(|bytes| bytes[0] ^= 1);
    harness.reopen(false).unwrap();
    harness.file.resize(&harness.us, 0).unwrap();
    harness.file.update(&harness.us, 0, &vec![b'c'; 400 * size]).unwrap();
    assert!(harness.check(0, 400).0.iter().all(|byte| *byte == b'c'));
}
