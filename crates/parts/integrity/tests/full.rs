//! Full untrusted storage: a refused change or commit changes no more than it documents, and the
//! file stays usable; any other error ends the use of the file.

mod fixture;

use fixture::{CHOICES, FileModel, MemoryUs, content, keys};
use lacuna_contracts::{Budget, Error, Kind, Result};
use lacuna_integrity::{Choice, Part, ProtectedFile, Scheme, Session, Untrusted};
use lacuna_sim::Rng;
use parking_lot::Mutex;
use std::ops::Range;

/// Storage with failing writes.
struct FailingStorage {
    us: MemoryUs,
    rng: Mutex<Rng>,
    /// One write in this number fails; 0 for none.
    one_in: Mutex<u64>,
    kind: Kind,
}

impl FailingStorage {
    fn new(kind: Kind, seed: u64) -> Self {
        FailingStorage {
            us: MemoryUs::new(128),
            rng: Mutex::new(Rng::new(seed)),
            one_in: Mutex::new(0),
            kind,
        }
    }

    fn refuse(&self) -> Result<()> {
        let one_in = *self.one_in.lock();
        if one_in > 0 && self.rng.lock().chance(1, one_in) {
            return Err(Error::new(self.kind, "the test refuses"));
        }
        Ok(())
    }
}

impl Untrusted for FailingStorage {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.us.read_blocks(first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.refuse()?;
        self.us.write_blocks(first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        self.us.read_part(part, page)
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        if bytes.is_some() {
            self.refuse()?;
        }
        self.us.write_part(part, page, bytes)
    }
}

fn read(file: &ProtectedFile, us: &FailingStorage, block: u64) -> Vec<u8> {
    let mut plain = vec![0; 128];
    file.check(us, block, &mut plain).unwrap();
    plain
}

/// Updates the model after an update, which may have written only a prefix of its blocks if it was
/// refused. Returns whether all of them are new.
fn account_update(
    file: &ProtectedFile,
    us: &FailingStorage,
    model: &mut FileModel,
    first: u64,
    plain: &[u8],
    what: &str,
) -> bool {
    let mut new = true;
    for (block, wrote) in (first..file.blocks()).zip(plain.chunks_exact(128)) {
        let found = read(file, us, block);
        new &= found == wrote;
        if new {
            model.update(block, wrote, 128);
        }
        assert!(found == model.block(block, 128), "{what}: block {block}");
    }
    new
}

#[test]
fn a_file_stays_usable_without_space() {
    for (seed, choice) in (0..40).flat_map(|seed| CHOICES.map(|choice| (seed, choice))) {
        let us = FailingStorage::new(Kind::NoSpace, seed);
        let mut rng = Rng::new(seed);
        let mut file = ProtectedFile::init_with_block_size(keys(1), choice, Session(1), 128);
        let mut model = FileModel::default();
        for step in 0..60 {
            *us.one_in.lock() = rng.below(4);
            let (first, count) = (rng.below(600), 1 + rng.below(200));
            let plain = content(&mut rng, 128, count as usize);
            let result = file.update(&us, first, &plain);
            match &result {
                Ok(()) => model.update(first, &plain, 128),
                Err(e) => assert_eq!(e.kind(), Kind::NoSpace),
            }
            let what = format!("{choice:?}, seed {seed}, step {step}");
            account_update(&file, &us, &mut model, first, &plain, &what);
            if rng.chance(1, 5) {
                let trusted = file.commit(&us);
                *us.one_in.lock() = 0;
                let trusted = trusted.or_else(|_| file.commit(&us)).unwrap();
                file = ProtectedFile::open(keys(1), &trusted, Session(1), Budget::bytes(0)).unwrap();
            }
        }
        assert_eq!(file.blocks(), model.blocks);
        for block in model.data.keys() {
            assert!(read(&file, &us, *block) == model.data[block], "{choice:?}, seed {seed}, block {block}");
        }
    }
}

/// Updates the model after a refused change, which may have made some blocks holes.
fn account_holes(
    file: &ProtectedFile,
    us: &FailingStorage,
    model: &mut FileModel,
    range: Range<u64>,
    what: &str,
) {
    for block in range {
        let found = read(file, us, block);
        if found != model.block(block, 128) {
            assert!(found == [0; 128], "{what}: block {block}");
            model.punch(block, 1);
        }
    }
}

/// One change with refusals; then compares the changed part of the file with the model.
fn change(file: &mut ProtectedFile, us: &FailingStorage, model: &mut FileModel, rng: &mut Rng, what: &str) {
    // Blocks far apart, so that many pages of trees and arrays are dirty.
    let first = rng.below(300) * 100 + rng.below(100);
    let result = match rng.below(12) {
        0..7 => {
            let most = if rng.chance(1, 8) { 400 } else { 6 };
            let count = 1 + rng.below(most);
            let plain = content(rng, 128, count as usize);
            let result = file.update(us, first, &plain);
            let new = account_update(file, us, model, first, &plain, what);
            assert!(new || result.is_err(), "{what}");
            result
        }
        7..9 => {
            let count = rng.below(3000);
            let result = file.punch(us, first, count);
            if result.is_ok() {
                model.punch(first, count);
            }
            let end = (first + count).min(file.blocks());
            account_holes(file, us, model, first.min(end)..end, what);
            result
        }
        9 => {
            let blocks = file.blocks().saturating_sub(rng.below(4000));
            let result = file.resize(us, blocks);
            match result {
                Ok(()) => model.resize(blocks),
                Err(_) => account_holes(file, us, model, blocks..file.blocks(), what),
            }
            result
        }
        10 => file.convert_if_better(us).map(drop),
        _ => {
            file.set_choice(CHOICES[rng.below(5) as usize]);
            Ok(())
        }
    };
    if let Err(e) = result {
        assert_eq!(e.kind(), Kind::NoSpace, "{what}: {e}");
    }
    assert_eq!(file.blocks(), model.blocks, "{what}");
}

#[test]
fn a_file_with_many_dirty_pages_stays_usable_without_space() {
    for (seed, choice) in (0..8).flat_map(|seed| CHOICES.map(|choice| (seed, choice))) {
        let us = FailingStorage::new(Kind::NoSpace, seed);
        let mut rng = Rng::new(seed);
        let mut file = ProtectedFile::init_with_block_size(keys(1), choice, Session(1), 128);
        file.set_budget(Budget::bytes(0));
        let mut model = FileModel::default();
        for step in 0..250 {
            *us.one_in.lock() = rng.below(4);
            let what = format!("{choice:?}, seed {seed}, step {step}");
            change(&mut file, &us, &mut model, &mut rng, &what);
            if rng.chance(1, 40) {
                let trusted = file.commit(&us);
                *us.one_in.lock() = 0;
                let trusted = trusted.or_else(|_| file.commit(&us)).unwrap();
                file = ProtectedFile::open(keys(1), &trusted, Session(1), Budget::bytes(0)).unwrap();
            }
        }
        for block in 0..file.blocks() {
            assert!(
                read(&file, &us, block) == model.block(block, 128),
                "{choice:?}, seed {seed}, block {block}"
            );
        }
        *us.one_in.lock() = 0;
        file.resize(&us, 0).unwrap();
        file.commit(&us).unwrap();
        assert!(us.us.stored.lock().pages.is_empty(), "{choice:?}, seed {seed}");
    }
}

/// Overwriting blocks that look random deletes their leaves, which are scattered over RTree if the
/// blocks were written in random order.
#[test]
fn an_update_that_changes_many_pages_of_rtree_is_refused_before_it_changes_blocks() {
    for (seed, scheme) in (0..6).flat_map(|seed| [Scheme::Rand, Scheme::Comp].map(|scheme| (seed, scheme))) {
        let us = FailingStorage::new(Kind::NoSpace, seed);
        let mut rng = Rng::new(seed);
        let mut file = ProtectedFile::init_with_block_size(keys(1), Choice::Fixed(scheme), Session(1), 128);
        file.set_budget(Budget::bytes(0));
        let mut model = FileModel::default();
        // 1201 and 4096 are coprime: each block is written once, and neighbours are far apart in
        // RTree.
        for n in 0..4096 {
            let (block, plain) = (n * 1201 % 4096, rng.bytes(128));
            file.update(&us, block, &plain).unwrap();
            model.update(block, &plain, 128);
        }
        let mut refused = 0;
        for round in 0..60 {
            file.commit(&us).unwrap();
            *us.one_in.lock() = 1 + rng.below(12);
            let first = rng.below(30) * 128;
            let plain = vec![round; 256 * 128];
            match file.update(&us, first, &plain) {
                Ok(()) => model.update(first, &plain, 128),
                Err(e) => {
                    assert_eq!(e.kind(), Kind::NoSpace);
                    refused += 1;
                }
            }
            let what = format!("{scheme:?}, seed {seed}, round {round}");
            account_update(&file, &us, &mut model, first, &plain, &what);
            *us.one_in.lock() = 0;
            let again = rng.bytes(128);
            for block in first..first + 256 {
                file.update(&us, block, &again).unwrap();
                model.update(block, &again, 128);
            }
        }
        assert!(refused > 10, "{refused}");
    }
}

#[test]
fn any_other_error_ends_the_use_of_a_file() {
    let us = FailingStorage::new(Kind::Io, 1);
    let mut file = ProtectedFile::init_with_block_size(keys(1), Choice::Fixed(Scheme::Mt), Session(1), 128);
    file.update(&us, 0, &[1; 1280]).unwrap();
    *us.one_in.lock() = 1;
    assert_eq!(file.update(&us, 0, &[2; 1280]).unwrap_err().kind(), Kind::Io);
    *us.one_in.lock() = 0;
    assert_eq!(file.update(&us, 0, &[2; 1280]).unwrap_err().kind(), Kind::FailStop);
    assert_eq!(file.check(&us, 0, &mut [0; 128]).unwrap_err().error.kind(), Kind::FailStop);
    assert_eq!(file.commit(&us).unwrap_err().kind(), Kind::FailStop);
}
