//! Where an acknowledged write is safe from the death of its server: in memory that a keeper holds,
//! as `sealed` does it, or in the page cache of a journal's file. One thread, no disk.

use crate::measuring::samples::Samples;
use crate::pages::table::Table;
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Error, Result};
use lacuna_kept_memory::{KeptMemory, PoolLayout};
use nix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Blocks of the journal, and of the memory: 16 MiB.
const BLOCKS: u32 = 4096;
/// Bytes before a block in the journal: its address, its number, and a checksum.
const RECORD_HEAD: usize = 32;
/// Writes between two looks at the clock.
const BATCH: u64 = 64;

/// Processor time to keep one block of 4096 bytes, in nanoseconds.
pub(crate) struct KeepingCosts {
    memory: Samples,
    page_cache: Samples,
}

impl KeepingCosts {
    /// Measures both in turns, in rounds of `cipher_window`.
    pub(crate) fn measure(work: &Workspace) -> Result<KeepingCosts> {
        let mut costs = KeepingCosts { memory: Samples::default(), page_cache: Samples::default() };
        for _ in 0..work.scale.rounds {
            costs.memory.push(in_memory(work.scale.cipher_window)?);
            costs.page_cache.push(in_page_cache(work)?);
        }
        Ok(costs)
    }

    pub(crate) fn table(&self) -> Table {
        let title = "Keeping an acknowledged write of 4 KiB, one thread";
        let mut table = Table::new(title, ["where", "processor time", "to the first"]);
        let rows = [
            ("memory that a keeper holds", &self.memory),
            ("page cache of a journal's file, without a checksum", &self.page_cache),
        ];
        for (name, cost) in rows {
            let ratio = cost.ratios(&self.memory).map_or(f64::NAN, |ratios| ratios.median());
            table.row(name, [format!("{:.0} ns{}", cost.median(), cost.mark()), format!("{ratio:.2}")]);
        }
        table
    }
}

/// Takes a record, fills and publishes it, and drops the oldest one, which withdraws and wipes it.
fn in_memory(window: Duration) -> Result<f64> {
    let layout = PoolLayout { records: BLOCKS + 1, words: 2, bytes: BLOCK_SIZE as u32 };
    let memory = KeptMemory::shared(&[7; 32], &[layout])?;
    let (pool, block) = (memory.pool(0), [0x5a; BLOCK_SIZE]);
    let mut kept = VecDeque::new();
    nanoseconds(window, |nth| {
        let mut record = pool.take().expect("the oldest record of a full pool was dropped");
        record.bytes_mut().copy_from_slice(&block);
        record.words().iter().for_each(|word| word.store(nth, Ordering::Relaxed));
        record.publish();
        kept.push_back(record);
        if kept.len() == BLOCKS as usize {
            kept.pop_front();
        }
        Ok(())
    })
}

/// Writes a record into a ring in a file, whose pages stay in the cache.
fn in_page_cache(work: &Workspace) -> Result<f64> {
    let failed = |e: &std::io::Error| Error::io("cannot write the journal of a measurement", e);
    let path = work.path("journal");
    let file = File::create(&path).map_err(|e| failed(&e))?;
    let mut record = [0x5a; RECORD_HEAD + BLOCK_SIZE];
    let cost = nanoseconds(work.scale.cipher_window, |nth| {
        record[..8].copy_from_slice(&nth.to_le_bytes());
        let at = (nth % u64::from(BLOCKS)) * record.len() as u64;
        file.write_all_at(&record, at).map_err(|e| failed(&e))
    })?;
    std::fs::remove_file(&path).map_err(|e| failed(&e))?;
    Ok(cost)
}

/// The processor time of this thread for one call of `keep`. A first turn over all blocks, which
/// gets the pages, does not count.
fn nanoseconds(window: Duration, mut keep: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    (0..u64::from(BLOCKS)).try_for_each(&mut keep)?;
    let (start, mut count) = (processor_time()?, 0);
    loop {
        (count..count + BATCH).try_for_each(&mut keep)?;
        count += BATCH;
        let spent = processor_time()?.saturating_sub(start);
        if spent >= window {
            return Ok(spent.as_nanos() as f64 / count as f64);
        }
    }
}

fn processor_time() -> Result<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map(Duration::from)
        .map_err(|e| Error::io("cannot read the processor time of a thread", &e.into()))
}
