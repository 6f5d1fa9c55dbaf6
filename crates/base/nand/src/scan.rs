//! Rebuilds the mapping from the headers of all blocks of a chip.

use crate::chip::{Chip, ChipFault, Peb};
use crate::erase_block::{EraseHeader, HEADER_PAGES, HeaderPage, VolumeHeader};
use crate::flash::{Leb, Unerased};
use crate::state::{BlockUse, MappingState, QueuedBlock};
use lacuna_contracts::{Error, Kind, Result};
use std::collections::{BTreeSet, VecDeque};

/// Bytes that suffice for any header.
const START: u32 = 64;
/// Number of blocks with their headers fetched ahead of the scan.
const AHEAD: u32 = 256;

/// The result of reading the headers.
#[derive(Default)]
pub(crate) struct Scan {
    /// The header of the first block that has one.
    pub(crate) first: Option<EraseHeader>,
    uses: Vec<BlockUse>,
    erasures: Vec<Option<u64>>,
    volume_headers: Vec<(Peb, VolumeHeader)>,
    queue: VecDeque<QueuedBlock>,
    unerased: Vec<Unerased>,
}

impl Scan {
    /// Reads the headers of all blocks.
    pub(crate) fn of(chip: &dyn Chip) -> Result<Scan> {
        let (blocks, start) = (chip.geometry().blocks, chip.geometry().page + START);
        let mut scan = Scan::default();
        (0..blocks.min(AHEAD)).for_each(|peb| chip.will_read(Peb(peb), start));
        for peb in 0..blocks {
            if peb + AHEAD < blocks {
                chip.will_read(Peb(peb + AHEAD), start);
            }
            scan.scan_block(chip, Peb(peb))?;
        }
        Ok(scan)
    }

    /// Reads the headers of a block.
    fn scan_block(&mut self, chip: &dyn Chip, peb: Peb) -> Result<()> {
        let bad = chip.is_bad(peb).map_err(fault)?;
        let (erase, volume) = read_headers(chip, peb)?;
        if erase == HeaderPage::LaterVersion || volume == HeaderPage::LaterVersion {
            return Err(Error::new(Kind::Corrupt, "this chip was divided by a later version of lacuna")
                .found(format!("a header of block {}", peb.0))
                .expected("headers of version 1")
                .hint("open it with the version of lacuna that wrote it"));
        }
        self.erasures.push(match erase {
            HeaderPage::Header(header) => Some(header.erasures),
            _ => None,
        });
        if bad {
            self.uses.push(BlockUse::Bad);
            let leb = match volume {
                HeaderPage::Header(header) => Some(Leb(header.leb)),
                // An erasure destroys the header first, and the content behind it may stay.
                _ => None,
            };
            let content = content_of(chip, peb)?;
            if leb.is_some() || content.iter().any(|byte| *byte != content[0]) {
                self.unerased.push(Unerased { leb, content });
            }
            return Ok(());
        }
        match erase {
            HeaderPage::Header(header) => match self.first {
                None => self.first = Some(header),
                Some(first) if (first.image, first.lebs) != (header.image, header.lebs) => {
                    return Err(Error::new(
                        Kind::Corrupt,
                        "the blocks of this chip belong to different disks",
                    )
                    .found(format!("block {} of image {:016x}", peb.0, header.image))
                    .expected(format!("image {:016x}", first.image))
                    .hint("restore the chip from a backup, or create the disk anew"));
                }
                Some(_) => {}
            },
            // Power was cut during an erasure, or between it and this header.
            HeaderPage::Erased | HeaderPage::Invalid | HeaderPage::LaterVersion => {
                self.uses.push(BlockUse::Superseded);
                self.queue.push_back(QueuedBlock { peb, held: None, failing: false });
                return Ok(());
            }
        }
        match volume {
            HeaderPage::Erased => self.uses.push(BlockUse::Free),
            HeaderPage::Header(header) => {
                self.uses.push(BlockUse::Superseded);
                self.volume_headers.push((peb, header));
            }
            HeaderPage::Invalid | HeaderPage::LaterVersion => {
                self.uses.push(BlockUse::Superseded);
                self.queue.push_back(QueuedBlock { peb, held: None, failing: false });
            }
        }
        Ok(())
    }

    /// Builds the mapping from the headers.
    pub(crate) fn finish(mut self, chip: &dyn Chip, lebs: u32) -> Result<MappingState> {
        let known: Vec<u64> = self.erasures.iter().flatten().copied().collect();
        // A block with a lost count gets the average count of the other blocks.
        let mean = (known.iter().map(|erasures| u128::from(*erasures)).sum::<u128>()
            / known.len().max(1) as u128) as u64;
        let mut state = MappingState {
            map: vec![None; lebs as usize],
            erasures: self.erasures.iter().map(|erasures| erasures.unwrap_or(mean)).collect(),
            uses: std::mem::take(&mut self.uses),
            free: BTreeSet::new(),
            mapped: BTreeSet::new(),
            queue: self.queue,
            unerased: self.unerased.into_iter().map(|copy| copy.with_valid_leb(lebs)).collect(),
            sequence: self.volume_headers.iter().map(|(_, header)| header.sequence).max().unwrap_or(0),
            erased_since_levelling: 0,
            moved: 0,
        };
        for (number, used) in state.uses.iter().enumerate() {
            if *used == BlockUse::Free {
                state.free.insert((state.erasures[number], Peb(number as u32)));
            }
        }
        // In ascending order, so that each valid block replaces its predecessor.
        self.volume_headers.sort_unstable_by_key(|(_, header)| header.sequence);
        for (peb, header) in self.volume_headers {
            let leb = Leb(header.leb);
            if header.leb >= lebs || !is_complete(chip, peb, &header)? {
                state.enqueue(peb, (header.leb < lebs).then_some(leb), false);
            } else if let Some(old) = state.map_to(leb, Some(peb)) {
                state.enqueue(old, Some(leb), false);
            }
        }
        Ok(state)
    }
}

/// Whether a block is complete: a replacement must match its length and checksum.
fn is_complete(chip: &dyn Chip, peb: Peb, header: &VolumeHeader) -> Result<bool> {
    let Some((len, checksum)) = header.copied else { return Ok(true) };
    let geometry = chip.geometry();
    let start = HEADER_PAGES * geometry.page;
    if u64::from(len) > geometry.block_len() - u64::from(start) {
        return Ok(false);
    }
    let mut data = vec![0; len as usize];
    chip.read(peb, start, &mut data).map_err(fault)?;
    Ok(crc32fast::hash(&data) == checksum)
}

/// Both headers of a block, with one read if the block has headers: chips have many blocks.
pub(crate) fn read_headers(
    chip: &dyn Chip,
    peb: Peb,
) -> Result<(HeaderPage<EraseHeader>, HeaderPage<VolumeHeader>)> {
    let page = chip.geometry().page as usize;
    let mut bytes = vec![0; page + START as usize];
    chip.read(peb, 0, &mut bytes).map_err(fault)?;
    let erase = EraseHeader::parse(&bytes[..page]);
    let volume = match VolumeHeader::parse(&bytes[page..]) {
        // The page is erased only if all of it is.
        HeaderPage::Erased | HeaderPage::Invalid => {
            let mut whole = bytes[page..].to_vec();
            whole.resize(page, 0);
            // Bytes are not read twice: a chip may answer differently, and a header would appear or
            // vanish.
            chip.read(peb, page as u32 + START, &mut whole[START as usize..]).map_err(fault)?;
            VolumeHeader::parse(&whole)
        }
        found => found,
    };
    Ok((erase, volume))
}

/// The content behind the headers of a block.
pub(crate) fn content_of(chip: &dyn Chip, peb: Peb) -> Result<Vec<u8>> {
    let geometry = chip.geometry();
    let mut content = vec![0; ((geometry.pages - HEADER_PAGES) * geometry.page) as usize];
    chip.read(peb, HEADER_PAGES * geometry.page, &mut content).map_err(fault)?;
    Ok(content)
}

/// Converts a fault for the callers of a mapping.
pub(crate) fn fault(fault: ChipFault) -> Error {
    match fault {
        ChipFault::Other(e) => e,
        ChipFault::Program => Error::new(Kind::Io, "the chip could not program a block"),
        ChipFault::Erase => Error::new(Kind::Io, "the chip could not erase a block"),
    }
}
