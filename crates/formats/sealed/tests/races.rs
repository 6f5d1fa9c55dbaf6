//! Requests that arrive in the middle of a commit: the medium calls them from its hooks.

mod fixture;

use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium, WriteExtent};
use lacuna_sealed::{OpenOptions, Params, SealedDisk};
use lacuna_sim::{CrashMedium, InterceptedMedium, MediumInterceptor};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};

type Hook = Box<dyn FnOnce() + Send>;
type SharedHook = Arc<Mutex<Option<Hook>>>;

/// Calls a hook once, before the next write, sync or discard.
struct HookedMedium {
    inner: Arc<MemoryMedium>,
    at_write: Mutex<Option<Hook>>,
    at_sync: Mutex<Option<Hook>>,
    at_discard: Mutex<Option<Hook>>,
    /// If set, only this range can be written; the rest is full.
    room: Mutex<Option<std::ops::Range<u64>>>,
}

impl HookedMedium {
    fn over(inner: Arc<MemoryMedium>) -> Arc<InterceptedMedium<HookedMedium>> {
        Arc::new(InterceptedMedium(HookedMedium {
            inner,
            at_write: Mutex::new(None),
            at_sync: Mutex::new(None),
            at_discard: Mutex::new(None),
            room: Mutex::new(None),
        }))
    }
}

fn call(hook: &Mutex<Option<Hook>>) {
    let hook = hook.lock().unwrap().take();
    if let Some(hook) = hook {
        hook();
    }
}

impl MediumInterceptor for HookedMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.inner
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        call(&self.at_write);
        if let Some(room) = &*self.room.lock().unwrap()
            && batch.iter().any(|extent| !room.contains(&extent.offset))
        {
            return Err(Error::new(Kind::NoSpace, "the medium is full"));
        }
        self.inner.write(batch)
    }
    fn sync(&self) -> Result<()> {
        call(&self.at_sync);
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        call(&self.at_discard);
        self.inner.discard(offset, len)
    }
}

fn params() -> Params {
    fixture::params(Cipher::XtsRandom, 4 * SEGMENT_BLOCKS)
}

/// A disk with all of segment 1 written under stamp 1, and an open stream under stamp 2 in segment
/// 0.
fn disk_with_a_stream() -> (Arc<InterceptedMedium<HookedMedium>>, Arc<SealedDisk>) {
    let params = params();
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    write(&disk, SEGMENT_BLOCKS, SEGMENT_BLOCKS, 1).unwrap();
    disk.close().unwrap();
    let medium = HookedMedium::over(inner);
    let options = OpenOptions { background: true, ..options(2) };
    let disk = Arc::new(open_with(medium.clone(), &params, options).unwrap());
    write(&disk, 0, 64, 2).unwrap();
    (medium, disk)
}

fn assert_stamps(disk: &SealedDisk, expected: &[(u64, u64)], when: &str) {
    for &(block, stamp) in expected {
        assert_eq!(stamp_of(block, &read(disk, block).unwrap()), Some(stamp), "block {block} {when}");
    }
}

/// If a mapped segment is discarded and one of its blocks written again while a flush completes a
/// stream, the block survives.
#[test]
fn a_write_after_a_segment_discard_survives() {
    let (medium, disk) = disk_with_a_stream();
    let other = disk.clone();
    *medium.0.at_sync.lock().unwrap() = Some(Box::new(move || {
        other.discard(BlockAddr(SEGMENT_BLOCKS), SEGMENT_BLOCKS).unwrap();
        write(&other, SEGMENT_BLOCKS + 9, 2, 3).unwrap();
    }));
    let expected = [(0, 2), (63, 2), (1024 + 8, 0), (1024 + 9, 3), (1024 + 10, 3), (1024 + 11, 0)];
    disk.flush().unwrap();
    assert!(medium.0.at_sync.lock().unwrap().is_none());
    assert_stamps(&disk, &expected, "after the flush that it met");
    disk.flush().unwrap();
    assert_stamps(&disk, &expected, "after the next flush");
    disk.close().unwrap();
    drop(disk);
    let disk = open(&medium.0.inner, &params(), 3);
    assert_stamps(&disk, &expected, "after reopening");
}

/// Small writes and discards to the same and to other segments are kept while a flush completes a
/// stream.
#[test]
fn writes_during_stream_completion_are_kept() {
    let (medium, disk) = disk_with_a_stream();
    let other = disk.clone();
    *medium.0.at_sync.lock().unwrap() = Some(Box::new(move || {
        write(&other, 5, 2, 4).unwrap();
        write(&other, 70, 1, 5).unwrap();
        other.discard(BlockAddr(10), 3).unwrap();
        write(&other, 0, 4, 6).unwrap();
        write(&other, SEGMENT_BLOCKS + 1, 1, 7).unwrap();
        write(&other, 2 * SEGMENT_BLOCKS, 300, 8).unwrap();
    }));
    let expected = [
        (0, 6),
        (3, 6),
        (4, 2),
        (5, 4),
        (6, 4),
        (10, 0),
        (12, 0),
        (13, 2),
        (70, 5),
        (71, 0),
        (1024, 1),
        (1025, 7),
        (2048, 8),
        (2048 + 299, 8),
    ];
    disk.flush().unwrap();
    assert!(medium.0.at_sync.lock().unwrap().is_none());
    assert_stamps(&disk, &expected, "after the flush that it met");
    disk.flush().unwrap();
    drop(disk);
    let disk = open(&medium.0.inner, &params(), 3);
    assert_stamps(&disk, &expected, "after reopening");
}

/// A discard of the stream's whole segment wins while the stream is being completed.
#[test]
fn a_discard_during_a_move_is_kept() {
    let (medium, disk) = disk_with_a_stream();
    let other = disk.clone();
    *medium.0.at_sync.lock().unwrap() = Some(Box::new(move || {
        other.discard(BlockAddr(0), SEGMENT_BLOCKS).unwrap();
        write(&other, 33, 1, 9).unwrap();
    }));
    disk.flush().unwrap();
    disk.flush().unwrap();
    let expected = [(0, 0), (32, 0), (33, 9), (34, 0), (1024, 1)];
    assert_stamps(&disk, &expected, "after the flush");
    drop(disk);
    assert_stamps(&open(&medium.0.inner, &params(), 3), &expected, "after reopening");
}

/// A stream can begin in a discarded segment while its slot is given back, even if all spare slots
/// are in use.
#[test]
fn a_discarded_segment_always_finds_a_slot_again() {
    let params = params();
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    for segment in 0..4 {
        write(&disk, segment * SEGMENT_BLOCKS, 4, 1).unwrap();
    }
    disk.close().unwrap();
    let medium = HookedMedium::over(inner);
    let options = OpenOptions { background: true, ..options(2) };
    let disk = Arc::new(open_with(medium.clone(), &params, options).unwrap());
    for segment in 1..=u64::from(params.spare) {
        write(&disk, segment * SEGMENT_BLOCKS, 700, 2).unwrap();
    }
    assert_eq!(
        (status(&disk, "spare_slots"), status(&disk, "copy_on_write_segments")),
        (0, u64::from(params.spare))
    );
    disk.discard(BlockAddr(0), SEGMENT_BLOCKS).unwrap();
    let other = disk.clone();
    *medium.0.at_discard.lock().unwrap() = Some(Box::new(move || write(&other, 0, 64, 3).unwrap()));
    disk.flush().unwrap();
    assert!(medium.0.at_discard.lock().unwrap().is_none());
    let expected = [(0, 3), (63, 3), (64, 0), (1024, 2), (1024 + 699, 2), (1024 + 700, 0), (3 * 1024, 1)];
    assert_stamps(&disk, &expected, "after the flush");
    disk.close().unwrap();
    assert_stamps(&open(&medium.0.inner, &params, 3), &expected, "after reopening");
}

/// Writes and commits small pieces in one segment until everything in the journal is destaged.
fn destage_all(disk: &SealedDisk, segment: u64, stamp: u64) {
    let before = status(disk, "destaged");
    for piece in 1..100 {
        write(disk, segment * SEGMENT_BLOCKS + piece * 8, 8, stamp).unwrap();
        disk.flush().unwrap();
        if status(disk, "destaged") > before {
            return;
        }
    }
    panic!("nothing was destaged");
}

/// If the only block of a segment is being destaged, a discard of the segment and a query of its
/// extents see it.
#[test]
fn a_block_that_is_being_destaged_is_seen_by_discard_and_extents() {
    for discard in [true, false] {
        let medium = HookedMedium::over(new_disk(&params()));
        let disk = Arc::new(open_with(medium.clone(), &params(), options(1)).unwrap());
        write(&disk, SEGMENT_BLOCKS + 9, 1, 1).unwrap();
        disk.flush().unwrap();
        let request = Arc::new(Mutex::new(None));
        let (other, slot) = (disk.clone(), request.clone());
        // The chunk is locked during the write, so the request ends only after it.
        *medium.0.at_write.lock().unwrap() = Some(Box::new(move || {
            let begun = Arc::new(Barrier::new(2));
            let there = begun.clone();
            let ask = move || {
                there.wait();
                if discard {
                    other.discard(BlockAddr(SEGMENT_BLOCKS), SEGMENT_BLOCKS).unwrap();
                } else {
                    let extents = other.extents(BlockAddr(SEGMENT_BLOCKS), SEGMENT_BLOCKS).unwrap();
                    assert!(extents.iter().any(|e| e.written && e.blocks == 1), "{extents:?}");
                }
            };
            *slot.lock().unwrap() = Some(std::thread::spawn(ask));
            begun.wait();
        }));
        destage_all(&disk, 3, 2);
        request.lock().unwrap().take().expect("a write to a slot").join().unwrap();
        let expected = [(SEGMENT_BLOCKS + 9, u64::from(!discard)), (3 * SEGMENT_BLOCKS + 8, 2)];
        assert_stamps(&disk, &expected, "after the request");
        disk.close().unwrap();
        assert_stamps(&open(&medium.0.inner, &params(), 2), &expected, "after reopening");
    }
}

/// Writes that begin new segments open a bounded number of streams in memory.
#[test]
fn the_beginnings_of_many_segments_open_a_bounded_number_of_cow_segments() {
    const SEGMENTS: u64 = 2000;
    let plan = fixture::params(Cipher::XtsRandom, SEGMENTS * SEGMENT_BLOCKS);
    let params = Params { journal_len: 8 << 20, ..plan };
    for background in [false, true] {
        let medium = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*medium, &params);
        let options = OpenOptions { background, ..options(1) };
        let disk = open_with(medium.clone(), &params, options).unwrap();
        for segment in 0..SEGMENTS {
            write(&disk, segment * SEGMENT_BLOCKS, 4, segment + 1).unwrap();
            let cow_segments = status(&disk, "copy_on_write_segments");
            assert!(cow_segments <= 256, "{cow_segments} copy-on-write segments after segment {segment}");
        }
        disk.close().unwrap();
        let disk = open_with(medium, &params, fixture::options(2)).unwrap();
        for segment in 0..SEGMENTS {
            assert_stamps(&disk, &[(segment * SEGMENT_BLOCKS + 3, segment + 1)], "after reopening");
        }
    }
}

/// If a stream's blocks are written again and discarded while a flush completes it, and then the
/// medium is full, the last acknowledged versions win, although the journal takes the stream as
/// well.
#[test]
fn overwrites_of_a_stream_survive_a_full_medium() {
    let params = params();
    let medium = HookedMedium::over(new_disk(&params));
    let disk =
        Arc::new(open_with(medium.clone(), &params, OpenOptions { background: true, ..options(2) }).unwrap());
    write(&disk, 0, 64, 2).unwrap();
    let (other, below) = (disk.clone(), Arc::downgrade(&medium));
    *medium.0.at_write.lock().unwrap() = Some(Box::new(move || {
        write(&other, 5, 2, 4).unwrap();
        other.discard(BlockAddr(10), 3).unwrap();
        let start = params.geometry().journal;
        if let Some(medium) = below.upgrade() {
            *medium.0.room.lock().unwrap() = Some(start..start + params.journal_len);
        }
    }));
    // The journal takes the blocks without space.
    disk.flush().unwrap();
    assert!(disk.is_medium_full());
    let expected = [(0, 2), (4, 2), (5, 4), (6, 4), (7, 2), (10, 0), (12, 0), (13, 2), (63, 2)];
    assert_stamps(&disk, &expected, "on the full medium");
    drop(disk);
    let disk = open(&medium.0.inner, &params, 3);
    assert_stamps(&disk, &expected, "after reopening");
}

/// A medium in memory with a second handle, which calls a hook before its next sync.
struct TwoHandles {
    memory: Arc<MemoryMedium>,
    at_second_sync: SharedHook,
    /// Whether the syncs of the second handle fail.
    second_fails: bool,
    is_second: bool,
}

impl TwoHandles {
    /// Over a disk with segment 0 written under stamp 1, opened with its threads.
    fn open(second_fails: bool) -> (Arc<MemoryMedium>, SharedHook, Arc<SealedDisk>) {
        let memory = new_disk(&params());
        let disk = open(&memory, &params(), 1);
        write(&disk, 0, SEGMENT_BLOCKS, 1).unwrap();
        disk.close().unwrap();
        let at_second_sync = SharedHook::default();
        let (below, hook) = (memory.clone(), at_second_sync.clone());
        let medium = TwoHandles { memory: below, at_second_sync, second_fails, is_second: false };
        let options = OpenOptions { background: true, ..options(2) };
        let disk = open_with(Arc::new(InterceptedMedium(medium)), &params(), options).unwrap();
        (memory, hook, Arc::new(disk))
    }
}

impl MediumInterceptor for TwoHandles {
    fn inner(&self) -> &dyn Medium {
        &*self.memory
    }

    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        let (memory, at_second_sync) = (self.memory.clone(), self.at_second_sync.clone());
        let second = TwoHandles { memory, at_second_sync, second_fails: self.second_fails, is_second: true };
        Ok(Some(Arc::new(InterceptedMedium(second))))
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write(batch)?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        if self.is_second {
            call(&self.at_second_sync);
            if self.second_fails {
                return Err(Error::new(Kind::Io, "sync of the second handle"));
            }
        }
        self.memory.sync()
    }
}

/// Writes and flushes small pieces of segment 0 under stamp 2 until more than half of the journal,
/// not counting its reserve, is used, or was used and is retired.
fn fill_half_of_journal(disk: &SealedDisk) -> Result<()> {
    let (room, before) = (params().journal_len - 8192, status(disk, "journal_retirements"));
    for piece in 0.. {
        let is_half_full = status(disk, "journal_used") > (room - room / 8) / 2;
        if is_half_full || status(disk, "journal_retirements") > before {
            break;
        }
        write(disk, 1 + piece % 100 * 8, 8, 2)?;
        disk.flush()?;
        assert!(piece < 10_000);
    }
    Ok(())
}

/// A flush is served while a checkpoint makes the slots durable. Its batch stays in the journal,
/// and all before it is retired.
#[test]
fn a_flush_during_a_checkpoint_stays_in_the_journal() {
    let (memory, hook, disk) = TwoHandles::open(false);
    assert_eq!(status(&disk, "checkpoints_beside_commits"), 1);
    let before = status(&disk, "journal_retirements");
    let (called, was_called) = channel();
    let other = Arc::downgrade(&disk);
    *hook.lock().unwrap() = Some(Box::new(move || {
        let disk = other.upgrade().expect("the disk is open until the checkpoint has ended");
        write(&disk, 1000, 1, 3).unwrap();
        disk.flush().unwrap();
        called.send(status(&disk, "journal_retirements")).unwrap();
    }));
    fill_half_of_journal(&disk).unwrap();
    assert_eq!(was_called.recv().unwrap(), before);
    while status(&disk, "journal_retirements") == before {
        std::thread::yield_now();
    }
    drop(disk);
    let disk = open(&memory, &params(), 3);
    assert!(status(&disk, "batches_replayed") > 0);
    assert_stamps(&disk, &[(0, 1), (1, 2), (400, 2), (1000, 3), (1001, 1)], "after reopening");
}

/// If the sync of a checkpoint fails, all writing ends, and the journal keeps all flushed writes.
#[test]
fn a_failed_sync_of_a_checkpoint_ends_all_writing() {
    let (memory, _, disk) = TwoHandles::open(true);
    let before = status(&disk, "journal_retirements");
    // The checkpoint may fail before the last flush.
    let _filled = fill_half_of_journal(&disk);
    while disk.flush().is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(write(&disk, 0, 1, 4).unwrap_err().kind(), Kind::FailStop);
    assert!(disk.close().is_err());
    assert_eq!(status(&disk, "journal_retirements"), before);
    drop(disk);
    let disk = open(&memory, &params(), 3);
    assert_stamps(&disk, &[(0, 1), (1, 2), (400, 2), (1001, 1)], "after reopening");
}
