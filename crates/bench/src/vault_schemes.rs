//! The schemes of paper 002 beside each other in a vault, mounted and without a mount, and beside the same
//! vault without integrity.

use crate::measured::Stable;
use crate::processor::Processor;
use crate::requirement::{Bound, Requirement};
use crate::samples::Samples;
use crate::table::{Table, head};
use crate::vault_reach::{Reached, Way, failed};
use crate::workspace::Workspace;
use lacuna_core::{Error, Result, Secret};
use lacuna_crypto::SystemRandom;
use lacuna_integrity::{Choice, Scheme};
use lacuna_medium::{Access, DiskFolder};
use lacuna_sim::Rng;
use lacuna_vault::store::MemoryAnchor;
use lacuna_vault::{Base, NewNode, OpenOptions, ROOT, SystemWallClock, Vault, VaultOptions};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
const UUID: [u8; 16] = [0x12; 16];
const PROTECTED: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];
/// The file in the vault.
const FILE: &str = "file";
const BARE: Choice = Choice::Fixed(Scheme::None);

/// What the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    Text,
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Write,
    ReadCold,
    ReadCached,
    RandomWrite,
    RandomRead,
}

const ACTS: [(Act, &str); 5] = [
    (Act::Write, "sequential 1 MiB write, fsync at the end"),
    (Act::ReadCold, "sequential 1 MiB read, cold"),
    (Act::ReadCached, "sequential 1 MiB read, backing file cached"),
    (Act::RandomWrite, "random 4 KiB write, fsync at the end"),
    (Act::RandomRead, "random 4 KiB read, backing file cached"),
];
const CONTENTS: [(Content, &str); 2] = [(Content::Text, "text"), (Content::Random, "random")];

/// What one scheme reached in one act: bytes per second, and seconds of the processor for what was done.
#[derive(Default)]
struct Figures {
    rates: Samples,
    processor: Samples,
}

/// The figures of all.
pub(crate) struct Schemes(HashMap<(Way, Choice, Content, Act), Figures>);

/// What is measured: how much, and of what.
#[derive(Clone, Copy)]
struct Case {
    way: Way,
    choice: Choice,
    content: Content,
    size: usize,
    requests: u32,
}

/// Measures on a file of so many bytes, with so many random requests.
pub(crate) fn measure(work: &Workspace, size: usize, requests: u32) -> Result<Schemes> {
    let mut schemes = Schemes(HashMap::new());
    let mut order: Vec<Choice> = [BARE].into_iter().chain(PROTECTED).collect();
    for round in 0..work.scale.rounds {
        work.goes_on(&format!("vaults: schemes, round {} of {}", round + 1, work.scale.rounds))?;
        for (way, content) in
            [Way::Direct, Way::Mounted].into_iter().flat_map(|way| CONTENTS.map(|c| (way, c.0)))
        {
            for &choice in &order {
                work.interrupt.check()?;
                let dir = work.path("schemes");
                let made = std::fs::create_dir(&dir);
                made.map_err(|e| Error::io(format!("cannot make {}", dir.display()), &e))?;
                schemes.turn(work, &dir, Case { way, choice, content, size, requests })?;
                let gone = std::fs::remove_dir_all(&dir);
                gone.map_err(|e| Error::io(format!("cannot remove {}", dir.display()), &e))?;
                work.settle()?;
            }
        }
        order.reverse();
    }
    Ok(schemes)
}

impl Schemes {
    fn turn(&mut self, work: &Workspace, dir: &Path, case: Case) -> Result<()> {
        let folder = Arc::new(DiskFolder::open(dir, Access::Write)?);
        let anchor = Arc::new(MemoryAnchor::default());
        let random = Arc::new(SystemRandom::new()?);
        let base = || Base {
            folder: folder.clone(),
            anchor: anchor.clone(),
            random: random.clone(),
            clock: Arc::new(SystemWallClock),
        };
        let master = Secret::copy_from(&[0x21; 32]);
        let open = OpenOptions { commit_period: None, ..OpenOptions::default() };
        let options = VaultOptions { choice: case.choice, open: open.clone(), ..VaultOptions::default() };
        let vault = Vault::create(base(), &master, UUID, &options)?;
        vault.make(ROOT, FILE.as_bytes(), NewNode::File, 0o644, 0, 0).map_err(failed)?;
        vault.close()?;
        drop(vault);
        for act in [Act::Write, Act::ReadCold, Act::ReadCached, Act::RandomRead, Act::RandomWrite] {
            if act == Act::ReadCold {
                work.forget_pages()?;
            }
            let reached = Reached::open(work, Vault::open(base(), &master, UUID, &open)?, case.way, FILE)?;
            let (clock, figures) =
                (Processor::of(std::process::id())?, (case.way, case.choice, case.content, act));
            let before = clock.total()?;
            let rate = act_once(&reached, act, case)?;
            let spent = clock.total()?.saturating_sub(before).as_secs_f64();
            reached.close()?;
            let figures = self.0.entry(figures).or_default();
            figures.rates.push(rate);
            figures.processor.push(spent);
        }
        Ok(())
    }

    /// Seconds of the processor.
    fn processor(&self, key: (Way, Choice, Content, Act)) -> Option<f64> {
        self.0.get(&key).map(|figures| figures.processor.lower_quartile())
    }

    /// The processor time of each scheme to no integrity, which two runs must agree on.
    pub(crate) fn stable(&self) -> Vec<Stable> {
        let mut all = Vec::new();
        for ((content, called), (act, name)) in
            CONTENTS.iter().flat_map(|c| ACTS.iter().map(move |a| (*c, *a)))
        {
            let time = |choice| self.processor((Way::Direct, choice, content, act));
            for choice in PROTECTED {
                let name =
                    format!("vault {}, {called}: {name}: processor time to no integrity", choice.name());
                all.extend(
                    time(choice).zip(time(BARE)).map(|(ours, bare)| Stable { name, value: ours / bare }),
                );
            }
        }
        all
    }

    pub(crate) fn tables(&self) -> Vec<Table> {
        vec![self.table(Way::Mounted), self.table(Way::Direct)]
    }

    fn table(&self, way: Way) -> Table {
        let choices = [BARE].into_iter().chain(PROTECTED);
        let names = choices.clone().map(|choice| choice.name().to_owned());
        let mut table =
            Table::new(format!("The schemes in a vault, {}, MB/s", way.name()), head("job", names));
        for (content, called) in CONTENTS {
            for (act, name) in ACTS {
                let cell = |choice| match self.0.get(&(way, choice, content, act)) {
                    Some(Figures { rates, .. }) => format!("{:.0}{}", rates.median() / 1e6, rates.mark()),
                    None => "-".into(),
                };
                table.row(format!("{called}: {name}"), choices.clone().map(cell));
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
            line("processor time of auto to the least of the schemes"),
            Bound::AtMost(1.05),
            "",
        );
        for (content, called) in CONTENTS {
            for (act, name) in ACTS {
                let time = |choice| self.processor((way, choice, content, act));
                let to = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
                let case = format!("{called}: {name}");
                let least = PROTECTED[1..].iter().filter_map(|choice| time(*choice)).min_by(f64::total_cmp);
                mt.add(&case, to(time(Choice::Fixed(Scheme::Mt)), time(BARE)));
                auto.add(&case, to(time(Choice::Auto), least));
            }
        }
        [mt, auto]
    }
}

/// Does it: its rate in bytes per second.
fn act_once(file: &Reached, act: Act, case: Case) -> Result<f64> {
    let Case { content, size, requests, .. } = case;
    let mut rng = Rng::new(7);
    let mut buf = piece(content, &mut rng);
    let places: Vec<u64> = (0..requests).map(|_| rng.below((size / SMALL) as u64) * SMALL as u64).collect();
    let begin = Instant::now();
    let bytes = match act {
        Act::Write => {
            for at in (0..size).step_by(LARGE) {
                // No two requests are alike, as in files.
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

fn piece(content: Content, rng: &mut Rng) -> Vec<u8> {
    match content {
        Content::Random => (0..LARGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect(),
        Content::Text => {
            let mut text = Vec::with_capacity(LARGE + 16);
            while text.len() < LARGE {
                text.extend(format!("{} of {} in lines; ", rng.below(10_000), rng.below(100)).bytes());
            }
            text.truncate(LARGE);
            text
        }
    }
}
