//! A medium that lets the process die in an operation, and the memory as the death leaves it.

use crate::fixture::{open_with, options};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_kept_memory::KeptMemory;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::{CrashMedium, InterceptedMedium, MediumInterceptor, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The memory as the end of a round left it.
#[derive(Default)]
pub(crate) struct LastState(Mutex<Option<KeptMemory>>);

impl LastState {
    /// Keeps the state of the memory, unless the round ended before.
    pub(crate) fn note(&self, memory: &KeptMemory) {
        self.0.lock().unwrap().get_or_insert_with(|| memory.as_if_died().unwrap());
    }

    /// The memory for the next process.
    pub(crate) fn take(&self) -> Option<KeptMemory> {
        self.0.lock().unwrap().take()
    }
}

/// Fails reads now and then. A repeated read succeeds.
pub(crate) struct ReadFailures {
    /// One read in this number fails; 0 for none.
    one_of: AtomicU64,
    rng: Mutex<Rng>,
}

impl ReadFailures {
    /// No failures yet.
    pub(crate) fn new(seed: u64) -> Self {
        ReadFailures { one_of: AtomicU64::new(0), rng: Mutex::new(Rng::new(seed)) }
    }

    /// From now on one read in this number fails; 0 for none.
    pub(crate) fn set(&self, one_of: u64) {
        self.one_of.store(one_of, Ordering::Relaxed);
    }

    fn next_read(&self) -> Result<()> {
        let one_of = self.one_of.load(Ordering::Relaxed);
        if one_of > 0 && self.rng.lock().unwrap().chance(1, one_of) {
            return Err(Error::new(Kind::Io, "a simulated transient read error"));
        }
        Ok(())
    }
}

/// A medium that lets the process die in an operation.
pub(crate) struct DyingMedium {
    /// The medium that performs the operations: the simulated one, or a wrapper of it.
    pub(crate) below: Arc<dyn Medium>,
    /// The simulated medium.
    pub(crate) medium: Arc<CrashMedium>,
    pub(crate) memory: KeptMemory,
    pub(crate) last: Arc<LastState>,
    pub(crate) reads: Arc<ReadFailures>,
}

impl DyingMedium {
    /// The medium of a process, without trouble, and the memory as its death will leave it.
    pub(crate) fn over(medium: &Arc<CrashMedium>, memory: &KeptMemory) -> (Arc<dyn Medium>, Arc<LastState>) {
        let last = Arc::<LastState>::default();
        let dying = DyingMedium {
            below: medium.clone(),
            medium: medium.clone(),
            memory: memory.clone(),
            last: last.clone(),
            reads: Arc::new(ReadFailures::new(0)),
        };
        (Arc::new(InterceptedMedium(dying)), last)
    }

    fn noted<T>(&self, done: Result<T>) -> Result<T> {
        if self.medium.is_cut() {
            self.last.note(&self.memory);
        }
        done
    }
}

impl MediumInterceptor for DyingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.below
    }
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.reads.next_read()?;
        self.noted(self.below.read(batch))
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.noted(self.below.write(batch))
    }
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.noted(self.below.write_durable(batch))
    }
    fn sync(&self) -> Result<()> {
        self.noted(self.below.sync())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.noted(self.below.discard(offset, len))
    }
}

/// Chooses when a round ends: in an operation of the medium, or before a change of the memory.
pub(crate) fn arm(rng: &mut Rng, medium: &Arc<CrashMedium>, memory: &KeptMemory, last: &Arc<LastState>) {
    let long = rng.chance(1, 6);
    if rng.chance(1, 2) {
        let limit = if rng.chance(1, 4) { 20 } else { 150 };
        return medium.cut_after(rng.below(if long { 1200 } else { limit }));
    }
    die_before_change(medium, memory, last, rng.below(if long { 8000 } else { 2000 }));
}

/// Lets the process die before a change of the memory, after `changes` earlier ones.
pub(crate) fn die_before_change(
    medium: &Arc<CrashMedium>,
    memory: &KeptMemory,
    last: &Arc<LastState>,
    changes: u64,
) {
    let left = AtomicU64::new(changes);
    let (medium, same, last) = (medium.clone(), memory.clone(), last.clone());
    memory.observe_changes(move || {
        if left.fetch_sub(1, Ordering::Relaxed) == 0 && !medium.is_cut() {
            medium.cut_now();
            last.note(&same);
        }
    });
}

/// Opens a disk with the memory that outlives the process.
pub(crate) fn open_kept(
    medium: Arc<dyn Medium>,
    params: &Params,
    memory: &KeptMemory,
    seed: u64,
) -> Result<SealedDisk> {
    let mut options = options(seed);
    options.kept = Some(memory.clone());
    open_with(medium, params, options)
}
