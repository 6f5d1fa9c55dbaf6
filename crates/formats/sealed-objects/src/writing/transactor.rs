//! One transaction on one object: encrypts blocks, places their metadata, and adds the seal.
//!
//! It knows neither the cache nor other transactions: its caller has the object exclusively. After
//! an error it drops the cached metadata of the object, since the intended content may not be in
//! the store.

use crate::layouts::chain::ChainTails;
use crate::layouts::chunks::CHUNK_BLOCKS;
use crate::layouts::metadata_pages::FetchedPages;
use crate::layouts::placement::{EntryAnswer, EntrySource, Placement};
use crate::segment::Segment;
use crate::versions::table::VersionTable;
use crate::versions::ticket::TransactionTicket;
use crate::writing::buffers::{InFlightLimit, InFlightPermit};
use crate::writing::dirty_cache::{BegunTransaction, TransactionWork};
use crate::writing::encryptor::Encryptor;
use crate::writing::object_change::{Fill, ObjectChange};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction, Query};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Attempts at a transaction on an object that is replaced concurrently.
const MAX_ATTEMPTS: u32 = 8;

/// Performs transactions.
pub(crate) struct Transactor {
    data: Arc<dyn ObjectStore>,
    encryptor: Encryptor,
    placement: Arc<dyn Placement>,
    version_table: Option<Arc<VersionTable>>,
    in_flight_limit: InFlightLimit,
    /// The length of the disk.
    blocks: u64,
    transactions: AtomicU64,
    blocks_written: AtomicU64,
    /// Refused objects that were rewritten.
    objects_rewritten: AtomicU64,
}

impl Transactor {
    /// A transactor for a disk of `blocks` blocks. `transit` bounds the ciphertext in flight; there
    /// is a version table only with a cipher that authenticates.
    pub(crate) fn new(
        data: Arc<dyn ObjectStore>,
        encryptor: Encryptor,
        placement: Arc<dyn Placement>,
        version_table: Option<Arc<VersionTable>>,
        transit: InFlightLimit,
        blocks: u64,
    ) -> Transactor {
        let [transactions, transacted, renewed] = [0; 3].map(AtomicU64::new);
        Transactor {
            data,
            encryptor,
            placement,
            version_table,
            in_flight_limit: transit,
            blocks,
            transactions,
            blocks_written: transacted,
            objects_rewritten: renewed,
        }
    }

    /// Counts for `status`: transactions, blocks, objects rewritten after a refusal.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.transactions, &self.blocks_written, &self.objects_rewritten]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until the ciphertext of blocks fits in transit. A write past the cache does so before
    /// it begins.
    pub(crate) fn wait_for_transit(&self, blocks: u64) -> InFlightPermit<'_> {
        self.in_flight_limit.acquire(blocks as usize * self.placement.slot())
    }

    /// Performs a transaction that has begun; `direct` is the data of one past the cache, for which
    /// the caller holds a permit: a second one here might never fit. Returns whether the object is
    /// known to be absent afterwards.
    ///
    /// Errors: an error that changed nothing ([`Error::changed_nothing`]), mostly for lack of
    /// space: nothing happened. With every other error the transaction may have happened or not.
    pub(crate) fn perform(&self, segment: Segment, begun: &BegunTransaction, direct: &[u8]) -> Result<bool> {
        let absent = begun.absent;
        let performed = match &begun.work {
            TransactionWork::Discard(_) => self.empty_object(segment),
            TransactionWork::Blocks(blocks) => {
                let _permit = self.wait_for_transit(blocks.len() as u64);
                self.apply_and_reclaim(self.encryptor.encrypt_cached(segment, blocks, absent))
            }
            TransactionWork::Direct(range, _) => {
                self.apply_and_reclaim(self.encryptor.encrypt_run(segment, range.start, direct, absent))
            }
        };
        performed.map_err(|e| {
            self.placement.invalidate(segment);
            e.context(format!("writing object {} of the disk", segment.0))
        })
    }

    /// Performs a change, and reuses its buffer.
    fn apply_and_reclaim(&self, change: ObjectChange) -> Result<bool> {
        let performed = self.apply_change(&change);
        self.encryptor.reclaim(change);
        performed
    }

    /// Performs a change. Returns whether the object is known to be absent afterwards.
    fn apply_change(&self, change: &ObjectChange) -> Result<bool> {
        if change.is_noop() {
            return Ok(true);
        }
        if let Some(version_table) = &self.version_table {
            self.apply_with_seal(change, version_table)?;
        } else {
            let steps = self.steps(change, vec![], &mut ChainTails::default());
            self.apply(change.segment, steps)?;
        }
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.blocks_written.fetch_add(change.blocks(), Ordering::Relaxed);
        Ok(false)
    }

    /// Performs a change of an object with a seal. An object that does not verify is rewritten:
    /// blocks that the change does not replace are lost.
    fn apply_with_seal(&self, change: &ObjectChange, version_table: &VersionTable) -> Result<()> {
        let segment = change.segment;
        let mut changed = None;
        for _ in 0..MAX_ATTEMPTS {
            let mut ticket = version_table.begin(segment)?;
            // An object that was reported absent, and read as zeros, has no content to keep.
            let replaces = ticket.refusal().is_some() || change.absent && !ticket.is_new_object();
            let answer = if replaces {
                self.replace_object(change, &mut ticket)
            } else {
                self.update_object(change, &mut ticket)
            };
            match ticket.finish(answer) {
                Ok(_) => return Ok(()),
                Err(e) if matches!(e.kind(), Kind::Changed | Kind::Exists) => {
                    // It did not happen, and its metadata is not in the store.
                    self.placement.invalidate(segment);
                    changed = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        Err(changed.expect("it was tried"))
    }

    /// Changes an object that must still be in the state that the ticket knows.
    fn update_object(&self, change: &ObjectChange, ticket: &mut TransactionTicket<'_>) -> Result<u64> {
        let mut tails = ticket.tails();
        let fetched = match self.fetch_pages(change, &tails) {
            // Unreadable pages are not needed as long as chains may grow.
            Err(e) if unreadable(&e) && !self.placement.needs_fetch(&tails) => vec![],
            fetched => fetched?,
        };
        let mut steps: Vec<ObjectStep<'_>> = ticket.guard_step().into_iter().collect();
        steps.extend(self.steps(change, fetched, &mut tails));
        steps.push(ticket.seal_step(tails));
        self.apply(change.segment, steps)
    }

    /// The pages that a change needs and that are not in memory. Pages of another version of the
    /// object do no harm: the change applies to this version, or fails.
    fn fetch_pages(&self, change: &ObjectChange, tails: &ChainTails) -> Result<FetchedPages> {
        let missing = self.placement.pages_to_fetch(change, tails);
        if missing == 0 {
            return Ok(vec![]);
        }
        let segment = change.segment;
        let range = u64::from(missing.trailing_zeros()) * CHUNK_BLOCKS
            ..(u64::from(missing.ilog2()) + 1) * CHUNK_BLOCKS;
        let EntrySource::Keys(keys) = self.placement.source(&range, missing) else { return Ok(vec![]) };
        let query = Query { object: segment.0, extents: vec![], keys };
        let found = self.data.query_one(query).map_err(Error::of_read)?;
        let mut entries = vec![0; (range.end - range.start) as usize * self.encryptor.meta_size()];
        let answer = EntryAnswer { segment, range: &range, missing, pairs: &found.pairs, tails };
        self.placement.extract_entries(&answer, &mut entries)
    }

    /// Replaces an object by the blocks of the change. The other blocks are marked as lost, since
    /// they were or may have been written; if the object was reported absent, they become
    /// unwritten.
    fn replace_object(&self, change: &ObjectChange, ticket: &mut TransactionTicket<'_>) -> Result<u64> {
        self.objects_rewritten.fetch_add(1, Ordering::Relaxed);
        self.placement.invalidate(change.segment);
        let rest = if change.absent { Fill::Hole } else { Fill::Lost };
        let count = change.segment.blocks_on(self.blocks);
        let whole = change.whole_object(rest, count, self.placement.slot(), self.encryptor.meta_size());
        let mut tails = ChainTails::default();
        let mut steps: Vec<ObjectStep<'_>> = ticket.clearing_steps();
        steps.extend(self.steps(&whole, vec![], &mut tails));
        steps.push(ticket.seal_step(tails));
        self.apply(change.segment, steps)
    }

    /// The steps of a change: data, and entries where the layout stores them. Updates the tails.
    fn steps<'c>(
        &self,
        change: &'c ObjectChange,
        fetched: FetchedPages,
        tails: &mut ChainTails,
    ) -> Vec<ObjectStep<'c>> {
        let mut steps = change.slot_steps(self.placement.slot());
        self.placement.add_steps(change, fetched, tails, &mut steps);
        steps
    }

    /// Empties an object. Returns whether it is known to be absent afterwards.
    fn empty_object(&self, segment: Segment) -> Result<bool> {
        self.placement.invalidate(segment);
        let Some(version_table) = &self.version_table else {
            self.transactions.fetch_add(1, Ordering::Relaxed);
            return self.apply(segment, vec![ObjectStep::Remove]).map(|_| true);
        };
        // An object with a seal must not disappear; and discarding an object that never existed
        // must not create it.
        if version_table.is_new(segment)? {
            return Ok(true);
        }
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let mut ticket = version_table.begin(segment)?;
        // Nothing of it is kept, so its present content does not matter.
        let answer = self.apply(segment, ticket.emptying_steps());
        ticket.finish(answer).map(|_| false)
    }

    fn apply(&self, segment: Segment, steps: Vec<ObjectStep<'_>>) -> Result<u64> {
        self.data.apply_one(ObjectTransaction { object: segment.0, steps })
    }
}

/// Whether the error says that something cannot be read or does not verify.
fn unreadable(e: &Error) -> bool {
    e.kind() == Kind::Corrupt || e.changed_nothing()
}
