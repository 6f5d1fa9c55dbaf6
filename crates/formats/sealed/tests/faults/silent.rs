//! Failures that the medium does not report: misdirected and lost writes.

use crate::fixture::*;
use lacuna_contracts::{Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sim::{Fault, FaultMedium, OpKind};
use std::sync::Arc;

/// `gcm` notices a write that reports success and lands in another block's place or nowhere.
#[test]
fn gcm_notices_misdirected_and_lost_writes() {
    let params = params(Cipher::Gcm, SEGMENT_BLOCKS);
    for lost in [false, true] {
        let inner = new_disk(&params);
        let disk = open(&inner, &params, 1);
        write(&disk, 0, 30, 1).unwrap();
        disk.close().unwrap();
        let victim = data_at(&*inner, &params, 20).start as u64;
        let medium = Arc::new(FaultMedium::new(inner.clone()));
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        write(&disk, 5, 1, 2).unwrap();
        disk.flush().unwrap();
        // Of the remaining writes, destaging the block comes first.
        medium.add(if lost {
            Fault::Lose { op: OpKind::Write, nth: 1 }
        } else {
            Fault::Misdirect { nth: 1, to: victim }
        });
        disk.close().unwrap();
        assert_eq!(medium.fired(), 1);
        medium.heal();
        let disk = open_with(medium, &params, options(3)).unwrap();
        let mut bad = vec![];
        let report =
            lacuna_contracts::check_disk(&disk, |_| Ok(()), |b| bad.push((b.block.0, b.error.kind())))
                .unwrap();
        let expected =
            if lost { vec![(5, Kind::Corrupt)] } else { vec![(5, Kind::Corrupt), (20, Kind::Corrupt)] };
        assert_eq!(bad, expected);
        assert_eq!(report.good, 30 - bad.len() as u64);
        for block in (0..30).filter(|b| !bad.contains(&(*b, Kind::Corrupt))) {
            assert!(read(&disk, block).unwrap() == content(block, 1));
        }
    }
}
