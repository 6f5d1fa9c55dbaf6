//! A protected file with trusted storage and untrusted pages made from the input, which may answer
//! two reads of a page differently.
#![no_main]

use lacuna_contracts::{Budget, Result, Secret};
use lacuna_integrity::{Choice, FileKeys, Part, ProtectedFile, Session, Trusted, Untrusted};
use libfuzzer_sys::fuzz_target;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Untrusted storage with unwritten blocks and pages cut from the input; if it lies, each read cuts
/// at another offset.
struct InputStorage<'i> {
    input: &'i [u8],
    lies: bool,
    reads: AtomicU64,
    written: Mutex<BTreeMap<(Part, u64), Option<Vec<u8>>>>,
}

impl InputStorage<'_> {
    fn cut(&self, seed: u64, len: usize) -> Vec<u8> {
        let read = self.reads.fetch_add(u64::from(self.lies), Ordering::Relaxed);
        let from = (seed ^ read << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % (self.input.len() + 1);
        self.input[from..]
            .iter()
            .chain(self.input)
            .copied()
            .cycle()
            .take(len.min(self.input.len() * 64))
            .collect()
    }
}

impl Untrusted for InputStorage<'_> {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let cut = self.cut(first, out.len());
        out[..cut.len()].copy_from_slice(&cut);
        Ok(())
    }

    fn write_blocks(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        if let Some(written) = self.written.lock().get(&(part, page)) {
            return Ok(written.clone());
        }
        Ok((page % 3 != 2)
            .then(|| self.cut(page, if page % 3 == 0 { 2048 } else { self.input.len() % 2048 })))
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        self.written.lock().insert((part, page), bytes.map(<[u8]>::to_vec));
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&len, rest)) = input.split_first() else { return };
    let (trusted, rest) = rest.split_at(usize::from(len).min(rest.len()));
    let Ok(trusted) = Trusted::parse(trusted) else { return };
    let keys = FileKeys::derive(&Secret::copy_from(&[1; 32]), 1);
    // Inputs of odd length lie.
    let lies = !input.len().is_multiple_of(2);
    let us = InputStorage { input: rest, lies, reads: AtomicU64::new(0), written: Mutex::default() };
    let Ok(mut file) = ProtectedFile::open(keys, &trusted, Session(7), Budget::bytes(1 << 16)) else {
        return;
    };
    // Longer files take longer without covering more code.
    if file.blocks() > 2000 {
        return;
    }
    let size = file.block_size();
    let mut block = vec![0; size];
    for at in [0, 1, 200, file.blocks().saturating_sub(1)] {
        let _ = file.check(&us, at.min(file.blocks().saturating_sub(1)), &mut block);
        let _ = file.seek(&us, at, true);
    }
    let _ = file.usage(&us);
    let _ = file.update(&us, 1, &block);
    let _ = file.punch(&us, 0, 2);
    let _ = file.resize(&us, 5);
    file.set_choice(Choice::Auto);
    let _ = file.convert_if_better(&us);
    if let Ok(trusted) = file.commit(&us) {
        assert!(Trusted::parse(&trusted.to_bytes()).is_ok());
    }
});
