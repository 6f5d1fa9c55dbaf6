//! `SEEK_DATA` and `SEEK_HOLE` in files that are being written.
//!
//! The kernel passes such a seek on without sending the pages that it holds back (Linux 6.18), so
//! the vault would report data as a hole and `cp` would lose it. The reply therefore waits until
//! the kernel has invalidated its pages. The invalidation returns after the pages are written,
//! which needs serving threads; a thread of its own therefore requests it.

use fuser::{INodeNo, Notifier, ReplyLseek};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

/// A seek that waits for the pages of its file.
pub(crate) struct PendingSeek {
    /// The file.
    pub ino: u64,
    /// Answers when the pages are written.
    pub answer: Box<dyn FnOnce(ReplyLseek) + Send>,
    /// Sends the answer to the kernel.
    pub reply: ReplyLseek,
}

/// The notifier that invalidates pages and attributes in the kernel; set once the session exists.
pub(crate) type KernelNotifier = Arc<OnceLock<Notifier>>;

/// The thread that requests invalidations. It ends when this is dropped.
pub(crate) struct SeekQueue {
    queue: Sender<PendingSeek>,
}

impl SeekQueue {
    /// Starts the thread.
    pub(crate) fn start(notifier: KernelNotifier) -> std::io::Result<Self> {
        let (queue, pending) = channel();
        std::thread::Builder::new()
            .name("lacuna-seek".to_owned())
            .spawn(move || serve(&pending, &notifier))?;
        Ok(SeekQueue { queue })
    }

    /// Answers once the kernel has written the pages of the file.
    pub(crate) fn push(&self, seek: PendingSeek) {
        // The thread lives as long as the queue. Without it the reply is dropped, and the seek
        // fails.
        let _ = self.queue.send(seek);
    }
}

fn serve(queue: &Receiver<PendingSeek>, notifier: &KernelNotifier) {
    while let Ok(PendingSeek { ino, answer, reply }) = queue.recv() {
        if let Some(kernel) = notifier.get() {
            // If the kernel refuses, the answer comes from the vault's state alone.
            let _ = kernel.inval_inode(INodeNo(ino), 0, 0);
        }
        answer(reply);
    }
}
