//! Tests of changes of a disk with levels, which wait for cover in threads of their own.

use crate::fixture::{MountFixture, ServerThread, skip_unless_supported};
use crate::machine::wait_until;
use crate::memory::MemoryDisk;
use lacuna_contracts::{BlockAddr, Disk};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Number of threads for the changes of one mount.
const CHANGE_THREADS: u8 = 16;
/// More writers than a mount has threads of both kinds.
const WRITERS: u8 = 40;
const BLOCK: u64 = 4096;
/// Length of a hole in a part of two blocks. It contains one whole block.
const HOLE: usize = 2 * BLOCK as usize - 592;
/// The longest wait for an answer that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Mounts a disk as a file, as a level is mounted.
fn mount_level(place: &MountFixture, disk: &Arc<MemoryDisk>) -> ServerThread {
    let mut wanted = place.request(disk);
    wanted.raw = true;
    wanted.identity.private = true;
    ServerThread::start(wanted)
}

fn open(place: &MountFixture) -> File {
    File::options().read(true).write(true).open(place.mountpoint().join("disk")).unwrap()
}

/// Makes the writes of a disk wait until it is dropped.
struct WriteHold(Arc<MemoryDisk>);

impl WriteHold {
    fn of(disk: &Arc<MemoryDisk>) -> WriteHold {
        disk.hold_writes.store(true, Ordering::SeqCst);
        WriteHold(Arc::clone(disk))
    }

    /// Starts writers: writer *n* fills block *n* with the byte *n* + 1. Returns when all their
    /// writes wait, or one for each thread.
    fn start_writers(&self, place: &MountFixture, count: u8) -> Vec<JoinHandle<io::Result<()>>> {
        // All files are open before the first write waits.
        let files: Vec<File> = (0..count).map(|_| open(place)).collect();
        let write = |(at, file): (u8, File)| {
            thread::spawn(move || file.write_all_at(&[at + 1; BLOCK as usize], u64::from(at) * BLOCK))
        };
        let writers = (0..count).zip(files).map(write).collect();
        let held = || self.0.held.load(Ordering::SeqCst);
        wait_until("the writes that wait", || held() >= u64::from(count.min(CHANGE_THREADS)));
        writers
    }
}

impl Drop for WriteHold {
    fn drop(&mut self) {
        self.0.hold_writes.store(false, Ordering::SeqCst);
    }
}

/// Runs a request on a thread of its own, so that the test does not wait for ever.
fn answer_of<T: Send + 'static>(request: impl FnOnce() -> T + Send + 'static) -> Result<T, RecvTimeoutError> {
    let (answered, answer) = channel();
    thread::spawn(move || answered.send(request()));
    answer.recv_timeout(PATIENCE)
}

/// The numbers of the blocks that their writers filled.
fn written_blocks(disk: &MemoryDisk) -> Vec<u8> {
    let filled = |at: &u8| {
        let mut block = [0; BLOCK as usize];
        disk.read(BlockAddr(u64::from(*at)), &mut block).unwrap();
        assert!(block == [0; BLOCK as usize] || block == [*at + 1; BLOCK as usize], "block {at}");
        block[0] != 0
    };
    (0..WRITERS).filter(filled).collect()
}

#[test]
fn a_failed_change_fails_its_own_request_alone() {
    skip_unless_supported!(false);
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(1)));
    let server = mount_level(&place, &disk);
    disk.fail_odd_blocks.store(true, Ordering::SeqCst);
    let hold = WriteHold::of(&disk);
    let writers = hold.start_writers(&place, WRITERS);
    drop(hold);
    for (at, writer) in writers.into_iter().enumerate() {
        let failure = writer.join().unwrap().err().map(|e| e.raw_os_error());
        assert_eq!(failure, (at % 2 == 1).then_some(Some(libc::EIO)), "block {at}");
    }
    let even: Vec<u8> = (0..WRITERS).step_by(2).collect();
    assert_eq!(written_blocks(&disk), even);
    let status = fs::read_to_string(place.mountpoint().join("status")).unwrap();
    assert!(status.contains(&format!("failed_requests {} ", WRITERS / 2)), "{status}");
    place.stop(server);
}

#[test]
fn a_read_is_answered_while_writes_wait_and_a_flush_covers_them() {
    skip_unless_supported!(false);
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(1)));
    let server = mount_level(&place, &disk);
    let file = Arc::new(open(&place));
    let offset = u64::from(WRITERS) * BLOCK + 77;
    file.write_all_at(b"answered", offset).unwrap();
    assert_eq!(disk.unflushed.load(Ordering::SeqCst), 1);

    let hold = WriteHold::of(&disk);
    let begun = CHANGE_THREADS / 2;
    let writers = hold.start_writers(&place, begun);
    let reading = Arc::clone(&file);
    let read = answer_of(move || {
        let mut back = [0; 8];
        reading.read_exact_at(&mut back, offset).map(|()| back)
    });
    // The kernel sends it after the answers to the writes that began before.
    let (flushing, flushed) = (Arc::clone(&file), Arc::clone(&disk));
    let flush = thread::spawn(move || {
        flushing.sync_all().unwrap();
        (written_blocks(&flushed), flushed.unflushed.load(Ordering::SeqCst))
    });
    drop(hold);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    assert_eq!(read.expect("an answer while writes wait").unwrap(), *b"answered");
    assert_eq!(flush.join().unwrap(), ((0..begun).collect::<Vec<u8>>(), 0));
    drop(file);
    place.stop(server);
}

#[test]
fn a_read_sees_each_change_that_was_answered_before_it() {
    skip_unless_supported!(false);
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(1)));
    let server = mount_level(&place, &disk);
    let file = open(&place);
    thread::scope(|scope| {
        for part in 0..8 {
            let file = &file;
            // Parts of two neighbours share a block.
            let offset = part * 2 * BLOCK + 512;
            scope.spawn(move || {
                let mut back = [0; 2 * BLOCK as usize];
                for round in 1..=30 {
                    file.write_all_at(&[round; 2 * BLOCK as usize], offset).unwrap();
                    file.read_exact_at(&mut back, offset).unwrap();
                    assert!(back == [round; 2 * BLOCK as usize], "part {part}, round {round}");
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(file, punch, offset + 100, HOLE as u64).unwrap();
                    file.read_exact_at(&mut back, offset).unwrap();
                    let (before, rest) = back.split_at(100);
                    let (hole, after) = rest.split_at(HOLE);
                    assert!(before.iter().chain(after).all(|byte| *byte == round), "part {part}");
                    assert!(hole.iter().all(|byte| *byte == 0), "part {part}, round {round}");
                }
            });
        }
    });
    drop(file);
    place.stop(server);
}

#[test]
fn waiting_changes_of_one_level_delay_no_other_level() {
    skip_unless_supported!(false);
    let levels = [(); 3].map(|()| (MountFixture::new(), Arc::new(MemoryDisk::new(1))));
    let servers = levels.each_ref().map(|(place, disk)| mount_level(place, disk));
    let [(public, _), (first, first_disk), (second, second_disk)] = &levels;
    let files = [Arc::new(open(public)), Arc::new(open(first))];
    let hold = WriteHold::of(second_disk);
    let writers = hold.start_writers(second, WRITERS);
    let asking = files.clone();
    let answer = answer_of(move || {
        for (at, file) in asking.iter().enumerate() {
            file.write_all_at(&[at as u8 + 1; BLOCK as usize], at as u64 * BLOCK)?;
            file.sync_all()?;
        }
        Ok::<_, io::Error>(())
    });
    let waiting = written_blocks(second_disk);
    drop(hold);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    answer.expect("answers of the other levels").unwrap();
    assert_eq!(waiting, [0_u8; 0]);
    assert_eq!(
        (written_blocks(first_disk), written_blocks(second_disk).len()),
        (vec![1], usize::from(WRITERS))
    );
    drop(files);
    for server in servers {
        server.stop().unwrap();
    }
    levels.iter().for_each(|(place, _)| place.assert_nothing_left());
}

#[test]
fn the_end_of_a_mount_ends_its_waiting_changes() {
    skip_unless_supported!(false);
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(1)));
    let server = mount_level(&place, &disk);
    let hold = WriteHold::of(&disk);
    let writers = hold.start_writers(&place, WRITERS);
    // This ends the connection. The unmount itself fails because the file is open.
    let _busy = unmount(place.mountpoint(), UnmountFlags::FORCE);
    for writer in writers {
        // The kernel reports the end of the connection.
        writer.join().unwrap().expect_err("a mount that has ended");
    }
    place.stop(server);
    assert_eq!(disk.closes.load(Ordering::SeqCst), 1);
    drop(hold);
    wait_until("the end of all changes", || Arc::strong_count(&disk) == 1);
    // The programs were told that their writes failed. Writes that had begun may be on the disk.
    let late = written_blocks(&disk).len();
    assert!(late <= usize::from(CHANGE_THREADS), "{late} writes after the end of the mount");
}
