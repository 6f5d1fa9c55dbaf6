//! `ProtectedFile`: one file of any scheme, as `vault` uses it.

use crate::body::{Body, DISPERSED, MOST_BLOCKS, State, at, check_end, check_run, half_done, zero_from};
use crate::counter::{Counter, Pass, Session};
use crate::failed::Checked;
use crate::keys::FileKeys;
use crate::mt::Mt;
use crate::nature::Nature;
use crate::scheme::{Choice, Scheme};
use crate::schemes::{new_body, open_body};
use crate::section::malformed;
use crate::trusted::{HEAD, Head, Trusted};
use crate::untrusted::Untrusted;
use lacuna_contracts::{Budget, Error, Kind, Result};
use std::sync::Arc;

/// The storage costs of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The current scheme.
    pub scheme: Scheme,
    /// Bytes of TS at the last commit.
    pub trusted: u64,
    /// Bytes of US pages (not of blocks), to within a few pages.
    pub untrusted: u64,
    /// The number of blocks with tags in RTree: random-looking ones (RAND-EINT), incompressible
    /// ones (COMP-EINT). Under MT-EINT with the choice `auto`: an estimate by samples.
    pub random_looking: u64,
    /// Counter intervals.
    pub intervals: u64,
}

/// One file of any scheme.
///
/// A file that was changed and dropped without a commit must not be opened again in the same
/// session: TS does not record the passes that were used. After an error of a method that changes
/// the file, the file stays usable if the kind is [`Kind::Corrupt`], [`Kind::Usage`] or a refusal
/// ([`Kind::is_refusal`]), or if a read failed before [`ProtectedFile::update`] had changed
/// anything ([`Error::changed_nothing`]). Fail-stop on any other error: the file then refuses every
/// operation and must be opened again in another session.
pub struct ProtectedFile {
    pub(crate) keys: Arc<FileKeys>,
    pub(crate) block_size: usize,
    pub(crate) choice: Choice,
    pub(crate) budget: Budget,
    pub(crate) pass: Pass,
    pub(crate) nature: Nature,
    /// The scheme; during a conversion, the target scheme.
    pub(crate) scheme: Scheme,
    /// All blocks; during a conversion, the blocks under MT-EINT.
    pub(crate) top: Box<dyn Body>,
    pub(crate) under: Option<Under>,
    pub(crate) rewriting: Rewriting,
    /// Bytes of TS.
    trusted: u64,
    dirty: bool,
    broken: bool,
}

/// The body below that of MT-EINT during a conversion.
pub(crate) struct Under {
    pub(crate) scheme: Scheme,
    pub(crate) body: Box<dyn Body>,
    /// Blocks before this one were converted, except blocks written since.
    pub(crate) converted: u64,
}

/// The progress of rewriting a file with dispersed counters.
#[derive(Default)]
pub(crate) struct Rewriting {
    /// The next block, or 0 if no rewriting is in progress.
    pub(crate) next: u64,
    /// Intervals that the last rewriting left: another rewriting cannot save these.
    pub(crate) left: u64,
}

impl ProtectedFile {
    /// The default block size, in bytes.
    pub const BLOCK: usize = 4096;

    /// An empty file with blocks of 4096 bytes.
    pub fn init(keys: Arc<FileKeys>, choice: Choice, session: Session) -> Self {
        Self::init_with_block_size(keys, choice, session, Self::BLOCK)
    }

    /// An empty file with blocks of `block_size` bytes: a power of two from 128 to 4096.
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
        Self::with(keys, block_size, choice, pass, Nature::default(), scheme, top)
    }

    fn with(
        keys: Arc<FileKeys>,
        block_size: usize,
        choice: Choice,
        pass: Pass,
        nature: Nature,
        scheme: Scheme,
        top: Box<dyn Body>,
    ) -> Self {
        let (budget, under, rewriting, trusted) = (Budget::bytes(0), None, Rewriting::default(), 0);
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
            rewriting,
            trusted,
            dirty,
            broken,
        }
    }

    /// The file that `trusted` describes; `budget` bounds its caches. Errors: [`Kind::Corrupt`].
    pub fn open(keys: Arc<FileKeys>, trusted: &Trusted, session: Session, budget: Budget) -> Result<Self> {
        let (head, mut section) = trusted.head()?;
        let Head { block_size, blocks, .. } = head;
        // The section of MT-EINT comes first, in both directions of conversion.
        let first = if head.other.is_some() { Scheme::Mt } else { head.scheme };
        let top = open_body(first, keys.clone(), block_size, blocks, &mut section)?;
        let pass = Pass::after(head.last, session);
        let mut file = Self::with(keys, block_size, head.choice, pass, head.nature, head.scheme, top);
        if let Some(other) = head.other {
            let blocks = section.u64()?;
            if (other == Scheme::Mt) == (head.scheme == Scheme::Mt) || blocks > head.blocks {
                return Err(malformed(&format!("{blocks} blocks of {other:?} beside {:?}", head.scheme)));
            }
            let scheme = if other == Scheme::Mt { head.scheme } else { other };
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

    /// Starts a session: later writes use it. No other opening may have written the file in this
    /// session.
    pub fn set_session(&mut self, session: Session) {
        self.pass.enter(session);
    }

    /// Bounds the caches; dirty pages stay until the next commit.
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

    /// The length in blocks.
    pub fn blocks(&self) -> u64 {
        self.top.blocks()
    }

    /// The block size, in bytes.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The current scheme; during a conversion, the target scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// How the scheme is chosen.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Changes how the scheme is chosen; [`ProtectedFile::convert_if_better`] then converts the
    /// file.
    pub fn set_choice(&mut self, choice: Choice) {
        if choice != self.choice {
            self.dirty = true;
            self.nature.resume();
            self.choice = choice;
        }
    }

    /// Whether anything changed since the last commit.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Writes a run of whole blocks. Writes past the end append, with holes between. Errors:
    /// [`Kind::Corrupt`] where US does not verify: each block of the run then is old, is new or
    /// fails. [`Kind::NoSpace`] if US is full: a prefix of the run is then new, and the file stays
    /// usable. It also stays usable if US cannot be read, as long as the read fails before the
    /// current batch is changed.
    pub fn update(&mut self, us: &dyn Untrusted, first: u64, plain: &[u8]) -> Result<()> {
        if check_run(self.block_size, first, plain.len())? == 0 {
            return Ok(());
        }
        self.try_change(|file| {
            if file.choice == Choice::Auto {
                file.nature.wrote(plain, file.block_size);
            }
            file.top.write(us, &mut file.pass, first, plain)
        })
    }

    /// Reads, verifies and decrypts a run of whole blocks. After an error the buffer has zeros
    /// starting at the failed block.
    pub fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked {
        let checked = self.read(us, first, plain);
        zero_from(checked, first, self.block_size, plain)
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> Checked {
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

    /// Sets the length. Shorter: Delete for each block, in bulk; longer: holes. Errors:
    /// [`Kind::NoSpace`] if US is full: the length is then as before, but some blocks past the new
    /// end may be holes.
    pub fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        if blocks > MOST_BLOCKS {
            return Err(Error::new(Kind::Usage, "cannot make a file longer")
                .found(format!("{blocks} blocks"))
                .expected(format!("at most {MOST_BLOCKS}")));
        }
        if blocks == self.blocks() {
            return Ok(());
        }
        self.change(|file| {
            file.top.relieve(us)?;
            if let Some(under) = &mut file.under
                && blocks < under.body.blocks()
            {
                under.body.resize(us, blocks)?;
            }
            file.top.resize(us, blocks)?;
            if blocks == 0 {
                file.emptied();
            }
            Ok(())
        })
    }

    /// Makes blocks holes. Blocks past the end are ignored. Errors: [`Kind::NoSpace`] if US is
    /// full: some of the blocks are then holes, and the rest unchanged.
    pub fn punch(&mut self, us: &dyn Untrusted, first: u64, count: u64) -> Result<()> {
        let end = self.blocks().min(first.saturating_add(count));
        if first >= end {
            return Ok(());
        }
        self.change(|file| {
            let Some(under) = &file.under else {
                file.top.relieve(us)?;
                return file.top.punch(us, first, end - first, false);
            };
            let mut block = first;
            while block < end {
                file.top.relieve(us)?;
                // Leave the body below unchanged: MT-EINT can hold any number of holes.
                let (state, until) = under.body.run(us, block)?;
                let until = until.min(end);
                file.top.punch(us, block, until - block, state == State::Data)?;
                block = until;
            }
            Ok(())
        })
    }

    /// The next block at or after `from` that is data (`data`) or a hole (not `data`). `None` if
    /// there is none before the end.
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
        self.change(|file| {
            let alone = file.under.is_none();
            let mut sections = file.top.seal(us, Trusted::MAX - HEAD, alone)?;
            if let Some(under) = &mut file.under {
                sections.extend(under.body.blocks().to_le_bytes());
                sections.extend(under.body.seal(us, 0, false)?);
            }
            let head = Head {
                scheme: file.scheme,
                other: file.other(),
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

    /// The storage costs.
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

    /// Runs `what`, which changes the file. After an error that may have left it half changed, the
    /// file refuses every operation. US is written only at points where all earlier changes are
    /// complete, so a refusal for lack of space leaves a usable file. If a read of US fails,
    /// earlier steps may have changed something.
    pub(crate) fn change<R>(&mut self, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.try_change(|file| what(file).map_err(half_done))
    }

    /// Like `change`, for a `what` that itself reports whether it changed anything before a read
    /// failed.
    fn try_change<R>(&mut self, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.whole()?;
        self.dirty = true;
        let result = what(self).inspect_err(|e| {
            let passes = e.changed_nothing() || matches!(e.kind(), Kind::Corrupt | Kind::Usage);
            self.broken = !passes;
        });
        self.bound();
        result
    }

    fn whole(&self) -> Result<()> {
        if !self.broken {
            return Ok(());
        }
        Err(Error::new(Kind::FailStop, "cannot use a file")
            .found("an earlier error while it was changed")
            .remedy("close and open it again, in another session"))
    }

    /// The scheme that the file is being converted from, if any.
    fn other(&self) -> Option<Scheme> {
        self.under.as_ref().map(|under| if self.scheme == Scheme::Mt { under.scheme } else { Scheme::Mt })
    }

    /// Bounds the counter intervals: converts a file with dispersed writes or holes to MT-EINT.
    /// Accesses no US.
    fn bound(&mut self) {
        if self.under.is_none() && self.top.intervals() > DISPERSED {
            self.overlay();
        }
    }

    /// Resets an emptied file to one body, of its scheme.
    fn emptied(&mut self) {
        if self.under.take().is_some() && self.scheme != Scheme::Mt {
            self.top = new_body(self.scheme, self.keys.clone(), self.block_size);
        }
        self.nature.resume();
        self.rewriting = Rewriting::default();
        self.set_budget(self.budget);
    }

    /// Begins a conversion to MT-EINT: puts a new body under MT-EINT over the present one.
    pub(crate) fn overlay(&mut self) {
        let top = Box::new(Mt::of_holes(self.keys.clone(), self.block_size, self.blocks()));
        let body = std::mem::replace(&mut self.top, top);
        let scheme = std::mem::replace(&mut self.scheme, Scheme::Mt);
        self.begin(scheme, body);
    }

    /// Begins a conversion with `body` as the lower body.
    pub(crate) fn begin(&mut self, scheme: Scheme, body: Box<dyn Body>) {
        self.under = Some(Under { scheme, body, converted: 0 });
        self.rewriting = Rewriting::default();
        self.nature.converted();
        self.set_budget(self.budget);
    }
}
