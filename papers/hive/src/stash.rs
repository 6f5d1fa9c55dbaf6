//! Counts the blocks in the stash of an oblivious disk over millions of simulated operations,
//! beside the bound that `lacuna-oblivious` derives. The figures are functions of the code alone:
//! the same on every machine.

use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::{Table, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_oblivious::{StashSimulation, tail_base};

const CELLS: usize = 8192;
/// Minimum count for a comparison with the bound; lower counts scatter.
const MIN_COUNT: u64 = 1000;
/// Maximum ratio of the measured tail to the bound; above 1 because of scatter.
const MOST_TO_BOUND: f64 = 1.1;
/// Maximum stash size in the table and the plot.
pub(crate) const MAX_SHOWN: usize = 14;

/// A region: its *k*, operations in a batch, and the size of its cell groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OramRegion {
    /// The paper's *k*.
    pub per_write: u8,
    batch: usize,
    /// Adjacent cells that are drawn together.
    group: usize,
}

/// The simulated regions.
pub(crate) const CASES: [OramRegion; 5] = [
    OramRegion { per_write: 2, batch: 1, group: 1 },
    OramRegion { per_write: 3, batch: 1, group: 1 },
    OramRegion { per_write: 4, batch: 1, group: 1 },
    OramRegion { per_write: 2, batch: 4, group: 8 },
    OramRegion { per_write: 2, batch: 32, group: 8 },
];

impl OramRegion {
    pub(crate) fn name(self) -> String {
        match self.batch {
            1 => self.region(),
            n => format!("{}, {n} at once", self.region()),
        }
    }

    /// The parameters of the bound, for display.
    pub(crate) fn region(self) -> String {
        match self.group {
            1 => format!("k = {}", self.per_write),
            group => format!("k = {} in groups of {group}", self.per_write),
        }
    }

    /// Whether no earlier case has the same bound.
    pub(crate) fn is_first_of_bound(self) -> bool {
        let mut before = CASES.into_iter().take_while(|case| *case != self);
        !before.any(|case| (case.per_write, case.group) == (self.per_write, self.group))
    }

    /// The bound on the probability that at least `blocks` blocks are in the stash.
    pub(crate) fn bound(self, blocks: usize) -> f64 {
        let free = if self.per_write == 2 { 2.0 / 3.0 } else { 0.5 };
        let base =
            tail_base(self.per_write.into(), free, self.group as u64).expect("there are enough free cells");
        base.powi(blocks as i32)
    }
}

pub(crate) struct StashResults {
    /// For each case: the number of observations, and for each stash size how often it was reached
    /// or exceeded.
    tails: Vec<(OramRegion, u64, Vec<u64>)>,
    operations: u64,
}

pub(crate) fn measure(work: &Workspace) -> Result<StashResults> {
    let operations = if work.scale.quick { 100_000 } else { 10_000_000 };
    let mut tails = Vec::new();
    for case in CASES {
        work.report_progress(&format!("stash: {}", case.name()))?;
        let looks = operations / case.batch as u64;
        let mut world = StashSimulation::filled(1, CELLS, case.per_write.into(), case.group);
        tails.push((case, looks, world.tail(looks, case.batch, false)));
    }
    Ok(StashResults { tails, operations })
}

impl StashResults {
    /// For each observed stash size up to [`MAX_SHOWN`]: the probability that the stash has at
    /// least this size.
    pub(crate) fn points(&self, case: OramRegion) -> Vec<(usize, f64)> {
        let found = self.tails.iter().filter(|(of, ..)| *of == case);
        found
            .flat_map(|(_, looks, reached)| {
                reached.iter().map(|count| *count as f64 / *looks as f64).enumerate().take(MAX_SHOWN + 1)
            })
            .collect()
    }

    pub(crate) fn table(&self) -> Table {
        let columns = |bound: &dyn Fn(OramRegion) -> String, counted: &dyn Fn(OramRegion) -> String| {
            let of_case = |case: OramRegion| {
                case.is_first_of_bound().then(|| bound(case)).into_iter().chain([counted(case)])
            };
            CASES.into_iter().flat_map(of_case).collect::<Vec<_>>()
        };
        let heads = columns(&|case| format!("bound, {}", case.region()), &OramRegion::name);
        let mut table = Table::new(
            "Probability that at least this number of blocks wait for a cell",
            head("blocks", heads),
        );
        let figure = |p: f64| if p >= 1e-3 { format!("{p:.4}") } else { format!("{p:.1e}") };
        let most = CASES.map(|case| self.points(case).len()).into_iter().max().unwrap_or(0);
        for blocks in 1..most {
            let counted =
                |case| self.points(case).get(blocks).map_or_else(|| "-".into(), |point| figure(point.1));
            table.row(blocks.to_string(), columns(&|case| figure(case.bound(blocks)), &counted));
        }
        table
    }

    /// The requirement that the bound holds.
    pub(crate) fn requirement(&self) -> Requirement {
        let line = "blocks in the stash, to the derived bound";
        let mut requirement = Requirement::new(line, Bound::AtMost(MOST_TO_BOUND), "");
        for (case, looks, reached) in &self.tails {
            let often = reached.iter().enumerate().skip(1).filter(|(_, count)| **count >= MIN_COUNT);
            let to_bound = often.map(|(blocks, count)| *count as f64 / *looks as f64 / case.bound(blocks));
            requirement.add(case.name(), to_bound.reduce(f64::max));
        }
        requirement
    }

    pub(crate) fn method(&self) -> String {
        let of = |per_write: u8| OramRegion { per_write, batch: 1, group: 1 }.bound(1);
        let (two, three, four) = (of(2), of(3), of(4));
        format!(
            "### Method for the stash\n\n\
- One region has {CELLS} cells in memory. For k = 2 a third of them hold the latest version of a block, for \
larger k a half: a level cannot be fuller. {operations} random blocks are written again, with the draws and \
the placement of the format, without ciphers and without a medium. The blocks in the stash are counted after \
every operation, or after every batch of operations that are done at once; the format does 32 at once.\n\
- The bound for *m* blocks or more is y to the power of *m*, where E[y^(free cells of k)] = y. The value of \
y is {two:.4} for k = 2, {three:.4} for k = 3, which is √5 − 2, and {four:.4} for k = 4. Single operations \
come as near to the bound as distinct cells allow. Batches stay far below it, because the numbers of free \
cells even out in a batch.\n\
- The paper's stashes have a fixed size. The format draws cells in groups of 8; their bound is y to the \
power of *m* / 8. The record of a batch has 48 slots. By the bound, the stash has more blocks than that with \
a probability of at most 2^-12.2 at k = 2; then a further batch is written at once.\n",
            operations = self.operations,
        )
    }
}
