//! The fast schemes in the random-access model of section 2: init, update, check, append, delete.

mod fixture;

use fixture::{MemoryUs, content, keys};
use lacuna_core::Kind;
use lacuna_integrity::{CompEint, Integrity, MtEint, RandEint, Session};
use lacuna_sim::Rng;

fn agrees_with_an_array<S: Integrity>(block_size: usize) {
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
