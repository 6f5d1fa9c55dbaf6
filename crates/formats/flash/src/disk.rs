//! The disk on flash: creates it, opens it and implements the disk interface.

use crate::checkpoint::{Checkpoints, NewestCheckpoint};
use crate::header_area::header_lebs;
use crate::index::Index;
use crate::kept_blocks::KeptBlocks;
use crate::key_storage::KeyStorage;
use crate::key_storage::purger::{PurgeResult, Purger};
use crate::log::Log;
use crate::log::collector::GarbageCollector;
use crate::log::log_writer::LogWriter;
use crate::log::stale_groups::{self, StaleGroups};
use crate::params::Params;
use crate::policy::{PurgePolicy, PurgeThread};
use crate::purge_status::{PurgeStats, PurgeStatus};
use crate::reader::BlockReader;
use crate::recovery::{LogReplay, ReplayResult};
use crate::write_buffer::WriteBuffer;
use crate::writer::{DiskWriter, WriterParts, WriterState, block_number};
use lacuna_contracts::{
    BLOCK_SIZE, BlockAddr, Budget, Clock, Disk, Error, Extent, ExtentBuilder, Hint, Kind, Result, Secret,
    Setting, Status, StatusItem, closed_error,
};
use lacuna_crypto::RandomSource;
use lacuna_kept_memory::{KeptMemory, PoolLayout};
use lacuna_nand::{Flash, FlashGeometry, Leb};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Sequence numbers that an opening skips: more than were ever given to groups torn by a power cut,
/// and more than an opening uses before its checkpoint, for the pages of the index that replay
/// changed.
const SEQUENCE_JUMP: u64 = 1 << 16;

/// How to open a disk.
pub struct OpenOptions {
    /// Memory for all caches.
    pub budget: Budget,
    /// Refuse writes. Nothing is purged then either, and an interrupted purge stays interrupted.
    pub read_only: bool,
    /// When to purge on its own; without a policy only `close` does. An interrupted purge is
    /// finished at the opening in any case.
    pub policy: Option<PurgePolicy>,
    /// The clock for the policy.
    pub clock: Arc<dyn Clock>,
    /// The source of all randomness.
    pub random: Arc<dyn RandomSource>,
    /// Where acknowledged writes are until they are in the log, of the layout that
    /// [`FlashDisk::kept_layout`] says; the writes of a predecessor are taken over, unless the disk
    /// is opened read-only. None: memory of this process alone.
    pub kept: Option<KeptMemory>,
}

/// An open disk on flash.
pub struct FlashDisk {
    params: Params,
    flash: Arc<dyn Flash>,
    read_only: bool,
    log: Arc<Log>,
    keys: Arc<KeyStorage>,
    index: Arc<Index>,
    buffer: Arc<WriteBuffer>,
    reader: Arc<BlockReader>,
    writer: Arc<DiskWriter>,
    replayed: u64,
    /// The result of a purge at the opening, until the next purge reports it.
    unreported_purge: Mutex<PurgeResult>,
    period: Option<Duration>,
    purge_thread: Mutex<Option<PurgeThread>>,
}

impl FlashDisk {
    /// Creates a disk. Everything on the flash behind the header is superseded.
    ///
    /// Errors: those of [`Params::layout`] and those of the flash.
    pub fn create(
        flash: &Arc<dyn Flash>,
        params: &Params,
        master: &Secret<32>,
        random: &Arc<dyn RandomSource>,
    ) -> Result<()> {
        let layout = params.layout()?;
        for leb in (header_lebs(params.flash)..params.flash.lebs).map(Leb) {
            if flash.is_mapped(leb)? {
                flash.unmap(leb)?;
            }
        }
        flash.drain()?;
        KeyStorage::create(flash.clone(), layout, master, random.clone())?;
        let parts = DiskParts::new(flash, params, master, random, Budget::bytes(1 << 20))?;
        parts.log.start(1)?;
        parts.checkpoints.write(&parts.log_writer, 0, false)
    }

    /// The layout of the memory for acknowledged writes of a disk that is opened with this budget.
    pub fn kept_layout(budget: Budget) -> Vec<PoolLayout> {
        KeptBlocks::layout(buffered_blocks(budget))
    }

    /// Opens a disk and replays its log. Finishes an interrupted purge before it returns, unless
    /// the disk is opened read-only. If the purge cannot be finished, the disk opens all the same
    /// and [`PurgeStatus::purge_wanted`] is set. It then takes reads, and writes too if the flash
    /// merely refused a call or a read failed.
    ///
    /// Errors: [`Kind::Corrupt`] if the newest checkpoint does not verify, or the log or the kept
    /// memory names things that do not exist, [`Kind::Usage`] for parameters that do not fit the
    /// flash, and errors that the flash reports.
    pub fn open(
        flash: Arc<dyn Flash>,
        params: &Params,
        master: &Secret<32>,
        options: &OpenOptions,
    ) -> Result<FlashDisk> {
        check_flash(flash.geometry(), params.flash)?;
        let parts = DiskParts::new(&flash, params, master, &options.random, options.budget)?;
        let layout = params.layout()?;
        let newest = parts.checkpoints.read()?;
        let replay = LogReplay { layout: &layout, log: &parts.log, index: &parts.index, keys: &parts.keys };
        let replayed = replay.run(newest.header, &newest.fresh)?;
        let lost = replayed.sequence..replayed.sequence + SEQUENCE_JUMP;
        let left = stale_groups::find(&*flash, &layout, &parts.log, &lost, &replayed.ends)?;
        if !options.read_only {
            parts.start_writing(newest, &replayed, &left).map_err(advise_read_only)?;
        }
        let DiskParts { log, index, keys, log_writer, checkpoints, .. } = parts;
        let buffer = Arc::new(write_buffer(options, params.blocks)?);
        let reader = Arc::new(BlockReader::new(buffer.clone(), index.clone(), log.clone(), keys.clone()));
        // Each adopted block may replace one on the flash.
        let recoverable = keys.recoverable().max > 0 || buffer.len() > 0;
        let account = PurgeStats::new(options.clock.clone(), replayed.epoch, recoverable);
        let writer = Arc::new(DiskWriter::new(
            WriterParts {
                buffer: buffer.clone(),
                index: index.clone(),
                keys: keys.clone(),
                log_writer: log_writer.clone(),
                checkpoints: checkpoints.clone(),
                collector: GarbageCollector::new(log.clone(), index.clone(), log_writer.clone(), checkpoints),
                purger: Purger::new(
                    flash.clone(),
                    layout,
                    log.clone(),
                    index.clone(),
                    keys.clone(),
                    log_writer,
                ),
                reader: reader.clone(),
                purge_stats: account,
            },
            WriterState::new(replayed.epoch, replayed.purging, recoverable),
        ));
        let is_cut = replayed.purging && !options.read_only;
        let finished = if is_cut { writer.finish_purge() } else { PurgeResult::default() };
        let purging = match options.policy {
            Some(policy) if !options.read_only => {
                Some(PurgeThread::start(writer.clone(), keys.clone(), policy)?)
            }
            _ => None,
        };
        Ok(FlashDisk {
            params: *params,
            flash,
            read_only: options.read_only,
            log,
            keys,
            index,
            buffer,
            reader,
            writer,
            replayed: replayed.groups,
            unreported_purge: Mutex::new(finished),
            period: options.policy.filter(|_| !options.read_only).map(|policy| policy.period),
            purge_thread: Mutex::new(purging),
        })
    }

    /// The parameters it was opened with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Purges: when this returns, data deleted before cannot be recovered, even with all keys. The
    /// first purge also reports the interrupted purge that the opening finished.
    ///
    /// Errors: [`Kind::PurgeIncomplete`] if completion cannot be confirmed, whatever the cause. The
    /// disk takes no more writes then, and closing it fails as well. If the flash merely refused a
    /// call or a read failed, the disk goes on, and another purge may complete.
    /// [`Kind::ReadOnly`] if the disk is open read-only.
    pub fn purge(&self) -> Result<PurgeResult> {
        self.check_writable()?;
        let purged = self.writer.purge()?;
        self.sync().map_err(|e| e.with_kind(Kind::PurgeIncomplete))?;
        Ok(purged.plus(std::mem::take(&mut self.unreported_purge.lock())))
    }

    /// The most versions of blocks that were deleted or overwritten and that an adversary with the
    /// flash and every passphrase can still recover. Blocks in the write buffer count, since each
    /// may replace one on the flash. After a crash, keys that may encrypt nothing count as well
    /// ([`PurgeStatus::recoverable_known`]).
    pub fn recoverable(&self) -> u64 {
        self.writer.recoverable()
    }

    /// The deletion status: the number of recoverable blocks, the age of the oldest deletion, the
    /// time until the next purge, and past purges.
    pub fn purge_status(&self) -> PurgeStatus {
        self.writer.purge_status(self.period)
    }

    /// Marks these blocks as sensitive until the disk is closed: a call that deletes a version of
    /// any of them purges it before it returns.
    ///
    /// A write or discard that touches sensitive blocks, if any of them is on the flash, costs a
    /// flush of everything acknowledged and one purge, whatever the number of blocks: each block of
    /// the key storage area that holds deleted keys is replaced and its old copy erased. So a
    /// caller that deletes many sensitive blocks should do so in few calls. The first write to a
    /// sensitive block deletes nothing and costs a flush.
    ///
    /// A write or discard fails if the flash refuses its purge, and the purge is then owed: the
    /// next flush, the next write or discard of sensitive blocks, and the close complete it or fail
    /// too. The process may die before. So a purge is owed too if an earlier process left versions
    /// that may be recoverable: which of them were sensitive is not known.
    pub fn mark_sensitive(&self, blocks: Range<u64>) {
        self.writer.mark_sensitive(blocks);
    }

    /// Compares the key state map with all nodes that the index names (DNEFS, section 3.2): each
    /// used key encrypts exactly one of them, and no other key does. Returns the keys that violate
    /// this.
    pub fn check_keys(&self) -> Result<Vec<u32>> {
        crate::key_storage::key_check::check(&self.params.layout()?, &self.index, &self.keys)
    }

    fn check_writable(&self) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        Err(Error::new(Kind::ReadOnly, "the disk is open read-only"))
    }

    /// Makes the flash contents survive a crash of the machine. After a failed sync the loss is
    /// unknown, so writing ends.
    fn sync(&self) -> Result<()> {
        self.flash.sync().map_err(|e| self.writer.health.fail(e.of_sync()))
    }

    fn stop(&self) {
        if let Some(thread) = self.purge_thread.lock().take() {
            thread.stop();
        }
    }
}

impl Drop for FlashDisk {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The parts below the writer.
pub(crate) struct DiskParts {
    flash: Arc<dyn Flash>,
    pub(crate) log: Arc<Log>,
    pub(crate) index: Arc<Index>,
    pub(crate) keys: Arc<KeyStorage>,
    pub(crate) log_writer: Arc<LogWriter>,
    pub(crate) checkpoints: Arc<Checkpoints>,
}

impl DiskParts {
    pub(crate) fn new(
        flash: &Arc<dyn Flash>,
        params: &Params,
        master: &Secret<32>,
        random: &Arc<dyn RandomSource>,
        budget: Budget,
    ) -> Result<DiskParts> {
        let layout = params.layout()?;
        let keys =
            Arc::new(KeyStorage::open(flash.clone(), layout, master, random.clone(), budget.share(1, 4))?);
        let log = Arc::new(Log::new(flash.clone(), layout, master, random.clone(), budget.share(1, 4)));
        let index = Arc::new(Index::new(log.clone(), &layout, budget.share(1, 4)));
        let log_writer = Arc::new(LogWriter::new(layout, log.clone(), index.clone(), keys.clone()));
        let checkpoints = Checkpoints::new(
            flash.clone(),
            layout,
            master,
            random.clone(),
            log.clone(),
            index.clone(),
            keys.clone(),
        );
        let checkpoints = Arc::new(checkpoints);
        Ok(DiskParts { flash: flash.clone(), log, index, keys, log_writer, checkpoints })
    }

    /// Starts writing, at sequence numbers that were never used, and writes a checkpoint.
    ///
    /// No number is used twice, however many openings are cut before their checkpoint. Each of them
    /// replays the same log, and so would start at the same number: the end of the log plus a jump,
    /// or the floor in the checkpoint if that is higher. Its groups stay in erase blocks that the
    /// next opening finds, since nothing in them is live. That opening raises the floor above all
    /// numbers they may have before it erases them and before it writes. So either the floor is
    /// above all used numbers, or there are leftovers. Once an opening has written its checkpoint,
    /// the position in it is above them.
    fn start_writing(
        &self,
        newest: NewestCheckpoint,
        replayed: &ReplayResult,
        left: &StaleGroups,
    ) -> Result<()> {
        let mut first = (replayed.sequence + SEQUENCE_JUMP).max(newest.header.floor);
        if left.of_opening {
            first += SEQUENCE_JUMP;
            self.checkpoints.raise_floor(newest, first)?;
        }
        stale_groups::erase(&*self.flash, left)?;
        self.log.start(first)?;
        self.checkpoints.write(&self.log_writer, replayed.epoch, replayed.purging)
    }
}

impl Disk for FlashDisk {
    fn blocks(&self) -> u64 {
        self.params.blocks
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.reader.read(block_number(first.0)?, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        self.writer.write(block_number(first.0)?, data)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.check_writable()?;
        self.writer.discard(block_number(first.0)?, block_number(count)?)
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.writer.flush()?;
        self.sync()
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let mut runs = ExtentBuilder::default();
        for block in first.0..first.0 + count {
            let block = block_number(block)?;
            runs.add(1, self.buffer.get(block).is_some() || self.index.get(block)?.is_some());
        }
        Ok(runs.finish())
    }

    fn purge(&self) -> Result<Status> {
        let PurgeResult { key_blocks, keys, known, rewritten } = FlashDisk::purge(self)?;
        Ok(Status {
            items: vec![
                StatusItem::new("purged_keys", keys, "keys"),
                StatusItem::new("purged_known", known, "blocks"),
                StatusItem::new("purged_key_blocks", key_blocks, "blocks"),
                StatusItem::new("rewritten", rewritten, "blocks"),
            ],
        })
    }

    fn status(&self) -> Status {
        let (used, deleted) = self.keys.totals();
        let (collected, copied) = self.writer.collected();
        let (free, live) = self.log.with_table(|table| (u64::from(table.free()), table.all_live()));
        let mut status = Status {
            items: vec![
                StatusItem::new("dirty", (self.buffer.len() * BLOCK_SIZE) as u64, "bytes"),
                StatusItem::new("nodes_live", live, "nodes"),
                StatusItem::new("erase_blocks_free", free, "blocks"),
                StatusItem::new("erase_blocks_collected", collected, "blocks"),
                StatusItem::new("nodes_copied", copied, "nodes"),
                StatusItem::new("keys_used", used, "keys"),
                StatusItem::new("keys_deleted", deleted, "keys"),
                StatusItem::new("groups_replayed", self.replayed, "groups"),
            ],
        };
        status.items.extend(self.purge_status().items());
        status
    }

    fn close(&self) -> Result<()> {
        self.stop();
        if self.read_only {
            return Ok(());
        }
        let done = self.writer.close().and_then(|()| self.sync());
        self.writer.health.fail(closed_error());
        done
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// About the most blocks in the write buffer.
fn buffered_blocks(budget: Budget) -> usize {
    (budget.share(1, 8).get() as usize / BLOCK_SIZE).clamp(64, 4096)
}

/// The write buffer of a disk with `blocks` blocks, with those that a predecessor left: they win
/// over the log, which was replayed (`kept_blocks.rs`).
fn write_buffer(options: &OpenOptions, blocks: u64) -> Result<WriteBuffer> {
    let memory = match &options.kept {
        Some(memory) => memory.clone(),
        None => KeptMemory::anonymous(&FlashDisk::kept_layout(options.budget))?,
    };
    let buffer = WriteBuffer::new(KeptBlocks::new(memory), buffered_blocks(options.budget));
    if !options.read_only {
        buffer.adopt(blocks)?;
    }
    Ok(buffer)
}

/// Checks that this is the flash that the disk was made on.
fn check_flash(found: FlashGeometry, expected: FlashGeometry) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let words = |flash: FlashGeometry| {
        format!("{} erase blocks of {} bytes, pages of {}", flash.lebs, flash.leb_len, flash.page)
    };
    Err(Error::new(Kind::Corrupt, "this is not the flash that the disk was made on")
        .found(words(found))
        .expected(words(expected))
        .hint("put the flash back as it was, or restore the disk to a new one from a backup"))
}

/// The error of flash that takes no more writes when a disk is opened for writing.
fn advise_read_only(e: Error) -> Error {
    if e.kind() != Kind::ReadOnly {
        return e;
    }
    e.hint(
        Hint::from("open it with ")
            .setting(Setting("read_only"))
            .text(" and copy its content to another device: no flushed data is lost"),
    )
}
