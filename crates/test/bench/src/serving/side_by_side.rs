//! Servers that run at the same time and take turns at short slices of the same jobs, on one
//! processor: a disturbance of the machine slows all of them, and the placement of threads on
//! several processors, which varies from start to start, has no effect.

use crate::measuring::pin;
use crate::measuring::processor::ProcessorClocks;
use crate::measuring::samples::Samples;
use crate::serving::client::LoadClient;
use crate::serving::job::IoJob;
use crate::serving::request_offsets::{RequestOffsets, WritePosition};
use crate::serving::server::RunningServer;
use crate::serving::turn::Task;
use crate::workspace::Workspace;
use lacuna_contracts::Result;

/// A session of servers side by side.
#[derive(Clone, Copy)]
pub(crate) struct SliceSession<'a> {
    /// The jobs, executed one after another.
    pub jobs: &'a [IoJob],
    /// Slices of each server for each job.
    pub slices: u64,
    /// Bytes of each disk.
    pub disk: u64,
    /// Number of the session: it determines the places of random requests, and the order of the
    /// servers.
    pub number: u64,
    /// The place where sequential writes go on, from session to session with the same disks. All
    /// servers do the same jobs.
    pub position: &'a WritePosition,
}

/// Processor time of one server for one job, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct JobTime {
    /// The lower quartile of the slices. It is precise, but ignores work in only a few slices.
    pub quartile: f64,
    /// The sum of all slices and the flush after them.
    pub sum: f64,
}

impl SliceSession<'_> {
    /// Lets the servers do all jobs in turns. Returns the processor time of each server for each
    /// job.
    pub(crate) fn run(&self, work: &Workspace, servers: &[&RunningServer<'_>]) -> Result<Vec<Vec<JobTime>>> {
        // Rotate the order of the servers from session to session.
        let mut order: Vec<usize> = (0..servers.len()).collect();
        order.rotate_left(self.number as usize % servers.len());
        let mut runners = self.runners(work, servers, &order)?;
        let free = pin::to_one(servers.iter().map(|server| server.pid()))?;
        let mut all = Vec::new();
        for (nth, job) in self.jobs.iter().enumerate() {
            let seed = self.number * self.jobs.len() as u64 + nth as u64;
            let mut places: Vec<RequestOffsets> =
                servers.iter().map(|_| self.position.offsets(*job, seed)).collect();
            for _ in 0..self.slices {
                // Slices of the other servers lie between two slices of a server, so all servers
                // have the same time for deferred work.
                for at in &order {
                    work.interrupt.check()?;
                    runners[*at].run_slice(*job, self.disk, &mut places[*at])?;
                }
            }
            self.position.move_to_end(*job, &places[0]);
            all.push(runners.iter_mut().map(Runner::finish_job).collect::<Result<_>>()?);
            work.write_back()?;
        }
        drop(runners);
        pin::restore(&free)?;
        Ok(all)
    }

    /// Creates a client of each server, with warm caches.
    fn runners(
        &self,
        work: &Workspace,
        servers: &[&RunningServer<'_>],
        order: &[usize],
    ) -> Result<Vec<Runner>> {
        let warm = Task::alone(self.jobs[0], self.disk, 0, 0);
        order.iter().try_for_each(|at| warm.prepare(work, servers[*at]))?;
        servers.iter().map(|server| Runner::of(server)).collect()
    }
}

/// A client of one server.
struct Runner {
    client: LoadClient,
    clocks: ProcessorClocks,
    /// Processor time of the server at the start of each slice: background work after a slice
    /// counts for that slice.
    spent: Vec<f64>,
}

impl Runner {
    fn of(server: &RunningServer<'_>) -> Result<Runner> {
        let (client, clocks) =
            (LoadClient::connect(server.socket(), "")?, ProcessorClocks::of(server.pid())?);
        Ok(Runner { client, clocks, spent: Vec::new() })
    }

    fn run_slice(&mut self, job: IoJob, disk: u64, places: &mut RequestOffsets) -> Result<()> {
        self.spent.push(self.clocks.total()?.as_secs_f64());
        let requests = (u64::from(16u32) << 20).div_ceil(u64::from(job.size)).min(512);
        self.client.perform(job, disk, places, requests, drop)
    }

    /// Ends a job with a flush.
    fn finish_job(&mut self) -> Result<JobTime> {
        self.client.flush()?;
        self.spent.push(self.clocks.total()?.as_secs_f64());
        let spent = std::mem::take(&mut self.spent);
        let slices: Samples = spent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        Ok(JobTime { quartile: slices.lower_quartile(), sum: spent[spent.len() - 1] - spent[0] })
    }
}
