//! Table 2 of DNEFS redone: wear by purge period, over several lives of the simulated phone, beside
//! the paper's figures. The figures are functions of the code alone: the same on every machine.

use crate::phone_week::{BLOCKS, FULL, FULLER, PurgeWork, Purging, Week, WeekCase, simulate};
use lacuna_bench::pages::requirement::{Bound, Requirement};
use lacuna_bench::pages::table::Table;
use lacuna_bench::workspace::Workspace;
use lacuna_contracts::Result;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The rows of the tables: those of the paper, and a row with keys but without purges.
pub(crate) const ROWS: [Purging; 7] = [
    Purging::KeysOff,
    Purging::Never,
    Purging::Every(60),
    Purging::Every(30),
    Purging::Every(15),
    Purging::Every(5),
    Purging::Every(1),
];
/// Erasures that a block endures, according to the paper.
pub(crate) const ENDURANCE: u64 = 10_000;
/// Hours in a year.
const YEAR: f64 = 24.0 * 365.25;
/// The purge periods of the paper's rows, in minutes. They follow its first row, which is without
/// secure deletion.
const PERIODS: [u64; 5] = [60, 30, 15, 5, 1];
/// The paper's extra erasures at 15 minutes, relative to those without secure deletion.
const PAPER_EXTRA: f64 = 40.1 / 21.3 - 1.0;
/// Threads of the simulation.
const THREADS: usize = 2;

/// A row of the paper's table: means and their intervals.
struct PrintedWear {
    erasures: (f64, f64),
    /// Updates per purge, updates per hour, and deleted keys per purged block; `None` without
    /// purging.
    keys: Option<[(f64, f64); 3]>,
    inequality: (f64, f64),
    /// Lifetime in years, as printed.
    lifetime: f64,
}

const PRINTED: [PrintedWear; 6] = [
    PrintedWear { erasures: (21.3, 3.0), keys: None, inequality: (16.6, 0.5), lifetime: 841.0 },
    PrintedWear {
        erasures: (26.4, 1.5),
        keys: Some([(6.8, 0.5), (6.8, 0.5), (64.2, 9.6)]),
        inequality: (17.9, 0.2),
        lifetime: 679.0,
    },
    PrintedWear {
        erasures: (34.9, 3.8),
        keys: Some([(5.1, 0.6), (9.7, 2.0), (50.3, 9.5)]),
        inequality: (17.8, 0.3),
        lifetime: 512.0,
    },
    PrintedWear {
        erasures: (40.1, 3.6),
        keys: Some([(3.7, 0.4), (14.9, 1.6), (36.3, 8.2)]),
        inequality: (19.0, 0.3),
        lifetime: 447.0,
    },
    PrintedWear {
        erasures: (68.5, 4.4),
        keys: Some([(2.6, 0.1), (30.8, 0.7), (22.1, 4.3)]),
        inequality: (19.2, 0.5),
        lifetime: 262.0,
    },
    PrintedWear {
        erasures: (158.6, 11.5),
        keys: Some([(1.0, 0.1), (61.4, 4.6), (14.1, 4.4)]),
        inequality: (20.0, 0.2),
        lifetime: 113.0,
    },
];

/// The weeks of all purge periods.
pub(crate) struct WearResults {
    weeks: Vec<Vec<Week>>,
    /// Weeks of fuller phones: with keys off, and with a purge every 15 minutes.
    fuller_weeks: Vec<Vec<Week>>,
    blocks: u32,
}

/// A mean and the half width of its 95 % confidence interval, if there is more than one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mean {
    pub mean: f64,
    pub half_width: Option<f64>,
}

impl Mean {
    /// The interval by Student's t. The paper has four attempts; a full run here has four too.
    pub(crate) fn of(values: &[f64]) -> Mean {
        /// Quantiles 0.975 for 1, 2, … degrees of freedom.
        const T: [f64; 7] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365];
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let t = values.len().checked_sub(2).and_then(|at| T.get(at));
        Mean { mean, half_width: t.map(|t| t * (squares / (n - 1.0) / n).sqrt()) }
    }

    fn cell(self, decimals: usize) -> String {
        let half = self.half_width.map_or_else(String::new, |half| format!(" ± {half:.decimals$}"));
        format!("{:.decimals$}{half}", self.mean)
    }
}

/// The name of a row.
pub(crate) fn name(purging: Purging) -> String {
    match purging {
        Purging::KeysOff => "keys off".into(),
        Purging::Never => "no purging".into(),
        Purging::Every(1) => "1 minute".into(),
        Purging::Every(minutes) => format!("{minutes} minutes"),
    }
}

/// The paper's row for a row here. The paper has none with keys and without purging.
fn printed(purging: Purging) -> Option<&'static PrintedWear> {
    match purging {
        Purging::KeysOff => PRINTED.first(),
        Purging::Never => None,
        Purging::Every(minutes) => {
            PERIODS.iter().position(|period| *period == minutes).map(|at| &PRINTED[at + 1])
        }
    }
}

/// Erasures per hour that the paper prints, with the half width of the interval.
pub(crate) fn printed_erasures(purging: Purging) -> Option<(f64, f64)> {
    printed(purging).map(|printed| printed.erasures)
}

pub(crate) fn measure(work: &Workspace) -> Result<WearResults> {
    let blocks = BLOCKS;
    let (hours, seeds) = if work.scale.quick { (1, 2) } else { (7 * 24, 4) };
    let cases: Vec<WeekCase> = ROWS
        .into_iter()
        .map(|purging| (FULL, purging))
        .chain([(FULLER, Purging::KeysOff), (FULLER, Purging::Every(15))])
        .flat_map(|(full, purging)| {
            (1..=seeds).map(move |seed| WeekCase { blocks, full, hours, purging, seed })
        })
        .collect();
    work.report_progress(&format!("phone: {} lives of {hours} hours", cases.len()))?;
    let found = simulate_all(&cases, || work.interrupt.check())?;
    let mut weeks: Vec<Vec<Week>> = found.chunks(seeds as usize).map(<[Week]>::to_vec).collect();
    let fuller = weeks.split_off(ROWS.len());
    Ok(WearResults { weeks, fuller_weeks: fuller, blocks })
}

/// Simulates cases in parallel; the results have the order of the cases.
fn simulate_all(cases: &[WeekCase], check: impl Fn() -> Result<()> + Sync) -> Result<Vec<Week>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![None; cases.len()]);
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(at) else { return Ok(()) };
                check()?;
                let week = simulate(*case)?;
                found.lock().expect("no thread panics with the lock")[at] = Some(week);
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a simulation does not panic"))
    })?;
    let found = found.into_inner().expect("no thread panicked with the lock");
    Ok(found.into_iter().map(|week| week.expect("every case was simulated")).collect())
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

fn sum(week: &Week, figure: impl Fn(&PurgeWork) -> u64) -> u64 {
    week.purges.iter().map(figure).sum()
}

impl WearResults {
    fn mean(&self, period: usize, figure: impl Fn(&Week) -> f64) -> Mean {
        Mean::of(&self.weeks[period].iter().map(figure).collect::<Vec<f64>>())
    }

    /// Erasures per hour.
    pub(crate) fn erasures(&self, period: usize) -> Mean {
        self.mean(period, Week::erasures_per_hour)
    }

    /// Erasures by rank, the most worn block first, averaged over all lives.
    pub(crate) fn distribution(&self, period: usize) -> Vec<f64> {
        let weeks = &self.weeks[period];
        let mut sorted: Vec<Vec<u64>> = weeks.iter().map(|week| week.erasures.clone()).collect();
        sorted.iter_mut().for_each(|erasures| erasures.sort_unstable_by(|a, b| b.cmp(a)));
        let blocks = sorted.first().map_or(0, Vec::len);
        let mean =
            |at: usize| sorted.iter().map(|erasures| erasures[at]).sum::<u64>() as f64 / sorted.len() as f64;
        (0..blocks).map(mean).collect()
    }

    /// Erase blocks of the chip.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Extra erasures, relative to those without secure deletion.
    pub(crate) fn extra(&self, period: usize) -> f64 {
        self.erasures(period).mean / self.erasures(0).mean - 1.0
    }

    /// Extra erasures at 15 minutes on a fuller phone.
    pub(crate) fn extra_when_fuller(&self) -> f64 {
        let mean = |at: usize| {
            Mean::of(&self.fuller_weeks[at].iter().map(Week::erasures_per_hour).collect::<Vec<f64>>()).mean
        };
        mean(1) / mean(0) - 1.0
    }

    /// Years until a chip with blocks that endure `endurance` erasures each is worn out.
    fn lifetime(&self, period: usize, endurance: u64) -> f64 {
        f64::from(self.blocks) * endurance as f64 / self.erasures(period).mean / YEAR
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        vec![self.table(), self.lifetimes(), self.causes(), self.purges()]
    }

    fn table(&self) -> Table {
        let head = [
            "purge period",
            "erasures per hour",
            "paper",
            "updates per KSA purge",
            "paper",
            "KSA updates per hour",
            "paper",
            "deleted keys per purged KSA block",
            "paper",
            "wear inequality (%)",
            "paper",
        ];
        let mut table = Table::new("Wear by purge period (paper 003, Table 2)", head);
        for (at, purging) in ROWS.into_iter().enumerate() {
            let printed = printed(purging);
            let per_purge =
                self.mean(at, |week| ratio(sum(week, |p| p.key_blocks), week.purges.len() as u64));
            let per_hour = self.mean(at, |week| ratio(week.key_updates, week.hours));
            let deleted = self.mean(at, |week| ratio(sum(week, |p| p.keys), sum(week, |p| p.key_blocks)));
            let inequality = self.mean(at, |week| 100.0 * inequality(&week.erasures));
            let paper = |(mean, half): (f64, f64)| Mean { mean, half_width: Some(half) }.cell(1);
            let paper = |figure: Option<(f64, f64)>| figure.map_or_else(|| "-".into(), paper);
            let of_keys = |at: usize| paper(printed.and_then(|printed| printed.keys).map(|keys| keys[at]));
            let purged = |mean: Mean, decimals| match purging {
                Purging::Every(_) => mean.cell(decimals),
                Purging::KeysOff | Purging::Never => "-".into(),
            };
            table.row(
                name(purging),
                [
                    self.erasures(at).cell(1),
                    paper(printed.map(|printed| printed.erasures)),
                    purged(per_purge, 2),
                    of_keys(0),
                    per_hour.cell(2),
                    of_keys(1),
                    purged(deleted, 1),
                    of_keys(2),
                    inequality.cell(1),
                    paper(printed.map(|printed| printed.inequality)),
                ],
            );
        }
        table
    }

    fn lifetimes(&self) -> Table {
        let head = [
            "purge period".to_owned(),
            "more erasures than with keys off".into(),
            "paper".into(),
            format!("years, {ENDURANCE} erasures a block"),
            "paper's erasures, the same formula".into(),
            format!("years, {} erasures a block", 10 * ENDURANCE),
            "paper, as printed".into(),
        ];
        let mut table = Table::new("Extra erasures and lifetime (paper 003, Table 2)", head);
        for (at, purging) in ROWS.into_iter().enumerate() {
            let extra = |extra: f64| if at == 0 { "-".into() } else { format!("{:+.0}%", 100.0 * extra) };
            let paper =
                |figure: &dyn Fn(&PrintedWear) -> String| printed(purging).map_or_else(|| "-".into(), figure);
            let computed =
                |printed: &PrintedWear| f64::from(BLOCKS) * ENDURANCE as f64 / printed.erasures.0 / YEAR;
            table.row(
                name(purging),
                [
                    extra(self.extra(at)),
                    paper(&|printed| extra(printed.erasures.0 / PRINTED[0].erasures.0 - 1.0)),
                    format!("{:.1}", self.lifetime(at, ENDURANCE)),
                    paper(&|printed| format!("{:.1}", computed(printed))),
                    format!("{:.0}", self.lifetime(at, 10 * ENDURANCE)),
                    paper(&|printed| format!("{:.0}", printed.lifetime)),
                ],
            );
        }
        table
    }

    fn causes(&self) -> Table {
        let head = [
            "purge period",
            "blocks written per hour",
            "copied by collection",
            "pages programmed per hour",
            "erasures for the log",
            "for keys",
            "for checkpoints",
            "to level wear",
            "most recoverable blocks",
        ];
        let mut table = Table::new("Writes and erasures by their purpose, per hour", head);
        for (at, purging) in ROWS.into_iter().enumerate() {
            let hourly = |figure: fn(&Week) -> u64| self.mean(at, |week| ratio(figure(week), week.hours));
            // Each block that is replaced, unmapped or moved costs one erasure, at once or later.
            let log = |week: &Week| {
                let all: u64 = week.erasures.iter().sum();
                all.saturating_sub(week.key_updates + week.checkpoint_updates + week.moved)
            };
            let most = match purging {
                Purging::KeysOff => "all".into(),
                Purging::Never | Purging::Every(_) => {
                    self.mean(at, |week| week.max_recoverable as f64).cell(0)
                }
            };
            table.row(
                name(purging),
                [
                    hourly(|week| week.written).cell(0),
                    hourly(|week| week.copied).cell(0),
                    hourly(|week| week.ops.pages_programmed).cell(0),
                    hourly(log).cell(1),
                    hourly(|week| week.key_updates).cell(2),
                    hourly(|week| week.checkpoint_updates).cell(2),
                    hourly(|week| week.moved).cell(2),
                    most,
                ],
            );
        }
        table
    }

    fn purges(&self) -> Table {
        let head = [
            "purge period",
            "purges per hour",
            "deleted keys per purge",
            "most",
            "KiB programmed per purge",
            "most",
            "modelled ms per purge",
            "most",
        ];
        let mut table = Table::new("Time and data of a purge", head);
        for (at, purging) in ROWS.into_iter().enumerate().filter(|(_, row)| matches!(row, Purging::Every(_)))
        {
            let per_purge = |figure: fn(&PurgeWork) -> u64| {
                self.mean(at, |week| ratio(sum(week, figure), week.purges.len() as u64))
            };
            let most = |figure: fn(&PurgeWork) -> u64| {
                self.weeks[at].iter().flat_map(|week| &week.purges).map(figure).max().unwrap_or(0)
            };
            let programmed = |purge: &PurgeWork| purge.ops.pages_programmed * 2;
            let micros = |purge: &PurgeWork| purge.ops.nanos() / 1000;
            let millis = |mean: Mean| Mean {
                mean: mean.mean / 1e3,
                half_width: mean.half_width.map(|half| half / 1e3),
            };
            table.row(
                name(purging),
                [
                    self.mean(at, |week| ratio(week.purges.len() as u64, week.hours)).cell(1),
                    per_purge(|purge| purge.keys).cell(0),
                    most(|purge| purge.keys).to_string(),
                    per_purge(programmed).cell(0),
                    most(programmed).to_string(),
                    millis(per_purge(micros)).cell(1),
                    format!("{:.1}", most(micros) as f64 / 1e3),
                ],
            );
        }
        table
    }

    /// The requirement: fewer extra erasures than the paper.
    pub(crate) fn requirement(&self) -> Requirement {
        let line =
            "phone: extra erasures at a purge period of 15 minutes, as a ratio to erasures with keys off";
        let at =
            ROWS.iter().position(|row| *row == Purging::Every(15)).expect("15 minutes is one of the rows");
        let bound = Bound::AtMost((PAPER_EXTRA * 100.0).floor() / 100.0);
        Requirement::new(line, bound, "")
            .case(name(ROWS[at]), Some(self.extra(at)))
            .case(format!("the same, {FULLER} % full"), Some(self.extra_when_fuller()))
    }
}

/// The Hoover index by section 4.3 of the paper: the fraction of erasures that would have to occur
/// on other blocks for an equal distribution.
fn inequality(erasures: &[u64]) -> f64 {
    let wear = lacuna_nand::Wear { erasures: erasures.to_vec(), ..lacuna_nand::Wear::default() };
    wear.inequality()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shorter week on a smaller chip.
    const SHORT: WeekCase =
        WeekCase { blocks: 640, full: 70, hours: 2, purging: Purging::Every(15), seed: 9 };

    #[test]
    fn the_same_seed_gives_the_same_week_and_purges_replace_more_key_blocks() {
        let found =
            simulate_all(&[SHORT, SHORT, WeekCase { purging: Purging::Never, ..SHORT }], || Ok(())).unwrap();
        assert_eq!(found[0], found[1]);
        assert!(!found[0].purges.is_empty() && found[2].purges.is_empty());
        assert!(found[0].key_updates > found[2].key_updates);
        assert!(found[0].max_recoverable < found[2].max_recoverable);
    }

    #[test]
    fn intervals_are_those_of_student() {
        let mean = Mean::of(&[1.0, 2.0, 3.0, 4.0]);
        assert!((mean.mean - 2.5).abs() < 1e-12);
        assert!((mean.half_width.unwrap() - 3.182 * (5.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean.cell(1), "2.5 ± 2.1");
        assert_eq!(Mean::of(&[7.0]).cell(0), "7");
        assert!((inequality(&[2, 2, 0, 0]) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn the_printed_lifetimes_are_ten_times_those_of_the_printed_formula() {
        for printed in &PRINTED {
            let years = f64::from(BLOCKS) * ENDURANCE as f64 / printed.erasures.0 / YEAR;
            let factor = printed.lifetime / years;
            assert!((9.9..10.1).contains(&factor), "{factor}");
        }
    }
}
