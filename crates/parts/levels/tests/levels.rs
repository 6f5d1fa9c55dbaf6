//! The disks that front ends see, and waiting for cover, over a format that stores nothing.
#![forbid(unsafe_code)]

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, FailStop, Kind, Result, StatusItem, panic_error};
use lacuna_levels::{
    CoverWait, HiddenLevels, LevelMap, Levels, Pace, PageSource, QueuedLevel, SlotEntry, check_length,
    level_disks, no_sync,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Remembers the requests.
#[derive(Default)]
struct RecordingLevels {
    steps: Mutex<Vec<(u8, u64, usize)>>,
    closed: Mutex<usize>,
    lost: Mutex<Vec<u8>>,
    read_only: bool,
}

impl RecordingLevels {
    fn step(&self, level: u8, first: u64, count: usize) {
        self.steps.lock().unwrap().push((level, first, count));
    }
}

impl Levels for RecordingLevels {
    fn open_levels(&self) -> usize {
        2
    }
    fn blocks(&self, level: u8) -> u64 {
        1000 - u64::from(level)
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        self.step(level, first, buf.len() / BLOCK_SIZE);
        Ok(())
    }
    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        self.step(level, first, data.len() / BLOCK_SIZE);
        Ok(())
    }
    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()> {
        self.step(level, first, count as usize);
        Ok(())
    }
    fn flush(&self, level: u8) -> Result<()> {
        if level == 0 { Ok(()) } else { Err(no_sync()) }
    }
    fn are_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        self.step(level, first, count);
        Ok((first..).take(count).map(|addr| addr >= 300).collect())
    }
    fn status(&self, _level: u8) -> Vec<StatusItem> {
        Vec::new()
    }
    fn refresh(&self) -> Result<()> {
        Ok(())
    }

    fn cover_closing(&self, _: Pace) -> Result<()> {
        Ok(())
    }
    fn set_no_wait(&self, _: u8, _: bool) {}
    fn note_loss(&self, level: u8) {
        self.lost.lock().unwrap().push(level);
    }
    /// Its hidden level always has something pending.
    fn close(&self) -> Result<()> {
        *self.closed.lock().unwrap() += 1;
        if self.read_only { Ok(()) } else { Err(no_sync()) }
    }
}

#[test]
fn requests_are_cut_and_the_last_level_closes_the_disk() {
    let asked = Arc::new(RecordingLevels::default());
    let levels = level_disks(&asked);
    assert_eq!(
        levels.iter().map(|level| (level.level(), level.blocks())).collect::<Vec<_>>(),
        [(0, 1000), (1, 999)]
    );
    let mut data = vec![0; 600 * BLOCK_SIZE];
    let cut = [(1, 7, 256), (1, 263, 256), (1, 519, 88)];
    levels[1].read(BlockAddr(7), &mut data).unwrap();
    levels[1].write(BlockAddr(7), &data).unwrap();
    let runs = levels[1].extents(BlockAddr(7), 600).unwrap();
    assert_eq!(
        runs.iter().map(|run| (run.blocks, run.written)).collect::<Vec<_>>(),
        [(293, false), (307, true)]
    );
    assert_eq!(*asked.steps.lock().unwrap(), cut.repeat(3));
    levels[0].close().unwrap();
    assert_eq!(*asked.closed.lock().unwrap(), 0);
    let refused = levels[1].close().unwrap_err();
    assert!(refused.kind() == Kind::NoCover && refused.to_string().contains("lost"), "{refused}");
    assert!(asked.lost.lock().unwrap().is_empty(), "closing the disk tells by itself");
}

#[test]
fn a_failed_level_close_is_recorded() {
    let asked = Arc::new(RecordingLevels::default());
    let levels = level_disks(&asked);
    assert_eq!(levels[1].close().unwrap_err().kind(), Kind::NoCover);
    assert_eq!(*asked.lost.lock().unwrap(), [1]);
    assert_eq!(*asked.closed.lock().unwrap(), 0);
}

/// A write that is refused while its level is being closed is a loss, unless the level stays open
/// and the write is repeated. A refused flush is none.
#[test]
fn a_refused_write_of_a_closing_level_counts_as_lost() {
    let health = FailStop::default();
    let wait = CoverWait { health: &health, timeout: None };
    let block = [7; BLOCK_SIZE];
    for full in [false, true] {
        // The queue of level 1 has half of the memory: room for many blocks, or for one.
        let hidden = levels(1, if full { 2 * BLOCK_SIZE as u64 } else { 1 << 20 });
        hidden.write(&wait, 1, 5, &block, &NoPages).unwrap();
        hidden.set_no_wait(1, true);
        assert_eq!(hidden.wait_taken(&wait, 1).unwrap_err().kind(), Kind::NoCover);
        assert_eq!(hidden.write(&wait, 1, 6, &[7; 3 * BLOCK_SIZE], &NoPages).is_err(), full);
        assert_eq!(hidden.check_nothing_pending(&health).unwrap_err().kind(), Kind::NoCover);
        // Stripes take the acknowledged blocks.
        let take_all = || while hidden.lock(&health, 1).level.queue.pop().is_some() {};
        take_all();
        assert_eq!(hidden.check_nothing_pending(&health).is_err(), full);
        // The level stays open. Its file system repeats the write in parts, and discards the rest.
        hidden.set_no_wait(1, false);
        for addr in [8, 6] {
            hidden.write(&wait, 1, addr, &block, &NoPages).unwrap();
            take_all();
            assert_eq!(hidden.check_nothing_pending(&health).is_err(), full);
        }
        hidden.discard(&wait, 1, 7, 100, &NoPages).unwrap();
        hidden.check_nothing_pending(&health).unwrap();
        hidden.note_loss(1);
        assert!(hidden.check_nothing_pending(&health).is_err());
    }
}

/// Otherwise a thread that looks whether its level gives up, and then waits, would miss it.
#[test]
fn a_level_gives_up_while_no_operation_is_about_to_wait() {
    let (hidden, health) = (levels(2, 1 << 20), FailStop::default());
    let gives_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Another level is no reason to wait, nor is a failure.
        let held = [hidden.lock(&health, 2), hidden.lock(&health, 1)];
        scope.spawn(|| {
            hidden.set_no_wait(1, true);
            gives_up.store(true, Ordering::SeqCst);
        });
        hidden.wake_all();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!gives_up.load(Ordering::SeqCst), "it gives up under the lock of an operation");
        let [other, own] = held;
        drop(own);
        while !gives_up.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drop(other);
    });
}

/// A panic under the lock fails the disk, and every later operation still gets the lock.
#[test]
fn a_panic_under_the_lock_of_a_level_fails_the_disk() {
    let (hidden, health) = (levels(2, 1 << 20), FailStop::default());
    std::thread::scope(|scope| {
        let panics = || {
            let _held = hidden.lock(&health, 1);
            panic!("expected by the test");
        };
        scope.spawn(panics).join().unwrap_err();
    });
    hidden.set_no_wait(1, true);
    assert!(health.is_alive());
    assert_eq!(hidden.lock(&health, 1).pending_bytes(), 0);
    assert!(!health.is_alive());
    hidden.check_nothing_pending(&health).unwrap();
}

#[test]
fn a_read_only_disk_is_not_flushed() {
    let asked = Arc::new(RecordingLevels { read_only: true, ..RecordingLevels::default() });
    level_disks(&asked).iter().for_each(|level| level.close().unwrap());
    assert_eq!(*asked.closed.lock().unwrap(), 1);
    assert_eq!(check_length(5, 6, Kind::Corrupt).unwrap_err().kind(), Kind::Corrupt);
    assert!(check_length(6, 6, Kind::Corrupt).is_ok());
}

struct NoPages;

impl PageSource for NoPages {
    fn load(&self, _: u64, _: SlotEntry, _: &mut [u8; BLOCK_SIZE]) -> Result<()> {
        Err(panic_error())
    }
}

fn levels(count: usize, memory: u64) -> HiddenLevels {
    let level = |_| QueuedLevel::new(LevelMap::new(1000, 8, 16));
    HiddenLevels::new((0..count).map(level).collect(), 4, memory)
}

#[test]
fn pending_blocks_are_read_and_written_in_order() {
    let (hidden, health) = (levels(1, 1 << 20), FailStop::default());
    let wait = CoverWait { health: &health, timeout: Some(Duration::ZERO) };
    assert_eq!(hidden.wait_taken(&wait, 1).unwrap(), 4);
    hidden.write(&wait, 1, 5, &[7; 2 * BLOCK_SIZE], &NoPages).unwrap();
    hidden.discard(&wait, 1, 6, 1, &NoPages).unwrap();
    let (mut buf, mut places) = (vec![1; 2 * BLOCK_SIZE], [9; 2]);
    hidden.locate(&health, 1, 5, &mut buf, &mut places, &NoPages).unwrap();
    assert!(buf[..BLOCK_SIZE] == [7; BLOCK_SIZE] && buf[BLOCK_SIZE..] == [0; BLOCK_SIZE] && places == [0, 0]);
    assert_eq!(hidden.are_written(&health, 1, 5, 2, &NoPages).unwrap(), [true, false]);
    assert_eq!(hidden.wait_taken(&wait, 1).unwrap_err().kind(), Kind::NoCover);
    // A stripe takes both.
    let mut held = hidden.lock(&health, 1);
    assert_eq!(held.pending_bytes(), BLOCK_SIZE as u64);
    assert!(held.level.queue.pop().is_some());
    hidden.mark_filled(1, &mut held, 5);
    drop(held);
    assert_eq!(hidden.wait_taken(&wait, 1).unwrap(), 5);
    // A flush does not wait for a stripe that takes nothing.
    hidden.mark_filled(1, &mut hidden.lock(&health, 1), 6);
    assert_eq!(hidden.wait_taken(&wait, 1).unwrap(), 5);
}

#[test]
fn writers_wait_for_room() {
    let (hidden, health) = (levels(2, 2 * BLOCK_SIZE as u64), FailStop::default());
    let now = CoverWait { health: &health, timeout: Some(Duration::ZERO) };
    hidden.write(&now, 1, 5, &[7; BLOCK_SIZE], &NoPages).unwrap();
    assert_eq!(hidden.write(&now, 1, 6, &[7; BLOCK_SIZE], &NoPages).unwrap_err().kind(), Kind::NoCover);
    std::thread::scope(|scope| {
        let wait = CoverWait { health: &health, timeout: Some(Duration::from_secs(60)) };
        let (hidden, waited) = (&hidden, wait);
        let writer = scope.spawn(move || hidden.write(&waited, 1, 6, &[8; BLOCK_SIZE], &NoPages));
        let flusher = scope.spawn(move || hidden.wait_taken(&wait, 1));
        for seq in 5.. {
            let mut held = hidden.lock(&health, 1);
            drop(held.level.queue.pop());
            hidden.mark_filled(1, &mut held, seq);
            drop(held);
            if writer.is_finished() && flusher.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.join().unwrap().unwrap();
        assert!(flusher.join().unwrap().unwrap() >= 5);
    });
}

#[test]
fn a_full_queue_does_not_affect_other_levels() {
    let (hidden, health) = (levels(3, 16 * BLOCK_SIZE as u64), FailStop::default());
    let now = CoverWait { health: &health, timeout: Some(Duration::ZERO) };
    // Blocks go in until the queues are full: 2, 4 and 8 of them.
    for (level, most) in [(3, 2), (2, 4), (1, 8)] {
        for addr in 0..most {
            hidden.write(&now, level, addr, &[7; BLOCK_SIZE], &NoPages).unwrap();
        }
        let refused = hidden.write(&now, level, most, &[7; BLOCK_SIZE], &NoPages).unwrap_err();
        assert_eq!(refused.kind(), Kind::NoCover, "level {level}");
    }
}

#[test]
fn a_failure_wakes_all_waiters() {
    let (hidden, health) = (levels(1, 1 << 20), FailStop::default());
    let forever = CoverWait { health: &health, timeout: None };
    hidden.write(&forever, 1, 5, &[7; BLOCK_SIZE], &NoPages).unwrap();
    std::thread::scope(|scope| {
        let flusher = scope.spawn(|| hidden.wait_taken(&forever, 1));
        health.fail(Error::new(Kind::Other, "the medium is gone"));
        hidden.wake_all();
        assert_eq!(flusher.join().unwrap().unwrap_err().kind(), Kind::FailStop);
    });
    assert_eq!(hidden.write(&forever, 1, 5, &[7; BLOCK_SIZE], &NoPages).unwrap_err().kind(), Kind::FailStop);
}
