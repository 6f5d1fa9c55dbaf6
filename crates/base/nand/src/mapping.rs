//! Logical erase blocks on a chip, as in UBI: the mapping from LEBs to PEBs, wear levelling, bad
//! blocks.
//!
//! Invariants:
//! 1. The mapping is stored only in the headers of the blocks, and is rebuilt by reading them. If
//!    two blocks have the same LEB, the higher sequence number is valid. A block that replaces
//!    another is invalid unless it is complete.
//! 2. A superseded block stays in the erase queue until it is erased, and is reused only then.
//! 3. A block that cannot be programmed is given up: its content is copied, then it is erased and
//!    marked as bad. A block that cannot be erased is marked as bad with its content, and
//!    [`Flash::drain`] returns the content.
//! 4. One erased block is always available for a change, as long as the chip has a good block to
//!    spare.

use crate::chip::{Chip, ChipFault, ChipGeometry, Peb};
use crate::erase_block::{EraseHeader, HEADER_PAGES, HeaderPage, MOST, VolumeHeader};
use crate::flash::{Flash, FlashGeometry, Leb, Unerased};
use crate::scan::{Scan, content_of, fault, read_headers};
use crate::state::{BlockUse, MappingState};
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::RwLock;
use std::sync::Arc;

/// The most superseded blocks in the queue. Beyond that, an operation that supersedes a block
/// erases one.
const LONGEST_QUEUE: usize = 8;
/// Wear levelling moves the content of the least worn block if the most worn erased block has this
/// many more erasures.
const WEAR_GAP: u64 = 16;
/// Erasures between two attempts at wear levelling.
const LEVEL_EVERY: u64 = 8;
/// Blocks per thousand that are reserved to replace bad blocks.
const RESERVE: u64 = 20;
/// Blocks besides the reserve, erased or in the erase queue: one for a change, and one for wear
/// levelling.
const WORKING: u64 = 2;

/// The wear of a chip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Erasures of each good block.
    pub erasures: Vec<u64>,
    /// Number of bad blocks.
    pub bad: u32,
    /// Moves of contents for wear levelling.
    pub moved: u64,
    /// Good blocks that may go bad before writing becomes impossible.
    pub spare: u32,
}

impl Wear {
    /// The Hoover index of the erasures, from 0 to 1: the share of all erasures that would have to
    /// occur on other blocks for an equal distribution (DNEFS, section 4.3).
    pub fn inequality(&self) -> f64 {
        let (count, sum) = (self.erasures.len() as f64, self.erasures.iter().sum::<u64>() as f64);
        if sum == 0.0 {
            return 0.0;
        }
        self.erasures.iter().map(|erasures| (*erasures as f64 / sum - 1.0 / count).abs()).sum::<f64>() / 2.0
    }
}

/// [`Flash`] on a chip.
pub struct Mapping {
    chip: Arc<dyn Chip>,
    chip_geometry: ChipGeometry,
    lebs: u32,
    image: u64,
    state: RwLock<MappingState>,
}

impl Mapping {
    /// The geometry of a mapping on a chip that has `bad` bad blocks when the mapping is created.
    pub fn geometry_on(chip: ChipGeometry, bad: u32) -> FlashGeometry {
        let leb_len = chip.pages.saturating_sub(HEADER_PAGES) * chip.page;
        FlashGeometry { page: chip.page, leb_len, lebs: Self::lebs_for(chip, bad) }
    }

    /// The number of LEBs on a chip with `bad` bad blocks.
    fn lebs_for(geometry: ChipGeometry, bad: u32) -> u32 {
        let blocks = u64::from(geometry.blocks);
        let reserve = (blocks * RESERVE).div_ceil(1000).saturating_sub(u64::from(bad));
        blocks.saturating_sub(u64::from(bad) + reserve + WORKING) as u32
    }

    /// Creates a mapping on a chip and erases the old content. `image`, a random number,
    /// distinguishes its blocks from those of other mappings.
    ///
    /// Errors: [`Kind::NoSpace`] if too few blocks are good.
    pub fn create(chip: &dyn Chip, image: u64) -> Result<()> {
        let geometry = chip.geometry();
        let mut bad = 0;
        let mut good = vec![];
        for peb in (0..geometry.blocks).map(Peb) {
            if chip.is_bad(peb).map_err(fault)? {
                bad += 1;
                continue;
            }
            let erasures = match read_headers(chip, peb)?.0 {
                HeaderPage::Header(header) => header.erasures,
                _ => 0,
            };
            match chip.erase(peb) {
                Ok(()) => good.push((peb, erasures + 1)),
                Err(ChipFault::Erase) => {
                    chip.mark_bad(peb).map_err(fault)?;
                    bad += 1;
                }
                Err(e) => return Err(fault(e)),
            }
        }
        let lebs = Self::lebs_for(geometry, bad);
        if lebs == 0 {
            return Err(Error::new(Kind::NoSpace, "the chip has too few good blocks")
                .found(format!("{} of {}", good.len(), geometry.blocks))
                .expected("some for data, and 2 and a fiftieth of all to spare"));
        }
        for (peb, erasures) in good {
            let header = EraseHeader { erasures, lebs, image };
            match chip.program(peb, 0, &header.page(geometry.page as usize)) {
                Ok(()) => {}
                Err(ChipFault::Program) => chip.mark_bad(peb).map_err(fault)?,
                Err(e) => return Err(fault(e)),
            }
        }
        Ok(())
    }

    /// Opens the mapping on a chip.
    ///
    /// Errors: [`Kind::NotFound`] if there is none, [`Kind::Corrupt`] if the blocks belong to
    /// different mappings.
    pub fn open(chip: Arc<dyn Chip>) -> Result<Mapping> {
        let geometry = chip.geometry();
        let scan = Scan::of(&*chip)?;
        let Some(EraseHeader { lebs, image, .. }) = scan.first else {
            return Err(Error::new(Kind::NotFound, "there are no logical erase blocks on this chip")
                .expected("a chip that lacuna has divided")
                .hint("create the disk first"));
        };
        if lebs == 0 || lebs > geometry.blocks {
            return Err(Error::new(Kind::Corrupt, "the headers of this chip are invalid")
                .found(format!("{lebs} logical erase blocks"))
                .expected(format!("fewer than its {} erase blocks", geometry.blocks))
                .hint("restore the chip from a backup, or create the disk anew"));
        }
        let state = scan.finish(&*chip, lebs)?;
        Ok(Mapping { chip, chip_geometry: geometry, lebs, image, state: RwLock::new(state) })
    }

    /// The wear of the chip.
    pub fn wear(&self) -> Wear {
        let state = self.state.read();
        let good = |peb: &usize| state.uses[*peb] != BlockUse::Bad;
        let erasures: Vec<u64> = (0..state.uses.len()).filter(good).map(|peb| state.erasures[peb]).collect();
        let needed = u64::from(self.lebs) + WORKING;
        let spare = (erasures.len() as u64).saturating_sub(needed) as u32;
        let bad = (state.uses.len() - erasures.len()) as u32;
        Wear { erasures, bad, moved: state.moved, spare }
    }

    fn page(&self) -> u32 {
        self.chip_geometry.page
    }

    fn check(&self, block: Leb, offset: u32, len: usize) -> Result<()> {
        let end = u64::from(offset) + len as u64;
        if block.0 < self.lebs && end <= u64::from(self.geometry().leb_len) {
            return Ok(());
        }
        Err(Error::new(Kind::Other, "access past the end of the flash")
            .found(format!("block {}, bytes {offset} to {end}", block.0))
            .expected(format!("one of {} blocks of {} bytes", self.lebs, self.geometry().leb_len)))
    }

    fn check_pages(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.check(block, offset, data.len())?;
        if offset.is_multiple_of(self.page()) && data.len().is_multiple_of(self.page() as usize) {
            return Ok(());
        }
        Err(Error::new(Kind::Other, "flash is programmed in whole pages")
            .found(format!("{} bytes from byte {offset}", data.len()))
            .expected(format!("multiples of {}", self.page())))
    }

    /// Takes an erased block and writes its volume header.
    fn allocate_block(&self, state: &mut MappingState, leb: Leb, copied: Option<(u32, u32)>) -> Result<Peb> {
        loop {
            if state.sequence + 1 == MOST {
                return Err(worn_out());
            }
            let peb = self.take_free(state)?;
            state.sequence += 1;
            let header = VolumeHeader { leb: leb.0, sequence: state.sequence, copied };
            match self.chip.program(peb, 1, &header.page(self.page() as usize)) {
                Ok(()) => return Ok(peb),
                Err(ChipFault::Program) => state.enqueue(peb, None, true),
                Err(e) => {
                    state.enqueue(peb, None, false);
                    return Err(fault(e));
                }
            }
        }
    }

    fn take_free(&self, state: &mut MappingState) -> Result<Peb> {
        loop {
            if let Some((erasures, peb)) = state.free.first().copied() {
                state.free.remove(&(erasures, peb));
                return Ok(peb);
            }
            if !self.erase_next(state)? {
                return Err(worn_out());
            }
        }
    }

    /// Erases the first block in the queue. False if the queue is empty.
    fn erase_next(&self, state: &mut MappingState) -> Result<bool> {
        let Some(queued) = state.queue.front() else { return Ok(false) };
        let (peb, held, failing) = (queued.peb, queued.held, queued.failing);
        let erased = match self.chip.erase(peb) {
            Ok(()) => true,
            Err(ChipFault::Erase) => {
                let content = content_of(&*self.chip, peb)?;
                state.unerased.push(Unerased { leb: held, content });
                false
            }
            Err(e) => return Err(fault(e)),
        };
        state.queue.pop_front();
        let number = peb.0 as usize;
        state.erasures[number] += 1;
        state.erased_since_levelling += 1;
        let header = EraseHeader { erasures: state.erasures[number], lebs: self.lebs, image: self.image };
        let header = header.page(self.page() as usize);
        let again = |_: &Error| state.enqueue(peb, None, false);
        let usable = erased && !failing && self.try_program(peb, 0, &header).inspect_err(again)?;
        if usable {
            state.uses[number] = BlockUse::Free;
            state.free.insert((state.erasures[number], peb));
        } else {
            state.uses[number] = BlockUse::Bad;
            self.chip.mark_bad(peb).map_err(fault)?;
        }
        Ok(true)
    }

    /// Programs pages. False if the chip reports a failure.
    fn try_program(&self, peb: Peb, first: u32, data: &[u8]) -> Result<bool> {
        match self.chip.program(peb, first, data) {
            Ok(()) => Ok(true),
            Err(ChipFault::Program) => Ok(false),
            Err(e) => Err(fault(e)),
        }
    }

    /// Writes `data` to an erased block, and maps the LEB to it. A block that the chip fails to
    /// program may hold a part of the data: it is erased like a superseded block.
    fn replace(&self, state: &mut MappingState, leb: Leb, data: &[u8], failing: bool) -> Result<()> {
        let copied = Some((data.len() as u32, crc32fast::hash(data)));
        let peb = loop {
            let peb = self.allocate_block(state, leb, copied)?;
            let programmed =
                if data.is_empty() { Ok(true) } else { self.try_program(peb, HEADER_PAGES, data) };
            if matches!(programmed, Ok(true)) {
                break peb;
            }
            state.enqueue(peb, Some(leb), programmed.is_ok());
            programmed?;
        };
        if let Some(old) = state.map_to(leb, Some(peb)) {
            state.enqueue(old, Some(leb), failing);
        }
        Ok(())
    }

    /// Limits the erase queue, and levels wear.
    fn maintain(&self, state: &mut MappingState) -> Result<()> {
        while state.queue.len() > LONGEST_QUEUE {
            self.erase_next(state)?;
        }
        if state.erased_since_levelling >= LEVEL_EVERY {
            state.erased_since_levelling = 0;
            self.level(state)?;
        }
        Ok(())
    }

    /// Moves the content of the least worn block, which changes rarely, to the most worn erased
    /// block.
    fn level(&self, state: &mut MappingState) -> Result<()> {
        // One erased block stays for the next change.
        while state.free.len() < 2 && self.erase_next(state)? {}
        let (Some(&(least, peb)), Some(&(most, worn))) = (state.mapped.first(), state.free.last()) else {
            return Ok(());
        };
        let BlockUse::Mapped(leb) = state.uses[peb.0 as usize] else { return Ok(()) };
        if most < least + WEAR_GAP || state.free.len() < 2 || state.sequence + 1 == MOST {
            return Ok(());
        }
        let mut data = content_of(&*self.chip, peb)?;
        let used = data.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
        data.truncate(used.next_multiple_of(self.page() as usize));
        state.free.remove(&(most, worn));
        state.sequence += 1;
        let copied = Some((data.len() as u32, crc32fast::hash(&data)));
        let header = VolumeHeader { leb: leb.0, sequence: state.sequence, copied };
        let mut programmed = self.try_program(worn, 1, &header.page(self.page() as usize));
        if !data.is_empty() && matches!(programmed, Ok(true)) {
            programmed = self.try_program(worn, HEADER_PAGES, &data);
        }
        if !matches!(programmed, Ok(true)) {
            state.enqueue(worn, Some(leb), programmed.is_ok());
            return programmed.map(|_| ());
        }
        state.moved += 1;
        if let Some(old) = state.map_to(leb, Some(worn)) {
            state.enqueue(old, Some(leb), false);
        }
        Ok(())
    }
}

impl Flash for Mapping {
    fn geometry(&self) -> FlashGeometry {
        FlashGeometry { lebs: self.lebs, ..Self::geometry_on(self.chip_geometry, 0) }
    }

    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.check(block, offset, buf.len())?;
        // Reads under the lock, so that the block is not erased meanwhile.
        let state = self.state.read();
        if let Some(peb) = state.map[block.0 as usize] {
            self.chip.read(peb, HEADER_PAGES * self.page() + offset, buf).map_err(fault)
        } else {
            buf.fill(0xff);
            Ok(())
        }
    }

    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.check_pages(block, offset, data)?;
        let mut state = self.state.write();
        let peb = if let Some(peb) = state.map[block.0 as usize] {
            peb
        } else {
            let peb = self.allocate_block(&mut state, block, None)?;
            state.map_to(block, Some(peb));
            peb
        };
        if !self.try_program(peb, HEADER_PAGES + offset / self.page(), data)? {
            // Moves the content of the block to another block, with the new data.
            let mut whole = vec![0; offset as usize];
            self.chip.read(peb, HEADER_PAGES * self.page(), &mut whole).map_err(fault)?;
            whole.extend_from_slice(data);
            self.replace(&mut state, block, &whole, true)?;
        }
        self.maintain(&mut state)
    }

    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.check_pages(block, 0, data)?;
        let mut state = self.state.write();
        self.replace(&mut state, block, data, false)?;
        self.maintain(&mut state)
    }

    fn unmap(&self, block: Leb) -> Result<()> {
        self.check(block, 0, 0)?;
        let mut state = self.state.write();
        if let Some(old) = state.map_to(block, None) {
            state.enqueue(old, Some(block), false);
        }
        self.maintain(&mut state)
    }

    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.check(block, 0, 0)?;
        Ok(self.state.read().map[block.0 as usize].is_some())
    }

    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        let mut state = self.state.write();
        while self.erase_next(&mut state)? {}
        Ok(state.unerased.extract_if(.., |copy| wanted(copy)).collect())
    }

    fn sync(&self) -> Result<()> {
        self.chip.sync().map_err(fault)
    }
}

fn worn_out() -> Error {
    Error::new(Kind::ReadOnly, "the flash is worn out: no good block is left to write to")
        .found("more bad blocks than were kept in reserve")
        .expected("an erased block")
        .hint("copy its content to another device; no written data is lost")
}
