//! A disk with threads: many clients at once on all levels, beats of the paced cover, and a medium
//! that fails.

mod fixture;

use fixture::{create, open_with, options};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result};
use lacuna_deniable::{Levels, OpenOptions, Params, StripeGeometry};
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sim::{InterceptedMedium, MediumInterceptor, OpKind, Rng};
use lacuna_testkit::levels::ThreadedDisk;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

fn params() -> Params {
    Params::plan((2 << 20) + 200 * 13 * BLOCK_SIZE as u64, StripeGeometry { public: 4, hidden: 8 }, 200, 3)
        .unwrap()
}

fn threaded(params: &Params) -> ThreadedDisk<'_, Params> {
    ThreadedDisk { params, levels: 3 }
}

#[test]
fn many_clients_work_on_all_levels() {
    threaded(&params()).assert_serves_many_clients();
}

/// With threads the trace of writes, checkpoints included, does not depend on speed.
#[test]
fn the_order_of_writes_does_not_depend_on_speed() {
    let params = Params { cover_millis: 0, ..params() };
    let places = |busy| -> Vec<(u64, u64)> {
        threaded(&params).record_writes(6000, busy).iter().map(|write| (write.offset, write.len)).collect()
    };
    let idle = places(false);
    let checkpoints = idle.iter().filter(|(_, len)| *len == BLOCK_SIZE as u64).count();
    assert!(checkpoints > 100, "{checkpoints} checkpoints");
    for _ in 0..3 {
        assert!(places(true) == idle);
    }
}

#[test]
fn a_failed_medium_stops_the_disk_without_hanging() {
    threaded(&params()).assert_stops_at(OpKind::Write, 3);
    threaded(&params()).assert_stops_at(OpKind::Sync, 3);
}

/// A level that is being closed stops waiting for a sync that no operation causes any more.
#[test]
fn a_closing_level_ends_a_flush_that_waits_for_a_sync() {
    threaded(&Params { cover_millis: 0, ..params() }).assert_flush_ends_when_level_is_given_up();
}

#[test]
fn no_sync_follows_a_failed_sync() {
    for nth in 1..8 {
        assert_eq!(threaded(&params()).count_syncs_after_failed_sync(nth), 0, "sync {nth} failed");
    }
}

/// A medium that holds up all operations larger than a block while its gate for them is shut: it
/// writes no stripe, or reads no blocks to carry.
struct GatedMedium {
    memory: MemoryMedium,
    gate: OpKind,
    is_closed: Arc<AtomicBool>,
}

impl GatedMedium {
    fn pass(&self, op: OpKind, largest: Option<usize>) {
        while op == self.gate && largest > Some(BLOCK_SIZE) && self.is_closed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl MediumInterceptor for GatedMedium {
    fn inner(&self) -> &dyn Medium {
        &self.memory
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.pass(OpKind::Read, batch.iter().map(|extent| extent.buf.len()).max());
        self.memory.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.pass(OpKind::Write, batch.iter().map(|extent| extent.data.len()).max());
        self.memory.write(batch)
    }
}

#[test]
fn readers_of_level_0_do_not_wait_for_a_write_that_waits_for_the_medium() {
    let params = Params { cover_millis: 0, ..params() };
    for gate in [OpKind::Read, OpKind::Write] {
        let (memory, shut) = (MemoryMedium::new(params.end()), Arc::new(AtomicBool::new(false)));
        let medium: Arc<dyn Medium> =
            Arc::new(InterceptedMedium(GatedMedium { memory, gate, is_closed: Arc::clone(&shut) }));
        create(&medium, &params, 2, 1).unwrap();
        let threaded = OpenOptions { background: true, ..options(2, 3) };
        let disk = open_with(&medium, &params, 2, threaded).unwrap();
        let level = disk.levels().remove(0);
        let data = vec![7; level.blocks() as usize * BLOCK_SIZE];
        // A lap and more, so that stripes carry blocks.
        (0..3).for_each(|_| level.write(BlockAddr(0), &data).unwrap());
        level.flush().unwrap();
        shut.store(true, Ordering::Release);
        let (all_read, receiver) = channel();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| level.write(BlockAddr(0), &data));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                let mut block = vec![0; BLOCK_SIZE];
                for addr in 0..level.blocks() {
                    level.read(BlockAddr(addr), &mut block).unwrap();
                    assert!(block == data[..BLOCK_SIZE], "block {addr}");
                }
                all_read.send(()).unwrap();
            });
            let read = receiver.recv_timeout(Duration::from_secs(60));
            let waited = !writer.is_finished();
            shut.store(false, Ordering::Release);
            assert!(waited && read.is_ok(), "the write waited: {waited}; readers did not: {}", read.is_ok());
            writer.join().unwrap().unwrap();
        });
        disk.close().unwrap();
    }
}

/// A page of the map that lies in the open stripe, while the thread that reads ahead asks which
/// slots are live, does not count as lost: its blocks are carried.
#[test]
fn a_map_that_does_not_fit_its_cache_loses_nothing() {
    let stripes = 700 * (1 + 32 + 16) * BLOCK_SIZE as u64;
    let params =
        Params::plan((2 << 20) + stripes, StripeGeometry { public: 32, hidden: 16 }, 200, 0).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, &params, 1, 1).unwrap();
    let budget = Budget::bytes(1);
    let disk =
        open_with(&medium, &params, 1, OpenOptions { background: true, budget, ..options(2, 3) }).unwrap();
    let level = disk.levels().remove(0);
    let mut stamps = vec![0u8; level.blocks() as usize];
    let (mut rng, mut buffer) = (Rng::new(7), vec![0; BLOCK_SIZE]);
    for write in 0..8 * level.blocks() {
        let addr = rng.below(level.blocks());
        stamps[addr as usize] = (write % 251) as u8 + 1;
        buffer.fill(stamps[addr as usize]);
        level.write(BlockAddr(addr), &buffer).unwrap();
    }
    for (addr, stamp) in (0..).zip(&stamps) {
        level.read(BlockAddr(addr), &mut buffer).unwrap_or_else(|e| panic!("block {addr}: {e}"));
        assert!(buffer.iter().all(|byte| byte == stamp), "block {addr}");
    }
    disk.close().unwrap();
}
