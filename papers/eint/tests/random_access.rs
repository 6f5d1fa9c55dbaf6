//! The schemes of vaults in the random-access model of section 2: init, update, check, append,
//! delete.

#[path = "../../../crates/parts/integrity/tests/fixture/mod.rs"]
mod fixture;

use eint::Integrity;
use fixture::{MemoryUs, content, keys};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{CheckResult, Choice, FileKeys, ProtectedFile, Scheme, Session, Untrusted};
use lacuna_sim::Rng;
use std::sync::Arc;

/// A vault file under one scheme, given by its index in [`Scheme::OFFERED`].
struct Standalone<const SCHEME: usize>(ProtectedFile);

type MtEint = Standalone<0>;
type RandEint = Standalone<1>;
type CompEint = Standalone<2>;

impl<const SCHEME: usize> Standalone<SCHEME> {
    /// Refuses writes past the end; a vault file would grow.
    fn check_end(&self, first: u64, bytes: usize) -> Result<()> {
        let count = (bytes / self.0.block_size()) as u64;
        if first + count <= self.0.blocks() {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "cannot use blocks past the end of a file"))
    }
}

impl<const SCHEME: usize> Integrity for Standalone<SCHEME> {
    type Keys = FileKeys;

    fn init(keys: Arc<FileKeys>, block_size: usize, session: Session) -> Self {
        let choice = Choice::Fixed(Scheme::OFFERED[SCHEME]);
        Standalone(ProtectedFile::init_with_block_size(keys, choice, session, block_size))
    }

    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        self.check_end(first, plain.len())?;
        self.0.update(us, first, plain)
    }

    fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult {
        self.0.check(us, first, plain)
    }

    fn append(&mut self, us: &dyn Untrusted, plain: &[u8]) -> Result<()> {
        self.0.update(us, self.0.blocks(), plain)
    }

    fn delete(&mut self, us: &dyn Untrusted) -> Result<()> {
        let left = self.0.blocks().checked_sub(1);
        let left = left.ok_or_else(|| Error::new(Kind::Usage, "cannot delete a block of an empty file"))?;
        self.0.resize(us, left)
    }
}

fn agrees_with_an_array<S: Integrity<Keys = FileKeys>>(block_size: usize) {
    let us = MemoryUs::new(block_size);
    let mut file = S::init(keys(3), block_size, Session(1));
    let mut model: Vec<Vec<u8>> = vec![];
    let mut rng = Rng::new(block_size as u64);
    assert_eq!(file.delete(&us).unwrap_err().kind(), Kind::Usage);
    for _ in 0..600 {
        let len = model.len() as u64;
        let count = 1 + rng.below(3) as usize;
        let plain = content(&mut rng, block_size, count);
        let new: Vec<Vec<u8>> = plain.chunks_exact(block_size).map(<[u8]>::to_vec).collect();
        match rng.below(4) {
            0 => {
                file.append(&us, &plain).unwrap();
                model.extend(new);
            }
            1 if len > 0 => {
                file.delete(&us).unwrap();
                model.pop();
            }
            _ if len >= count as u64 => {
                let first = rng.below(len - count as u64 + 1);
                file.update(&us, first, &plain).unwrap();
                model.splice(first as usize..first as usize + count, new);
            }
            _ => assert_eq!(file.update(&us, len, &plain).unwrap_err().kind(), Kind::Usage),
        }
        let mut all = vec![0; model.len() * block_size];
        file.check(&us, 0, &mut all).unwrap();
        assert!(all == model.concat());
        assert_eq!(file.blocks(), model.len() as u64);
    }
    let bad = file.blocks() / 2;
    us.stored.lock().blocks.get_mut(&bad).unwrap()[block_size / 2] ^= 1;
    let mut all = vec![0xaa; model.len() * block_size];
    assert_eq!(file.check(&us, 0, &mut all).unwrap_err().block, bad);
    let (good, failed) = all.split_at(bad as usize * block_size);
    assert!(good == model[..bad as usize].concat() && failed.iter().all(|byte| *byte == 0));
    let (blocks, mut past) = (file.blocks(), vec![0; block_size]);
    assert_eq!(file.check(&us, blocks, &mut past).unwrap_err().error.kind(), Kind::Usage);
}

#[test]
fn every_scheme_agrees_with_an_array() {
    for block_size in [128, 1024, 4096] {
        agrees_with_an_array::<MtEint>(block_size);
        agrees_with_an_array::<RandEint>(block_size);
        agrees_with_an_array::<CompEint>(block_size);
    }
}
