//! Tables 2 to 4 of PD-DM redone with latency models: `sealed`, `deniable` and `oblivious` on the
//! same simulated disks. The time that the model charges is the measured time.

use lacuna_bench::bed::{Bed, HELD_BACK, Model, Operation};
use lacuna_bench::modelled::{Case, Sizes};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Result};
use std::collections::HashMap;

pub(crate) struct Modelled {
    /// Bytes per second; the `bool` is true for random requests.
    rates: HashMap<(Model, bool, Case, Operation), f64>,
    sizes: Sizes,
}

impl Modelled {
    /// Bytes per second of a case in an operation, sequential or random.
    pub(crate) fn rate(&self, model: Model, random: bool, case: Case, operation: Operation) -> Option<f64> {
        self.rates.get(&(model, random, case, operation)).copied()
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- Tables 2 to 4: MB/s, in parentheses the ratio to `lacuna xts`, or to the dm-crypt of the paper; a \
hidden level is compared with the one level that the baseline has. The paper's columns are as it prints them (in Table \
3 it prints \"Hidden Write\" for the second row as well, which must be the public one). It measured file systems on 40 \
GB volumes of a 180 GB partition with Bonnie++ and IoZone, and a cache of 1 MB for its maps; ours are disks without a \
file system, on a medium of {medium} MiB with {budget} KiB for all caches: a sixteenth of a disk of 8 GiB and of the \
default for caches, with stripes, segments and the distance of syncs not made smaller.\n\
- No time is measured here: models of a laptop's hard disk (5400 turns a minute, seeks of 8.9 ms on average as the \
paper says of its own, 100 MB/s) and of an SSD on a SATA bus charge for every call to the medium, one call after \
another, whatever the processor does meanwhile. A seek costs by its distance as a part of the medium. Each extent of a \
batch costs its overhead (50 µs on the hard disk, on the SSD 90 µs for reads and 30 µs for writes, 32 at a time). \
Behind a write-back cache of {held} MiB, writes are charged when a sync wants them, sorted and with their neighbours, \
as the system does it for a file; without one, the head goes from what a stripe carries on to the stripe and back each \
time. Neither keeps anything for reads but what it holds back.\n\
- *half*: the first {data} MiB of each level, half of what it holds, are written and read; *full*: all of it; *1+1*: \
one public and one hidden block in a stripe, as in the paper, with as much data as *half*; *oblivious*: five sixths of what its \
hidden level holds; *xts*: as much data as *half*, on a \
medium of the same length. Each disk is written twice from end to end, both levels together, before sequential \
requests of 1 MiB are measured; then twice as often as it has blocks at random, before random ones of 4 KiB are. Writes \
end with a flush, which counts. Public writes find nothing hidden waiting, but the hidden data of before, which is \
carried on; hidden writes have as many public ones beside them, in turns of 32 KiB, more where a hidden write must wait \
for cover, and the bytes of the hidden level alone count.\n",
            medium = self.sizes.medium >> 20,
            budget = self.sizes.budget >> 10,
            data = (self.sizes.whole / 2 * BLOCK_SIZE as u64) >> 20,
            held = (self.sizes.medium / HELD_BACK) >> 20,
        )
    }
}

pub(crate) fn measure(work: &Workspace) -> Result<Modelled> {
    let sizes = Sizes::of(work)?;
    let mut found = Modelled { rates: HashMap::new(), sizes };
    for case in Case::ALL {
        work.goes_on(&format!("models: {}", case.name()))?;
        let span = case.span(sizes)?;
        let mut bed = Bed::new(sizes.medium, span, |medium| case.open(medium, Budget::bytes(sizes.budget)))?;
        for random in [false, true] {
            work.interrupt.check()?;
            for (model, operation, rate) in bed.aged_jobs(random)? {
                found.rates.insert((model, random, case, operation), rate);
            }
        }
    }
    Ok(found)
}
