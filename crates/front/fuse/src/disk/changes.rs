//! Requests that change a disk: writes, discards and flushes.
//!
//! A hidden level keeps such a request waiting until cover carries its earlier writes, which can
//! take minutes, or until a program writes to level 0. If all threads that serve the mount waited,
//! the kernel would get no answer to any other request: programs that look at every mount of the
//! machine, such as `df` and `losetup`, would wait as well. The changes of a disk with levels
//! therefore have threads of their own. Deniability contract: so have those of level 0.

use crate::session::MOST_THREADS;
use crate::session_reporter::SessionReporter;
use crate::use_count::UseCounted;
use fuser::{Errno, ReplyEmpty, ReplyWrite};
use lacuna_contracts::{ByteDisk, Error, Kind, Result, WipeOnDrop};
use lacuna_daemon::become_io_flusher;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};

/// A request with its disk, which sends the reply. A thread without a request holds no disk.
type Change = Box<dyn FnOnce() + Send>;

/// The disk of a mount, and the threads that change it.
pub(crate) struct DiskChanges {
    disk: Arc<ChangedDisk>,
    /// Requests for the threads of a disk whose changes may wait: at most 64 in the background of
    /// the kernel, and one of each thread of a program that writes. The threads end when this
    /// sender is dropped. They may perform a flush beside earlier writes: those had no answer yet
    /// when it was requested, and it need not make them durable.
    queue: Option<Sender<Change>>,
}

/// The disk and what its requests report.
pub(crate) struct ChangedDisk {
    /// Requests that read, write or search the content count as use. A flush does not: `sync`
    /// flushes every file system, with or without writes.
    pub disk: UseCounted<ByteDisk>,
    pub reporter: SessionReporter,
    /// Whether the mount has ended. The kernel has then told programs that all their requests
    /// without an answer failed.
    has_ended: AtomicBool,
}

impl DiskChanges {
    /// Changes `disk`. If its changes `may_wait` for cover, starts threads for them.
    ///
    /// Errors: [`Kind::Io`](lacuna_contracts::Kind::Io) if the system has no thread left.
    pub(crate) fn new(disk: ByteDisk, reporter: SessionReporter, may_wait: bool) -> Result<Self> {
        let disk = UseCounted::new(disk, Arc::clone(&reporter.session));
        let disk = Arc::new(ChangedDisk { disk, reporter, has_ended: AtomicBool::new(false) });
        let queue = if may_wait { Some(start_threads()?) } else { None };
        Ok(DiskChanges { disk, queue })
    }

    /// The disk, for requests that do not change it.
    pub(crate) fn disk(&self) -> &ChangedDisk {
        &self.disk
    }

    /// Writes up to the end of the disk; flushes if the write must be `durable`.
    pub(crate) fn write(&self, offset: u64, data: &[u8], durable: bool, reply: ReplyWrite) {
        if self.queue.is_none() {
            return self.disk.write(offset, data, durable, reply);
        }
        let data = WipeOnDrop::new(data.to_vec());
        self.run(move |disk| disk.write(offset, &data, durable, reply));
    }

    /// Discards a range; afterwards it reads as zeros.
    pub(crate) fn discard(&self, offset: u64, length: u64, reply: ReplyEmpty) {
        self.run(move |disk| disk.discard(offset, length, reply));
    }

    /// Flushes the disk.
    pub(crate) fn flush(&self, reply: ReplyEmpty) {
        self.run(move |disk| disk.flush(reply));
    }

    /// Ends the queue with the mount: its threads perform none of the changes that they have not
    /// begun. A change that has begun goes on until the disk answers it.
    pub(crate) fn end(&mut self) {
        self.disk.has_ended.store(true, Ordering::Release);
        self.queue = None;
    }

    fn run(&self, change: impl FnOnce(&ChangedDisk) + Send + 'static) {
        let Some(queue) = &self.queue else { return change(&self.disk) };
        let disk = Arc::clone(&self.disk);
        let change = move || {
            // Dropping a change drops its reply, which then sends EIO.
            if !disk.has_ended.load(Ordering::Acquire) {
                change(&disk);
            }
        };
        if let Err(SendError(change)) = queue.send(Box::new(change)) {
            change();
        }
    }
}

/// Starts the threads, which end when the returned sender is dropped.
fn start_threads() -> Result<Sender<Change>> {
    let (sender, receiver) = channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..MOST_THREADS {
        let receiver = Arc::clone(&receiver);
        let run = move || run_changes(&receiver);
        let thread = std::thread::Builder::new().name("lacuna-change".to_owned()).spawn(run);
        thread.map_err(|e| Error::io("cannot start the threads that write to the disk", &e))?;
    }
    Ok(sender)
}

fn run_changes(receiver: &Mutex<Receiver<Change>>) {
    // The kernel writes its cache back through these threads.
    become_io_flusher();
    loop {
        let next = receiver.lock().recv();
        let Ok(change) = next else { return };
        change();
    }
}

impl ChangedDisk {
    /// The error number for the kernel.
    pub(crate) fn report(&self, doing: &str, error: Error) -> Errno {
        let errno = Errno::from_i32(error.errno());
        self.reporter.report_failure(&error.context(doing));
        errno
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool, reply: ReplyWrite) {
        match self.write_within(offset, data, durable) {
            Ok(written) => reply.written(written),
            Err(e) if e.kind() == Kind::NoSpace && offset >= self.disk.uncounted().len() => {
                reply.error(Errno::ENOSPC);
            }
            Err(e) => reply.error(self.report("write", e)),
        }
    }

    fn write_within(&self, offset: u64, data: &[u8], durable: bool) -> Result<u32> {
        let disk = self.disk.counted();
        let room = disk.len().saturating_sub(offset);
        if data.is_empty() {
            return Ok(0);
        }
        if room == 0 {
            return Err(Error::new(Kind::NoSpace, "write past the end of the disk"));
        }
        let part = &data[..room.min(data.len() as u64) as usize];
        disk.write_at(offset, part)?;
        if durable {
            disk.flush()?;
        }
        Ok(part.len() as u32)
    }

    fn discard(&self, offset: u64, length: u64, reply: ReplyEmpty) {
        let disk = self.disk.counted();
        let length = length.min(disk.len().saturating_sub(offset));
        let done = if length == 0 { Ok(()) } else { disk.write_zeroes(offset, length) };
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.report("discard", e)),
        }
    }

    fn flush(&self, reply: ReplyEmpty) {
        match self.disk.uncounted().flush() {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.report("flush", e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::{Disk, Status};
    use lacuna_testkit::StatusOnlyDisk;

    /// The changes of a disk whose changes may wait.
    fn changes_of(disk: &Arc<dyn Disk>) -> DiskChanges {
        let (events, _) = channel();
        let reporter = SessionReporter { session: Arc::default(), events, log: Arc::new(|_| {}) };
        DiskChanges::new(ByteDisk::new(Arc::clone(disk)), reporter, true).unwrap()
    }

    #[test]
    fn the_end_of_a_mount_drops_the_changes_that_have_not_begun() {
        let disk: Arc<dyn Disk> = Arc::new(StatusOnlyDisk(Status::default, || Ok(())));
        let mut changes = changes_of(&disk);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        let ((begun, begins), (done, ends)) = (channel(), channel());
        for number in 0..MOST_THREADS + 24 {
            let (begun, done, gate) = (begun.clone(), done.clone(), Arc::clone(&gate));
            changes.run(move |_| {
                begun.send(number).unwrap();
                drop(gate.lock());
                done.send(number).unwrap();
            });
        }
        let mut begun_before: Vec<usize> = begins.iter().take(MOST_THREADS).collect();
        changes.end();
        drop(closed);
        // The remaining senders are those of changes.
        drop((begun, done, changes));
        let mut ended: Vec<usize> = ends.iter().collect();
        begun_before.sort_unstable();
        ended.sort_unstable();
        assert_eq!(ended, begun_before);
        assert_eq!(begins.iter().count(), 0, "a change began after the end of the mount");
    }

    #[test]
    fn threads_without_a_change_do_not_keep_the_disk_open() {
        let disk: Arc<dyn Disk> = Arc::new(StatusOnlyDisk(Status::default, || Ok(())));
        drop(changes_of(&disk));
        assert_eq!(Arc::strong_count(&disk), 1);
    }
}
