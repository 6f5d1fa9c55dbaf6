//! Compares the schemes of EINT in a vault, mounted and without a mount, with each other and with
//! the same vault without integrity.

use crate::measuring::processor::ProcessorClocks;
use crate::measuring::samples::Samples;
use crate::measuring::section_results::StableFigure;
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::{Table, head};
use crate::vaults::access::{CONTENTS, FileAccess, FileContent, LARGE, SCHEMES, SMALL, UNPROTECTED, piece};
use crate::vaults::bench_vault::{BenchVault, FILE};
use crate::vaults::file::{AccessMethod, OpenVaultFile};
use crate::vaults::processor_ratios::VaultProcessorRatios;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;
use std::collections::HashMap;
use std::time::Instant;

const ACCESSES: [FileAccess; 5] = [
    FileAccess::Write,
    FileAccess::ReadCold,
    FileAccess::ReadCached,
    FileAccess::RandomWrite,
    FileAccess::RandomRead,
];

/// The results of one scheme in one act: bytes per second, and seconds of processor time.
#[derive(Default)]
struct SchemeFigures {
    rates: Samples,
    processor: Samples,
}

/// Rounds after each session on one processor.
const ROUNDS_OF_A_SESSION: u32 = 3;

/// The results of all schemes.
pub(crate) struct Schemes {
    figures: HashMap<(AccessMethod, Choice, FileContent, FileAccess), SchemeFigures>,
    ratios: VaultProcessorRatios,
}

/// A measured case: the access, the scheme, the content and the amounts.
#[derive(Clone, Copy)]
struct SchemeCase {
    method: AccessMethod,
    choice: Choice,
    content: FileContent,
    size: usize,
    requests: u32,
}

/// Measures on a file of `size` bytes, with `requests` random requests.
pub(crate) fn measure(work: &Workspace, size: usize, requests: u32) -> Result<Schemes> {
    let mut schemes = Schemes { figures: HashMap::new(), ratios: VaultProcessorRatios::default() };
    let mut order: Vec<Choice> = [UNPROTECTED].into_iter().chain(SCHEMES).collect();
    for round in 0..work.scale.rounds {
        if round % ROUNDS_OF_A_SESSION == 0 {
            schemes.run_session(work)?;
        }
        work.report_progress(&format!("vaults: schemes, round {} of {}", round + 1, work.scale.rounds))?;
        for (way, content) in [AccessMethod::Direct, AccessMethod::Mounted]
            .into_iter()
            .flat_map(|way| CONTENTS.map(|c| (way, c.0)))
        {
            for &choice in &order {
                work.interrupt.check()?;
                let bench_vault = BenchVault::make(&work.path("schemes"), choice)?;
                schemes.turn(
                    work,
                    &bench_vault,
                    SchemeCase { method: way, choice, content, size, requests },
                )?;
                bench_vault.remove()?;
                work.write_back()?;
            }
        }
        order.reverse();
    }
    Ok(schemes)
}

impl Schemes {
    /// Compares the schemes on one processor in another session.
    pub(crate) fn run_session(&mut self, work: &Workspace) -> Result<()> {
        self.ratios.measure(work)
    }

    fn turn(&mut self, work: &Workspace, bench_vault: &BenchVault, case: SchemeCase) -> Result<()> {
        for act in [
            FileAccess::Write,
            FileAccess::ReadCold,
            FileAccess::ReadCached,
            FileAccess::RandomRead,
            FileAccess::RandomWrite,
        ] {
            if act == FileAccess::ReadCold {
                work.drop_caches()?;
            }
            let reached = OpenVaultFile::open(work, bench_vault.open()?, case.method, FILE)?;
            let (clock, figures) =
                (ProcessorClocks::of(std::process::id())?, (case.method, case.choice, case.content, act));
            let before = clock.total()?;
            let rate = perform_access(&reached, act, case)?;
            let spent = clock.total()?.saturating_sub(before).as_secs_f64();
            reached.close()?;
            let figures = self.figures.entry(figures).or_default();
            figures.rates.push(rate);
            figures.processor.push(spent);
        }
        Ok(())
    }

    /// The ratio of a scheme's processor time to that without integrity: from the side-by-side
    /// sessions, if they have it.
    fn ratio_to_unprotected(
        &self,
        way: AccessMethod,
        choice: Choice,
        content: FileContent,
        act: FileAccess,
    ) -> Option<f64> {
        let ratio = self.ratios.ratio(choice, content, act).filter(|_| way == AccessMethod::Direct);
        let time = |choice| self.processor(way, choice, content, act);
        ratio.or_else(|| Some(time(choice)? / time(UNPROTECTED)?))
    }

    /// Processor time in seconds.
    fn processor(
        &self,
        way: AccessMethod,
        choice: Choice,
        content: FileContent,
        act: FileAccess,
    ) -> Option<f64> {
        self.figures.get(&(way, choice, content, act)).map(|figures| figures.processor.lower_quartile())
    }

    /// The figures that two runs must agree on.
    pub(crate) fn stable(&self) -> Vec<StableFigure> {
        self.ratios.stable()
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        [self.table(AccessMethod::Mounted), self.table(AccessMethod::Direct)]
            .into_iter()
            .chain(self.ratios.tables())
            .collect()
    }

    fn table(&self, way: AccessMethod) -> Table {
        let choices = [UNPROTECTED].into_iter().chain(SCHEMES);
        let names = choices.clone().map(|choice| choice.name().to_owned());
        let mut table =
            Table::new(format!("The schemes in a vault, {}, MB/s", way.name()), head("job", names));
        for (content, called) in CONTENTS {
            for act in ACCESSES {
                let cell = |choice| match self.figures.get(&(way, choice, content, act)) {
                    Some(SchemeFigures { rates, .. }) => {
                        format!("{:.0}{}", rates.median() / 1e6, rates.mark())
                    }
                    None => "-".into(),
                };
                table.row(format!("{called}: {}", act.name()), choices.clone().map(cell));
            }
        }
        table
    }

    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        [AccessMethod::Mounted, AccessMethod::Direct]
            .into_iter()
            .flat_map(|way| self.requirements_of(way))
            .collect()
    }

    fn requirements_of(&self, way: AccessMethod) -> [Requirement; 2] {
        let line = |what: &str| format!("vault {}, {what}", way.name());
        let mut mt =
            Requirement::new(line("processor time of MT-EINT to no integrity"), Bound::AtMost(1.25), "");
        let mut auto = Requirement::new(
            line("processor time of auto to the scheme with the least"),
            Bound::AtMost(1.05),
            "",
        );
        for (content, called) in CONTENTS {
            for act in ACCESSES {
                let time = |choice| self.ratio_to_unprotected(way, choice, content, act);
                let case = format!("{called}: {}", act.name());
                let least = SCHEMES[1..].iter().filter_map(|choice| time(*choice)).min_by(f64::total_cmp);
                let auto_to_least = time(Choice::Auto).zip(least).map(|(auto, least)| auto / least);
                mt.add(&case, time(Choice::Fixed(Scheme::Mt)));
                auto.add(&case, auto_to_least);
            }
        }
        [mt, auto]
    }
}

/// Executes an act. Returns its rate in bytes per second.
fn perform_access(file: &OpenVaultFile, act: FileAccess, case: SchemeCase) -> Result<f64> {
    let SchemeCase { content, size, requests, .. } = case;
    let mut rng = Rng::new(7);
    let mut buf = piece(content, &mut rng);
    let places: Vec<u64> = (0..requests).map(|_| rng.below((size / SMALL) as u64) * SMALL as u64).collect();
    let begin = Instant::now();
    let bytes = match act {
        FileAccess::Write => {
            for at in (0..size).step_by(LARGE) {
                // Consecutive requests have different contents, as in files.
                buf.rotate_left(SMALL + 8);
                file.write(at as u64, &buf)?;
            }
            file.sync()?;
            size
        }
        FileAccess::ReadCold | FileAccess::ReadCached => {
            (0..size).step_by(LARGE).try_for_each(|at| file.read(at as u64, &mut buf))?;
            size
        }
        FileAccess::RandomWrite => {
            for (n, at) in places.iter().enumerate() {
                let from = n * 64 % (LARGE - SMALL);
                file.write(*at, &buf[from..from + SMALL])?;
            }
            file.sync()?;
            places.len() * SMALL
        }
        FileAccess::RandomRead => {
            places.iter().try_for_each(|at| file.read(*at, &mut buf[..SMALL]))?;
            places.len() * SMALL
        }
    };
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}
