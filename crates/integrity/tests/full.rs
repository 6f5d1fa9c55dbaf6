//! Untrusted storage that is full: an update or commit that it refuses changes nothing more than it says, and the file goes on;
//! any other error ends the use of the file.

mod fixture;

use fixture::{CHOICES, MemoryUs, Model, content, keys};
use lacuna_core::{Budget, Error, Kind, Result};
use lacuna_integrity::{Choice, Part, ProtectedFile, Scheme, Session, Untrusted};
use lacuna_sim::Rng;
use parking_lot::Mutex;

/// Storage of which some writes fail.
struct Failing {
    us: MemoryUs,
    rng: Mutex<Rng>,
    /// One write in so many fails; 0 for none.
    one_in: Mutex<u64>,
    kind: Kind,
}

impl Failing {
    fn new(kind: Kind, seed: u64) -> Self {
        Failing { us: MemoryUs::new(128), rng: Mutex::new(Rng::new(seed)), one_in: Mutex::new(0), kind }
    }

    fn refuse(&self) -> Result<()> {
        let one_in = *self.one_in.lock();
        if one_in > 0 && self.rng.lock().chance(1, one_in) {
            return Err(Error::new(self.kind, "the test refuses"));
        }
        Ok(())
    }
}

impl Untrusted for Failing {
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

fn read(file: &ProtectedFile, us: &Failing, block: u64) -> Vec<u8> {
    let mut plain = vec![0; 128];
    file.check(us, block, &mut plain).unwrap();
    plain
}

#[test]
fn a_file_goes_on_when_there_is_no_space() {
    for (seed, choice) in (0..40).flat_map(|seed| CHOICES.map(|choice| (seed, choice))) {
        let us = Failing::new(Kind::NoSpace, seed);
        let mut rng = Rng::new(seed);
        let mut file = ProtectedFile::init_with_block_size(keys(1), choice, Session(1), 128);
        let mut model = Model::default();
        for step in 0..60 {
            *us.one_in.lock() = rng.below(4);
            let (first, count) = (rng.below(600), 1 + rng.below(200));
            let plain = content(&mut rng, 128, count as usize);
            let result = file.update(&us, first, &plain);
            match &result {
                Ok(()) => model.update(first, &plain, 128),
                Err(e) => assert_eq!(e.kind(), Kind::NoSpace),
            }
            // Of an update that was refused, the first blocks may be there.
            let mut new = true;
            for (block, wrote) in (first..).zip(plain.chunks_exact(128)) {
                if block >= file.blocks() {
                    break;
                }
                let found = read(&file, &us, block);
                new &= found == wrote;
                if new {
                    model.update(block, wrote, 128);
                }
                assert!(
                    found == model.block(block, 128),
                    "{choice:?}, seed {seed}, step {step}, block {block}"
                );
            }
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

#[test]
fn any_other_error_ends_the_use_of_a_file() {
    let us = Failing::new(Kind::Io, 1);
    let mut file = ProtectedFile::init_with_block_size(keys(1), Choice::Fixed(Scheme::Mt), Session(1), 128);
    file.update(&us, 0, &[1; 1280]).unwrap();
    *us.one_in.lock() = 1;
    assert_eq!(file.update(&us, 0, &[2; 1280]).unwrap_err().kind(), Kind::Io);
    *us.one_in.lock() = 0;
    assert_eq!(file.update(&us, 0, &[2; 1280]).unwrap_err().kind(), Kind::FailStop);
    assert_eq!(file.check(&us, 0, &mut [0; 128]).unwrap_err().error.kind(), Kind::FailStop);
    assert_eq!(file.commit(&us).unwrap_err().kind(), Kind::FailStop);
}
