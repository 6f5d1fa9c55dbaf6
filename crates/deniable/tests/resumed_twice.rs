//! A machine that is resumed twice: two copies of an open disk, with the same medium and the same generator, take different data on
//! level 0, or on a hidden level alone. No key and nonce may serve for two contents. Where salts are as they are drawn, many do.

mod fixture;

use fixture::{create, fill, open, params};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_crypto::witness::{repeated, uses_of, uses_unhedged};
use lacuna_deniable::{Deniable, Levels};
use lacuna_medium::{Medium, MemoryMedium};
use std::sync::Arc;

fn write(disk: &Arc<Deniable>, level: usize, first: u64, stamp: u64) {
    let mut block = vec![0; BLOCK_SIZE];
    fill(first, stamp, &mut block);
    // On a hidden level that has no room left for what waits, it is refused.
    let written = disk.levels()[level].write(BlockAddr(first), &block);
    assert!(level > 0 || written.is_ok());
}

/// Both copies, each from the beginning: what they do before they part is the same. Then they write to this level.
fn copies(parting: usize) {
    for copy in 1..3 {
        let params = params();
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
        create(&medium, &params, 3, 1).unwrap();
        let disk = open(&medium, &params, 3, 2).unwrap();
        (0..30).for_each(|at| write(&disk, 0, at, 5));
        write(&disk, 1, 3, 5);
        disk.refresh().unwrap();
        // Here they part.
        for at in 0..12 {
            write(&disk, parting, at, 10 * copy);
            write(&disk, 0, 40 + at, 7);
        }
        (0..4).for_each(|_| disk.refresh().unwrap());
        let _no_cover = disk.close();
    }
}

#[test]
fn no_nonce_serves_twice() {
    for parting in 0..3 {
        let ((), hedged) = uses_of(|| copies(parting));
        assert!(hedged.len() > 100, "level {parting}: {} uses", hedged.len());
        assert_eq!(repeated(&hedged), 0, "level {parting}");
        let ((), unhedged) = uses_unhedged(|| copies(parting));
        assert!(repeated(&unhedged) > 0, "level {parting}: the game does not notice");
    }
}
