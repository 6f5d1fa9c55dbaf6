//! A medium that goes wrong as told.

use crate::around::pass_on;
use crate::{OpKind, PAGE_SIZE, failure};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// One way to go wrong. Operations are counted from when the fault was added, the first being 1;
/// each extent of a batch is an operation. [`OpKind::Write`] stands for durable writes as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The `nth` operation of a kind fails with an error of the meaning `error`, and does nothing.
    FailNth {
        /// Which operations to count.
        op: OpKind,
        /// Which of them fails.
        nth: u64,
        /// How it fails: [`Kind::Io`] for EIO, [`Kind::NoSpace`] for ENOSPC.
        error: Kind,
    },
    /// The `nth` operation of any kind fails with this number of the system, and does nothing. That
    /// of a sync or a durable write is an error of the medium, whatever the number
    /// ([`crate::failure`]).
    Errno {
        /// Which of them fails.
        nth: u64,
        /// How it fails.
        errno: i32,
    },
    /// The same, but operations of one kind alone are counted.
    ErrnoOf {
        /// Which operations to count.
        op: OpKind,
        /// Which of them fails.
        nth: u64,
        /// How it fails.
        errno: i32,
    },
    /// The `nth` operation of a kind and every later one fail, and do nothing.
    FailFrom {
        /// Which operations to count.
        op: OpKind,
        /// The first of them to fail.
        nth: u64,
        /// How they fail.
        error: Kind,
    },
    /// Every operation of a kind that touches a range fails, and does nothing: bad sectors.
    FailRange {
        /// Which operations.
        op: OpKind,
        /// The bad bytes.
        range: Range<u64>,
        /// How they fail.
        error: Kind,
    },
    /// The `nth` read or write moves its first `bytes` bytes and then fails with EIO.
    Short {
        /// Which operations to count: reads or writes.
        op: OpKind,
        /// Which of them stops short.
        nth: u64,
        /// How many bytes it moves.
        bytes: u64,
    },
    /// Writes fail with ENOSPC once they would touch more than `bytes` bytes, in pages of 4096,
    /// that were not touched since the fault was added. A discard gives back the pages it covers
    /// whole.
    Quota {
        /// How much may be touched.
        bytes: u64,
    },
    /// The `nth` write lands at another place and reports success.
    Misdirect {
        /// Which write.
        nth: u64,
        /// Where it lands.
        to: u64,
    },
    /// The `nth` operation of a kind reports success and does nothing: a lost write, a sync that
    /// lies.
    Lose {
        /// Which operations to count: anything but reads, which have nothing to lose.
        op: OpKind,
        /// Which of them is lost.
        nth: u64,
    },
}

/// A fault and what it has seen.
struct Rule {
    fault: Fault,
    seen: u64,
    touched: BTreeSet<u64>,
}

/// What becomes of one operation.
enum Verdict {
    Pass,
    Fail(Error),
    Short(u64),
    Misdirect(u64),
    Lose,
}

fn fault(kind: Kind, op: OpKind, offset: u64, size: u64) -> Verdict {
    let what = if kind == Kind::NoSpace { "no space left on the medium" } else { "the medium failed" };
    Verdict::Fail(Error::new(kind, what).found(format!("{op:?} at offset {offset}, length {size}")))
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

    /// Counts an operation and says what becomes of it.
    fn judge(&mut self, op: OpKind, offset: u64, size: u64) -> Verdict {
        if !self.counts(op) {
            return Verdict::Pass;
        }
        self.seen += 1;
        let end = offset.saturating_add(size);
        match self.fault {
            Fault::Errno { nth, errno } | Fault::ErrnoOf { nth, errno, .. } if self.seen == nth => {
                let what = format!("{op:?} at offset {offset}, length {size}");
                Verdict::Fail(failure(what, errno, op.syncs()))
            }
            Fault::FailNth { nth, error, .. } if self.seen == nth => fault(error, op, offset, size),
            Fault::FailFrom { nth, error, .. } if self.seen >= nth => fault(error, op, offset, size),
            Fault::FailRange { ref range, error, .. } if offset < range.end && range.start < end => {
                fault(error, op, offset, size)
            }
            Fault::Short { nth, bytes, .. } if self.seen == nth => Verdict::Short(bytes.min(size)),
            Fault::Misdirect { nth, to } if self.seen == nth => Verdict::Misdirect(to),
            Fault::Lose { nth, .. } if self.seen == nth => Verdict::Lose,
            Fault::Quota { bytes } => {
                let pages = offset / PAGE_SIZE..end.div_ceil(PAGE_SIZE);
                let new = pages.clone().filter(|page| !self.touched.contains(page)).count() as u64;
                if (self.touched.len() as u64 + new) * PAGE_SIZE > bytes && new > 0 {
                    return fault(Kind::NoSpace, op, offset, size);
                }
                self.touched.extend(pages);
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }
    }
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    fired: u64,
    operations: u64,
    last_fired: Option<OpKind>,
}

impl State {
    /// What becomes of an operation: the first fault that has a say decides, and all of them count.
    fn judge(&mut self, op: OpKind, offset: u64, size: u64) -> Verdict {
        let mut verdict = Verdict::Pass;
        for rule in &mut self.rules {
            let said = rule.judge(op, offset, size);
            if matches!(verdict, Verdict::Pass) {
                verdict = said;
            }
        }
        self.operations += 1;
        if !matches!(verdict, Verdict::Pass) {
            self.fired += 1;
            self.last_fired = Some(op);
        }
        verdict
    }
}

/// Passes everything on except what a [`Fault`] speaks against. Without faults, batches pass as
/// they are.
pub struct FaultMedium<M: Medium + ?Sized = dyn Medium> {
    inner: Arc<M>,
    state: Mutex<State>,
}

impl<M: Medium + ?Sized> FaultMedium<M> {
    /// A medium before `inner` with no faults yet.
    pub fn new(inner: Arc<M>) -> Self {
        FaultMedium { inner, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a fault. Of two that speak against the same operation the older decides.
    pub fn add(&self, fault: Fault) {
        self.state().rules.push(Rule { fault, seen: 0, touched: BTreeSet::new() });
    }

    /// Takes all faults away. What they did to the medium stays.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// Operations that went wrong so far.
    pub fn fired(&self) -> u64 {
        self.state().fired
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The last operation that went wrong.
    pub fn last_fired(&self) -> Option<OpKind> {
        self.state().last_fired
    }

    /// The medium behind.
    pub fn inner(&self) -> &Arc<M> {
        &self.inner
    }

    /// Writes what may be written of a batch: all before the first extent that fails, and nothing
    /// after it.
    fn write_by(&self, op: OpKind, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut failed = None;
        let mut passed: Vec<WriteExtent<'_>> = Vec::with_capacity(batch.len());
        for &WriteExtent { offset, data } in batch {
            let verdict = self.state().judge(op, offset, data.len() as u64);
            match verdict {
                Verdict::Pass => passed.push(WriteExtent { offset, data }),
                Verdict::Misdirect(to) => passed.push(WriteExtent { offset: to, data }),
                Verdict::Lose => {}
                Verdict::Short(bytes) => {
                    passed.push(WriteExtent { offset, data: &data[..bytes as usize] });
                    failed = Some(stopped_short(op, bytes, data.len()));
                }
                Verdict::Fail(error) => failed = Some(error),
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

    /// Passes on an operation that moves no bytes.
    fn pass(&self, op: OpKind, offset: u64, size: u64, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let verdict = self.state().judge(op, offset, size);
        match verdict {
            Verdict::Fail(error) => Err(error),
            Verdict::Lose => Ok(()),
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
    pass_on!(inner);

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut failed = None;
        let mut whole = batch.len();
        for (index, extent) in batch.iter_mut().enumerate() {
            let verdict = self.state().judge(OpKind::Read, extent.offset, extent.buf.len() as u64);
            match verdict {
                Verdict::Fail(error) => failed = Some(error),
                Verdict::Short(bytes) => {
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
        self.write_by(OpKind::Write, batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write_by(OpKind::WriteDurable, batch)
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
