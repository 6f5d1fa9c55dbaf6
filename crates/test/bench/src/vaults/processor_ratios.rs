//! Measures of the schemes of EINT that agree between two runs on one commit: vaults that are open
//! at the same time in this process take turns at short slices of the same act, on one processor,
//! like the servers of `side_by_side`. The host of a machine can slow one kind of work for minutes,
//! so the sessions are spread over the duration of the section.
//!
//! For reads the stable measure is processor time. For writes it is the number of bytes that reach
//! the backing files: half of the processor time of a write is the kernel's, for pages and extents
//! of the backing files, and it varies by a quarter from hour to hour.

use crate::measuring::pin;
use crate::measuring::processor::ProcessorClocks;
use crate::measuring::samples::Samples;
use crate::measuring::section_results::StableFigure;
use crate::pages::table::{Table, figure, head};
use crate::vaults::access::{CONTENTS, FileAccess, FileContent, LARGE, SCHEMES, SMALL, UNPROTECTED, piece};
use crate::vaults::bench_vault::{BenchVault, FILE};
use crate::vaults::file::{AccessMethod, OpenVaultFile};
use crate::workspace::Workspace;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::Choice;
use lacuna_sim::Rng;

/// Slices of each vault for each act in a session.
const SLICES: u32 = 20;
/// Pieces of [`LARGE`] bytes that a slice writes, or reads if they are compressible.
const PIECES: u64 = 3;
/// Random requests of a slice that writes, or reads compressible bytes.
const REQUESTS: u64 = 256;
/// Incompressible bytes are read several times faster, so a slice reads this multiple of them.
const RANDOM_PIECES_FACTOR: u64 = 4;
/// The acts, in an order with the file written before it is read. Cold reads wait for the medium
/// and have no slices.
const ACCESSES: [FileAccess; 4] =
    [FileAccess::Write, FileAccess::ReadCached, FileAccess::RandomRead, FileAccess::RandomWrite];

/// For each scheme, content and act: the ratios of the sessions to a vault without integrity, and
/// the bytes that reached the backing files per written byte.
#[derive(Default)]
pub(crate) struct VaultProcessorRatios {
    ratios: SchemeSamples,
    amplification: SchemeSamples,
    sessions: usize,
}

/// Samples for each scheme, content and act.
#[derive(Default)]
struct SchemeSamples(Vec<(Choice, FileContent, FileAccess, Samples)>);

impl SchemeSamples {
    fn push(&mut self, choice: Choice, content: FileContent, act: FileAccess, value: f64) {
        match self.0.iter_mut().find(|cell| (cell.0, cell.1, cell.2) == (choice, content, act)) {
            Some((.., samples)) => samples.push(value),
            None => self.0.push((choice, content, act, std::iter::once(value).collect())),
        }
    }

    fn of(&self, choice: Choice, content: FileContent, act: FileAccess) -> Option<&Samples> {
        let cell = self.0.iter().find(|cell| (cell.0, cell.1, cell.2) == (choice, content, act));
        cell.map(|(.., samples)| samples)
    }

    fn stable<'a>(
        &'a self,
        measure: &'a str,
        of_act: impl Fn(FileAccess) -> bool + 'a,
    ) -> impl Iterator<Item = StableFigure> + 'a {
        let called = |content| CONTENTS.iter().find(|c| c.0 == content).map_or("", |c| c.1);
        self.0.iter().filter(move |cell| of_act(cell.2)).map(move |(choice, content, act, samples)| {
            StableFigure {
                name: format!("vault {}, {}: {}: {measure}", choice.name(), called(*content), act.name()),
                value: samples.median(),
            }
        })
    }
}

impl VaultProcessorRatios {
    /// Holds one more session, with new vaults.
    pub(crate) fn measure(&mut self, work: &Workspace) -> Result<()> {
        let slices = if work.scale.quick { 2 } else { SLICES };
        work.report_progress(&format!("vaults: session {} on one processor", self.sessions + 1))?;
        for (content, _) in CONTENTS {
            self.run_session(work, content, self.sessions, slices)?;
            work.write_back()?;
        }
        self.sessions += 1;
        Ok(())
    }

    /// A session: all acts, on vaults of its own.
    fn run_session(
        &mut self,
        work: &Workspace,
        content: FileContent,
        number: usize,
        slices: u32,
    ) -> Result<()> {
        let choices: Vec<Choice> = [UNPROTECTED].into_iter().chain(SCHEMES).collect();
        let make = |(nth, choice): (usize, &Choice)| -> Result<(BenchVault, OpenVaultFile)> {
            let bench_vault = BenchVault::make(&work.path(&format!("schemes-{nth}")), *choice)?;
            let file = OpenVaultFile::open(work, bench_vault.open()?, AccessMethod::Direct, FILE)?;
            Ok((bench_vault, file))
        };
        let vaults = choices.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
        // Rotate the order of the vaults from session to session.
        let mut order: Vec<usize> = (0..vaults.len()).collect();
        order.rotate_left(number % vaults.len());
        let free = pin::to_one([std::process::id()])?;
        let clock = ProcessorClocks::of(std::process::id())?;
        for act in ACCESSES {
            let mut spent = vec![Samples::default(); vaults.len()];
            let mut written = vec![0; vaults.len()];
            for slice in 0..slices {
                for at in &order {
                    work.interrupt.check()?;
                    let (bytes, before) = (bytes_written()?, clock.total()?);
                    perform(&vaults[*at].1, act, content, Slice { number: slice, of: slices })?;
                    spent[*at].push(clock.total()?.saturating_sub(before).as_secs_f64());
                    written[*at] += bytes_written()? - bytes;
                }
            }
            let bare = spent[0].lower_quartile();
            for (choice, spent) in choices.iter().zip(&spent).skip(1) {
                self.ratios.push(*choice, content, act, spent.lower_quartile() / bare);
            }
            if let Some(each) = act.slice_writes() {
                for (choice, written) in choices.iter().zip(&written) {
                    let amplification = *written as f64 / (each * u64::from(slices)) as f64;
                    self.amplification.push(*choice, content, act, amplification);
                }
            }
        }
        pin::restore(&free)?;
        vaults
            .into_iter()
            .try_for_each(|(bench_vault, file)| file.close().and_then(|()| bench_vault.remove()))
    }

    /// The ratio of a scheme's processor time to that without integrity, if it was measured here.
    pub(crate) fn ratio(&self, choice: Choice, content: FileContent, act: FileAccess) -> Option<f64> {
        self.ratios.of(choice, content, act).map(Samples::median)
    }

    /// The ratios with the intervals of their medians, and the written bytes.
    pub(crate) fn tables(&self) -> [Table; 2] {
        let names =
            |choices: &[Choice]| choices.iter().map(|choice| choice.name().to_owned()).collect::<Vec<_>>();
        let all: Vec<Choice> = [UNPROTECTED].into_iter().chain(SCHEMES).collect();
        let title = "The schemes in a vault, on one processor, side by side: processor time to no integrity";
        let mut times = Table::new(title, head("job", names(&SCHEMES)));
        let title = "The schemes in a vault: bytes written to the backing files for each byte";
        let mut bytes = Table::new(title, head("job", names(&all)));
        for (content, called) in CONTENTS {
            for act in ACCESSES {
                let job = || format!("{called}: {}", act.name());
                let cell = |choice: Choice| {
                    self.ratios.of(choice, content, act).map_or("-".to_owned(), |ratios| {
                        let (low, high) = ratios.interval();
                        format!("{} ({low:.2} to {high:.2})", figure(Some(ratios.median()), 2))
                    })
                };
                times.row(job(), SCHEMES.map(cell));
                if act.slice_writes().is_some() {
                    let cell = |choice: &Choice| {
                        figure(self.amplification.of(*choice, content, act).map(Samples::median), 3)
                    };
                    bytes.row(job(), all.iter().map(cell));
                }
            }
        }
        [times, bytes]
    }

    /// The figures that two runs on the same commit must agree on.
    pub(crate) fn stable(&self) -> Vec<StableFigure> {
        let reads = |act: FileAccess| act.slice_writes().is_none();
        let times = self.ratios.stable("processor time on one processor to no integrity", reads);
        times.chain(self.amplification.stable("bytes written for each byte", |_| true)).collect()
    }
}

impl FileAccess {
    /// Bytes that a slice writes; `None` for acts that read.
    fn slice_writes(self) -> Option<u64> {
        match self {
            FileAccess::Write => Some(PIECES * LARGE as u64),
            FileAccess::RandomWrite => Some(REQUESTS * SMALL as u64),
            FileAccess::ReadCold | FileAccess::ReadCached | FileAccess::RandomRead => None,
        }
    }
}

/// Bytes that this process has passed to write calls.
fn bytes_written() -> Result<u64> {
    let path = "/proc/self/io";
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(format!("cannot read {path}"), &e))?;
    let count = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    count
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| Error::new(Kind::Other, format!("{path} has no wchar")))
}

/// One slice of an act, and the number of slices of the act.
#[derive(Clone, Copy)]
struct Slice {
    number: u32,
    of: u32,
}

/// Executes a slice of an act. A slice that writes ends in a sync.
fn perform(file: &OpenVaultFile, act: FileAccess, content: FileContent, slice: Slice) -> Result<()> {
    let mut rng = Rng::new(u64::from(slice.number));
    let mut buf = piece(content, &mut rng);
    let pieces = u64::from(slice.of) * PIECES;
    let places = pieces * (LARGE / SMALL) as u64;
    let first = u64::from(slice.number) * PIECES;
    let longer = if content == FileContent::Random { RANDOM_PIECES_FACTOR } else { 1 };
    match act {
        FileAccess::Write => {
            for nth in first..first + PIECES {
                // Consecutive requests have different contents, as in files.
                buf.rotate_left(SMALL + 8);
                file.write(nth * LARGE as u64, &buf)?;
            }
            file.sync()
        }
        FileAccess::ReadCold | FileAccess::ReadCached => {
            let mut order = (first..first + PIECES * longer).map(|nth| nth % pieces);
            order.try_for_each(|nth| file.read(nth * LARGE as u64, &mut buf))
        }
        FileAccess::RandomWrite => {
            for n in 0..REQUESTS as usize {
                let from = n * 64 % (LARGE - SMALL);
                file.write(rng.below(places) * SMALL as u64, &buf[from..from + SMALL])?;
            }
            file.sync()
        }
        FileAccess::RandomRead => (0..REQUESTS * longer)
            .try_for_each(|_| file.read(rng.below(places) * SMALL as u64, &mut buf[..SMALL])),
    }
}
