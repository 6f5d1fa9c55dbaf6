//! The section on false accepts, for the page of the papers.

use crate::false_accept::{self, FalseAccept, MIN_COUNT};
use crate::false_accept_plot;
use lacuna_bench::measuring::section_results::SectionResults;
use lacuna_bench::pages::page::RunInfo;
use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;

/// Measures false accepts.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    Ok(Box::new(false_accept::measure(work)?))
}

impl SectionResults for FalseAccept {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn plot(&self, plots: &Path) -> Result<()> {
        false_accept_plot::draw(self, &plots.join("false-accept.svg"))
    }

    /// The requirements: no random block is accepted, and the measured tail nowhere exceeds
    /// the bound.
    fn requirements(&self) -> Vec<Requirement> {
        let mut accepted =
            Requirement::new("IsRand: random blocks that it judges not random", Bound::AtMost(0.0), "");
        let mut tail =
            Requirement::new("IsRand: measured tail, to the derived bound", Bound::AtMost(1.0), "");
        for counted in self.counted() {
            let size = format!("{} bytes", counted.size);
            accepted.add(size.clone(), Some(counted.accepted as f64));
            let often = counted.points().filter(|(_, reached, _)| *reached >= MIN_COUNT);
            let to_bound = often.map(|(bits, _, p)| p / counted.bound(bits).exp2());
            tail.add(size, to_bound.reduce(f64::max));
        }
        vec![accepted, tail]
    }

    fn body(&self, _run: &RunInfo) -> String {
        let parts = [
            self.table().markdown(),
            "![measured tails of the statistic of IsRand, beside the bound](plots/false-accept.svg)\n".into(),
            format!(
                "### Method for false accepts\n\n\
AES-256-CTR under fixed seeds makes the blocks, in two threads. *Divergence* is n times the Kullback-Leibler \
divergence of a block's n bytes from uniform ones, in bits; a random block of 4096 bytes has about 184. \
[integrity.md](integrity.md) derives the bound. The comparison with the bound takes the divergences that \
{MIN_COUNT} blocks or more reached. The bound stays above the measured tail by about the factor that Chernoff \
bounds lose. No run can count enough blocks to come near the thresholds.\n"
            ),
        ];
        parts.join("\n")
    }
}
