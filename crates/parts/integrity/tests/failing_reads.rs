//! Failed and refused reads of untrusted storage: the change that needed the read fails, and the
//! file stays usable if nothing was changed before, also in the middle of a conversion.

mod fixture;

use fixture::{CHOICES, FileModel, MemoryUs, Stored, content, keys};
use lacuna_contracts::{Budget, Error, Kind, Result};
use lacuna_integrity::{Choice, Part, ProtectedFile, Scheme, Session, Trusted, Untrusted};
use lacuna_sim::Rng;
use parking_lot::Mutex;

/// Blocks of the file.
const BLOCKS: u64 = 600;
/// The blocks of the update: several batches, with partial pages of tags and of counters at both
/// ends.
const FIRST: u64 = 90;
const COUNT: usize = 400;
/// The kinds of failed reads: an error of the medium, and a refusal.
const KINDS: [Kind; 2] = [Kind::Io, Kind::Memory];

/// Storage with one failing read, of a page or of blocks.
struct FlakyStorage {
    us: MemoryUs,
    /// The kind of its error.
    kind: Kind,
    /// The number of reads of pages that succeed before it.
    passes: Mutex<Option<u64>>,
    /// The number of reads of blocks that succeed before it.
    block_passes: Mutex<Option<u64>>,
}

impl FlakyStorage {
    fn new(stored: Stored, kind: Kind, passes: Option<u64>) -> Self {
        let us = MemoryUs::new(128);
        *us.stored.lock() = stored;
        FlakyStorage { us, kind, passes: Mutex::new(passes), block_passes: Mutex::default() }
    }

    /// Checks the error of a change that failed because of this storage. After a part of a change
    /// even a refused read is an error of the medium.
    fn assert_reported(&self, e: &Error, what: &str) {
        let expected = if e.changed_nothing() { self.kind } else { Kind::Io };
        assert_eq!(e.kind(), expected, "{what}: {e}");
    }
}

/// Counts a read. The read at which the count ends fails with an error of this kind.
fn count_read(passes: &Mutex<Option<u64>>, kind: Kind) -> Result<()> {
    let mut passes = passes.lock();
    match *passes {
        Some(0) => {
            *passes = None;
            Err(Error::new(kind, "a failed read").of_read())
        }
        left => {
            *passes = left.map(|left| left - 1);
            Ok(())
        }
    }
}

impl Untrusted for FlakyStorage {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        count_read(&self.block_passes, self.kind)?;
        self.us.read_blocks(first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.us.write_blocks(first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        count_read(&self.passes, self.kind)?;
        self.us.read_part(part, page)
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.us.write_part(part, page, bytes)
    }
}

/// A closed file with dispersed counters: its blocks were written one by one, in random order.
fn used(choice: Choice, rng: &mut Rng) -> (Stored, Trusted, FileModel) {
    let us = FlakyStorage::new(Stored::default(), Kind::Io, None);
    let mut file = ProtectedFile::init_with_block_size(keys(1), choice, Session(1), 128);
    let mut model = FileModel::default();
    for n in 0..BLOCKS {
        // 7 and the number of blocks are coprime.
        let (block, plain) = (n * 7 % BLOCKS, content(rng, 128, 1));
        file.update(&us, block, &plain).unwrap();
        model.update(block, &plain, 128);
    }
    let trusted = file.commit(&us).unwrap();
    let stored = us.us.stored.lock().clone();
    (stored, trusted, model)
}

/// All blocks have their old content, except that a prefix of the updated blocks may be new.
fn compare(file: &ProtectedFile, us: &FlakyStorage, model: &FileModel, plain: &[u8], what: &str) {
    let mut new = true;
    for block in 0..BLOCKS {
        let mut found = vec![0; 128];
        file.check(us, block, &mut found).unwrap_or_else(|_| panic!("{what}: block {block} fails"));
        let wrote = block.checked_sub(FIRST).and_then(|at| plain.chunks_exact(128).nth(at as usize));
        if let Some(wrote) = wrote {
            new &= found == wrote;
        }
        let is_new = wrote.is_some() && new;
        assert!(is_new || found == model.block(block, 128), "{what}: block {block}");
    }
}

/// Fails every read of an update in turn. Returns how often the file stayed usable and how often
/// its use ended.
fn fail_each_read(choice: Choice, kind: Kind) -> (u64, u64) {
    let mut rng = Rng::new(3);
    let (stored, trusted, model) = used(choice, &mut rng);
    let plain = content(&mut rng, 128, COUNT);
    let (mut went_on, mut ended) = (0, 0);
    for nth in 0.. {
        let what = format!("{choice:?}, {kind:?} at read {nth}");
        let us = FlakyStorage::new(stored.clone(), kind, Some(nth));
        let mut file = ProtectedFile::open(keys(1), &trusted, Session(2), Budget::bytes(0)).unwrap();
        let updated = file.update(&us, FIRST, &plain);
        let Err(e) = updated else {
            assert!(us.passes.lock().is_some(), "{what}: it failed unnoticed");
            return (went_on, ended);
        };
        us.assert_reported(&e, &what);
        if e.changed_nothing() {
            compare(&file, &us, &model, &plain, &what);
            file.update(&us, FIRST, &plain).unwrap_or_else(|e| panic!("{what}, again: {e}"));
            went_on += 1;
        } else {
            assert_eq!(file.update(&us, FIRST, &plain).unwrap_err().kind(), Kind::FailStop, "{what}");
            ended += 1;
        }
    }
    unreachable!("an update reads a number of pages")
}

/// Converts a file to the scheme that it wants, or rewrites it, to the end.
fn convert(file: &mut ProtectedFile, us: &FlakyStorage) -> Result<()> {
    while file.convert_if_better(us)? {}
    Ok(())
}

/// Fails every read of blocks, or of pages, of a conversion in turn. Returns how often the file
/// stayed usable and how often its use ended.
fn fail_each_read_of_a_conversion(from: Scheme, to: Scheme, of_blocks: bool, kind: Kind) -> (u64, u64) {
    let (stored, trusted, model) = used(Choice::Fixed(from), &mut Rng::new(4));
    let (mut went_on, mut ended) = (0, 0);
    for nth in 0.. {
        let what = format!("{from:?} to {to:?}, {kind:?} at read {nth}, of blocks: {of_blocks}");
        let us = FlakyStorage::new(stored.clone(), kind, None);
        let passes = if of_blocks { &us.block_passes } else { &us.passes };
        *passes.lock() = Some(nth);
        let mut file = ProtectedFile::open(keys(1), &trusted, Session(2), Budget::bytes(0)).unwrap();
        file.set_choice(Choice::Fixed(to));
        let Err(e) = convert(&mut file, &us) else {
            if passes.lock().is_some() {
                return (went_on, ended);
            }
            // The page was about to be removed, with the scheme that was left.
            assert!(!of_blocks, "{what}: it failed unnoticed");
            compare(&file, &us, &model, &[], &what);
            continue;
        };
        us.assert_reported(&e, &what);
        if !e.changed_nothing() {
            assert_eq!(file.update(&us, 0, &[0; 128]).unwrap_err().kind(), Kind::FailStop, "{what}");
            ended += 1;
            continue;
        }
        compare(&file, &us, &model, &[], &what);
        convert(&mut file, &us).unwrap_or_else(|e| panic!("{what}, again: {e}"));
        assert_eq!(file.scheme(), to, "{what}");
        let converted = file.commit(&us).unwrap();
        let file = ProtectedFile::open(keys(1), &converted, Session(3), Budget::bytes(0)).unwrap();
        compare(&file, &us, &model, &[], &format!("{what}, opened again"));
        went_on += 1;
    }
    unreachable!("a conversion reads a number of blocks and pages")
}

#[test]
fn a_block_that_cannot_be_read_fails_the_step_of_a_conversion_alone() {
    let (mt, rand, comp) = (Scheme::Mt, Scheme::Rand, Scheme::Comp);
    let conversions = [(mt, comp), (mt, rand), (comp, mt), (rand, comp)];
    for ((from, to), kind) in conversions.into_iter().flat_map(|pair| KINDS.map(|kind| (pair, kind))) {
        let (went_on, ended) = fail_each_read_of_a_conversion(from, to, true, kind);
        println!("{from:?} to {to:?}: after {went_on} reads of blocks ({kind:?}) the file went on");
        assert!(went_on > 4 && ended == 0, "{from:?} to {to:?}: {went_on} went on, {ended} ended");
        let (went_on, ended) = fail_each_read_of_a_conversion(from, to, false, kind);
        println!(
            "{from:?} to {to:?}: after {went_on} reads of pages ({kind:?}) it went on, after {ended} its use ended"
        );
        assert!(went_on > 0, "{from:?} to {to:?}: {went_on} went on, {ended} ended");
    }
}

#[test]
fn a_read_that_fails_before_blocks_are_written_fails_the_update_alone() {
    for (choice, kind) in CHOICES.into_iter().flat_map(|choice| KINDS.map(|kind| (choice, kind))) {
        let (went_on, ended) = fail_each_read(choice, kind);
        println!(
            "{choice:?}: after {went_on} reads ({kind:?}) the file went on, after {ended} its use ended"
        );
        let is_mt = matches!(choice, Choice::Auto | Choice::Fixed(Scheme::Mt));
        assert!(!is_mt || (went_on > 4 && ended == 0), "{choice:?}: {went_on} went on, {ended} ended");
    }
}
