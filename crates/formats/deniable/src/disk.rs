//! An open deniable disk: assembles its parts, and serves the requests of front ends.

use crate::cache_usage::DiskCacheUsage;
use crate::health::Health;
use crate::hidden::OpenHiddenLevels;
use crate::keys::LevelKeys;
use crate::log::Log;
use crate::log::checkpoint::Checkpoint;
use crate::log::medium_reader::MediumReader;
use crate::log::progress::LogProgress;
use crate::log::summary::LogEnd;
use crate::params::Params;
use crate::place::StripeSeq;
use crate::public_level::PublicLevel;
use crate::public_view::PublicView;
use crate::read::read;
use crate::recovery::{self, LastStripe};
use crate::stripe::carrier::Carrier;
use crate::stripe::pipeline::Pipeline;
use crate::threads::Threads;
use lacuna_contracts::{
    BLOCK_SIZE, BlockAddr, Budget, Error, Hint, Kind, Result, Secret, Setting, StatusItem, closed_error,
};
use lacuna_levels::{
    DiskKeys, HiddenLevels, LevelDisk, LevelFormat, LevelMap, Levels, OpenMode, OpenOptions, Pace,
    QueuedLevel, Randomness, check_length, level_disks,
};
use lacuna_medium::Medium;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A deniable disk, open.
pub struct DeniableDisk {
    medium: Arc<dyn Medium>,
    health: Arc<Health>,
    progress: Arc<LogProgress>,
    log: Arc<Log>,
    pipeline: Arc<Pipeline>,
    hidden: Arc<OpenHiddenLevels>,
    view: Arc<PublicView>,
    carrier: Arc<Carrier>,
    public: Arc<PublicLevel>,
    mode: OpenMode,
    threads: Mutex<Option<Threads>>,
    /// Lengths of the open hidden levels, in blocks.
    lengths: Vec<u64>,
    /// The stripe that ended the last cover of a closing.
    covered: Mutex<Option<StripeSeq>>,
}

impl LevelFormat for Params {
    type Disk = DeniableDisk;

    fn end(&self) -> u64 {
        Params::end(self)
    }

    /// Writes checkpoints and the first stripe. The rest of the medium is left as it is: the part
    /// that the log has reached is public.
    fn create(&self, medium: &Arc<dyn Medium>, masters: DiskKeys<'_>, random: Randomness) -> Result<()> {
        check_length(medium.len(), self.end(), Kind::NoSpace)?;
        check_levels(self, masters.keys)?;
        let options = OpenOptions::foreground(Budget::bytes(1 << 20), random);
        let disk = DeniableDisk::build(medium, self, masters, &options, |_, _, _| {
            Ok(LogEnd { head: StripeSeq::NONE, name: [0; 16], echo: Vec::new() })
        })?;
        disk.public.refresh()?;
        let first = Checkpoint { seq: StripeSeq(1), closed: true };
        for turn in 0..2 {
            let salt = disk.public.draw_salt();
            first.write_to(turn, &**medium, disk.log.keys(), &salt)?;
        }
        medium.sync()
    }

    fn open(
        &self,
        medium: Arc<dyn Medium>,
        masters: DiskKeys<'_>,
        options: OpenOptions,
    ) -> Result<DeniableDisk> {
        medium.forget_cached()?;
        check_length(medium.len(), self.end(), Kind::Corrupt)?;
        check_levels(self, masters.keys)?;
        let disk = DeniableDisk::build(&medium, self, masters, &options, |log, progress, trees| {
            let (end, summary) = recovery::find_end(log, options.read_only)?;
            if !options.read_only {
                // The stripes that were found may not be durable, and later stripes rely on them.
                medium.sync()?;
            }
            progress.start_at(end.head);
            let last = LastStripe { seq: end.head, summary: summary.as_deref() };
            for (level, tree) in (0u8..).zip(trees) {
                recovery::rebuild(log, level, last, tree, options.read_only)?;
            }
            Ok(end)
        })?;
        // Deniability contract: the reads that rebuilt the maps show which levels exist.
        disk.medium.forget_cached()?;
        if disk.mode.background {
            let cover = Duration::from_millis(u64::from(self.cover_millis));
            let next = disk.progress.written().next();
            let DeniableDisk { pipeline, carrier, hidden, public, .. } = &disk;
            let threads = Threads::start(pipeline, carrier, hidden, public, next, cover)?;
            *disk.threads.lock() = Some(threads);
        }
        Ok(disk)
    }
}

impl DeniableDisk {
    /// The open levels, starting at level 0.
    pub fn levels(self: &Arc<Self>) -> Vec<Arc<LevelDisk>> {
        level_disks(self)
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        self.log.params()
    }

    /// The sizes of its caches.
    pub fn caches(&self) -> DiskCacheUsage {
        let leaves = std::iter::once(self.view.cache_usage()).chain(self.hidden.cache_usage());
        DiskCacheUsage { leaves: leaves.collect(), summaries: self.log.cache_usage() }
    }

    /// Assembles the parts of a disk. `restore` fills the maps, and returns the end of the log.
    fn build(
        medium: &Arc<dyn Medium>,
        params: &Params,
        masters: DiskKeys<'_>,
        options: &OpenOptions,
        restore: impl FnOnce(&Log, &LogProgress, &mut [LevelMap]) -> Result<LogEnd>,
    ) -> Result<DeniableDisk> {
        let quarter = options.budget.share(1, 4).get();
        let filler = &options.random.filler;
        let keys = LevelKeys::new(params, masters, &**filler);
        let hidden_length = |level| params.hidden_blocks(level, keys.level(level));
        let lengths: Vec<u64> = keys.open_hidden().map(hidden_length).collect();
        let health = Arc::new(Health::default());
        let progress = LogProgress::new(medium.clone(), health.clone());
        let reader = MediumReader::new(medium.clone(), options.background);
        let log = Arc::new(Log::new(*params, keys, reader, progress.clone(), quarter));
        let leaves = |memory: u64| (memory / BLOCK_SIZE as u64) as usize;
        // The share of level 0 does not depend on the other open levels (deniability contract).
        let cycle = u64::from(params.cycle);
        let mut trees = vec![LevelMap::new(params.blocks, cycle, leaves(quarter))];
        // The share of a hidden level does not depend on the levels above it.
        let hidden_trees = (1..).zip(&lengths);
        trees.extend(
            hidden_trees.map(|(level, blocks)| LevelMap::new(*blocks, cycle, leaves(quarter >> level))),
        );
        let end = restore(&log, &progress, &mut trees)?;
        let mut trees = trees.into_iter();
        let public = trees.next().expect("level 0 is always there");
        let view = Arc::new(PublicView::new(log.clone(), health.clone(), public));
        let mode = OpenMode::of(options);
        let levels = trees.map(QueuedLevel::new).collect();
        let levels = HiddenLevels::new(levels, end.head.0, quarter);
        let echo = recovery::hidden_echo(&log, end.head);
        let hidden = OpenHiddenLevels::new(levels, log.clone(), progress.clone(), health.clone(), mode, echo);
        let pipeline = Pipeline::new(
            log.clone(),
            progress.clone(),
            medium.clone(),
            health.clone(),
            filler.clone(),
            end.head,
        );
        let carrier = Carrier::new(log.clone(), view.clone(), health.clone());
        let public = Arc::new(PublicLevel::new(
            health.clone(),
            view.clone(),
            carrier.clone(),
            hidden.clone(),
            pipeline.clone(),
            options.random.public.clone(),
            end,
        ));
        let threads = Mutex::new(None);
        Ok(DeniableDisk {
            medium: medium.clone(),
            health,
            progress,
            log,
            pipeline,
            hidden,
            view,
            carrier,
            public,
            mode,
            threads,
            lengths,
            covered: Mutex::default(),
        })
    }

    fn stop(&self) {
        let threads = self.threads.lock().take();
        drop(threads);
        self.health.fail(closed_error());
    }
}

impl Drop for DeniableDisk {
    fn drop(&mut self) {
        self.stop();
        // For a disk that was not closed, as after a refused opening. No caller is left to take an
        // error of the system.
        let _told = self.medium.forget_cached();
    }
}

/// Refuses more levels than the medium has slots for.
fn check_levels(params: &Params, masters: &[Secret<32>]) -> Result<()> {
    let most = usize::from(params.hidden_levels());
    if masters.len() <= 1 + most {
        return Ok(());
    }
    let more_slots = Hint::from("make fewer levels, or a disk with more hidden slots in a stripe: ");
    Err(Error::new(Kind::Usage, "too many levels for this disk")
        .found(format!("{} hidden levels", masters.len() - 1))
        .expected(format!("at most {most}, by the hidden slots of a stripe"))
        .hint(more_slots.setting(Setting("geometry"))))
}

impl Levels for DeniableDisk {
    fn open_levels(&self) -> usize {
        1 + self.lengths.len()
    }

    fn blocks(&self, level: u8) -> u64 {
        if level == 0 { self.params().blocks } else { self.lengths[usize::from(level) - 1] }
    }

    fn read_only(&self) -> bool {
        self.mode.read_only
    }

    fn read(&self, level: u8, first: u64, buf: &mut [u8]) -> Result<()> {
        let first = BlockAddr(first);
        read(&self.log, level, first, buf, |buf, places| match level {
            0 => self.view.locate(first, buf, places),
            level => self.hidden.locate(level, first, buf, places),
        })
    }

    fn write(&self, level: u8, first: u64, data: &[u8]) -> Result<()> {
        match level {
            0 => self.public.write(BlockAddr(first), data),
            level => self.hidden.write(level, BlockAddr(first), data),
        }
    }

    fn discard(&self, level: u8, first: u64, count: u64) -> Result<()> {
        match level {
            0 => self.public.discard(BlockAddr(first), count),
            level => self.hidden.discard(level, BlockAddr(first), count),
        }
    }

    fn flush(&self, level: u8) -> Result<()> {
        match level {
            0 => self.public.flush(),
            level => self.hidden.flush(level),
        }
    }

    fn are_written(&self, level: u8, first: u64, count: usize) -> Result<Vec<bool>> {
        match level {
            0 => self.view.are_written(BlockAddr(first), count),
            level => self.hidden.are_written(level, BlockAddr(first), count),
        }
    }

    fn status(&self, level: u8) -> Vec<StatusItem> {
        let params = self.params();
        let (stripes, [blocks_written, beats]) = (self.pipeline.stripes(), self.public.counters());
        let mut items = vec![
            StatusItem::new("head", self.progress.written().0, "stripe"),
            StatusItem::new("ring", params.stripes, "stripes"),
            StatusItem::new("stripes_written", stripes, "stripes"),
            StatusItem::new("medium_blocks_written", stripes * params.geometry.blocks(), "blocks"),
            StatusItem::new("public_blocks_written", blocks_written, "blocks"),
            StatusItem::new("cover_interval", u64::from(params.cover_millis), "ms"),
            StatusItem::new("refreshes", beats, "stripes"),
            StatusItem::new("syncs", self.progress.syncs(), "times"),
        ];
        match level {
            0 => items.extend(self.view.status()),
            level => items.extend(self.hidden.status(level)),
        }
        items
    }

    fn refresh(&self) -> Result<()> {
        self.public.refresh()
    }

    fn cover_closing(&self, pace: Pace) -> Result<()> {
        if self.mode.read_only {
            return Ok(());
        }
        let mut covered = self.covered.lock();
        self.public.flush()?;
        // Deniability contract: whether cover is written follows from numbers of stripes and the
        // pace of cover alone.
        let head = self.progress.written();
        let few = self.params().closing_cover().max_trailing();
        // On a disk with paced cover, the cover of a closing may be due before the first beat.
        // Without paced cover, a disk that was only read stays as it is.
        let is_untouched = self.pipeline.stripes() == 0 && self.params().cover_millis == 0;
        if is_untouched || covered.is_some_and(|at| head <= at + few) {
            return Ok(());
        }
        self.public.write_closing_cover(pace)?;
        *covered = Some(self.progress.written());
        Ok(())
    }

    fn set_no_wait(&self, level: u8, gives_up: bool) {
        self.hidden.set_no_wait(level, gives_up);
    }

    fn note_loss(&self, level: u8) {
        self.hidden.note_loss(level);
    }

    fn close(&self) -> Result<()> {
        let ended = if self.mode.read_only { Ok(()) } else { self.end_log() };
        self.stop();
        // Deniability contract: the pages of the medium in the system's cache would show which
        // slots were read for hidden levels.
        ended.and(self.medium.forget_cached())
    }
}

impl DeniableDisk {
    /// Flushes level 0, writes the cover of a closing, and ends the log.
    ///
    /// Deniability contract: if a hidden level had more pending than that cover took, the log ends
    /// here, as it does if the medium fails now. The error that the caller gets then has a public
    /// reason, and the medium does not contradict it.
    fn end_log(&self) -> Result<()> {
        self.health.check()?;
        // The stripes that follow are counted: no beat may come between them, nor after the last.
        self.threads.lock().iter_mut().for_each(Threads::end_clock);
        // If the medium refuses cover, the log ends here too, whatever is pending.
        self.cover_closing(Pace::Immediate)?;
        self.health.check()?;
        self.hidden.check_nothing_pending()?;
        self.public.finish()
    }
}
