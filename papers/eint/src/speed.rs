//! Runs the schemes of EINT over the classes of files, by block size: the data of Tables 4 and 5
//! and Figures 12 and 13.

use crate::files::{ClassSample, FileClass};
use crate::measure::{CostFigures, MeasuredScheme, measure_files};
use crate::paper::SIZES;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;

/// The block size of vault files.
pub(crate) const BLOCK: usize = 4096;

/// The figures of one subject, class and block size, one per repeat.
struct SchemeRuns {
    subject: MeasuredScheme,
    class: FileClass,
    size: usize,
    runs: Vec<CostFigures>,
}

/// All measurements over files.
pub(crate) struct Speeds {
    cells: Vec<SchemeRuns>,
    repeats: u32,
}

/// All subjects: the paper's, then those of vaults.
pub(crate) fn subjects() -> impl Iterator<Item = MeasuredScheme> {
    MeasuredScheme::PAPER.into_iter().chain(MeasuredScheme::FILES)
}

/// Measures all subjects. `whole` are the files for blocks of 4096 bytes; `fewer` are the files for
/// the other sizes, which get a third of the repeats.
pub(crate) fn measure(work: &Workspace, whole: &[ClassSample], fewer: &[ClassSample]) -> Result<Speeds> {
    let repeats = work.scale.rounds;
    let mut speeds = Speeds { cells: Vec::new(), repeats };
    for size in SIZES.into_iter().rev() {
        let (samples, turns) = if size == BLOCK { (whole, repeats) } else { (fewer, repeats.div_ceil(3)) };
        for turn in 0..turns {
            for sample in samples {
                let class = sample.class;
                work.report_progress(&format!(
                    "integrity: {} files in blocks of {size} bytes, {} of {turns}",
                    class.name(),
                    turn + 1
                ))?;
                for subject in subjects() {
                    let figures = measure_files(subject, size, None, &sample.files)?;
                    speeds.add(subject, class, size, figures);
                }
            }
        }
    }
    Ok(speeds)
}

/// The median of some figures.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

/// A metric: a time, a bandwidth, or a size.
pub(crate) type MetricFn = fn(&CostFigures) -> f64;

/// Nanoseconds to write a block.
pub(crate) fn write_time(figures: &CostFigures) -> f64 {
    figures.write.as_nanos() as f64 / figures.written.max(1) as f64
}

/// Nanoseconds to read a block.
pub(crate) fn read_time(figures: &CostFigures) -> f64 {
    figures.read.as_nanos() as f64 / figures.checked.max(1) as f64
}

/// Nanoseconds to write and to read a block.
pub(crate) fn both_times(figures: &CostFigures) -> f64 {
    write_time(figures) + read_time(figures)
}

/// Bytes of US accessed per block that is written or read.
pub(crate) fn bandwidth(figures: &CostFigures) -> f64 {
    figures.bandwidth()
}

/// Bytes of US held per block.
pub(crate) fn storage(figures: &CostFigures) -> f64 {
    figures.stored_us as f64 / figures.written.max(1) as f64
}

impl Speeds {
    fn add(&mut self, subject: MeasuredScheme, class: FileClass, size: usize, figures: CostFigures) {
        let found = |cell: &&mut SchemeRuns| (cell.subject, cell.class, cell.size) == (subject, class, size);
        match self.cells.iter_mut().find(found) {
            Some(cell) => cell.runs.push(figures),
            None => self.cells.push(SchemeRuns { subject, class, size, runs: vec![figures] }),
        }
    }

    pub(crate) fn repeats(&self) -> u32 {
        self.repeats
    }

    fn runs(&self, subject: MeasuredScheme, class: FileClass, size: usize) -> &[CostFigures] {
        let found = |cell: &&SchemeRuns| (cell.subject, cell.class, cell.size) == (subject, class, size);
        self.cells.iter().find(found).map_or(&[], |cell| &cell.runs)
    }

    /// The mean over some classes with equal weights; the median of the repeats.
    pub(crate) fn mean(
        &self,
        of: MetricFn,
        subject: MeasuredScheme,
        classes: &[FileClass],
        size: usize,
    ) -> Option<f64> {
        median(self.means(of, subject, classes, size))
    }

    /// The mean over some classes with equal weights, for each repeat.
    fn means(&self, of: MetricFn, subject: MeasuredScheme, classes: &[FileClass], size: usize) -> Vec<f64> {
        let runs: Vec<&[CostFigures]> =
            classes.iter().map(|class| self.runs(subject, *class, size)).collect();
        let turns = runs.iter().map(|runs| runs.len()).min().unwrap_or(0);
        let mean = |turn: usize| runs.iter().map(|runs| of(&runs[turn])).sum::<f64>() / runs.len() as f64;
        (0..turns).map(mean).collect()
    }

    /// The median of the ratios of two subjects, both averaged over some classes.
    pub(crate) fn ratio(
        &self,
        of: MetricFn,
        [subject, to]: [MeasuredScheme; 2],
        classes: &[FileClass],
        size: usize,
    ) -> Option<f64> {
        let pairs = self.means(of, subject, classes, size).into_iter().zip(self.means(of, to, classes, size));
        median(pairs.map(|(one, other)| one / other).collect())
    }
}
