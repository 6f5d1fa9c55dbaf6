//! Verifies stripes that no summary calls durable: are all of their slots as they were written?
//!
//! The death of a server may leave hundreds of them. On a disk with threads several are read and
//! verified at once. The verdict on a stripe does not depend on the others.

use crate::keys::open_slot;
use crate::log::Log;
use crate::log::summary::Summary;
use crate::place::{Slot, SlotPlace, StripeSeq};
use lacuna_contracts::{BLOCK_SIZE, WipeOnDrop};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Threads that verify: some wait for the medium while others decrypt.
const THREADS: usize = 4;

/// Verdicts on stripes.
#[derive(Default)]
pub(super) struct WholeStripes(FxHashMap<StripeSeq, bool>);

impl WholeStripes {
    /// The verdicts on the stripes of these summaries, in the order of their numbers, up to the
    /// first that is not whole. None on a disk without threads, where the order of reads is that of
    /// the questions.
    pub(super) fn ahead(log: &Log, summaries: &[&Summary]) -> WholeStripes {
        if !log.reader().has_threads() || summaries.len() < 2 {
            return WholeStripes::default();
        }
        let (next, torn) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let verdicts = Mutex::new(WholeStripes::default());
        let verify = || {
            let mut slots = memory(log);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let wanted = at < torn.load(Ordering::Relaxed);
                let Some(summary) = summaries.get(at).filter(|_| wanted) else { return };
                let whole = is_whole(log, summary, &mut slots);
                if !whole {
                    torn.fetch_min(at, Ordering::Relaxed);
                }
                verdicts.lock().0.insert(summary.public.seq, whole);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..THREADS {
                // If no thread can be started, this one does all of the work.
                let _started = Builder::new().name("lacuna-verify".into()).spawn_scoped(scope, verify);
            }
            verify();
        });
        verdicts.into_inner()
    }

    /// Whether the stripe of a summary is whole.
    pub(super) fn has(&self, log: &Log, summary: &Summary) -> bool {
        let known = self.0.get(&summary.public.seq).copied();
        known.unwrap_or_else(|| is_whole(log, summary, &mut memory(log)))
    }
}

/// Memory for the slots of a stripe.
fn memory(log: &Log) -> WipeOnDrop<Vec<u8>> {
    WipeOnDrop::new(vec![0; log.params().stripe_len() - BLOCK_SIZE])
}

/// Whether all slots of a stripe are as they were written, those of all hidden levels included.
/// `slots` is memory for them.
fn is_whole(log: &Log, summary: &Summary, slots: &mut [u8]) -> bool {
    let (seq, public) = (summary.public.seq, log.params().public_slots() * BLOCK_SIZE);
    // A power cut tears a stripe; it does not make it unreadable.
    if log.reader().read(0, log.slot_offset(0, SlotPlace { seq, slot: Slot(0) }), slots).is_err() {
        return true;
    }
    if !summary.has_hidden_slots(&slots[public..]) {
        return false;
    }
    let mut blocks = slots[..public].chunks_exact_mut(BLOCK_SIZE).zip(&summary.public.entries).enumerate();
    blocks.all(|(slot, (block, (entry, tag)))| {
        open_slot(&summary.key, seq, Slot::nth(slot), *entry, tag, block).is_ok()
    })
}
