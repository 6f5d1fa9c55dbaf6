//! Conversion of a file to another scheme, in steps, and the bound on its counter intervals.
//!
//! A file in conversion has two layers: one under MT-EINT, and below it one under another scheme. A
//! block that the upper layer has belongs to it; all other blocks belong to the lower one. All
//! writes and punches meanwhile go to the upper layer, which needs no authentic counters. So only
//! the conversion adds intervals to the lower layer, and it is given up when they become too many.

use crate::failed::{CheckResult, FailedBlock};
use crate::file::{LowerLayer, ProtectedFile, Rewriting};
use crate::scheme::{Choice, Scheme};
use crate::schemes::new_layer;
use crate::schemes::scheme_layer::{DISPERSED, ExtentState, batch_blocks, half_done};
use crate::untrusted::Untrusted;
use lacuna_contracts::{Kind, Result, WipeOnDrop};

/// The most blocks that one call of [`ProtectedFile::convert_if_better`] converts.
const STEP: u64 = 1024;
/// The most blocks of a file that is rewritten when its counters are dispersed.
const REWRITTEN: u64 = 4096;
/// The least number of counter intervals for rewriting such a file.
const REWRITTEN_INTERVALS: u64 = 512;
/// The most blocks that are converted at once.
const RUN: u64 = 64;

impl ProtectedFile {
    /// Whether [`ProtectedFile::convert_if_better`] would do something. Cheap; for a file of at
    /// most 4096 blocks with many counter intervals, it reads those. Errors: [`Kind::Corrupt`] if
    /// the intervals do not verify.
    pub fn needs_conversion(&self, us: &dyn Untrusted) -> Result<bool> {
        Ok(self.lower.is_some() || self.suitable_scheme() != self.scheme || self.needs_rewrite(us)?)
    }

    /// Converts the file, a part of it with each call, to the scheme that suits it, if that is
    /// another one, and rewrites a small file with dispersed counters. No other method continues a
    /// conversion: the owner (a vault, while a file is not in use) calls this again while it
    /// returns true, and may commit between calls.
    ///
    /// A call converts or rewrites at most 1024 blocks; the last call also removes the pages of the
    /// old scheme. Returns whether the call made progress. Errors: [`Kind::Corrupt`] where US does
    /// not verify, and [`Kind::NoSpace`]: blocks that were not converted yet are unchanged. The
    /// same holds if a block cannot be read: it belongs to its layer as before, and the next call
    /// tries again.
    pub fn convert_if_better(&mut self, us: &dyn Untrusted) -> Result<bool> {
        if self.lower.is_some() {
            self.try_change(|file| file.convert_step(us))?;
            return Ok(true);
        }
        let wanted = self.suitable_scheme();
        if wanted != self.scheme {
            self.change(|file| {
                file.begin_conversion(wanted);
                Ok(())
            })?;
            return Ok(true);
        }
        if !self.needs_rewrite(us)? {
            return Ok(false);
        }
        let before = self.upper.intervals();
        self.try_change(|file| file.rewrite_step(us))?;
        Ok(self.rewriting.next > 0 || self.upper.intervals() < before)
    }

    /// The scheme that suits the file.
    fn suitable_scheme(&self) -> Scheme {
        if self.scheme == Scheme::Mt && self.profile.has_given_up() && self.blocks() > 0 {
            return Scheme::Mt;
        }
        match self.choice {
            Choice::Fixed(scheme) => scheme,
            Choice::Auto => {
                self.profile.recommended_scheme(self.scheme, self.blocks()).unwrap_or(self.scheme)
            }
        }
    }

    /// Whether a rewriting is in progress, or a small file has many counter intervals: more than
    /// 9/8 of the number that a rewriting would leave.
    fn needs_rewrite(&self, us: &dyn Untrusted) -> Result<bool> {
        if self.lower.is_some() || self.blocks() > REWRITTEN {
            return Ok(false);
        }
        let (now, next) = (self.upper.intervals(), self.rewriting.next);
        if next > 0 || now < REWRITTEN_INTERVALS {
            return Ok(next > 0);
        }
        let least = self.upper.fewest_intervals(us)?.max(self.rewriting.left);
        Ok(now > least + least / 8)
    }

    /// Begins to convert the file.
    fn begin_conversion(&mut self, wanted: Scheme) {
        let new = || new_layer(wanted, self.keys.clone(), self.block_size);
        if self.blocks() == 0 {
            (self.upper, self.scheme) = (new(), wanted);
            self.profile.reset_counts();
            self.set_budget(self.budget);
        } else if self.scheme == Scheme::Mt {
            let layer = new();
            self.scheme = wanted;
            self.set_lower(wanted, layer);
        } else {
            // Two schemes other than MT-EINT share parts of US, so convert to MT-EINT first.
            self.begin_conversion_to_mt();
        }
    }

    /// Converts up to [`STEP`] more blocks. A block that does not verify fails after the conversion
    /// as before.
    fn convert_step(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut buffer = WipeOnDrop::new(vec![0u8; RUN as usize * self.block_size]);
        let mut left = STEP;
        while left > 0 {
            let Some(mut lower) = self.lower.take() else { return Ok(()) };
            let up = self.scheme == Scheme::Mt;
            let end = if up { lower.layer.blocks() } else { self.upper.blocks() };
            if lower.converted >= end {
                let finished = self.finish_conversion(us, &mut lower);
                match finished {
                    Ok(true) if up => {}
                    Ok(true) => self.upper = lower.layer,
                    _ => self.lower = Some(lower),
                }
                self.set_budget(self.budget);
                finished?;
                left -= 1;
                continue;
            }
            let most = left.min(if up { RUN } else { batch_blocks(self.block_size) as u64 }.min(RUN));
            let buffer = &mut buffer[..most as usize * self.block_size];
            let done = if up {
                self.convert_to_mt(us, &mut lower, buffer)
            } else {
                self.convert_from_mt(us, &mut lower, buffer)
            };
            if !up && lower.layer.intervals() > DISPERSED {
                // There are too many holes: convert the lower layer back to MT-EINT.
                self.profile.give_up();
                (self.scheme, lower.converted) = (Scheme::Mt, 0);
            }
            self.lower = Some(lower);
            left = left.saturating_sub(done?.max(1));
        }
        Ok(())
    }

    /// Converts a run of blocks from the lower layer to MT-EINT. Returns the number of data blocks
    /// handled.
    fn convert_to_mt(
        &mut self,
        us: &dyn Untrusted,
        lower: &mut LowerLayer,
        buffer: &mut [u8],
    ) -> Result<u64> {
        let block = lower.converted;
        let (state, end) = self.upper.extent_at(us, block)?;
        let (below, until) = lower.layer.extent_at(us, block)?;
        let end = end.min(until).min(lower.layer.blocks());
        if state != ExtentState::Unwritten || below != ExtentState::Data {
            lower.converted = end;
            return Ok(0);
        }
        let count = (end - block).min((buffer.len() / self.block_size) as u64);
        let plain = &mut buffer[..count as usize * self.block_size];
        let good = verified(lower.layer.read(us, block, plain), block, count)?;
        self.upper.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
        if good < count {
            self.upper.mark_lost(us, &mut self.pass, block + good)?;
        }
        lower.converted = block + count.min(good + 1);
        Ok(count)
    }

    /// Converts a run of blocks from MT-EINT to the scheme below. Returns the number of data blocks
    /// handled.
    fn convert_from_mt(
        &mut self,
        us: &dyn Untrusted,
        lower: &mut LowerLayer,
        buffer: &mut [u8],
    ) -> Result<u64> {
        let block = lower.converted;
        self.upper.flush_over_budget(us)?;
        let (state, end) = self.upper.extent_at(us, block)?;
        let end = end.min(self.upper.blocks());
        let mut count = end - block;
        match state {
            ExtentState::Unwritten => {}
            ExtentState::Punched => lower.layer.punch(us, block, count, false).map_err(half_done)?,
            ExtentState::Data => {
                // The run is written as a whole or, for lack of space, not at all: then it still
                // belongs to MT-EINT.
                count = count.min((buffer.len() / self.block_size) as u64);
                let plain = &mut buffer[..count as usize * self.block_size];
                let good = verified(self.upper.read(us, block, plain), block, count)?;
                if good > 0 {
                    let plain = &plain[..good as usize * self.block_size];
                    lower.layer.write(us, &mut self.pass, block, plain)?;
                } else {
                    lower.layer.mark_lost(us, &mut self.pass, block)?;
                }
                count = good.max(1);
            }
        }
        if state != ExtentState::Unwritten {
            self.upper.punch(us, block, count, false).map_err(half_done)?;
        }
        lower.converted = block + count;
        Ok(if state == ExtentState::Data { count } else { 0 })
    }

    /// Drops one of the layers, unless blocks were written to it since. Returns whether it did.
    fn finish_conversion(&mut self, us: &dyn Untrusted, lower: &mut LowerLayer) -> Result<bool> {
        if self.scheme == Scheme::Mt {
            lower.layer.resize(us, 0).map_err(half_done)?;
            return Ok(true);
        }
        let blocks = self.upper.blocks();
        let (state, end) = self.upper.extent_at(us, 0)?;
        if state != ExtentState::Unwritten || end < blocks {
            lower.converted = if state == ExtentState::Unwritten { end } else { 0 };
            return Ok(false);
        }
        lower.layer.resize(us, blocks).map_err(half_done)?;
        self.upper.resize(us, 0).map_err(half_done)?;
        Ok(true)
    }

    /// Rewrites up to [`STEP`] more blocks in one pass, so that they share one counter. Blocks that
    /// fail stay unchanged.
    fn rewrite_step(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut buffer = WipeOnDrop::new(vec![0u8; RUN as usize * self.block_size]);
        let mut left = STEP;
        while left > 0 && self.rewriting.next < self.blocks() {
            let block = self.rewriting.next;
            let (state, end) = self.upper.extent_at(us, block)?;
            if state != ExtentState::Data {
                self.rewriting.next = end;
                left -= 1;
                continue;
            }
            let count = (end - block).min(RUN).min(left);
            let plain = &mut buffer[..count as usize * self.block_size];
            let good = verified(self.upper.read(us, block, plain), block, count)?;
            self.upper.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
            self.rewriting.next = block + count.min(good + 1);
            left -= count;
        }
        if self.rewriting.next >= self.blocks() {
            self.rewriting = Rewriting { next: 0, left: self.upper.intervals() };
        }
        Ok(())
    }
}

/// The number of blocks, of `count` starting at `first`, that verified.
fn verified(read: CheckResult, first: u64, count: u64) -> Result<u64> {
    match read {
        Ok(()) => Ok(count),
        Err(FailedBlock { block, error }) if error.kind() == Kind::Corrupt => Ok(block - first),
        Err(FailedBlock { error, .. }) => Err(error),
    }
}
