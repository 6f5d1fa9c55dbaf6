//! An open file of a simulated folder: applies space limits, faults and power cuts to its writes.

use super::op::FolderOp;
use super::state::CrashFolderState;
use crate::{CrashMedium, PAGE_SIZE};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{FolderFile, Medium, pieces};
use parking_lot::Mutex;
use std::sync::Arc;

/// One medium operation of a file operation.
type MediumStep<'a> = &'a dyn Fn(&CrashMedium) -> Result<()>;

/// An open file of a [`CrashFolder`](super::CrashFolder).
pub(super) struct CrashFile {
    pub(super) folder: Arc<Mutex<CrashFolderState>>,
    /// Its number in the folder.
    pub(super) id: u64,
    pub(super) file: Arc<CrashMedium>,
}

impl CrashFile {
    /// Performs a file operation as steps on its medium. If the power is cut in it, the cut falls
    /// in one of the steps, and the steps before that one were done.
    fn change(&self, op: FolderOp, steps: &[MediumStep<'_>]) -> Result<()> {
        let mut state = self.folder.lock();
        state.read_only()?;
        if state.begin(op)? {
            let during = state.power.ops() % steps.len() as u64;
            self.file.cut_after(during);
        }
        state.digest.add_word(self.file.len());
        steps.iter().try_for_each(|step| step(&self.file))
    }

    /// The number of bytes of a write, from its start, for which there is room, and the errno for
    /// the remaining ones. A page that is allocated needs no new room, except for the quota.
    fn len_with_space(&self, offset: u64, len: usize) -> (usize, i32) {
        let state = self.folder.lock();
        if offset + len as u64 > state.max_file_len.0 {
            return (0, libc::EFBIG);
        }
        if state.capacity.min(state.quota) == u64::MAX {
            return (len, 0);
        }
        let used = state.used();
        let room = |most: u64| most.saturating_sub(used) / PAGE_SIZE;
        let (mut room, mut of_quota) = (room(state.capacity), room(state.quota));
        for (page, _, bytes) in pieces(offset, len as u64, PAGE_SIZE) {
            if of_quota == 0 {
                return (bytes.start, libc::EDQUOT);
            }
            of_quota -= 1;
            if !self.file.is_resident(page) {
                if room == 0 {
                    return (bytes.start, libc::ENOSPC);
                }
                room -= 1;
            }
        }
        (len, 0)
    }
}

impl FolderFile for CrashFile {
    fn len(&self) -> Result<u64> {
        let state = self.folder.lock();
        state.power.check_on()?;
        Ok(self.file.reported_len())
    }

    fn max_len(&self) -> Result<u64> {
        let (longest, reported) = self.folder.lock().max_file_len;
        Ok(if reported { longest } else { u64::MAX })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut state = self.folder.lock();
        state.begin(FolderOp::Read)?;
        state.check_readable(self.id, offset..offset.saturating_add(buf.len() as u64))?;
        let there = self.file.len().saturating_sub(offset).min(buf.len() as u64);
        let (seen, beyond) = buf.split_at_mut(there as usize);
        beyond.fill(0);
        if seen.is_empty() { Ok(()) } else { self.file.read_at(offset, seen) }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        if offset.checked_add(data.len() as u64).is_none() {
            return Err(Error::new(Kind::Usage, "a write with its end above the largest offset"));
        }
        let (fitting, errno) = self.len_with_space(offset, data.len());
        let full =
            || Error::io("the simulated file system is full", &std::io::Error::from_raw_os_error(errno));
        if fitting == 0 && !data.is_empty() {
            return Err(full());
        }
        let write = |file: &CrashMedium| file.write_at(offset, &data[..fitting]);
        let end = offset + fitting as u64;
        let grow = |file: &CrashMedium| file.set_len(end);
        let steps: [MediumStep<'_>; 2] = [&grow, &write];
        let only_write = self.file.len() >= end;
        match self.change(FolderOp::Write, &steps[usize::from(only_write)..]) {
            Err(e) if e.kind().is_refusal() => {
                let half = data.len() as u64 / PAGE_SIZE / 2 * PAGE_SIZE;
                if half > 0 {
                    self.file.set_len(self.file.len().max(offset + half))?;
                    self.file.write_at(offset, &data[..half as usize])?;
                }
                Err(e)
            }
            Ok(()) if fitting < data.len() => Err(full()),
            Ok(()) => {
                self.folder.lock().mend_pages(self.id, offset..end);
                Ok(())
            }
            failed => failed,
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.change(FolderOp::SetLen, &[&|file| file.set_len(len)])
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        self.folder.lock().read_only()
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let there = self.file.len().saturating_sub(offset).min(len);
        if there == 0 {
            return self.folder.lock().read_only();
        }
        self.change(FolderOp::Punch, &[&|file| file.discard(offset, there)])
    }

    fn sync(&self) -> Result<()> {
        self.change(FolderOp::Sync, &[&|file| file.sync()])
    }
}
