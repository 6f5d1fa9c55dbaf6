//! The state of a simulated folder, which its open files share.

use super::name_history::NameHistory;
use super::names::Names;
use super::op::FolderOp;
use crate::nth_call::NthCall;
use crate::power::Power;
use crate::{CrashMedium, PAGE_SIZE, RunDigest};
use lacuna_contracts::{Error, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A scheduled failure.
pub(super) struct FolderFault {
    pub(super) op: FolderOp,
    /// The number of operations of this kind that succeed first.
    pub(super) after: u64,
    pub(super) kind: Kind,
    /// Whether all later ones fail as well.
    pub(super) forever: bool,
}

/// The files, names, faults and power of a simulated folder.
pub(super) struct CrashFolderState {
    pub(super) files: BTreeMap<u64, Arc<CrashMedium>>,
    pub(super) next_file: u64,
    /// The number of files at which files without names are removed.
    pub(super) sweep_at: usize,
    pub(super) names: Names,
    /// The lies about names.
    pub(super) name_history: NameHistory,
    pub(super) power: Power,
    pub(super) faults: Vec<FolderFault>,
    /// Pages of files that cannot be read.
    pub(super) bad_pages: BTreeSet<(u64, u64)>,
    pub(super) nth_call: NthCall<FolderOp>,
    pub(super) capacity: u64,
    pub(super) quota: u64,
    /// The maximum length of a file, and whether files report it.
    pub(super) max_file_len: (u64, bool),
    pub(super) ignore_syncs: bool,
    /// Whether earlier files of names, and earlier versions of pages, are kept.
    pub(super) keeps_history: bool,
    pub(super) read_only: bool,
    /// A digest of all operations.
    pub(super) digest: RunDigest,
}

impl CrashFolderState {
    /// Begins an operation. True if the power is cut in it.
    pub(super) fn begin(&mut self, op: FolderOp) -> Result<bool> {
        self.power.check_on()?;
        if op.is_change() {
            self.digest.add_word(op as u64);
            if !self.power.survives(1) {
                return Ok(true);
            }
        }
        self.nth_call.begin(op, op.makes_durable())?;
        self.check_faults(op)?;
        Ok(false)
    }

    fn check_faults(&mut self, op: FolderOp) -> Result<()> {
        for (index, fault) in self.faults.iter_mut().enumerate().filter(|(_, fault)| fault.op == op) {
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            let kind = fault.kind;
            if !fault.forever {
                self.faults.remove(index);
            }
            return Err(Error::new(kind, format!("{op:?}: a failure that the test scheduled")));
        }
        Ok(())
    }

    /// Fails a read of a file that needs a page which cannot be read.
    pub(super) fn check_readable(&self, file: u64, bytes: Range<u64>) -> Result<()> {
        let pages = bytes.start / PAGE_SIZE..bytes.end.div_ceil(PAGE_SIZE);
        match self.bad_pages.iter().find(|(of, page)| *of == file && pages.contains(page)) {
            Some((_, page)) => Err(Error::new(Kind::Io, format!("page {page} of a file cannot be read"))),
            None => Ok(()),
        }
    }

    /// Makes the pages readable that a write replaces as a whole.
    pub(super) fn mend_pages(&mut self, file: u64, bytes: Range<u64>) {
        let pages = bytes.start.div_ceil(PAGE_SIZE)..bytes.end / PAGE_SIZE;
        self.bad_pages.retain(|(of, page)| *of != file || !pages.contains(page));
    }

    /// The total allocation of named files in bytes.
    pub(super) fn used(&self) -> u64 {
        let named = self.names.current.values().filter_map(|id| self.files.get(id));
        named.map(|file| file.resident_pages() * PAGE_SIZE).sum()
    }

    pub(super) fn read_only(&self) -> Result<()> {
        if self.read_only { Err(Error::new(Kind::ReadOnly, "the folder is read-only")) } else { Ok(()) }
    }

    /// Keeps the files of names that are about to change, if the past is kept.
    pub(super) fn save_names<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        if self.keeps_history {
            for name in names {
                self.name_history.save_file(name, self.names.current.get(name).copied());
            }
        }
    }

    /// Occasionally removes files that have no name and can get none. While the past is kept, it
    /// removes none, because a lie may refer to them.
    pub(super) fn sweep(&mut self) {
        if self.files.len() >= self.sweep_at && !self.keeps_history {
            let named = self.names.all_files();
            self.files.retain(|id, file| Arc::strong_count(file) > 1 || named.contains(id));
            self.sweep_at = 2 * self.files.len() + 64;
        }
    }
}
