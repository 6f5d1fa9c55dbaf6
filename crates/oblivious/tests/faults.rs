//! A medium that fails: bad sectors cost what lies in them and stop nothing; a write that fails stops the disk, and nothing
//! that was flushed is lost.

mod fixture;

use fixture::regions::Regions;
use fixture::{Model, Worked, counter, create, fill, flush_hidden, open, params, stamp_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, Params};
use lacuna_sim::{Fault, FaultMedium, OpKind, Rng};
use std::sync::Arc;

/// The medium of a disk with both levels written, closed; its models, and its last batch.
fn written(params: &Params) -> (Vec<u8>, [Model; 2], u64) {
    let memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open(&medium, params, 2, 1).unwrap();
    let levels = disk.levels();
    let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    for (level, model) in levels.iter().zip(&mut models) {
        let blocks = model.blocks();
        Worked { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp }
            .write_at(0, blocks)
            .unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    (memory.snapshot(), models, counter(&levels[0], "last_batch"))
}

/// Of a medium with a bad sector the block there is lost, and the disk goes on.
#[test]
fn bad_sectors_stop_nothing() {
    let params = params();
    let (bytes, models, last_batch) = written(&params);
    let regions = Regions::of(&params);
    let bad = [
        regions.head(3, 0),
        regions.head(9, 1),
        regions.cell(5),
        regions.cell(200),
        regions.cell(700),
        regions.in_ring(&params, last_batch - 1, params.batch_cells() + 2),
    ];
    let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(bytes))));
    for range in bad {
        let range = range.start as u64 + 700..range.start as u64 + 701;
        faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
    }
    let medium: Arc<dyn Medium> = faulty.clone();
    let disk = open(&medium, &params, 2, 3).unwrap();
    let levels = disk.levels();
    let read_all = |rewritten: [u64; 2]| {
        let mut failed = 0;
        for (level, model) in levels.iter().zip(&models) {
            for block in rewritten[usize::from(level.level())]..model.blocks() {
                let mut data = vec![0; BLOCK_SIZE];
                match level.read(BlockAddr(block), &mut data) {
                    Ok(()) => assert_eq!(stamp_of(block, &data), Some(model.latest(block))),
                    Err(e) => {
                        assert!(matches!(e.kind(), Kind::Io | Kind::Corrupt), "{e}");
                        failed += 1;
                    }
                }
            }
        }
        failed
    };
    assert!(read_all([0, 0]) <= 3);
    for round in 0..200 {
        let mut data = vec![0; BLOCK_SIZE];
        fill(round % 10, 1 << 40, &mut data);
        levels[0].write(BlockAddr(round % 10), &data).unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    assert!(read_all([10, 0]) <= 3);
    disk.close().unwrap();
}

#[test]
fn writes_that_fail_stop_the_disk_and_lose_nothing_flushed() {
    let params = params();
    let faults =
        (1..40).flat_map(|nth| [(OpKind::Write, nth), (OpKind::Write, nth * 40), (OpKind::Sync, nth)]);
    for (op, nth) in faults {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        create(&medium, &params, 2, 1).unwrap();
        let disk = open(&medium, &params, 2, 1).unwrap();
        let levels = disk.levels();
        let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
        let (mut rng, mut next_stamp) = (Rng::new(nth), 0);
        faulty.add(Fault::FailNth { op, nth, error: Kind::Io });
        for round in 0..4000 {
            let at = round % 2;
            let mut worked = Worked {
                disk: &*levels[at],
                model: &mut models[at],
                rng: &mut rng,
                next_stamp: &mut next_stamp,
            };
            let done = worked.write(2).and_then(|()| {
                if round % 20 == 0 {
                    levels[0].flush()?;
                    models[0].flushed();
                }
                Ok(())
            });
            match done {
                Err(e) if e.kind() == Kind::NoCover => {}
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Io, "{e}");
                    break;
                }
                Ok(()) => assert!(round < 3999, "{op:?} {nth} never happened"),
            }
        }
        for level in &levels {
            assert_eq!(level.write(BlockAddr(0), &[0; BLOCK_SIZE]).unwrap_err().kind(), Kind::FailStop);
            assert_eq!(level.flush().unwrap_err().kind(), Kind::FailStop);
        }
        let _failed = disk.close();
        drop((levels, disk));
        let again = open(&medium, &params, 2, 2).unwrap();
        for (level, model) in again.levels().iter().zip(&mut models) {
            model.compare(&**level).unwrap();
        }
    }
}
