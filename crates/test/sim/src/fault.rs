//! A medium that injects faults.

use crate::intercept::delegate_rest;
use crate::{OpKind, PAGE_SIZE, call_error};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A fault. Operations are counted from 1 after the fault was added; each extent of a batch is one
/// operation. [`OpKind::Write`] includes durable writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The `nth` operation of a kind fails with an error of the kind `error`, and has no effect.
    FailNth {
        /// The kind of operations to count.
        op: OpKind,
        /// The number of the operation that fails.
        nth: u64,
        /// Its error: [`Kind::Io`] for EIO, [`Kind::NoSpace`] for ENOSPC.
        error: Kind,
    },
    /// The `nth` operation of any kind fails with this errno, and has no effect. If it is a sync or
    /// a durable write, its error is one of the medium, whatever the errno ([`crate::call_error`]).
    Errno {
        /// The number of the operation that fails.
        nth: u64,
        /// Its errno.
        errno: i32,
    },
    /// Like [`Fault::Errno`], but counts only operations of one kind.
    ErrnoOf {
        /// The kind of operations to count.
        op: OpKind,
        /// The number of the operation that fails.
        nth: u64,
        /// Its errno.
        errno: i32,
    },
    /// The `nth` operation of a kind and every later one fail, and have no effect.
    FailFrom {
        /// The kind of operations to count.
        op: OpKind,
        /// The number of the first operation that fails.
        nth: u64,
        /// Their error.
        error: Kind,
    },
    /// Every operation of a kind that touches a range fails, and has no effect: bad sectors.
    FailRange {
        /// The kind of operations.
        op: OpKind,
        /// The bad bytes.
        range: Range<u64>,
        /// Their error.
        error: Kind,
    },
    /// The `nth` read or write transfers its first `bytes` bytes and then fails with EIO.
    Short {
        /// The kind of operations to count: reads or writes.
        op: OpKind,
        /// The number of the operation that fails.
        nth: u64,
        /// The number of bytes that it transfers.
        bytes: u64,
    },
    /// Writes fail with ENOSPC if they would exceed `bytes` touched bytes, in pages of 4096,
    /// counted since the fault was added. A write to touched pages succeeds. A discard releases the
    /// pages that it covers completely.
    Quota {
        /// The number of bytes that may be touched.
        bytes: u64,
    },
    /// The `nth` write lands at another offset and reports success.
    Misdirect {
        /// The number of the write.
        nth: u64,
        /// The offset where it lands.
        to: u64,
    },
    /// The `nth` operation of a kind reports success and has no effect: a lost write, an ignored
    /// sync.
    Lose {
        /// The kind of operations to count: any except reads, which have no effect to lose.
        op: OpKind,
        /// The number of the operation that is lost.
        nth: u64,
    },
}

/// A fault with its counters.
struct Rule {
    fault: Fault,
    counted: u64,
    touched: BTreeSet<u64>,
}

/// The decision about one operation.
enum FaultAction {
    Pass,
    Fail(Error),
    Short(u64),
    Misdirect(u64),
    Ignore,
}

fn fail_with(kind: Kind, op: OpKind, offset: u64, size: u64) -> FaultAction {
    let what = if kind == Kind::NoSpace { "no space left on the medium" } else { "the medium failed" };
    FaultAction::Fail(Error::new(kind, what).found(format!("{op:?} at offset {offset}, length {size}")))
}

impl Rule {
    /// Whether the fault counts operations of kind `op`.
    fn counts(&self, op: OpKind) -> bool {
        let wanted = match &self.fault {
            Fault::Errno { .. } => return true,
            Fault::FailNth { op, .. }
            | Fault::ErrnoOf { op, .. }
            | Fault::FailFrom { op, .. }
            | Fault::FailRange { op, .. }
            | Fault::Short { op, .. }
            | Fault::Lose { op, .. } => *op,
            Fault::Quota { .. } | Fault::Misdirect { .. } => OpKind::Write,
        };
        wanted == op || (wanted == OpKind::Write && op == OpKind::WriteDurable)
    }

    /// Counts an operation and decides about it.
    fn action_for(&mut self, op: OpKind, offset: u64, size: u64) -> FaultAction {
        if !self.counts(op) {
            return FaultAction::Pass;
        }
        self.counted += 1;
        let end = offset.saturating_add(size);
        match self.fault {
            Fault::Errno { nth, errno } | Fault::ErrnoOf { nth, errno, .. } if self.counted == nth => {
                let what = format!("{op:?} at offset {offset}, length {size}");
                FaultAction::Fail(call_error(what, errno, op.makes_durable()))
            }
            Fault::FailNth { nth, error, .. } if self.counted == nth => fail_with(error, op, offset, size),
            Fault::FailFrom { nth, error, .. } if self.counted >= nth => fail_with(error, op, offset, size),
            Fault::FailRange { ref range, error, .. } if offset < range.end && range.start < end => {
                fail_with(error, op, offset, size)
            }
            Fault::Short { nth, bytes, .. } if self.counted == nth => FaultAction::Short(bytes.min(size)),
            Fault::Misdirect { nth, to } if self.counted == nth => FaultAction::Misdirect(to),
            Fault::Lose { nth, .. } if self.counted == nth => FaultAction::Ignore,
            Fault::Quota { bytes } => {
                let pages = offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE);
                let new = pages.clone().filter(|page| !self.touched.contains(page)).count() as u64;
                if (self.touched.len() as u64 + new) * PAGE_SIZE > bytes && new > 0 {
                    return fail_with(Kind::NoSpace, op, offset, size);
                }
                self.touched.extend(pages);
                FaultAction::Pass
            }
            _ => FaultAction::Pass,
        }
    }
}

#[derive(Default)]
struct FaultState {
    rules: Vec<Rule>,
    fired: u64,
    operations: u64,
    last_fired: Option<OpKind>,
}

impl FaultState {
    /// Decides about an operation: the first fault that matches decides, and all faults count it.
    fn action_for(&mut self, op: OpKind, offset: u64, size: u64) -> FaultAction {
        let mut verdict = FaultAction::Pass;
        for rule in &mut self.rules {
            let action = rule.action_for(op, offset, size);
            if matches!(verdict, FaultAction::Pass) {
                verdict = action;
            }
        }
        self.operations += 1;
        if !matches!(verdict, FaultAction::Pass) {
            self.fired += 1;
            self.last_fired = Some(op);
        }
        verdict
    }
}

/// Passes all operations on, except where a [`Fault`] matches. Without faults, batches pass
/// unchanged.
pub struct FaultMedium<M: Medium + ?Sized = dyn Medium> {
    inner: Arc<M>,
    state: Mutex<FaultState>,
}

impl<M: Medium + ?Sized> FaultMedium<M> {
    /// Wraps `inner`, without faults.
    pub fn new(inner: Arc<M>) -> Self {
        FaultMedium { inner, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock()
    }

    /// Adds a fault. If two faults match one operation, the older one decides.
    pub fn add(&self, fault: Fault) {
        self.state().rules.push(Rule { fault, counted: 0, touched: BTreeSet::new() });
    }

    /// Adds a [`Fault::Quota`] of `bytes`, where these pages of 4096 bytes are touched already.
    pub fn add_quota(&self, bytes: u64, touched: impl IntoIterator<Item = u64>) {
        let touched = touched.into_iter().collect();
        self.state().rules.push(Rule { fault: Fault::Quota { bytes }, counted: 0, touched });
    }

    /// Removes all faults. Their effects on the medium stay.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// The number of operations that a fault changed.
    pub fn fired(&self) -> u64 {
        self.state().fired
    }

    /// The number of operations.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The last operation that a fault changed.
    pub fn last_fired(&self) -> Option<OpKind> {
        self.state().last_fired
    }

    /// The wrapped medium.
    pub fn inner(&self) -> &Arc<M> {
        &self.inner
    }

    /// Writes the extents of a batch up to the first one that fails.
    fn write_batch(&self, op: OpKind, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut failed = None;
        let mut passed: Vec<WriteExtent<'_>> = Vec::with_capacity(batch.len());
        for &WriteExtent { offset, data } in batch {
            let verdict = self.state().action_for(op, offset, data.len() as u64);
            match verdict {
                FaultAction::Pass => passed.push(WriteExtent { offset, data }),
                FaultAction::Misdirect(to) => passed.push(WriteExtent { offset: to, data }),
                FaultAction::Ignore => {}
                FaultAction::Short(bytes) => {
                    passed.push(WriteExtent { offset, data: &data[..bytes as usize] });
                    failed = Some(stopped_short(op, bytes, data.len()));
                }
                FaultAction::Fail(error) => failed = Some(error),
            }
            if failed.is_some() {
                break;
            }
        }
        if !passed.is_empty() {
            match op {
                OpKind::WriteDurable if failed.is_none() => self.inner.write_durable(&passed)?,
                _ => self.inner.write(&passed)?,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Passes on an operation that transfers no bytes.
    fn pass(&self, op: OpKind, offset: u64, size: u64, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let verdict = self.state().action_for(op, offset, size);
        match verdict {
            FaultAction::Fail(error) => Err(error),
            FaultAction::Ignore => Ok(()),
            _ => act(),
        }
    }
}

fn stopped_short(op: OpKind, bytes: u64, size: usize) -> Error {
    Error::new(Kind::Io, "the medium failed half-way")
        .found(format!("{op:?} of {bytes} bytes"))
        .expected(format!("{size} bytes"))
}

impl<M: Medium + ?Sized> Medium for FaultMedium<M> {
    delegate_rest!(inner);

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut failed = None;
        let mut whole = batch.len();
        for (index, extent) in batch.iter_mut().enumerate() {
            let verdict = self.state().action_for(OpKind::Read, extent.offset, extent.buf.len() as u64);
            match verdict {
                FaultAction::Fail(error) => failed = Some(error),
                FaultAction::Short(bytes) => {
                    self.inner.read_at(extent.offset, &mut extent.buf[..bytes as usize])?;
                    failed = Some(stopped_short(OpKind::Read, bytes, extent.buf.len()));
                }
                _ => continue,
            }
            whole = index;
            break;
        }
        if whole > 0 {
            self.inner.read(&mut batch[..whole])?;
        }
        failed.map_or(Ok(()), Err)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write_batch(OpKind::Write, batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write_batch(OpKind::WriteDurable, batch)
    }

    fn sync(&self) -> Result<()> {
        self.pass(OpKind::Sync, 0, 0, || self.inner.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(OpKind::Discard, offset, len, || {
            self.inner.discard(offset, len)?;
            let covered = offset.div_ceil(PAGE_SIZE)..offset.saturating_add(len) / PAGE_SIZE;
            for rule in &mut self.state().rules {
                rule.touched.retain(|page| !covered.contains(page));
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.pass(OpKind::SetLen, 0, len, || self.inner.set_len(len))
    }
}
