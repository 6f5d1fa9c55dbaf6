//! Compares the schemes of EINT in a vault, mounted and without a mount, with each other and with
//! the same vault without integrity.

use crate::measured::Stable;
use crate::processor::Processor;
use crate::requirement::{Bound, Requirement};
use crate::samples::Samples;
use crate::table::{Table, head};
use crate::vault_act::{Act, BARE, CONTENTS, Content, LARGE, PROTECTED, SMALL, piece};
use crate::vault_bed::{FILE, VaultBed};
use crate::vault_reach::{Reached, Way};
use crate::vault_steady::Steady;
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;
use std::collections::HashMap;
use std::time::Instant;

const ACTS: [Act; 5] = [Act::Write, Act::ReadCold, Act::ReadCached, Act::RandomWrite, Act::RandomRead];

/// The results of one scheme in one act: bytes per second, and seconds of processor time.
#[derive(Default)]
struct Figures {
    rates: Samples,
    processor: Samples,
}

/// Rounds after each session on one processor.
const ROUNDS_OF_A_SESSION: u32 = 3;

/// The results of all schemes.
pub(crate) struct Schemes {
    figures: HashMap<(Way, Choice, Content, Act), Figures>,
    steady: Steady,
}

/// A measured case: the access, the scheme, the content and the amounts.
#[derive(Clone, Copy)]
struct Case {
    way: Way,
    choice: Choice,
    content: Content,
    size: usize,
    requests: u32,
}

/// Measures on a file of `size` bytes, with `requests` random requests.
pub(crate) fn measure(work: &Workspace, size: usize, requests: u32) -> Result<Schemes> {
    let mut schemes = Schemes { figures: HashMap::new(), steady: Steady::default() };
    let mut order: Vec<Choice> = [BARE].into_iter().chain(PROTECTED).collect();
    for round in 0..work.scale.rounds {
        if round % ROUNDS_OF_A_SESSION == 0 {
            schemes.hold_session(work)?;
        }
        work.goes_on(&format!("vaults: schemes, round {} of {}", round + 1, work.scale.rounds))?;
        for (way, content) in
            [Way::Direct, Way::Mounted].into_iter().flat_map(|way| CONTENTS.map(|c| (way, c.0)))
        {
            for &choice in &order {
                work.interrupt.check()?;
                let bed = VaultBed::make(&work.path("schemes"), choice)?;
                schemes.turn(work, &bed, Case { way, choice, content, size, requests })?;
                bed.remove()?;
                work.settle()?;
            }
        }
        order.reverse();
    }
    Ok(schemes)
}

impl Schemes {
    /// Compares the schemes on one processor in another session.
    pub(crate) fn hold_session(&mut self, work: &Workspace) -> Result<()> {
        self.steady.measure(work)
    }

    fn turn(&mut self, work: &Workspace, bed: &VaultBed, case: Case) -> Result<()> {
        for act in [Act::Write, Act::ReadCold, Act::ReadCached, Act::RandomRead, Act::RandomWrite] {
            if act == Act::ReadCold {
                work.forget_pages()?;
            }
            let reached = Reached::open(work, bed.open()?, case.way, FILE)?;
            let (clock, figures) =
                (Processor::of(std::process::id())?, (case.way, case.choice, case.content, act));
            let before = clock.total()?;
            let rate = act_once(&reached, act, case)?;
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
    fn to_bare(&self, way: Way, choice: Choice, content: Content, act: Act) -> Option<f64> {
        let steady = self.steady.ratio(choice, content, act).filter(|_| way == Way::Direct);
        let time = |choice| self.processor(way, choice, content, act);
        steady.or_else(|| Some(time(choice)? / time(BARE)?))
    }

    /// Processor time in seconds.
    fn processor(&self, way: Way, choice: Choice, content: Content, act: Act) -> Option<f64> {
        self.figures.get(&(way, choice, content, act)).map(|figures| figures.processor.lower_quartile())
    }

    /// The figures that two runs must agree on.
    pub(crate) fn stable(&self) -> Vec<Stable> {
        self.steady.stable()
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        [self.table(Way::Mounted), self.table(Way::Direct)].into_iter().chain(self.steady.tables()).collect()
    }

    fn table(&self, way: Way) -> Table {
        let choices = [BARE].into_iter().chain(PROTECTED);
        let names = choices.clone().map(|choice| choice.name().to_owned());
        let mut table =
            Table::new(format!("The schemes in a vault, {}, MB/s", way.name()), head("job", names));
        for (content, called) in CONTENTS {
            for act in ACTS {
                let cell = |choice| match self.figures.get(&(way, choice, content, act)) {
                    Some(Figures { rates, .. }) => format!("{:.0}{}", rates.median() / 1e6, rates.mark()),
                    None => "-".into(),
                };
                table.row(format!("{called}: {}", act.name()), choices.clone().map(cell));
            }
        }
        table
    }

    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        [Way::Mounted, Way::Direct].into_iter().flat_map(|way| self.requirements_of(way)).collect()
    }

    fn requirements_of(&self, way: Way) -> [Requirement; 2] {
        let line = |what: &str| format!("vault {}, {what}", way.name());
        let mut mt =
            Requirement::new(line("processor time of MT-EINT to no integrity"), Bound::AtMost(1.25), "");
        let mut auto = Requirement::new(
            line("processor time of auto to the scheme with the least"),
            Bound::AtMost(1.05),
            "",
        );
        for (content, called) in CONTENTS {
            for act in ACTS {
                let time = |choice| self.to_bare(way, choice, content, act);
                let case = format!("{called}: {}", act.name());
                let least = PROTECTED[1..].iter().filter_map(|choice| time(*choice)).min_by(f64::total_cmp);
                let auto_to_least = time(Choice::Auto).zip(least).map(|(auto, least)| auto / least);
                mt.add(&case, time(Choice::Fixed(Scheme::Mt)));
                auto.add(&case, auto_to_least);
            }
        }
        [mt, auto]
    }
}

/// Executes an act. Returns its rate in bytes per second.
fn act_once(file: &Reached, act: Act, case: Case) -> Result<f64> {
    let Case { content, size, requests, .. } = case;
    let mut rng = Rng::new(7);
    let mut buf = piece(content, &mut rng);
    let places: Vec<u64> = (0..requests).map(|_| rng.below((size / SMALL) as u64) * SMALL as u64).collect();
    let begin = Instant::now();
    let bytes = match act {
        Act::Write => {
            for at in (0..size).step_by(LARGE) {
                // Consecutive requests have different contents, as in files.
                buf.rotate_left(SMALL + 8);
                file.write(at as u64, &buf)?;
            }
            file.sync()?;
            size
        }
        Act::ReadCold | Act::ReadCached => {
            (0..size).step_by(LARGE).try_for_each(|at| file.read(at as u64, &mut buf))?;
            size
        }
        Act::RandomWrite => {
            for (n, at) in places.iter().enumerate() {
                let from = n * 64 % (LARGE - SMALL);
                file.write(*at, &buf[from..from + SMALL])?;
            }
            file.sync()?;
            places.len() * SMALL
        }
        Act::RandomRead => {
            places.iter().try_for_each(|at| file.read(*at, &mut buf[..SMALL]))?;
            places.len() * SMALL
        }
    };
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}
