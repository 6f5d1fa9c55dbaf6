//! Processor times of the schemes of paper 002 that two runs on one commit agree on: vaults that are open together in this process do
//! short slices of the same act in turns, on one processor, as the servers of `side_by_side` do. The host of a machine can slow one kind of
//! work for minutes, so the sessions are spread over the time that the section takes.

use crate::measured::Stable;
use crate::pin;
use crate::processor::Processor;
use crate::samples::Samples;
use crate::table::{Table, figure, head};
use crate::vault_act::{Act, BARE, CONTENTS, Content, LARGE, PROTECTED, SMALL, piece};
use crate::vault_bed::{FILE, VaultBed};
use crate::vault_reach::{Reached, Way};
use crate::workspace::Workspace;
use lacuna_core::Result;
use lacuna_integrity::Choice;
use lacuna_sim::Rng;

/// Slices of each vault at each act in a session.
const SLICES: u32 = 20;
/// Pieces of [`LARGE`] bytes of a slice.
const PIECES: u64 = 3;
/// Random requests of a slice.
const REQUESTS: u64 = 256;
/// In this order the file is there when it is read. Cold reads wait for the medium, and have no slices.
const ACTS: [Act; 4] = [Act::Write, Act::ReadCached, Act::RandomRead, Act::RandomWrite];

/// Of each scheme, content and act the ratios of the sessions to a vault without integrity.
#[derive(Default)]
pub(crate) struct Steady {
    ratios: Vec<(Choice, Content, Act, Samples)>,
    sessions: usize,
}

impl Steady {
    /// Holds a session more, for which all vaults are made anew.
    pub(crate) fn measure(&mut self, work: &Workspace) -> Result<()> {
        let slices = if work.scale.quick { 2 } else { SLICES };
        work.goes_on(&format!("vaults: session {} on one processor", self.sessions + 1))?;
        for (content, _) in CONTENTS {
            self.hold(work, content, self.sessions, slices)?;
            work.settle()?;
        }
        self.sessions += 1;
        Ok(())
    }

    /// A session: all acts, on vaults of its own.
    fn hold(&mut self, work: &Workspace, content: Content, number: usize, slices: u32) -> Result<()> {
        let choices: Vec<Choice> = [BARE].into_iter().chain(PROTECTED).collect();
        let make = |(nth, choice): (usize, &Choice)| -> Result<(VaultBed, Reached)> {
            let bed = VaultBed::make(&work.path(&format!("schemes-{nth}")), *choice)?;
            let file = Reached::open(work, bed.open()?, Way::Direct, FILE)?;
            Ok((bed, file))
        };
        let vaults = choices.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
        // Each begins in its part of the sessions.
        let mut order: Vec<usize> = (0..vaults.len()).collect();
        order.rotate_left(number % vaults.len());
        let free = pin::to_one([std::process::id()])?;
        let clock = Processor::of(std::process::id())?;
        for act in ACTS {
            let mut spent = vec![Samples::default(); vaults.len()];
            for slice in 0..slices {
                for at in &order {
                    work.interrupt.check()?;
                    let before = clock.total()?;
                    perform(&vaults[*at].1, act, content, (slice, slices))?;
                    spent[*at].push(clock.total()?.saturating_sub(before).as_secs_f64());
                }
            }
            let bare = spent[0].lower_quartile();
            for (choice, spent) in choices.iter().zip(&spent).skip(1) {
                self.push((*choice, content, act), spent.lower_quartile() / bare);
            }
        }
        pin::back(&free)?;
        vaults.into_iter().try_for_each(|(bed, file)| file.close().and_then(|()| bed.remove()))
    }

    fn push(&mut self, (choice, content, act): (Choice, Content, Act), ratio: f64) {
        match self.ratios.iter_mut().find(|cell| (cell.0, cell.1, cell.2) == (choice, content, act)) {
            Some((.., ratios)) => ratios.push(ratio),
            None => self.ratios.push((choice, content, act, std::iter::once(ratio).collect())),
        }
    }

    fn samples(&self, choice: Choice, content: Content, act: Act) -> Option<&Samples> {
        let cell = self.ratios.iter().find(|cell| (cell.0, cell.1, cell.2) == (choice, content, act));
        cell.map(|(.., ratios)| ratios)
    }

    /// The processor time of a scheme to no integrity, if it was measured so.
    pub(crate) fn ratio(&self, choice: Choice, content: Content, act: Act) -> Option<f64> {
        self.samples(choice, content, act).map(Samples::median)
    }

    /// The ratios, with the intervals of their medians.
    pub(crate) fn table(&self) -> Table {
        let names = PROTECTED.map(|choice| choice.name().to_owned());
        let title = "The schemes in a vault, on one processor, side by side: processor time to no integrity";
        let mut table = Table::new(title, head("job", names));
        for (content, called) in CONTENTS {
            for act in ACTS {
                let cell = |choice: Choice| {
                    self.samples(choice, content, act).map_or("-".to_owned(), |ratios| {
                        let (low, high) = ratios.interval();
                        format!("{} ({low:.2} to {high:.2})", figure(Some(ratios.median()), 2))
                    })
                };
                table.row(format!("{called}: {}", act.name()), PROTECTED.map(cell));
            }
        }
        table
    }

    /// What two runs on the same commit must agree on.
    pub(crate) fn stable(&self) -> Vec<Stable> {
        let called = |content| CONTENTS.iter().find(|c| c.0 == content).map_or("", |c| c.1);
        let of = |(choice, content, act, ratios): &(Choice, Content, Act, Samples)| Stable {
            name: format!(
                "vault {}, {}: {}: processor time on one processor to no integrity",
                choice.name(),
                called(*content),
                act.name()
            ),
            value: ratios.median(),
        };
        self.ratios.iter().map(of).collect()
    }
}

/// Does one of so many slices of an act. A slice that writes ends in a sync.
fn perform(file: &Reached, act: Act, content: Content, (slice, slices): (u32, u32)) -> Result<()> {
    let mut rng = Rng::new(u64::from(slice));
    let mut buf = piece(content, &mut rng);
    let places = u64::from(slices) * PIECES * (LARGE / SMALL) as u64;
    let first = u64::from(slice) * PIECES;
    match act {
        Act::Write => {
            for nth in first..first + PIECES {
                // No two requests are alike, as in files.
                buf.rotate_left(SMALL + 8);
                file.write(nth * LARGE as u64, &buf)?;
            }
            file.sync()
        }
        Act::ReadCold | Act::ReadCached => {
            (first..first + PIECES).try_for_each(|nth| file.read(nth * LARGE as u64, &mut buf))
        }
        Act::RandomWrite => {
            for n in 0..REQUESTS as usize {
                let from = n * 64 % (LARGE - SMALL);
                file.write(rng.below(places) * SMALL as u64, &buf[from..from + SMALL])?;
            }
            file.sync()
        }
        Act::RandomRead => {
            (0..REQUESTS).try_for_each(|_| file.read(rng.below(places) * SMALL as u64, &mut buf[..SMALL]))
        }
    }
}
