//! A NAND chip in a medium, for trials, tests and measurements.
//!
//! It enforces the rules of NAND, wears out as a real chip does, and loses power in the middle of
//! an operation on request of a test. Layout of the medium: a head page with the geometry, 16 bytes
//! of state per erase block, then the blocks (docs/format/nand.md).
//!
//! Invariant: after a power cut every block holds the content programmed before, except for the
//! operation that was cut. A cut program leaves a prefix of its pages, then one page with arbitrary
//! content. A cut erasure leaves a block that is erased from its first page to any page; it accepts
//! no page before it is erased again. The death of the process leaves the same, or an operation
//! that is complete or has not begun.

use crate::chip::{Chip, ChipFault, ChipGeometry, Peb};
use crate::power::{ChipPower, CutOperation, PowerCut, power_is_off};
use lacuna_contracts::{Error, Kind, LeReader, LeWriter, Result};
use lacuna_medium::{Medium, WriteExtent};
use parking_lot::Mutex;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"lacnand\0";
const VERSION: u32 = 1;
/// Bytes of the head, which describes the chip.
const HEAD: u64 = 4096;
/// Bytes of the state of a block.
const STATE: u64 = 16;
const BAD: u32 = 1;
/// A limit above the erasures of any block: a counter below it never overflows.
const MOST: u64 = 1 << 48;

/// The wear model of a simulated chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearModel {
    /// Erasures that a block endures; 0 for any number. Each later erasure fails with probability
    /// 1/4.
    pub endurance: u32,
    /// Page programs that fail, per million.
    pub program_faults: u32,
    /// Erasures that fail, per million.
    pub erase_faults: u32,
    /// Blocks that are bad from the factory, per thousand.
    pub factory_bad: u32,
}

#[derive(Clone, Copy, Default)]
struct BlockState {
    erasures: u64,
    /// The first page that may be programmed. In a partly erased block, all pages count as
    /// programmed.
    next: u32,
    flags: u32,
}

struct ChipState {
    blocks: Vec<BlockState>,
    power: ChipPower,
    rng_state: u64,
}

/// A chip in a medium.
pub struct SimulatedChip {
    medium: Arc<dyn Medium>,
    geometry: ChipGeometry,
    wearing: WearModel,
    state: Mutex<ChipState>,
}

impl SimulatedChip {
    /// Length of the medium of a chip with this geometry.
    pub fn medium_len(geometry: ChipGeometry) -> u64 {
        data_at(geometry) + geometry.len()
    }

    /// Creates a chip. All of its good blocks are erased. The medium must read as zeros.
    ///
    /// Errors: [`Kind::Usage`] for an impossible geometry, [`Kind::NoSpace`] if the medium is too
    /// short.
    pub fn create(medium: &dyn Medium, geometry: ChipGeometry, wearing: WearModel, seed: u64) -> Result<()> {
        check_geometry(geometry)?;
        if medium.len() < Self::medium_len(geometry) {
            return Err(Error::new(Kind::NoSpace, "the chip does not fit its medium")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", Self::medium_len(geometry))));
        }
        let mut head = vec![0; HEAD as usize];
        let mut record = LeWriter(&mut head);
        record.put(0, MAGIC);
        record.u32(8, VERSION);
        record.u32(12, geometry.page);
        record.u32(16, geometry.pages);
        record.u32(20, geometry.blocks);
        record.u32(24, wearing.endurance);
        record.u32(28, wearing.program_faults);
        record.u32(32, wearing.erase_faults);
        for block in factory_bad(geometry, wearing, seed) {
            let bad = BlockState { flags: BAD, ..BlockState::default() };
            medium.write_at(state_at(block), &bad.bytes())?;
        }
        medium.write_at(0, &head)?;
        medium.sync()
    }

    /// The number of factory-bad blocks of a chip created with this seed.
    pub fn factory_bad(geometry: ChipGeometry, wearing: WearModel, seed: u64) -> u32 {
        factory_bad(geometry, wearing, seed).count() as u32
    }

    /// The original length of the medium of a chip, which may have been truncated since; `None` if
    /// its head is invalid.
    ///
    /// Errors: those of the medium.
    pub fn whole_len(medium: &dyn Medium) -> Result<Option<u64>> {
        let head = read_head(medium)?;
        let geometry = geometry_in(LeReader(&head));
        let is_chip = head[..8] == *MAGIC && check_geometry(geometry).is_ok();
        Ok(is_chip.then(|| Self::medium_len(geometry)))
    }

    /// Opens a chip. `seed` determines its failures.
    ///
    /// Errors: [`Kind::NotFound`] if there is none, [`Kind::Corrupt`] if its description makes no
    /// sense.
    pub fn open(medium: Arc<dyn Medium>, seed: u64) -> Result<SimulatedChip> {
        let head = read_head(&*medium)?;
        let record = LeReader(&head);
        if head[..8] != *MAGIC {
            return Err(Error::new(Kind::NotFound, "there is no simulated chip here")
                .expected("a file that lacuna made for a chip"));
        }
        if record.u32(8) != VERSION || !record.is_zero(36..) {
            return Err(Error::new(Kind::NotFound, "a later version of lacuna made this chip")
                .found(format!(
                    "version {}, or something that version {VERSION} does not know",
                    record.u32(8)
                ))
                .expected(format!("version {VERSION}"))
                .hint("open it with the version of lacuna that made it"));
        }
        let geometry = geometry_in(record);
        check_geometry(geometry).map_err(|e| e.with_kind(Kind::Corrupt))?;
        if medium.len() < Self::medium_len(geometry) {
            return Err(Error::new(Kind::Corrupt, "the file of the chip is too short")
                .found(format!("{} bytes", medium.len()))
                .expected(format!("{} bytes", Self::medium_len(geometry))));
        }
        let wearing = WearModel {
            endurance: record.u32(24),
            program_faults: record.u32(28),
            erase_faults: record.u32(32),
            factory_bad: 0,
        };
        let mut blocks = Vec::with_capacity(geometry.blocks as usize);
        let mut buf = vec![0; 1 << 20];
        while blocks.len() < geometry.blocks as usize {
            let count = (geometry.blocks as usize - blocks.len()).min(buf.len() / STATE as usize);
            let bytes = &mut buf[..count * STATE as usize];
            medium.read_at(state_at(Peb(blocks.len() as u32)), bytes)?;
            blocks.extend(bytes.chunks_exact(STATE as usize).map(BlockState::parse));
        }
        let possible =
            |block: &BlockState| block.erasures < MOST && block.next <= geometry.pages && block.flags <= BAD;
        if let Some(peb) = blocks.iter().position(|block| !possible(block)) {
            let BlockState { erasures, next, flags } = blocks[peb];
            return Err(Error::new(Kind::Corrupt, "the state of an erase block of the chip is invalid")
                .found(format!("block {peb}: {erasures} erasures, next page {next}, flags {flags}"))
                .expected(format!("fewer than 2⁴⁸ erasures, a page up to {}, flags 0 or 1", geometry.pages))
                .hint("restore the file of the chip from a backup"));
        }
        let state = ChipState { blocks, power: ChipPower::default(), rng_state: seed };
        Ok(SimulatedChip { medium, geometry, wearing, state: Mutex::new(state) })
    }

    /// Cuts the power at a later operation. All calls after that fail; reopen the chip from its
    /// medium.
    pub fn cut_power(&self, cut: PowerCut) {
        self.state.lock().power.cut_at(cut);
    }

    /// Lets the process that uses the chip die at a later operation. The chip keeps its power: that
    /// operation has not begun, is complete, or is torn as by a power cut. All calls after that
    /// fail; reopen the chip from its medium.
    pub fn end_process(&self, cut: PowerCut) {
        self.state.lock().power.end_process_at(cut);
    }

    /// Ends the use of the chip between two operations: all calls after this fail, as after a power
    /// cut.
    pub fn switch_off(&self) {
        self.state.lock().power.switch_off();
    }

    /// Whether the power was cut, or the process died.
    pub fn is_off(&self) -> bool {
        self.state.lock().power.is_off()
    }

    /// Operations that changed the chip since it was opened.
    pub fn operations(&self) -> u64 {
        self.state.lock().power.operations()
    }

    /// Erasures of each block.
    pub fn erasures(&self) -> Vec<u64> {
        self.state.lock().blocks.iter().map(|block| block.erasures).collect()
    }

    /// All pages of all blocks, mapped or not: the view of an adversary with the chip taken apart.
    pub fn image(&self) -> Result<Vec<u8>> {
        let mut image = vec![0; self.geometry.len() as usize];
        let len = self.geometry.block_len() as usize;
        for (block, bytes) in (0..).zip(image.chunks_exact_mut(len)) {
            self.read_pages(Peb(block), 0, bytes)?;
        }
        Ok(image)
    }

    fn at(&self, block: Peb, offset: u32) -> u64 {
        data_at(self.geometry) + u64::from(block.0) * self.geometry.block_len() + u64::from(offset)
    }

    fn read_pages(&self, block: Peb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.medium.read_at(self.at(block, offset), buf)?;
        // Stored inverted, so that erased blocks are zeros and take no space on the medium.
        buf.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }

    fn refuse(&self, what: &str, found: String) -> ChipFault {
        ChipFault::Other(
            Error::new(Kind::Other, format!("the rules of NAND forbid to {what}")).found(found).expected(format!(
                "whole pages of {} bytes, in ascending order, once after each erasure, in one of {} good blocks",
                self.geometry.page, self.geometry.blocks
            )),
        )
    }

    fn check_block(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        if block.0 < self.geometry.blocks {
            return Ok(());
        }
        Err(self.refuse("access a block past the end", format!("block {}", block.0)))
    }

    /// The length of the programmed part of a block; all pages behind it are erased.
    fn programmed(&self, block: Peb) -> std::result::Result<u32, ChipFault> {
        self.check_block(block)?;
        let state = self.state.lock();
        state.power.check_on()?;
        // Cannot overflow: no block is longer than 4096 pages of 64 KiB.
        Ok(state.blocks[block.0 as usize].next * self.geometry.page)
    }

    fn put_state(&self, block: Peb, state: BlockState) -> Result<()> {
        self.medium.write_at(state_at(block), &state.bytes())
    }
}

impl Chip for SimulatedChip {
    fn geometry(&self) -> ChipGeometry {
        self.geometry
    }

    fn read(&self, block: Peb, offset: u32, buf: &mut [u8]) -> std::result::Result<(), ChipFault> {
        let programmed = self.programmed(block)?;
        if u64::from(offset) + buf.len() as u64 > self.geometry.block_len() {
            return Err(
                self.refuse("read past a block", format!("byte {}", u64::from(offset) + buf.len() as u64))
            );
        }
        // Erased pages are not read from the medium: a scan of a large chip reads many of them.
        let there = (programmed.saturating_sub(offset) as usize).min(buf.len());
        let (there, erased) = buf.split_at_mut(there);
        erased.fill(0xff);
        if there.is_empty() { Ok(()) } else { Ok(self.read_pages(block, offset, there)?) }
    }

    fn will_read(&self, block: Peb, len: u32) {
        // The read itself reports errors.
        let programmed = self.programmed(block).unwrap_or(0);
        if programmed > 0 {
            self.medium.will_read(self.at(block, 0), len.min(programmed).into());
        }
    }

    fn program(&self, block: Peb, first: u32, data: &[u8]) -> std::result::Result<(), ChipFault> {
        self.check_block(block)?;
        let page = self.geometry.page as usize;
        let pages = (data.len() / page) as u32;
        let mut state = self.state.lock();
        let mut now = state.blocks[block.0 as usize];
        let end = u64::from(first) + u64::from(pages);
        if data.is_empty()
            || !data.len().is_multiple_of(page)
            || first < now.next
            || end > u64::from(self.geometry.pages)
            || now.flags & BAD != 0
        {
            let found = format!("{} bytes from page {first}, {} of them programmed", data.len(), now.next);
            return Err(self.refuse("program this", found));
        }
        let cut = state.power.begin()?;
        let fails = u64::from(self.wearing.program_faults) * u64::from(pages);
        let fails = fails > 0 && draw(&mut state.rng_state) % 1_000_000 < fails;
        let mut bytes: Vec<u8> = data.iter().map(|byte| !byte).collect();
        now.next = first + pages;
        let torn = cut.and_then(CutOperation::tear_seed);
        if torn.is_some() || fails {
            let mut seed = torn.unwrap_or(state.rng_state);
            // Some complete pages, then one with arbitrary content.
            let whole = (draw(&mut seed) % u64::from(pages)) as usize;
            bytes.truncate((whole + 1) * page);
            bytes[whole * page..].iter_mut().for_each(|byte| *byte = draw(&mut seed) as u8);
            now.next = first + whole as u32 + 1;
        }
        let entry = now.bytes();
        self.medium.write(&[
            WriteExtent { offset: self.at(block, first * self.geometry.page), data: &bytes },
            WriteExtent { offset: state_at(block), data: &entry },
        ])?;
        state.blocks[block.0 as usize] = now;
        match (cut, fails) {
            (Some(_), _) => Err(power_is_off().into()),
            (None, true) => Err(ChipFault::Program),
            (None, false) => Ok(()),
        }
    }

    fn erase(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.check_block(block)?;
        let mut state = self.state.lock();
        let mut now = state.blocks[block.0 as usize];
        if now.flags & BAD != 0 {
            return Err(self.refuse("erase this", format!("block {}, which is bad", block.0)));
        }
        let cut = state.power.begin()?;
        let worn = self.wearing.endurance > 0 && now.erasures >= u64::from(self.wearing.endurance);
        let fails = (worn && draw(&mut state.rng_state).is_multiple_of(4))
            || draw(&mut state.rng_state) % 1_000_000 < u64::from(self.wearing.erase_faults);
        let len = self.geometry.block_len();
        if let Some(mut seed) = cut.and_then(CutOperation::tear_seed) {
            // The first pages are erased. The rest may look intact, but no page may be programmed
            // before the block is erased again.
            let pages = draw(&mut seed) % (u64::from(self.geometry.pages) + 1);
            self.medium.discard(self.at(block, 0), pages * u64::from(self.geometry.page))?;
            now.next = self.geometry.pages;
            self.put_state(block, now)?;
            state.blocks[block.0 as usize] = now;
            return Err(power_is_off().into());
        }
        now.erasures = (now.erasures + 1).min(MOST - 1);
        if !fails {
            now.next = 0;
            self.medium.discard(self.at(block, 0), len)?;
        }
        self.put_state(block, now)?;
        state.blocks[block.0 as usize] = now;
        match (cut, fails) {
            (Some(_), _) => Err(power_is_off().into()),
            (None, true) => Err(ChipFault::Erase),
            (None, false) => Ok(()),
        }
    }

    fn is_bad(&self, block: Peb) -> std::result::Result<bool, ChipFault> {
        self.check_block(block)?;
        Ok(self.state.lock().blocks[block.0 as usize].flags & BAD != 0)
    }

    fn mark_bad(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.check_block(block)?;
        let mut state = self.state.lock();
        let cut = state.power.begin()?;
        if cut.and_then(CutOperation::tear_seed).is_some() {
            return Err(power_is_off().into());
        }
        let now = &mut state.blocks[block.0 as usize];
        now.flags |= BAD;
        let now = *now;
        self.put_state(block, now)?;
        if cut.is_some() { Err(power_is_off().into()) } else { Ok(()) }
    }

    fn sync(&self) -> std::result::Result<(), ChipFault> {
        Ok(self.medium.sync()?)
    }
}

impl BlockState {
    fn bytes(self) -> [u8; STATE as usize] {
        let mut bytes = [0; STATE as usize];
        let mut record = LeWriter(&mut bytes);
        record.u64(0, self.erasures);
        record.u32(8, self.next);
        record.u32(12, self.flags);
        bytes
    }

    fn parse(bytes: &[u8]) -> BlockState {
        let record = LeReader(bytes);
        BlockState { erasures: record.u64(0), next: record.u32(8), flags: record.u32(12) }
    }
}

/// The blocks that are bad from the factory.
fn factory_bad(geometry: ChipGeometry, wearing: WearModel, seed: u64) -> impl Iterator<Item = Peb> {
    let mut chance = seed;
    (0..geometry.blocks).map(Peb).filter(move |_| draw(&mut chance) % 1000 < u64::from(wearing.factory_bad))
}

/// The head of a chip; zeros if the medium is shorter.
fn read_head(medium: &dyn Medium) -> Result<Vec<u8>> {
    let mut head = vec![0; HEAD as usize];
    if medium.len() >= HEAD {
        medium.read_at(0, &mut head)?;
    }
    Ok(head)
}

/// The geometry in the head of a chip.
fn geometry_in(head: LeReader<'_>) -> ChipGeometry {
    ChipGeometry { page: head.u32(12), pages: head.u32(16), blocks: head.u32(20) }
}

fn check_geometry(g: ChipGeometry) -> Result<()> {
    let possible = g.page.is_power_of_two()
        && (512..=1 << 16).contains(&g.page)
        && (4..=4096).contains(&g.pages)
        && (8..=1 << 24).contains(&g.blocks);
    if possible {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "the geometry is not that of a NAND chip")
        .found(format!("pages of {} bytes, {} to a block, {} blocks", g.page, g.pages, g.blocks))
        .expected("pages of 512 bytes to 64 KiB, a power of two; 4 to 4096 to a block; 8 blocks or more"))
}

fn state_at(block: Peb) -> u64 {
    HEAD + u64::from(block.0) * STATE
}

fn data_at(geometry: ChipGeometry) -> u64 {
    (HEAD + u64::from(geometry.blocks) * STATE).next_multiple_of(HEAD)
}

/// The next number of a reproducible sequence (SplitMix64).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
