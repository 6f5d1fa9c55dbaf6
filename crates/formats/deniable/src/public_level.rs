//! Level 0: takes blocks into stripes in the order of the writes, beside the blocks that a stripe
//! carries, and closes a full stripe and sends it to the medium (PD-DM, Algorithms 2 and 5 and
//! Table 1, for all public slots of a stripe at once).
//!
//! Deniability contract: public operations and the paced clock alone decide here which stripes
//! exist, when they are closed and which facts level 0 can read in them, under a lock that hidden
//! operations never take.

use crate::health::Health;
use crate::hidden::OpenHiddenLevels;
use crate::keys::Salt;
use crate::log::summary::{LogEnd, PublicSummary, stripe_name};
use crate::params::Params;
use crate::place::StripeSeq;
use crate::public_view::PublicView;
use crate::stripe::carried::CarriedSlots;
use crate::stripe::carrier::Carrier;
use crate::stripe::closed_stripe::ClosedStripe;
use crate::stripe::pipeline::Pipeline;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Error, Kind, Result};
use lacuna_crypto::RandomSource;
use lacuna_levels::{Pace, SALT_LEN};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stripe that a flush or a beat closes calls durable the stripe that was closed this number of
/// flushes and beats earlier: a fixed number does not depend on the time of a sync. With more, more
/// clients can flush at once; with fewer, less of the log counts as lost when its end is damaged.
const CLAIM_DELAY: usize = 4;

/// Level 0, for changes.
pub(crate) struct PublicLevel {
    params: Params,
    health: Arc<Health>,
    view: Arc<PublicView>,
    carrier: Arc<Carrier>,
    hidden: Arc<OpenHiddenLevels>,
    pipeline: Arc<Pipeline>,
    /// The public randomness, which salts are made of.
    random: Arc<dyn RandomSource>,
    /// Held by the one operation that changes level 0, also while it waits for the medium.
    state: Mutex<StripeState>,
    blocks_written: AtomicU64,
    refreshes: AtomicU64,
}

/// The state that one operation leaves to the next.
struct StripeState {
    /// The last closed stripe.
    last: LogEnd,
    /// The hidden slots that the open stripe carries; none while no stripe is open.
    carried: Option<CarriedSlots>,
    /// Stripes that flushes and beats closed and that no stripe has called durable yet, and the
    /// last stripe that was called durable.
    to_claim: VecDeque<StripeSeq>,
    claimed: StripeSeq,
    /// Whether the medium refused a stripe, or the system refused to read the blocks that the next
    /// stripe carries: the operation fails, and everything is as it was before its last step.
    was_refused: bool,
}

fn no_space_error(what: &str) -> Error {
    Error::new(Kind::NoSpace, format!("the log has no room for {what}"))
        .found("no free slot in a whole lap")
        .expected("at least the spare ones")
}

impl PublicLevel {
    /// Level 0 of a log with this end.
    pub(crate) fn new(
        health: Arc<Health>,
        view: Arc<PublicView>,
        carrier: Arc<Carrier>,
        hidden: Arc<OpenHiddenLevels>,
        pipeline: Arc<Pipeline>,
        random: Arc<dyn RandomSource>,
        end: LogEnd,
    ) -> PublicLevel {
        let claimed = end.head;
        let turn =
            StripeState { last: end, carried: None, to_claim: VecDeque::new(), claimed, was_refused: false };
        PublicLevel {
            params: *pipeline.params(),
            health,
            view,
            carrier,
            hidden,
            pipeline,
            random,
            state: Mutex::new(turn),
            blocks_written: AtomicU64::new(0),
            refreshes: AtomicU64::new(0),
        }
    }

    /// Blocks that front ends wrote, and beats of the paced cover.
    pub(crate) fn counters(&self) -> [u64; 2] {
        [&self.blocks_written, &self.refreshes].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// Runs one change of level 0 at a time.
    fn with_state<T>(&self, change: impl FnOnce(&mut StripeState) -> Result<T>) -> Result<T> {
        let mut turn = self.state.lock();
        let _guard = self.health.fail_on_panic();
        self.health.check()?;
        let done = change(&mut turn);
        let refused = std::mem::take(&mut turn.was_refused);
        done.map_err(|e| if refused { e } else { self.health.fail_unless_full(e) })
    }

    /// Takes blocks into the log one after another, with no other new blocks between them, because
    /// they are read together.
    pub(crate) fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        let count = data.len() / BLOCK_SIZE;
        self.view.warm(first, count as u64);
        self.with_state(|turn| {
            let (mut done, mut stripes) = (0, 0);
            loop {
                self.ensure_open(turn)?;
                let rest = &data[done * BLOCK_SIZE..];
                let taken = self.view.add_blocks(BlockAddr(first.0 + done as u64), rest)?;
                done += taken;
                if done == count {
                    return Ok(());
                }
                // Existing valid data goes before new data (Table 1): try the next stripe.
                self.close_stripe(turn)?;
                stripes = if taken > 0 { 1 } else { stripes + 1 };
                if stripes > 2 * self.params.stripes {
                    return Err(no_space_error("a block"));
                }
            }
        })?;
        self.blocks_written.fetch_add(count as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Makes blocks unwritten. The medium gets no discard: the log records it, and the slots are
    /// reused in their turn.
    pub(crate) fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        let view = &self.view;
        view.warm(first, count);
        self.with_state(|turn| {
            let mut stripes = 0;
            loop {
                self.ensure_open(turn)?;
                if !view.is_any_written(first, count)? {
                    return Ok(());
                }
                stripes += 1;
                if stripes > 2 * self.params.stripes {
                    return Err(no_space_error("a discard"));
                }
                if view.discard(first, count)? {
                    break;
                }
                self.close_stripe(turn)?;
            }
            // If the discard changed many pages, they are written before it returns.
            for _ in 0..self.params.stripes {
                if !view.is_over_dirty_limit() {
                    break;
                }
                self.ensure_open(turn)?;
                self.close_stripe(turn)?;
            }
            Ok(())
        })
    }

    /// Makes everything that level 0 acknowledged durable.
    pub(crate) fn flush(&self) -> Result<()> {
        let closed = self.with_state(|turn| {
            if self.view.has_new_data() {
                self.close_and_claim(turn)?;
            }
            Ok(turn.last.head)
        })?;
        self.pipeline.make_durable(closed)
    }

    /// One beat of the paced cover. If the medium refuses its stripe, the next beat tries again.
    pub(crate) fn refresh(&self) -> Result<()> {
        let _guard = self.health.fail_on_panic();
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        self.write_stripe().map(drop)
    }

    /// Writes the stripes of cover that closing takes, whatever they hold, and makes them durable.
    pub(crate) fn write_closing_cover(&self, pace: Pace) -> Result<()> {
        let _guard = self.health.fail_on_panic();
        self.params.closing_cover().write(pace, |durable| {
            if durable {
                return self.write_stripe().map(drop);
            }
            self.with_state(|turn| {
                self.ensure_open(turn)?;
                self.close_stripe(turn)
            })
        })
    }

    /// Closes the open stripe, whatever it holds, and syncs. Returns its number.
    fn write_stripe(&self) -> Result<StripeSeq> {
        let closed = self.with_state(|turn| {
            self.ensure_open(turn)?;
            self.close_and_claim(turn)?;
            Ok(turn.last.head)
        })?;
        self.pipeline.make_durable(closed)?;
        Ok(closed)
    }

    /// Ends the log with a stripe that holds nothing new, makes everything durable and marks the
    /// disk as closed in a checkpoint. After that a stripe that cannot be read is damage and not
    /// the end of the log, and the echo in the stripe after it lists its blocks.
    pub(crate) fn finish(&self) -> Result<()> {
        let last = self.write_stripe()?;
        self.pipeline.mark_closed(last, &self.draw_salt())
    }

    /// Random bytes for the salt of a stripe or a checkpoint, which is hedged with the content
    /// sealed under it. Drawn in the order of operations, never by a thread of the disk: the same
    /// public randomness gives the same trace.
    pub(crate) fn draw_salt(&self) -> Salt {
        let mut salt = [0; SALT_LEN];
        self.random.fill(&mut salt);
        salt
    }

    /// Opens a stripe if none is open.
    ///
    /// Errors: the reason why the system refuses to read the blocks to carry; nothing has changed
    /// then.
    fn ensure_open(&self, turn: &mut StripeState) -> Result<()> {
        if turn.carried.is_none() {
            let seq = turn.last.head.next();
            let taken = self.carrier.take(seq);
            let carried = taken.inspect_err(|e| turn.was_refused = e.kind().is_refusal())?;
            // The carried blocks are taken: a failure cannot be tried again.
            turn.carried = Some(self.view.open(seq, carried).map_err(|e| self.health.fail(e))?);
        }
        Ok(())
    }

    /// Waits until a stripe may be closed. The caller may then close one without another wait.
    fn wait_room(&self, turn: &mut StripeState) -> Result<()> {
        self.pipeline.wait_for_room().inspect_err(|e| turn.was_refused = e.kind().is_refusal())
    }

    /// Closes the open stripe for a flush or a beat. It may call an earlier stripe durable.
    fn close_and_claim(&self, turn: &mut StripeState) -> Result<()> {
        self.wait_room(turn)?;
        turn.claim();
        self.close_stripe(turn)
    }

    /// Closes the open stripe, fills its hidden slots and sends it to the medium.
    ///
    /// Errors: the reason why the medium refuses stripes; nothing has changed then. Any other error
    /// is fail-stop.
    ///
    /// The hidden slots are filled before the operation that closed the stripe goes on: the blocks
    /// of a level in a stripe are a function of the order of operations on it and on level 0, never
    /// of speed (deniability contract).
    fn close_stripe(&self, turn: &mut StripeState) -> Result<()> {
        self.wait_room(turn)?;
        let drawn = self.draw_salt();
        let seq = turn.last.head.next();
        let checkpoint = self.pipeline.is_checkpoint_due(seq).then(|| self.draw_salt());
        let carried = turn.carried.take().expect("an open stripe has its carried blocks");
        let (in_flight, root) = self.view.close();
        let entries = in_flight.public.entries_of(0);
        let last = LogEnd { head: seq, name: stripe_name(&drawn), echo: entries.clone() };
        let before = std::mem::replace(&mut turn.last, last);
        let part = PublicSummary {
            seq,
            previous: before.name,
            synced: turn.claimed.max(self.params.synced_before(seq)),
            root,
            entries: entries.into_iter().map(|entry| (entry, [0; 16])).collect(),
            echo: before.echo,
        };
        let filled = self.hidden.fill(&in_flight, carried);
        let sent = filled.and_then(|hidden| {
            let closed = ClosedStripe { in_flight, hidden, salt: drawn, checkpoint, part };
            let closed = closed.with_hedged_salt(self.pipeline.keys());
            turn.last.name = stripe_name(&closed.salt);
            self.pipeline.send(closed)
        });
        // No other stripe can take the number of this one: fail-stop.
        sent.map_err(|e| self.health.fail(e))
    }
}

impl StripeState {
    /// Records that a flush or a beat is going to close the open stripe, which may call an earlier
    /// one durable.
    fn claim(&mut self) {
        self.to_claim.push_back(self.last.head.next());
        if self.to_claim.len() > CLAIM_DELAY {
            self.claimed = self.to_claim.pop_front().expect("there are more");
        }
    }
}
