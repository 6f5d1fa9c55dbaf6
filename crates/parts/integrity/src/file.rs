//! `ProtectedFile`: one file of any scheme, as `vault` uses it.

use crate::counters::counter::{Counter, Session, WritePass};
use crate::failed::CheckResult;
use crate::file_profile::FileProfile;
use crate::keys::FileKeys;
use crate::scheme::{Choice, Scheme};
use crate::schemes::mt::Mt;
use crate::schemes::scheme_layer::{
    DISPERSED, ExtentState, MOST_BLOCKS, SchemeLayer, at, check_end, check_run, half_done, zero_from,
};
use crate::schemes::{new_layer, open_layer};
use crate::section::malformed;
use crate::trusted::{HEAD, Trusted, TrustedHeader};
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
    /// ones (COMP-EINT). Under MT-EINT, which has a tag for every block, an estimate of the
    /// random-looking ones by samples, which only the choice `auto` takes. `None` without samples
    /// and during a conversion.
    pub random_looking: Option<u64>,
    /// Counter intervals.
    pub intervals: u64,
}

/// One file of any scheme.
///
/// A file that was changed and dropped without a commit must not be opened again in the same
/// session: TS does not record the passes that were used. After an error of a method that changes
/// the file, the file stays usable if the kind is [`Kind::Corrupt`], [`Kind::Usage`] or a refusal
/// ([`Kind::is_refusal`]), or if a read failed before a batch of [`ProtectedFile::update`] or a
/// step of [`ProtectedFile::convert_if_better`] had changed anything ([`Error::changed_nothing`]).
/// Fail-stop on any other error: the file then refuses every operation and must be opened again in
/// another session.
pub struct ProtectedFile {
    pub(crate) keys: Arc<FileKeys>,
    pub(crate) block_size: usize,
    pub(crate) choice: Choice,
    pub(crate) budget: Budget,
    pub(crate) pass: WritePass,
    pub(crate) profile: FileProfile,
    /// The scheme; during a conversion, the target scheme.
    pub(crate) scheme: Scheme,
    /// All blocks; during a conversion, the blocks under MT-EINT.
    pub(crate) upper: Box<dyn SchemeLayer>,
    pub(crate) lower: Option<LowerLayer>,
    pub(crate) rewriting: Rewriting,
    /// Bytes of TS.
    trusted: u64,
    dirty: bool,
    broken: bool,
}

/// The layer below that of MT-EINT during a conversion.
pub(crate) struct LowerLayer {
    pub(crate) scheme: Scheme,
    pub(crate) layer: Box<dyn SchemeLayer>,
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
        let top = new_layer(scheme, keys.clone(), block_size);
        let pass = WritePass::after(Counter::HOLE, session);
        Self::with(keys, block_size, choice, pass, FileProfile::default(), scheme, top)
    }

    fn with(
        keys: Arc<FileKeys>,
        block_size: usize,
        choice: Choice,
        pass: WritePass,
        nature: FileProfile,
        scheme: Scheme,
        top: Box<dyn SchemeLayer>,
    ) -> Self {
        let (budget, under, rewriting, trusted) = (Budget::bytes(0), None, Rewriting::default(), 0);
        let (dirty, broken) = (true, false);
        ProtectedFile {
            keys,
            block_size,
            choice,
            budget,
            pass,
            profile: nature,
            scheme,
            upper: top,
            lower: under,
            rewriting,
            trusted,
            dirty,
            broken,
        }
    }

    /// The file that `trusted` describes; `budget` bounds its caches. Errors: [`Kind::Corrupt`].
    pub fn open(keys: Arc<FileKeys>, trusted: &Trusted, session: Session, budget: Budget) -> Result<Self> {
        let (head, mut section) = trusted.head()?;
        let TrustedHeader { block_size, blocks, .. } = head;
        // The section of MT-EINT comes first, in both directions of conversion.
        let first = if head.converting_from.is_some() { Scheme::Mt } else { head.scheme };
        let top = open_layer(first, keys.clone(), block_size, blocks, &mut section)?;
        let pass = WritePass::after(head.last, session);
        let mut file = Self::with(keys, block_size, head.choice, pass, head.profile, head.scheme, top);
        if let Some(other) = head.converting_from {
            let blocks = section.u64()?;
            if (other == Scheme::Mt) == (head.scheme == Scheme::Mt) || blocks > head.blocks {
                return Err(malformed(&format!("{blocks} blocks of {other:?} beside {:?}", head.scheme)));
            }
            let scheme = if other == Scheme::Mt { head.scheme } else { other };
            let body = open_layer(scheme, file.keys.clone(), block_size, blocks, &mut section)?;
            file.lower = Some(LowerLayer { scheme, layer: body, converted: 0 });
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
        self.pass.switch_session(session);
    }

    /// Bounds the caches; dirty pages stay until the next commit.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
        match &mut self.lower {
            None => self.upper.set_budget(budget),
            Some(under) => {
                self.upper.set_budget(budget.share(1, 2));
                under.layer.set_budget(budget.share(1, 2));
            }
        }
    }

    /// The length in blocks.
    pub fn blocks(&self) -> u64 {
        self.upper.blocks()
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
            self.profile.permit_conversion();
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
                file.profile.note_written(plain, file.block_size);
            }
            file.upper.write(us, &mut file.pass, first, plain)
        })
    }

    /// Reads, verifies and decrypts a run of whole blocks. After an error the buffer has zeros
    /// starting at the failed block.
    pub fn check(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult {
        let checked = self.read(us, first, plain);
        zero_from(checked, first, self.block_size, plain)
    }

    fn read(&self, us: &dyn Untrusted, first: u64, plain: &mut [u8]) -> CheckResult {
        let count = check_run(self.block_size, first, plain.len()).map_err(at(first))?;
        check_end(self.blocks(), first, count).map_err(at(first))?;
        self.check_usable().map_err(at(first))?;
        self.profile.note_read(count);
        let Some(lower) = &self.lower else { return self.upper.read(us, first, plain) };
        let (mut block, mut rest) = (first, plain);
        while !rest.is_empty() {
            let (state, end) = self.upper.extent_at(us, block).map_err(at(block))?;
            let below = state == ExtentState::Unwritten && block < lower.layer.blocks();
            let end = if below { end.min(lower.layer.blocks()) } else { end };
            let count = (end - block).min((rest.len() / self.block_size) as u64);
            let (part, after) = rest.split_at_mut(count as usize * self.block_size);
            if below {
                lower.layer.read(us, block, part)?;
            } else {
                self.upper.read(us, block, part)?;
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
            file.upper.flush_over_budget(us)?;
            if let Some(lower) = &mut file.lower
                && blocks < lower.layer.blocks()
            {
                lower.layer.resize(us, blocks)?;
            }
            file.upper.resize(us, blocks)?;
            if blocks == 0 {
                file.reset_conversion();
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
            let Some(lower) = &file.lower else {
                file.upper.flush_over_budget(us)?;
                return file.upper.punch(us, first, end - first, false);
            };
            let mut block = first;
            while block < end {
                file.upper.flush_over_budget(us)?;
                // Leave the layer below unchanged: MT-EINT can hold any number of holes.
                let (state, until) = lower.layer.extent_at(us, block)?;
                let until = until.min(end);
                file.upper.punch(us, block, until - block, state == ExtentState::Data)?;
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
            let (mut state, mut end) = self.upper.extent_at(us, block)?;
            if let (ExtentState::Unwritten, Some(lower)) = (state, &self.lower) {
                let (below, until) = lower.layer.extent_at(us, block)?;
                (state, end) = (below, end.min(until));
            }
            if (state == ExtentState::Data) == data {
                return Ok(Some(block));
            }
            block = end;
        }
        Ok(None)
    }

    /// Writes dirty US pages and gives TS.
    pub fn commit(&mut self, us: &dyn Untrusted) -> Result<Trusted> {
        self.change(|file| {
            let alone = file.lower.is_none();
            let mut sections = file.upper.seal(us, Trusted::MAX - HEAD, alone)?;
            if let Some(under) = &mut file.lower {
                sections.extend(under.layer.blocks().to_le_bytes());
                sections.extend(under.layer.seal(us, 0, false)?);
            }
            let head = TrustedHeader {
                scheme: file.scheme,
                converting_from: file.converting_from(),
                choice: file.choice,
                block_size: file.block_size,
                blocks: file.blocks(),
                last: file.pass.last(),
                profile: std::mem::take(&mut file.profile),
            };
            let trusted = Trusted::new(&head, &sections);
            file.profile = head.profile;
            file.trusted = trusted.to_bytes().len() as u64;
            Ok(trusted)
        })
        .inspect(|_| self.dirty = false)
    }

    /// The storage costs.
    pub fn usage(&self, us: &dyn Untrusted) -> Result<Usage> {
        let (mut untrusted, tagged, mut intervals) = self.upper.usage(us)?;
        if let Some(lower) = &self.lower {
            let (bytes, _, more) = lower.layer.usage(us)?;
            untrusted += bytes;
            intervals += more;
        }
        let random_looking = match (self.scheme, self.choice) {
            // Only a part of the blocks has its tags in RTree.
            _ if self.lower.is_some() => None,
            (Scheme::Rand | Scheme::Comp, _) => Some(tagged),
            (Scheme::Mt, Choice::Auto) => self.profile.random_looking(self.blocks()),
            (Scheme::Mt | Scheme::None, _) => None,
        };
        Ok(Usage { scheme: self.scheme, trusted: self.trusted, untrusted, random_looking, intervals })
    }

    /// Runs `what`, which changes the file. After an error that may have left it half changed, the
    /// file refuses every operation. US is written only at points where all earlier changes are
    /// complete, so a refusal for lack of space leaves a usable file. If a read of US fails,
    /// earlier steps may have changed something.
    pub(crate) fn change<R>(&mut self, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.try_change(|file| what(file).map_err(half_done))
    }

    /// Like `change`, for a `what` of steps that report whether a failed read left them half done.
    pub(crate) fn try_change<R>(&mut self, what: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        self.check_usable()?;
        self.dirty = true;
        let result = what(self).inspect_err(|e| {
            let passes = e.changed_nothing() || matches!(e.kind(), Kind::Corrupt | Kind::Usage);
            self.broken = !passes;
        });
        self.bound_intervals();
        result
    }

    fn check_usable(&self) -> Result<()> {
        if !self.broken {
            return Ok(());
        }
        Err(Error::new(Kind::FailStop, "cannot use a file")
            .found("an earlier error while it was changed")
            .hint("close and open it again, in another session"))
    }

    /// The scheme that the file is being converted from, if any.
    fn converting_from(&self) -> Option<Scheme> {
        self.lower.as_ref().map(|under| if self.scheme == Scheme::Mt { under.scheme } else { Scheme::Mt })
    }

    /// Bounds the counter intervals: converts a file with dispersed writes or holes to MT-EINT.
    /// Accesses no US.
    fn bound_intervals(&mut self) {
        if self.lower.is_none() && self.upper.intervals() > DISPERSED {
            self.begin_conversion_to_mt();
        }
    }

    /// Resets an emptied file to one layer, of its scheme.
    fn reset_conversion(&mut self) {
        if self.lower.take().is_some() && self.scheme != Scheme::Mt {
            self.upper = new_layer(self.scheme, self.keys.clone(), self.block_size);
        }
        self.profile.permit_conversion();
        self.rewriting = Rewriting::default();
        self.set_budget(self.budget);
    }

    /// Begins a conversion to MT-EINT: puts a new layer under MT-EINT over the present one.
    pub(crate) fn begin_conversion_to_mt(&mut self) {
        let top = Box::new(Mt::of_holes(self.keys.clone(), self.block_size, self.blocks()));
        let layer = std::mem::replace(&mut self.upper, top);
        let scheme = std::mem::replace(&mut self.scheme, Scheme::Mt);
        self.set_lower(scheme, layer);
    }

    /// Begins a conversion with `layer` as the lower layer.
    pub(crate) fn set_lower(&mut self, scheme: Scheme, body: Box<dyn SchemeLayer>) {
        self.lower = Some(LowerLayer { scheme, layer: body, converted: 0 });
        self.rewriting = Rewriting::default();
        self.profile.reset_counts();
        self.set_budget(self.budget);
    }
}
