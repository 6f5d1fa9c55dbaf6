//! Requests of a process that died, which arrive later: the process had submitted them, and the
//! kernel or the device had not done them yet.

use super::CrashMedium;
use crate::intercept::MediumInterceptor;
use crate::unsynced_writes::{Fragment, UnsyncedOp};
use crate::{PAGE_SIZE, Rng};
use lacuna_contracts::Result;
use lacuna_medium::{Medium, WriteExtent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The limits, in changes of the medium by the next process, below which a late request arrives.
/// Each request has one of them: some arrive while the next process opens the disk, some long
/// after.
const ARRIVALS: [u64; 3] = [8, 60, 400];

/// Requests of processes that died. They may still arrive.
#[derive(Clone, Default)]
pub struct LateRequests(Vec<Vec<Fragment>>);

impl LateRequests {
    /// The number of requests.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The medium of one process. It knows which requests of this process are in flight, and delivers
/// the requests that earlier processes left in flight: each before a later write, discard or sync
/// of this process, unless [`LateMedium::fence`] ends them all before.
///
/// Requests of several threads can be in flight at once. A request is in flight from the call on,
/// until the medium below has done it.
pub struct LateMedium {
    /// The simulated medium, which ends with the process.
    medium: Arc<CrashMedium>,
    /// The medium to which requests go on: the same, or a wrapper of it.
    below: Arc<dyn Medium>,
    state: Mutex<LateState>,
}

#[derive(Default)]
struct LateState {
    /// The requests of earlier processes, each with the number of the change before which it
    /// arrives.
    late: Vec<(u64, Vec<Fragment>)>,
    /// The requests in flight, by number.
    in_flight: BTreeMap<u64, Vec<Fragment>>,
    /// The number of requests so far.
    submitted: u64,
    /// The number of changes so far: requests and syncs.
    changes: u64,
    /// The number of late requests that arrived.
    arrived: u64,
}

impl LateMedium {
    /// The medium of a process that begins, on `medium` through `below`. `late` are the requests of
    /// its predecessors; `rng` chooses when each arrives.
    pub fn new(
        medium: Arc<CrashMedium>,
        below: Arc<dyn Medium>,
        late: LateRequests,
        rng: &mut Rng,
    ) -> LateMedium {
        let arrival = |request| {
            let limit = *rng.pick(&ARRIVALS);
            (rng.below(limit), request)
        };
        let late = late.0.into_iter().map(arrival).collect();
        LateMedium { medium, below, state: Mutex::new(LateState { late, ..LateState::default() }) }
    }

    /// Waits for the end of all requests of earlier processes, as taking the lock of a medium does:
    /// the lock falls when the kernel has no request of its holder any more. Each page of a request
    /// is written now or never.
    pub fn fence(&self, rng: &mut Rng) {
        let late = std::mem::take(&mut self.state.lock().late);
        for (_, fragments) in late {
            self.medium.state().land(&UnsyncedOp { fragments, length: None, in_flight: false }, rng);
        }
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// The number of requests of earlier processes that arrived after this one had begun.
    pub fn arrived(&self) -> u64 {
        self.state.lock().arrived
    }

    /// The medium as a successor finds it after the death of the process, and the requests that may
    /// still arrive. Of a request in flight some pages were written at once; the rest is late, or
    /// is never written.
    pub fn after_process_death(&self, rng: &mut Rng) -> (CrashMedium, LateRequests) {
        // The requests in flight are known here, page by page.
        let (left, _) = self.medium.split_at_death();
        let mut state = self.state.lock();
        let mut late: Vec<Vec<Fragment>> =
            std::mem::take(&mut state.late).into_iter().map(|(_, fragments)| fragments).collect();
        for fragments in std::mem::take(&mut state.in_flight).into_values() {
            let odds = *rng.pick(&[0, 0, 4, 8]);
            let pages = fragments.iter().flat_map(|fragment| fragment.parts(PAGE_SIZE));
            let (written, rest): (Vec<Fragment>, Vec<Fragment>) = pages.partition(|_| rng.chance(odds, 8));
            left.state().complete(written, None);
            if !rest.is_empty() && rng.chance(3, 4) {
                late.push(rest);
            }
        }
        drop(state);
        (left, LateRequests(late))
    }

    /// The medium after a power cut. It tears the requests in flight, and those of earlier
    /// processes never arrive.
    pub fn after_power_cycle(&self, rng: &mut Rng) -> CrashMedium {
        let requests = std::mem::take(&mut self.state.lock().in_flight);
        let mut state = self.medium.state();
        if !state.ended_in_sync {
            // Some of these requests had reached the medium below.
            state.unsynced.retain(|op| !op.in_flight);
        }
        let torn = |fragment| UnsyncedOp { fragments: vec![fragment], length: None, in_flight: true };
        state.unsynced.extend(requests.into_values().flatten().map(torn));
        drop(state);
        self.medium.after_power_cycle(rng)
    }

    /// Lets the requests arrive that are due before the next change.
    fn deliver_due(&self) {
        let mut state = self.state.lock();
        let now = state.changes;
        state.changes += 1;
        let all = std::mem::take(&mut state.late);
        let (due, late): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at <= now);
        state.late = late;
        state.arrived += due.len() as u64;
        for (_, fragments) in due {
            self.medium.state().complete(fragments, None);
        }
    }

    /// Performs a request, which is in flight until it is done.
    fn request(&self, fragments: Vec<Fragment>, perform: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.medium.is_cut() {
            // The process has ended: this is no request of it.
            return perform();
        }
        self.deliver_due();
        let number = {
            let mut state = self.state.lock();
            state.submitted += 1;
            let number = state.submitted;
            state.in_flight.insert(number, fragments);
            number
        };
        let done = perform();
        if done.is_ok() || !self.medium.is_cut() {
            self.state.lock().in_flight.remove(&number);
        }
        done
    }
}

impl MediumInterceptor for LateMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.below
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.request(fragments_of(batch), || self.below.write(batch))
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.request(fragments_of(batch), || self.below.write_durable(batch))
    }

    fn sync(&self) -> Result<()> {
        if !self.medium.is_cut() {
            self.deliver_due();
        }
        self.below.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let zeros = Fragment { range: offset..offset.saturating_add(len), data: None };
        self.request(vec![zeros], || self.below.discard(offset, len))
    }
}

/// A copy of a batch.
fn fragments_of(batch: &[WriteExtent<'_>]) -> Vec<Fragment> {
    let copy = |extent: &WriteExtent<'_>| {
        let end = extent.offset.saturating_add(extent.data.len() as u64);
        Fragment { range: extent.offset..end, data: Some((extent.data.into(), 0)) }
    };
    batch.iter().filter(|extent| !extent.data.is_empty()).map(copy).collect()
}
