//! Replayed traces: Figure 16 of EINT and the figures in its text.

use crate::measure::{CostFigures, MeasuredScheme, SyntheticContents, Trace, replay};
use crate::speed::{MetricFn, bandwidth, median};
use crate::trace_model::TraceModel;
use lacuna_bench::pages::table::{Table, figure, head};
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;

/// Percentages of random-looking blocks: the paper's best, middle and worst cases.
const PERCENT: [u64; 3] = [0, 50, 100];
/// The paper's figures for low-entropy contents by trace: time of CMC-Entropy relative to
/// AES-Merkle; reduction factors of the bandwidths of CMC-Entropy and of AES-Compression, and of
/// the storage of CMC-Entropy, relative to AES-Merkle.
const PAPER_LOW: [[f64; 4]; 3] =
    [[0.7089, 28.04, 14.29, 44.31], [0.5367, 238.82, 22.2, 365.71], [0.4664, 2.58, 2.45, 37.42]];
/// The paper's figures for high-entropy contents: times of CMC-Entropy and of AES-Compression
/// relative to AES-Merkle, at most.
const PAPER_HIGH: [[f64; 2]; 3] = [[1.4125, 1.378], [1.3449, 1.7018], [1.3015, 1.4976]];
/// The block size of the traces.
const BLOCK: usize = 4096;

/// The replayed subjects: the reference schemes, then those of vaults.
fn subjects() -> impl Iterator<Item = MeasuredScheme> {
    MeasuredScheme::PAPER[2..].iter().chain(&MeasuredScheme::FILES[1..]).copied()
}

pub(crate) struct Replays(Vec<(usize, u64, MeasuredScheme, Vec<CostFigures>)>, Vec<&'static str>);

pub(crate) fn measure(work: &Workspace, traces: &[(TraceModel, Trace)]) -> Result<Replays> {
    let mut all = Vec::new();
    for (number, (model, trace)) in traces.iter().enumerate() {
        for percent in PERCENT {
            work.report_progress(&format!(
                "integrity: trace like {}, {percent} % random-looking",
                model.name
            ))?;
            let mut runs: Vec<(MeasuredScheme, Vec<CostFigures>)> =
                subjects().map(|subject| (subject, Vec::new())).collect();
            for turn in 0..work.scale.rounds.div_ceil(2) {
                for (subject, runs) in &mut runs {
                    let mut contents = SyntheticContents::new(BLOCK, percent, u64::from(turn) + 1);
                    runs.push(replay(*subject, BLOCK, trace, &mut contents)?);
                }
            }
            all.extend(runs.into_iter().map(|(subject, runs)| (number, percent, subject, runs)));
        }
    }
    Ok(Replays(all, traces.iter().map(|(model, _)| model.name).collect()))
}

fn time(figures: &CostFigures) -> f64 {
    figures.time().as_secs_f64()
}

fn held(figures: &CostFigures) -> f64 {
    figures.stored_us as f64
}

impl Replays {
    fn runs(&self, trace: usize, percent: u64, subject: MeasuredScheme) -> &[CostFigures] {
        let found = self.0.iter().find(|(t, p, s, _)| (*t, *p, *s) == (trace, percent, subject));
        found.map_or(&[], |(.., runs)| runs)
    }

    /// The ratio of a subject's figure to that of reference MT.
    pub(crate) fn to_merkle(
        &self,
        of: MetricFn,
        trace: usize,
        percent: u64,
        subject: MeasuredScheme,
    ) -> Option<f64> {
        let base = self.runs(trace, percent, MeasuredScheme::ReferenceMt);
        let pairs = self.runs(trace, percent, subject).iter().zip(base);
        median(pairs.map(|(one, base)| of(one) / of(base)).filter(|ratio| ratio.is_finite()).collect())
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        self.1.iter().enumerate().map(|(number, name)| self.table(number, name)).collect()
    }

    fn table(&self, trace: usize, name: &str) -> Table {
        let cells = PERCENT.map(|percent| format!("{percent} % random-looking"));
        let title =
            format!("Trace like {name}: time / bandwidth / storage to reference MT (paper 002, Figure 16)");
        let mut table = Table::new(title, head("", cells));
        for subject in subjects() {
            let cell = |percent: u64| {
                let of = |of: MetricFn| figure(self.to_merkle(of, trace, percent, subject), 3);
                if subject == MeasuredScheme::ReferenceMt {
                    let runs = self.runs(trace, percent, subject);
                    let of = |of: MetricFn| median(runs.iter().map(of).collect());
                    let [ms, kb] = [of(time).map(|s| s * 1e3), of(held).map(|bytes| bytes / 1e3)];
                    let bytes = figure(of(bandwidth), 0);
                    return format!("{} ms / {bytes} B a block / {} kB", figure(ms, 0), figure(kb, 0));
                }
                [time as MetricFn, bandwidth, held].map(of).join(" / ")
            };
            table.row(subject.name(), PERCENT.map(cell));
        }
        let [rand, rand_bandwidth, comp_bandwidth, rand_storage] = PAPER_LOW[trace];
        let [rand_high, comp_high] = PAPER_HIGH[trace];
        let storage = 1.0 / rand_storage;
        table.row(
            "paper, CMC-Entropy",
            [
                format!("{rand:.3} / {:.3} / {storage:.3}", 1.0 / rand_bandwidth),
                "0.91 to 1.09 / within 25 % / 0.6".into(),
                format!("at most {rand_high:.3} / - / 1.16 to 1.19"),
            ],
        );
        table.row(
            "paper, AES-Compression",
            [
                format!("- / {:.3} / -", 1.0 / comp_bandwidth),
                "0.87 to 1.13 / within 25 % / 0.6".into(),
                format!("at most {comp_high:.3} / - / 1.16 to 1.19"),
            ],
        );
        table
    }
}
