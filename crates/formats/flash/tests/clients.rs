//! Concurrent clients that read, write, discard, flush and purge beside the purge thread, on a chip
//! with occasional failing reads, bad blocks, and failing programs and erasures, all together.

mod fixture;

use fixture::{TestDisk, WriteHistory, is_spent};
use lacuna_contracts::{BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, PurgePolicy};
use lacuna_nand::{ChipGeometry, WearModel};
use lacuna_sim::{Fault, OpKind, Rng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CLIENTS: u64 = 4;
const OPERATIONS: u64 = 400;
const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 96 };

fn test_disk(wearing: WearModel, seed: u64) -> TestDisk {
    let mut test_disk = TestDisk::new(GEOMETRY, wearing, 32, 150, seed);
    test_disk.policy = Some(PurgePolicy { period: Duration::from_millis(2), max_recoverable: 100 });
    test_disk
}

/// One step of a client. It changes only blocks of its own part, and reads everywhere.
fn client(
    test_disk: &TestDisk,
    disk: &FlashDisk,
    history: &WriteHistory,
    part: u64,
    rng: &mut Rng,
) -> Result<()> {
    let blocks = disk.blocks();
    let size = blocks / CLIENTS;
    let own = part * size;
    test_disk.clock.advance(Duration::from_micros(rng.below(100)));
    match rng.below(40) {
        0..24 => {
            let first = own + rng.below(size);
            (first..(first + 1 + rng.below(8)).min(own + size))
                .try_for_each(|block| history.change(disk, block))
        }
        24..34 => match history.read(disk, rng.below(blocks)) {
            // The error concerns this read only.
            Err(e) if e.kind() == Kind::Io => Ok(()),
            other => other,
        },
        34..39 => history.flush(|| disk.flush()),
        _ => history.flush(|| disk.purge().map(drop)),
    }
}

/// Runs all clients until each has done its work or a failure ended all writing. Returns that
/// failure.
fn clients(test_disk: &TestDisk, disk: &FlashDisk, history: &WriteHistory, seed: u64) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|part| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * CLIENTS + part);
                    for _ in 0..OPERATIONS {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        client(test_disk, disk, history, part, &mut rng)
                            .inspect_err(|_| stop.store(true, Ordering::SeqCst))?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(Ok(()), Result::and)
    })
}

fn check(disk: &FlashDisk, history: &WriteHistory) {
    (0..disk.blocks()).for_each(|block| history.read(disk, block).unwrap());
}

#[test]
fn many_clients_work_beside_the_purge_thread() {
    let mut test_disk = test_disk(WearModel::default(), 1);
    let disk = test_disk.open();
    let history = WriteHistory::new(disk.blocks());
    for round in 0..4 {
        clients(&test_disk, &disk, &history, round).unwrap();
        check(&disk, &history);
    }
    disk.purge().unwrap();
    assert_eq!(disk.recoverable(), 0);
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
    check(&disk, &history);
    assert!(disk.purge_status().purges > 10);
    disk.close().unwrap();
    drop(disk);
    let disk = test_disk.open();
    check(&disk, &history);
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
}

#[test]
fn many_clients_work_on_a_failing_chip() {
    let wearing = WearModel { endurance: 0, program_faults: 50, erase_faults: 200, factory_bad: 50 };
    let mut dice = Rng::new(2);
    let (mut failed, mut stopped, mut worn) = (0, 0, 0);
    let mut test_disk = test_disk(wearing, 2);
    let mut history = WriteHistory::new(test_disk.params.blocks);
    for round in 0..25 {
        let opened = test_disk.open_after(|_, _| {});
        let disk = match opened.disk {
            Err(e) => {
                assert!(is_spent(&e), "{e}");
                worn += 1;
                test_disk = self::test_disk(wearing, 100 + round);
                history = WriteHistory::new(test_disk.params.blocks);
                continue;
            }
            Ok(disk) => disk,
        };
        history.reopened(&disk);
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "round {round}");
        for _ in 0..2 {
            let nth = 1 + dice.below(20_000);
            test_disk.faults.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        }
        let ended = clients(&test_disk, &disk, &history, 1000 + round);
        test_disk.faults.heal();
        // Reads go on, whatever failed.
        check(&disk, &history);
        match ended.and_then(|()| history.flush(|| disk.purge().map(drop))) {
            Ok(()) => {
                assert_eq!(disk.recoverable(), 0);
                assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
                history.flush(|| disk.close()).unwrap();
            }
            Err(e) => {
                let kinds = [Kind::Io, Kind::FailStop, Kind::PurgeIncomplete, Kind::ReadOnly];
                assert!(kinds.contains(&e.kind()), "{e}");
                failed += 1;
                // A failed read of a client fails only its request; a failed read inside another
                // operation of the chip ends all writing.
                if history.flush(|| disk.flush()).is_err() {
                    assert!(disk.write(BlockAddr(0), &[0; 4096]).is_err() && disk.close().is_err());
                    stopped += 1;
                }
            }
        }
    }
    println!("{failed} rounds of 25 failed, {stopped} ended all writing, {worn} chips wore out");
    assert!(failed > 0 && failed < 25);
}
