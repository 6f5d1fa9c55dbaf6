//! A recorder of all operations of a medium.

use crate::OpKind;
use crate::intercept::delegate_rest;
use crate::operation::RunDigest;
use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One operation that reached the medium. A batch gives one record per extent, in the order of the
/// batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedOp {
    /// The kind of operation.
    pub kind: OpKind,
    /// The offset in bytes. Zero for a sync and a change of length.
    pub offset: u64,
    /// The number of bytes; for a change of length, the new length.
    pub len: u64,
    /// The number of the call: equal for the extents of one batch, and increasing.
    pub call: u64,
    /// Whether the call succeeded.
    pub ok: bool,
    /// A digest of the bytes written; zero for anything other than a write. Not a cryptographic
    /// hash.
    pub hash: u64,
    /// The bytes written, if the recorder keeps them.
    pub contents: Option<Vec<u8>>,
}

#[derive(Default)]
struct RecorderLog {
    calls: u64,
    records: Vec<RecordedOp>,
}

/// Passes all operations on and records them afterwards.
pub struct Recorder<M: Medium + ?Sized = dyn Medium> {
    inner: Arc<M>,
    keep_contents: AtomicBool,
    log: Mutex<RecorderLog>,
}

impl<M: Medium + ?Sized> Recorder<M> {
    /// Wraps `inner`, with an empty log.
    pub fn new(inner: Arc<M>) -> Self {
        Recorder { inner, keep_contents: AtomicBool::new(false), log: Mutex::default() }
    }

    /// Sets whether later records keep the bytes written. The default is off.
    pub fn keep_contents(&self, keep: bool) {
        self.keep_contents.store(keep, Ordering::Relaxed);
    }

    /// Removes and returns all records.
    pub fn take(&self) -> Vec<RecordedOp> {
        std::mem::take(&mut self.log.lock().records)
    }

    /// Records one call: its extents as offset, length, and bytes written.
    fn record_call<'a>(
        &self,
        kind: OpKind,
        result: Result<()>,
        extents: impl Iterator<Item = (u64, u64, Option<&'a [u8]>)>,
    ) -> Result<()> {
        let keep = self.keep_contents.load(Ordering::Relaxed);
        let mut log = self.log.lock();
        let call = log.calls;
        log.calls += 1;
        log.records.extend(extents.map(|(offset, len, data)| RecordedOp {
            kind,
            offset,
            len,
            call,
            ok: result.is_ok(),
            hash: data.map_or(0, |bytes| {
                let mut digest = RunDigest::new();
                digest.add_bytes(bytes);
                digest.0
            }),
            contents: data.filter(|_| keep).map(<[u8]>::to_vec),
        }));
        result
    }

    fn record_write(&self, kind: OpKind, result: Result<()>, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.record_call(kind, result, batch.iter().map(|e| (e.offset, e.data.len() as u64, Some(e.data))))
    }
}

impl<M: Medium + ?Sized> Medium for Recorder<M> {
    delegate_rest!(inner);

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let result = self.inner.read(batch);
        self.record_call(OpKind::Read, result, batch.iter().map(|e| (e.offset, e.buf.len() as u64, None)))
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.record_write(OpKind::Write, self.inner.write(batch), batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.record_write(OpKind::WriteDurable, self.inner.write_durable(batch), batch)
    }

    fn sync(&self) -> Result<()> {
        self.record_call(OpKind::Sync, self.inner.sync(), std::iter::once((0, 0, None)))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.record_call(
            OpKind::Discard,
            self.inner.discard(offset, len),
            std::iter::once((offset, len, None)),
        )
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.record_call(OpKind::SetLen, self.inner.set_len(len), std::iter::once((0, len, None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CrashMedium;

    #[test]
    fn a_recorder_keeps_every_operation_in_order() {
        let recorder = Recorder::new(Arc::new(CrashMedium::new(8192)));
        recorder.write_at(0, b"one").unwrap();
        recorder.keep_contents(true);
        let batch = [WriteExtent { offset: 10, data: b"one" }, WriteExtent { offset: 20, data: b"two" }];
        recorder.write_durable(&batch).unwrap();
        recorder.read_at(0, &mut [0; 5]).unwrap();
        recorder.sync().unwrap();
        recorder.discard(1, 2).unwrap();
        recorder.set_len(100).unwrap();
        recorder.write_at(100, b"past").unwrap_err();
        let log = recorder.take();
        let seen: Vec<_> = log.iter().map(|r| (r.kind, r.offset, r.len, r.call, r.ok)).collect();
        assert_eq!(
            seen,
            [
                (OpKind::Write, 0, 3, 0, true),
                (OpKind::WriteDurable, 10, 3, 1, true),
                (OpKind::WriteDurable, 20, 3, 1, true),
                (OpKind::Read, 0, 5, 2, true),
                (OpKind::Sync, 0, 0, 3, true),
                (OpKind::Discard, 1, 2, 4, true),
                (OpKind::SetLen, 0, 100, 5, true),
                (OpKind::Write, 100, 4, 6, false),
            ]
        );
        assert_eq!(log[0].hash, log[1].hash);
        assert_ne!(log[1].hash, log[2].hash);
        assert_eq!((&log[0].contents, log[2].contents.as_deref()), (&None, Some(&b"two"[..])));
        assert!(recorder.take().is_empty());
    }

    #[test]
    fn a_recorder_wraps_any_medium() {
        let inner: Arc<dyn Medium> = Arc::new(CrashMedium::new(10));
        let recorder: Recorder = Recorder::new(inner);
        assert_eq!(recorder.len(), 10);
    }
}
