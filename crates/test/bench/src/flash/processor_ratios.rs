//! Processor times of disks on flash that agree between two runs on one commit: a disk with keys
//! and one without take turns at short slices of the same job, on one processor, like the servers
//! of `side_by_side`.

use crate::flash::disks::KeyMode;
use crate::flash::job::{JOBS, PURGES, run};
use crate::measuring::pin;
use crate::measuring::processor::ProcessorClocks;
use crate::measuring::samples::Samples;
use crate::measuring::section_results::StableFigure;
use crate::serving::job::IoJob;
use crate::workspace::Workspace;
use lacuna_contracts::{Disk, Result};
use lacuna_flash::FlashDisk;

/// Sessions for each job.
const SESSIONS: u32 = 8;
/// Slices of each disk for each job in a session.
const SLICES: u32 = 16;

/// For each job at depth 1, the ratios of the sessions, with keys to without.
#[derive(Default)]
pub(crate) struct FlashProcessorRatios(Vec<(IoJob, Samples)>);

/// Measures two aged disks, with keys and without.
pub(crate) fn measure(work: &Workspace, disks: &[(KeyMode, FlashDisk)]) -> Result<FlashProcessorRatios> {
    let jobs = JOBS.into_iter().filter(|job| job.depth == 1);
    let mut ratios = FlashProcessorRatios(jobs.map(|job| (job, Samples::default())).collect());
    let (sessions, slices) = if work.scale.quick { (1, 2) } else { (SESSIONS, SLICES) };
    let free = pin::to_one([std::process::id()])?;
    for number in 0..sessions {
        work.report_progress(&format!("flash: session {} of {sessions} on one processor", number + 1))?;
        for (job, samples) in &mut ratios.0 {
            samples.push(run_session(work, disks, *job, FlashSession { number, slices })?);
        }
    }
    pin::restore(&free)?;
    Ok(ratios)
}

/// A session, with the number of slices of each disk.
#[derive(Clone, Copy)]
struct FlashSession {
    number: u32,
    slices: u32,
}

/// The ratio of the lower quartiles of a session's slices.
fn run_session(
    work: &Workspace,
    disks: &[(KeyMode, FlashDisk)],
    job: IoJob,
    FlashSession { number, slices }: FlashSession,
) -> Result<f64> {
    let clock = ProcessorClocks::of(std::process::id())?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for slice in 0..slices {
        let one_and_other: Vec<usize> = if number % 2 == 0 { vec![0, 1] } else { vec![1, 0] };
        for at in one_and_other {
            work.interrupt.check()?;
            let (keys, disk) = &disks[at];
            // A sixteenth of the writes are discards instead: each slice contains one purge.
            let blocks = disk.blocks() / PURGES * 9 / 8;
            let before = clock.total()?;
            run(disk, *keys, job, blocks, u64::from(number << 16 | slice))?;
            let spent = clock.total()?.saturating_sub(before).as_secs_f64();
            if *keys == KeyMode::Off { without.push(spent) } else { with.push(spent) }
        }
    }
    Ok(with.lower_quartile() / without.lower_quartile())
}

impl FlashProcessorRatios {
    /// The ratio of the processor time with keys to that without, if the job was measured this way.
    pub(crate) fn ratio(&self, job: IoJob) -> Option<f64> {
        self.0.iter().find(|(of, _)| *of == job).map(|(_, ratios)| ratios.median())
    }

    /// The ratio and its interval, for a table.
    pub(crate) fn cell(&self, job: IoJob) -> String {
        self.0.iter().find(|(of, _)| *of == job).map_or("-".to_owned(), |(_, ratios)| {
            let (low, high) = ratios.interval();
            format!("{:.2} ({low:.2} to {high:.2})", ratios.median())
        })
    }

    /// The figures that two runs on the same commit must agree on.
    pub(crate) fn stable(&self) -> Vec<StableFigure> {
        let of = |(job, ratios): &(IoJob, Samples)| StableFigure {
            name: format!("{}: processor time on one processor with keys to without", job.name()),
            value: ratios.median(),
        };
        self.0.iter().map(of).collect()
    }
}
