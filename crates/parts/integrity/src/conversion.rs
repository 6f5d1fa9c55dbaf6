//! Conversion of a file to another scheme, in steps, and the bound on its counter intervals.
//!
//! A file in conversion has two bodies: one under MT-EINT, and below it one under another scheme. A
//! block that the upper body has belongs to it; all other blocks belong to the lower one. All
//! writes and punches meanwhile go to the upper body, which needs no authentic counters. So only
//! the conversion adds intervals to the lower body, and it is given up when they become too many.

use crate::body::{DISPERSED, State, batch_blocks};
use crate::failed::{Checked, Failed};
use crate::file::{ProtectedFile, Rewriting, Under};
use crate::scheme::{Choice, Scheme};
use crate::schemes::new_body;
use crate::untrusted::Untrusted;
use lacuna_contracts::{Kind, Plain, Result};

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
    pub fn wants_conversion(&self, us: &dyn Untrusted) -> Result<bool> {
        Ok(self.under.is_some() || self.wanted() != self.scheme || self.is_scattered(us)?)
    }

    /// Converts the file, a part of it with each call, to the scheme that suits it, if that is
    /// another one, and rewrites a small file with dispersed counters. No other method continues a
    /// conversion: the owner (a vault, while a file is not in use) calls this again while it
    /// returns true, and may commit between calls.
    ///
    /// A call converts or rewrites at most 1024 blocks; the last call also removes the pages of the
    /// old scheme. Returns whether the call made progress. Errors: [`Kind::Corrupt`] where US does
    /// not verify, and [`Kind::NoSpace`]: blocks that were not converted yet are unchanged.
    pub fn convert_if_better(&mut self, us: &dyn Untrusted) -> Result<bool> {
        if self.under.is_some() {
            self.change(|file| file.settle(us))?;
            return Ok(true);
        }
        let wanted = self.wanted();
        if wanted != self.scheme {
            self.change(|file| {
                file.lay(wanted);
                Ok(())
            })?;
            return Ok(true);
        }
        if !self.is_scattered(us)? {
            return Ok(false);
        }
        let before = self.top.intervals();
        self.change(|file| file.rewrite(us))?;
        Ok(self.rewriting.next > 0 || self.top.intervals() < before)
    }

    /// The scheme that suits the file.
    fn wanted(&self) -> Scheme {
        if self.scheme == Scheme::Mt && self.nature.has_given_up() && self.blocks() > 0 {
            return Scheme::Mt;
        }
        match self.choice {
            Choice::Fixed(scheme) => scheme,
            Choice::Auto => self.nature.wants(self.scheme, self.blocks()).unwrap_or(self.scheme),
        }
    }

    /// Whether a rewriting is in progress, or a small file has many counter intervals: more than
    /// 9/8 of the number that a rewriting would leave.
    fn is_scattered(&self, us: &dyn Untrusted) -> Result<bool> {
        if self.under.is_some() || self.blocks() > REWRITTEN {
            return Ok(false);
        }
        let (now, next) = (self.top.intervals(), self.rewriting.next);
        if next > 0 || now < REWRITTEN_INTERVALS {
            return Ok(next > 0);
        }
        let least = self.top.fewest_intervals(us)?.max(self.rewriting.left);
        Ok(now > least + least / 8)
    }

    /// Begins to convert the file.
    fn lay(&mut self, wanted: Scheme) {
        let new = || new_body(wanted, self.keys.clone(), self.block_size);
        if self.blocks() == 0 {
            (self.top, self.scheme) = (new(), wanted);
            self.nature.converted();
            self.set_budget(self.budget);
        } else if self.scheme == Scheme::Mt {
            let body = new();
            self.scheme = wanted;
            self.begin(wanted, body);
        } else {
            // Two schemes other than MT-EINT share parts of US, so convert to MT-EINT first.
            self.overlay();
        }
    }

    /// Converts up to [`STEP`] more blocks. A block that does not verify fails after the conversion
    /// as before.
    fn settle(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut buffer = Plain::new(vec![0u8; RUN as usize * self.block_size]);
        let mut left = STEP;
        while left > 0 {
            let Some(mut under) = self.under.take() else { return Ok(()) };
            let up = self.scheme == Scheme::Mt;
            let end = if up { under.body.blocks() } else { self.top.blocks() };
            if under.converted >= end {
                let finished = self.finish(us, &mut under);
                match finished {
                    Ok(true) if up => {}
                    Ok(true) => self.top = under.body,
                    _ => self.under = Some(under),
                }
                self.set_budget(self.budget);
                finished?;
                left -= 1;
                continue;
            }
            let most = left.min(if up { RUN } else { batch_blocks(self.block_size) as u64 }.min(RUN));
            let buffer = &mut buffer[..most as usize * self.block_size];
            let done =
                if up { self.raise(us, &mut under, buffer) } else { self.lower(us, &mut under, buffer) };
            if !up && under.body.intervals() > DISPERSED {
                // There are too many holes: convert the lower body back to MT-EINT.
                self.nature.give_up();
                (self.scheme, under.converted) = (Scheme::Mt, 0);
            }
            self.under = Some(under);
            left = left.saturating_sub(done?.max(1));
        }
        Ok(())
    }

    /// Converts a run of blocks from the lower body to MT-EINT. Returns the number of data blocks
    /// handled.
    fn raise(&mut self, us: &dyn Untrusted, under: &mut Under, buffer: &mut [u8]) -> Result<u64> {
        let block = under.converted;
        let (state, end) = self.top.run(us, block)?;
        let (below, until) = under.body.run(us, block)?;
        let end = end.min(until).min(under.body.blocks());
        if state != State::Nothing || below != State::Data {
            under.converted = end;
            return Ok(0);
        }
        let count = (end - block).min((buffer.len() / self.block_size) as u64);
        let plain = &mut buffer[..count as usize * self.block_size];
        let good = verified(under.body.read(us, block, plain), block, count)?;
        self.top.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
        if good < count {
            self.top.lose(us, &mut self.pass, block + good)?;
        }
        under.converted = block + count.min(good + 1);
        Ok(count)
    }

    /// Converts a run of blocks from MT-EINT to the scheme below. Returns the number of data blocks
    /// handled.
    fn lower(&mut self, us: &dyn Untrusted, under: &mut Under, buffer: &mut [u8]) -> Result<u64> {
        let block = under.converted;
        self.top.relieve(us)?;
        let (state, end) = self.top.run(us, block)?;
        let end = end.min(self.top.blocks());
        let mut count = end - block;
        match state {
            State::Nothing => {}
            State::Punched => under.body.punch(us, block, count, false)?,
            State::Data => {
                // The run is written as a whole or, for lack of space, not at all: then it still
                // belongs to MT-EINT.
                count = count.min((buffer.len() / self.block_size) as u64);
                let plain = &mut buffer[..count as usize * self.block_size];
                let good = verified(self.top.read(us, block, plain), block, count)?;
                if good > 0 {
                    let plain = &plain[..good as usize * self.block_size];
                    under.body.write(us, &mut self.pass, block, plain)?;
                } else {
                    under.body.lose(us, &mut self.pass, block)?;
                }
                count = good.max(1);
            }
        }
        if state != State::Nothing {
            self.top.punch(us, block, count, false)?;
        }
        under.converted = block + count;
        Ok(if state == State::Data { count } else { 0 })
    }

    /// Drops one of the bodies, unless blocks were written to it since. Returns whether it did.
    fn finish(&mut self, us: &dyn Untrusted, under: &mut Under) -> Result<bool> {
        if self.scheme == Scheme::Mt {
            under.body.resize(us, 0)?;
            return Ok(true);
        }
        let blocks = self.top.blocks();
        let (state, end) = self.top.run(us, 0)?;
        if state != State::Nothing || end < blocks {
            under.converted = if state == State::Nothing { end } else { 0 };
            return Ok(false);
        }
        under.body.resize(us, blocks)?;
        self.top.resize(us, 0)?;
        Ok(true)
    }

    /// Rewrites up to [`STEP`] more blocks in one pass, so that they share one counter. Blocks that
    /// fail stay unchanged.
    fn rewrite(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut buffer = Plain::new(vec![0u8; RUN as usize * self.block_size]);
        let mut left = STEP;
        while left > 0 && self.rewriting.next < self.blocks() {
            let block = self.rewriting.next;
            let (state, end) = self.top.run(us, block)?;
            if state != State::Data {
                self.rewriting.next = end;
                left -= 1;
                continue;
            }
            let count = (end - block).min(RUN).min(left);
            let plain = &mut buffer[..count as usize * self.block_size];
            let good = verified(self.top.read(us, block, plain), block, count)?;
            self.top.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
            self.rewriting.next = block + count.min(good + 1);
            left -= count;
        }
        if self.rewriting.next >= self.blocks() {
            self.rewriting = Rewriting { next: 0, left: self.top.intervals() };
        }
        Ok(())
    }
}

/// The number of blocks, of `count` starting at `first`, that verified.
fn verified(read: Checked, first: u64, count: u64) -> Result<u64> {
    match read {
        Ok(()) => Ok(count),
        Err(Failed { block, error }) if error.kind() == Kind::Corrupt => Ok(block - first),
        Err(Failed { error, .. }) => Err(error),
    }
}
