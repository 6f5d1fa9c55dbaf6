//! Flash in memory, with contents that can be copied and altered, and with reads that lie on
//! request.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_nand::{Flash, FlashGeometry, Leb, Unerased};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Contents of the mapped logical erase blocks, up to their last programmed byte.
pub type FlashContents = BTreeMap<u32, Vec<u8>>;

/// The numbers of lying reads, each with the contents that it returns.
pub type FlashLies = BTreeMap<u64, &'static FlashContents>;

/// Flash in memory.
pub struct RamFlash {
    geometry: FlashGeometry,
    contents: Mutex<FlashContents>,
    /// The number of reads so far, and the lying reads.
    reads: Mutex<(u64, FlashLies)>,
}

impl RamFlash {
    /// Flash with these contents.
    pub fn new(geometry: FlashGeometry, contents: FlashContents) -> RamFlash {
        RamFlash { geometry, contents: Mutex::new(contents), reads: Mutex::default() }
    }

    /// Lets these reads lie; reads are counted anew.
    pub fn set_lies(&self, lies: FlashLies) {
        *self.reads.lock() = (0, lies);
    }

    /// A copy of the contents.
    pub fn contents(&self) -> FlashContents {
        self.contents.lock().clone()
    }

    /// Writes bytes at any offset, in violation of the programming rules.
    pub fn put(&self, leb: u32, offset: u32, data: &[u8]) {
        let mut contents = self.contents.lock();
        let held = contents.entry(leb).or_default();
        let end = offset as usize + data.len();
        held.resize(held.len().max(end), 0xff);
        held[offset as usize..end].copy_from_slice(data);
    }

    fn check(&self, block: Leb, offset: u32, len: usize, unit: u32) -> Result<()> {
        let (offset, len) = (u64::from(offset), len as u64);
        let unit = u64::from(unit);
        let sound = block.0 < self.geometry.lebs
            && offset + len <= u64::from(self.geometry.leb_len)
            && offset % unit == 0
            && len % unit == 0;
        if sound { Ok(()) } else { Err(Error::new(Kind::Other, "no such place on the flash")) }
    }
}

impl Flash for RamFlash {
    fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.check(block, offset, buf.len(), 1)?;
        buf.fill(0xff);
        let earlier = {
            let (number, lies) = &mut *self.reads.lock();
            *number += 1;
            lies.get(number).copied()
        };
        let now = self.contents.lock();
        let contents = earlier.unwrap_or(&*now);
        let held = contents.get(&block.0).and_then(|held| held.get(offset as usize..)).unwrap_or(&[]);
        buf.iter_mut().zip(held).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.check(block, offset, data.len(), self.geometry.page)?;
        let mut contents = self.contents.lock();
        let held = contents.entry(block.0).or_default();
        if held.len() > offset as usize {
            return Err(Error::new(Kind::Other, "these pages are programmed already"));
        }
        held.resize(offset as usize, 0xff);
        held.extend_from_slice(data);
        Ok(())
    }

    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.check(block, 0, data.len(), self.geometry.page)?;
        self.contents.lock().insert(block.0, data.to_vec());
        Ok(())
    }

    fn unmap(&self, block: Leb) -> Result<()> {
        self.check(block, 0, 0, 1)?;
        self.contents.lock().remove(&block.0);
        Ok(())
    }

    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.check(block, 0, 0, 1)?;
        Ok(self.contents.lock().contains_key(&block.0))
    }

    fn drain_of(&self, _wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        Ok(vec![])
    }
}
