//! Tables 2 to 4 of PD-DM redone with latency models: `sealed`, `deniable` and `oblivious` on the
//! same simulated disks. The time that the model charges is the measured time.

use lacuna_bench::modelled::simulated_disk::{CACHE_DIVISOR, MediumModel, Operation, SimulatedDisk};
use lacuna_bench::modelled::{ModelledDisk, Sizes};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Budget, Result};
use std::collections::HashMap;

pub(crate) struct Modelled {
    /// Bytes per second; the `bool` is true for random requests.
    rates: HashMap<(MediumModel, bool, ModelledDisk, Operation), f64>,
    sizes: Sizes,
}

impl Modelled {
    /// Bytes per second of a case in an operation, sequential or random.
    pub(crate) fn rate(
        &self,
        model: MediumModel,
        random: bool,
        case: ModelledDisk,
        operation: Operation,
    ) -> Option<f64> {
        self.rates.get(&(model, random, case, operation)).copied()
    }

    /// How the figures are obtained.
    pub(crate) fn method(&self) -> String {
        format!(
            "- Tables 2 to 4: the figures are MB/s; in parentheses is the ratio to `lacuna xts`, or to the \
dm-crypt of the paper. A hidden level is compared with the only level of the baseline. The paper's columns \
have its printed values (Table 3 prints \"Hidden Write\" for the second row as well, which must be the \
public one). The paper measured file systems on 40 GB volumes of a 180 GB partition with Bonnie++ and \
IoZone, with a cache of 1 MB for its maps. Ours are disks without a file system, on a medium of {medium} MiB \
with {budget} KiB for all caches: a sixteenth of a disk of 8 GiB and of the default for caches. Stripes, \
segments and the distance of syncs keep their size.\n\
- No time is measured here. Models of a laptop's hard disk (5400 turns a minute, seeks of 8.9 ms on average \
like the paper's disk, 100 MB/s) and of an SSD on a SATA bus charge a time for every call to the medium, one \
call after another. They ignore the time of the processor. The cost of a seek depends on its distance as a \
share of the medium. Each extent of a batch costs its overhead (50 µs on the hard disk; on the SSD 90 µs for \
reads and 30 µs for writes, 32 at a time). With a write-back cache of {held} MiB, writes are charged at a \
sync or when the cache is full, sorted, with adjacent writes merged, as the system does for a file. Without \
one, the head goes from the carried blocks to the stripe and back each time. No other data is cached for \
reads.\n\
- *half*: the first {data} MiB of each level, half of its size, are written and read. *full*: the whole \
level. *1+1*: one public and one hidden block in a stripe, as in the paper, with the data of *half*. \
*oblivious*: five sixths of the size of its hidden level. *xts*: the data of *half*, on a medium of the same \
length. Each disk is written twice from end to end, both levels together, before sequential requests of 1 \
MiB are measured. Before random requests of 4 KiB are measured, random blocks are written, twice the number \
of blocks of the data. Writes include a flush at their end. Public writes find no pending hidden data, but \
they carry the earlier hidden data. An equal number of public writes goes beside hidden writes, in turns of \
32 KiB, and more where a hidden write must wait for cover; only the bytes of the hidden level count.\n",
            medium = self.sizes.medium >> 20,
            budget = self.sizes.budget >> 10,
            data = (self.sizes.full_level_blocks / 2 * BLOCK_SIZE as u64) >> 20,
            held = (self.sizes.medium / CACHE_DIVISOR) >> 20,
        )
    }
}

pub(crate) fn measure(work: &Workspace) -> Result<Modelled> {
    let sizes = Sizes::of(work)?;
    let mut found = Modelled { rates: HashMap::new(), sizes };
    for case in ModelledDisk::ALL {
        work.report_progress(&format!("models: {}", case.name()))?;
        let span = case.span(sizes)?;
        let mut simulated_disk =
            SimulatedDisk::new(sizes.medium, span, |medium| case.open(medium, Budget::bytes(sizes.budget)))?;
        for random in [false, true] {
            work.interrupt.check()?;
            for (model, operation, rate) in simulated_disk.age_and_run_jobs(random)? {
                found.rates.insert((model, random, case, operation), rate);
            }
        }
    }
    Ok(found)
}
