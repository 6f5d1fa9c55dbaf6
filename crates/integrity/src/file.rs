//! `ProtectedFile`: one file of any scheme, as `vault` uses it.

use crate::body::{Body, MOST_BLOCKS, State, at, check_end, check_run};
use crate::counter::{Counter, Pass, Session};
use crate::integrity::{Checked, Failed};
use crate::keys::FileKeys;
use crate::nature::Nature;
use crate::scheme::{Choice, Scheme};
use crate::schemes::{new_body, open_body};
use crate::section::malformed;
use crate::trusted::{HEAD, Head, Trusted};
use crate::untrusted::Untrusted;
use lacuna_core::{Budget, Error, Kind, Result};
use std::sync::Arc;

/// What a file costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its scheme.
    pub scheme: Scheme,
    /// Bytes of TS at the last commit.
    pub trusted: u64,
    /// Bytes of US for integrity, to within a few pages: pages, not blocks.
    pub untrusted: u64,
    /// Blocks that the scheme holds tags for in RTree: random-looking ones (RAND-EINT), incompressible ones (COMP-EINT). Of a file
    /// under MT-EINT whose scheme is chosen by `auto`: an estimate by samples.
    pub random_looking: u64,
    /// Counter intervals.
    pub intervals: u64,
}

/// Blocks that one call of [`ProtectedFile::convert_if_better`] converts.
const STEP: u64 = 1024;
/// Blocks of a file that is rewritten as a whole when its counters are dispersed.
const REWRITTEN: u64 = 4096;
/// Counter intervals from which on such a file is rewritten.
const REWRITTEN_INTERVALS: u64 = 512;
/// Blocks that are converted in one go.
const RUN: u64 = 64;

/// One file of any scheme.
///
/// A file that was changed and dropped without a commit must not be opened again in the same session: TS would not know the passes
/// that were used. An error of `update`, `resize`, `punch` or `commit` other than [`Kind::Corrupt`] and
/// [`Kind::NoSpace`] is such a case.
pub struct ProtectedFile {
    keys: Arc<FileKeys>,
    block_size: usize,
    choice: Choice,
    budget: Budget,
    pass: Pass,
    nature: Nature,
    scheme: Scheme,
    top: Box<dyn Body>,
    under: Option<Under>,
    /// Bytes of TS.
    trusted: u64,
    dirty: bool,
    broken: bool,
}

/// What a file is being converted from. Blocks that the body on top never wrote are here.
struct Under {
    scheme: Scheme,
    body: Box<dyn Body>,
    /// Blocks before this one have all been converted.
    converted: u64,
}

impl ProtectedFile {
    /// The size of blocks, in bytes, unless another is asked for.
    pub const BLOCK: usize = 4096;

    /// A file without blocks, of blocks of 4096 bytes.
    pub fn init(keys: Arc<FileKeys>, choice: Choice, session: Session) -> Self {
        Self::init_with_block_size(keys, choice, session, Self::BLOCK)
    }

    /// A file without blocks, of blocks of `block_size` bytes: a power of two from 128 to 4096.
    pub fn init_with_block_size(
        keys: Arc<FileKeys>,
        choice: Choice,
        session: Session,
        block_size: usize,
    ) -> Self {
        assert!(
            block_size.is_power_of_two() && (128..=4096).contains(&block_size),
            "blocks of {block_size} bytes"
        );
        let scheme = match choice {
            Choice::Fixed(scheme) => scheme,
            Choice::Auto => Scheme::Mt,
        };
        let top = new_body(scheme, keys.clone(), block_size);
        let pass = Pass::after(Counter::HOLE, session);
        Self::with(keys, block_size, choice, pass, Nature::default(), (scheme, top))
    }

    fn with(
        keys: Arc<FileKeys>,
        block_size: usize,
        choice: Choice,
        pass: Pass,
        nature: Nature,
        (scheme, top): (Scheme, Box<dyn Body>),
    ) -> Self {
        let (budget, under, trusted) = (Budget::bytes(0), None, 0);
        let (dirty, broken) = (true, false);
        ProtectedFile {
            keys,
            block_size,
            choice,
            budget,
            pass,
            nature,
            scheme,
            top,
            under,
            trusted,
            dirty,
            broken,
        }
    }

    /// The file that `trusted` describes; `budget` is for its caches. Errors: [`Kind::Corrupt`].
    pub fn open(keys: Arc<FileKeys>, trusted: &Trusted, session: Session, budget: Budget) -> Result<Self> {
        let (head, mut section) = trusted.head()?;
        let Head { block_size, blocks, .. } = head;
        let top = open_body(head.scheme, keys.clone(), block_size, blocks, &mut section)?;
        let pass = Pass::after(head.last, session);
        let mut file = Self::with(keys, block_size, head.choice, pass, head.nature, (head.scheme, top));
        if let Some(scheme) = head.under {
            let blocks = section.u64()?;
            if (scheme == Scheme::Mt) == (head.scheme == Scheme::Mt) || blocks > head.blocks {
                return Err(malformed(&format!("{} blocks of {scheme:?} below {:?}", blocks, head.scheme)));
            }
            let body = open_body(scheme, file.keys.clone(), block_size, blocks, &mut section)?;
            file.under = Some(Under { scheme, body, converted: 0 });
        }
        if !section.0.is_empty() {
            return Err(malformed(&format!("{} bytes too many", section.0.len())));
        }
        file.trusted = trusted.to_bytes().len() as u64;
        file.dirty = false;
        file.set_budget(budget);
        Ok(file)
    }

    /// Bounds its caches; what is dirty stays until the next commit.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
        match &mut self.under {
            None => self.top.set_budget(budget),
            Some(under) => {
                self.top.set_budget(budget.share(1, 2));
                under.body.set_budget(budget.share(1, 2));
            }
        }
    }

    /// Its length in blocks.
    pub fn blocks(&self) -> u64 {
        self.top.blocks()
    }

    /// The bytes of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Its scheme at present: of a file that is being converted, the one that it is converted to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// How its scheme is chosen.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Changes how its scheme is chosen; [`ProtectedFile::convert_if_better`] then converts it.
    pub fn set_choice(&mut self, choice: Choice) {
        self.dirty |= choice != self.choice;
        self.choice = choice;
    }

    /// Whether anything changed since the last commit.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Writes a run of whole blocks. Writes past the end append, with holes between.
    /// Errors: [`Kind::Corrupt`] where US does not verify: the blocks are then the old ones, the new ones or fail.
    /// [`Kind::NoSpace`] if US is full: some blocks are then the new ones, from the first on, and the file goes on.
    pub fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        if check_run(self.block_size, first, plain.len())? == 0 {
            return Ok(());
        }
        self.change(true, |file| {
            if file.choice == Choice::Auto {
                file.nature.wrote(plain, file.block_size);
            }
            file.top.write(us, &mut file.pass, first, plain)
        })?;
        if self.top.is_dispersed() { self.change(false, |file| file.undisperse(us)) } else { Ok(()) }
    }

    /// Reads, verifies and decrypts a run of whole blocks.
    pub fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked {
        let count = check_run(self.block_size, first, plain.len()).map_err(at(first))?;
        check_end(self.blocks(), first, count).map_err(at(first))?;
        self.whole().map_err(at(first))?;
        self.nature.read(count);
        let Some(under) = &self.under else { return self.top.read(us, first, plain) };
        let (mut block, mut rest) = (first, plain);
        while !rest.is_empty() {
            let (state, end) = self.top.run(us, block).map_err(at(block))?;
            let below = state == State::Nothing && block < under.body.blocks();
            let end = if below { end.min(under.body.blocks()) } else { end };
            let count = (end - block).min((rest.len() / self.block_size) as u64);
            let (part, after) = rest.split_at_mut(count as usize * self.block_size);
            if below {
                under.body.read(us, block, part)?;
            } else {
                self.top.read(us, block, part)?;
            }
            block += count;
            rest = after;
        }
        Ok(())
    }

    /// Makes it this long. Shorter: Delete for each block, in bulk; longer: holes.
    pub fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        if blocks > MOST_BLOCKS {
            return Err(Error::new(Kind::Usage, "cannot make a file longer")
                .found(format!("{blocks} blocks"))
                .expected(format!("at most {MOST_BLOCKS}")));
        }
        if blocks == self.blocks() {
            return Ok(());
        }
        self.change(false, |file| {
            if let Some(under) = &mut file.under
                && blocks < under.body.blocks()
            {
                under.body.resize(us, blocks)?;
                if blocks == 0 {
                    file.under = None;
                }
            }
            file.top.resize(us, blocks)
        })
    }

    /// Blocks become holes. What lies past the end stays as it is.
    pub fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64) -> Result<()> {
        let end = self.blocks().min(first.saturating_add(count));
        if first >= end {
            return Ok(());
        }
        self.change(false, |file| {
            let Some(under) = &file.under else { return file.top.punch(us, first, end - first, false) };
            let mut block = first;
            while block < end {
                let (state, until) = under.body.run(us, block)?;
                let until = until.min(end);
                file.top.punch(us, block, until - block, state == State::Data)?;
                block = until;
            }
            Ok(())
        })
    }

    /// The next block, from `from` on, that is data (`data`) or a hole (not `data`). `None` if there is none before the end.
    pub fn seek(&self, us: &dyn Untrusted, from: u64, data: bool) -> Result<Option<u64>> {
        let mut block = from;
        while block < self.blocks() {
            let (mut state, mut end) = self.top.run(us, block)?;
            if let (State::Nothing, Some(under)) = (state, &self.under) {
                let (below, until) = under.body.run(us, block)?;
                (state, end) = (below, end.min(until));
            }
            if (state == State::Data) == data {
                return Ok(Some(block));
            }
            block = end;
        }
        Ok(None)
    }

    /// Writes dirty US pages and gives TS.
    pub fn commit(&mut self, us: &dyn Untrusted) -> Result<Trusted> {
        self.change(true, |file| {
            let alone = file.under.is_none();
            let mut sections = file.top.seal(us, Trusted::MAX - HEAD, alone)?;
            if let Some(under) = &mut file.under {
                sections.extend(under.body.blocks().to_le_bytes());
                sections.extend(under.body.seal(us, 0, false)?);
            }
            let head = Head {
                scheme: file.scheme,
                under: file.under.as_ref().map(|under| under.scheme),
                choice: file.choice,
                block_size: file.block_size,
                blocks: file.blocks(),
                last: file.pass.last(),
                nature: std::mem::take(&mut file.nature),
            };
            let trusted = Trusted::new(&head, &sections);
            file.nature = head.nature;
            file.trusted = trusted.to_bytes().len() as u64;
            Ok(trusted)
        })
        .inspect(|_| self.dirty = false)
    }

    /// Converts the file, a part of it with each call, to the scheme that suits it, if that is another, and rewrites one whose
    /// counters are dispersed. Returns whether it did anything; then call it again, after a commit if you like.
    pub fn convert_if_better(&mut self, us: &dyn Untrusted) -> Result<bool> {
        if self.under.is_some() {
            self.change(false, |file| file.settle(us, STEP))?;
            return Ok(true);
        }
        let wanted = match self.choice {
            Choice::Fixed(scheme) => scheme,
            Choice::Auto => self.nature.wants(self.scheme, self.blocks()).unwrap_or(self.scheme),
        };
        if wanted != self.scheme {
            self.change(false, |file| file.lay(us, wanted))?;
            return Ok(true);
        }
        let intervals = if self.scheme == Scheme::Mt { 0 } else { self.usage(us)?.intervals };
        if intervals < REWRITTEN_INTERVALS || self.blocks() > REWRITTEN {
            return Ok(false);
        }
        self.change(false, |file| file.rewrite(us))?;
        Ok(true)
    }

    /// Whether [`ProtectedFile::convert_if_better`] would convert something.
    pub fn wants_conversion(&self) -> bool {
        let wanted = match self.choice {
            Choice::Fixed(scheme) => scheme,
            Choice::Auto => self.nature.wants(self.scheme, self.blocks()).unwrap_or(self.scheme),
        };
        self.under.is_some() || wanted != self.scheme
    }

    /// What it costs.
    pub fn usage(&self, us: &dyn Untrusted) -> Result<Usage> {
        let (mut untrusted, mut random_looking, mut intervals) = self.top.usage(us)?;
        if let Some(under) = &self.under {
            let (bytes, random, more) = under.body.usage(us)?;
            (untrusted, random_looking) = (untrusted + bytes, random_looking + random);
            intervals += more;
        }
        if self.scheme == Scheme::Mt && self.under.is_none() {
            random_looking = self.nature.random_looking(self.blocks());
        }
        Ok(Usage { scheme: self.scheme, trusted: self.trusted, untrusted, random_looking, intervals })
    }

    /// Does what changes the file. After an error that may have left it half changed, it refuses everything. What is refused for
    /// want of space may be tried again if it is one that changes nothing then (`again`).
    fn change<R>(&mut self, again: bool, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.whole()?;
        self.dirty = true;
        what(self).inspect_err(|e| {
            self.broken = match e.kind() {
                Kind::Corrupt | Kind::Usage => false,
                Kind::NoSpace => !again,
                _ => true,
            };
        })
    }

    fn whole(&self) -> Result<()> {
        if !self.broken {
            return Ok(());
        }
        Err(Error::new(Kind::FailStop, "cannot use a file")
            .found("an earlier error while it was changed")
            .remedy("open it again"))
    }

    /// Gives a file without blocks another scheme.
    fn replace(&mut self, scheme: Scheme) {
        if scheme != self.scheme {
            (self.scheme, self.top) = (scheme, new_body(scheme, self.keys.clone(), self.block_size));
            self.set_budget(self.budget);
        }
    }

    /// Begins to convert the file: from now on what is written has another scheme.
    fn lay(&mut self, us: &dyn Untrusted, wanted: Scheme) -> Result<()> {
        self.nature.converted();
        let blocks = self.blocks();
        if blocks == 0 {
            self.replace(wanted);
            return Ok(());
        }
        // Two selective schemes share parts of US, so one cannot lie over the other.
        let scheme = if self.scheme == Scheme::Mt { wanted } else { Scheme::Mt };
        let mut top = new_body(scheme, self.keys.clone(), self.block_size);
        top.resize(us, blocks)?;
        let (old, body) =
            (std::mem::replace(&mut self.scheme, scheme), std::mem::replace(&mut self.top, top));
        self.under = Some(Under { scheme: old, body, converted: 0 });
        self.set_budget(self.budget);
        Ok(())
    }

    /// Converts up to `most` more blocks. What does not verify fails from then on as it did before.
    fn settle(&mut self, us: &dyn Untrusted, most: u64) -> Result<()> {
        let Some(under) = &mut self.under else { return Ok(()) };
        let mut left = most;
        let mut buffer = vec![0; RUN as usize * self.block_size];
        while left > 0 && under.converted < under.body.blocks() {
            let block = under.converted;
            let (state, end) = self.top.run(us, block)?;
            let (below, until) = under.body.run(us, block)?;
            let end = end.min(until).min(under.body.blocks());
            if state != State::Nothing || below != State::Data {
                under.converted = end;
                continue;
            }
            let count = (end - block).min(RUN).min(left);
            let plain = &mut buffer[..count as usize * self.block_size];
            let good = match under.body.read(us, block, plain) {
                Ok(()) => count,
                Err(Failed { block: bad, error }) if error.kind() == Kind::Corrupt => bad - block,
                Err(Failed { error, .. }) => return Err(error),
            };
            self.top.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
            if good < count {
                self.top.lose(us, &mut self.pass, block + good)?;
            }
            under.converted = block + count.min(good + 1);
            left -= count;
        }
        if under.converted >= under.body.blocks() {
            under.body.resize(us, 0)?;
            self.under = None;
            self.set_budget(self.budget);
        }
        Ok(())
    }

    /// Bounds the counter intervals of a file that is written all over: it becomes MT-EINT.
    fn undisperse(&mut self, us: &dyn Untrusted) -> Result<()> {
        if self.under.is_some() { self.settle(us, RUN) } else { self.lay(us, Scheme::Mt) }
    }

    /// Writes all blocks anew, in one pass, so that they share one counter. Blocks that fail stay as they are.
    fn rewrite(&mut self, us: &dyn Untrusted) -> Result<()> {
        let mut buffer = vec![0; RUN as usize * self.block_size];
        let mut block = 0;
        while block < self.blocks() {
            let (state, end) = self.top.run(us, block)?;
            if state != State::Data {
                block = end;
                continue;
            }
            let count = (end - block).min(RUN);
            let plain = &mut buffer[..count as usize * self.block_size];
            let good = match self.top.read(us, block, plain) {
                Ok(()) => count,
                Err(Failed { block: bad, error }) if error.kind() == Kind::Corrupt => bad - block,
                Err(Failed { error, .. }) => return Err(error),
            };
            self.top.write(us, &mut self.pass, block, &plain[..good as usize * self.block_size])?;
            block += count.min(good + 1);
        }
        Ok(())
    }
}
