//! `flash`: one encrypted disk on flash with secure deletion (DNEFS).

use crate::backing::{Backing, BackingKind, NewChip};
use crate::format::{
    AvailableSpace, CreateOptions, Description, DescriptionDetail, DetailValue, Format, FormatInfo,
    OpenContext, OpenFormat, Params, Shape,
};
use crate::header::header_lease::OpenDiskHeader;
use crate::opening::kept_memory;
use crate::resize::grow;
use crate::size::{human_size, size_in_blocks};
use lacuna_contracts::{BLOCK_SIZE, Disk, Error, Kind, Result, SystemClock};
use lacuna_crypto::{RandomSource, SystemRandom};
use lacuna_flash::{FlashDisk, OpenOptions, Params as FlashParams, VERSION};
use lacuna_header::FormatId;
use lacuna_kept_memory::KeptMemory;
use lacuna_levels::DiskKeys;
use std::ops::Range;
use std::sync::Arc;

/// The default number of log nodes that stay free, in thousandths: with fewer, random overwrites of
/// a full disk cost much more (docs/flash.md, Spare).
const SPARE: u16 = 150;

#[derive(Debug)]
pub(crate) struct FlashFormat;

impl Shape {
    /// A disk on flash, with keys of 256 bits.
    pub fn flash() -> Shape {
        Shape::of(&FlashFormat)
    }
}

impl Format for FlashFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo {
            can_purge: true,
            keeps_writes: true,
            summary: "One encrypted disk on flash with secure deletion: a purge erases deleted data for good",
            settings: &["spare_permille", "key_bits", "chip"],
            ..FormatInfo::of(FormatId::FLASH, "flash", BackingKind::Flash)
        }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(FlashParams::parse(params)?))
    }

    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        let AvailableSpace::Flash(flash) = room else { return Err(options.wrong_backing(room.kind())) };
        let largest = FlashParams::fitting(flash, key_len(options)?, spare(options))?;
        let Some(size) = options.size else { return Ok(Box::new(largest)) };
        let params = FlashParams { blocks: size_in_blocks(size)?, ..largest };
        if params.blocks > largest.blocks {
            return Err(options
                .create_error()
                .with_kind(Kind::NoSpace)
                .found(format!("{} bytes on this flash", params.blocks * BLOCK_SIZE as u64))
                .expected(format!(
                    "at most {} bytes besides the spare space",
                    largest.blocks * BLOCK_SIZE as u64
                ))
                .hint("choose a smaller size, or none for all of it"));
        }
        params.layout()?;
        Ok(Box::new(params))
    }

    fn chip(&self, options: &CreateOptions, blocks: u64) -> Result<NewChip> {
        let (shape, key_len, spare) =
            (options.shape.chip.unwrap_or_default(), key_len(options)?, spare(options));
        let chip = NewChip::smallest(shape, |flash| {
            FlashParams::check_leb(flash)?;
            let params = FlashParams { blocks, most_blocks: blocks, key_len, flash };
            Ok(params.spare().is_some_and(|left| left >= spare))
        })?;
        chip.ok_or_else(|| {
            let size = human_size(blocks * BLOCK_SIZE as u64);
            options
                .create_error()
                .found(format!("{size} on a chip with pages of {} bytes, {} to a block", shape.page, shape.pages))
                .expected("a disk that fits a chip of 16 million erase blocks, pages of 512 bytes to 64 KiB, 4 to 4096 to a block")
                .hint("choose a smaller disk, or another chip")
        })
    }
}

/// Bytes of the key of each block.
fn key_len(options: &CreateOptions) -> Result<u8> {
    match options.shape.key_bits {
        Some(128) => Ok(16),
        None | Some(256) => Ok(32),
        Some(bits) => Err(options
            .create_error()
            .found(format!("keys of {bits} bits"))
            .expected("keys of 128 or 256 bits")),
    }
}

/// The part of the log that stays free, in thousandths.
fn spare(options: &CreateOptions) -> u32 {
    options.shape.spare_permille.unwrap_or(SPARE).into()
}

impl Params for FlashParams {
    fn format(&self) -> &'static dyn Format {
        &FlashFormat
    }

    fn describe(&self) -> Description {
        let key_bits = u32::from(self.key_len) * 8;
        let keys = human_size(u64::from(self.key_blocks()) * u64::from(self.flash.leb_len));
        let spare = f64::from(self.spare().unwrap_or(0)) / 1000.0;
        Description {
            version: Some(VERSION),
            max_size_reason: "its keys and its log are laid out for that",
            layout: Some(format!(
                "{} erase blocks of {}, keys of {key_bits} bits",
                self.flash.lebs,
                human_size(self.flash.leb_len.into())
            )),
            details: vec![
                DescriptionDetail::of("key_bits", DetailValue::Number(key_bits.into())),
                DescriptionDetail::of("key_blocks", DetailValue::Number(self.key_blocks().into()))
                    .with_row("keys", format!("{keys} of them, in {} erase blocks", self.key_blocks())),
                DescriptionDetail::of("spare", DetailValue::Fraction(spare)),
            ],
            ..Description::of(self.blocks, self.most_blocks)
        }
    }

    fn encode(&self) -> Vec<u8> {
        FlashParams::encode(self).to_vec()
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(FlashParams { blocks, ..*self })
    }

    fn create(&self, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
        let random: Arc<dyn RandomSource> = Arc::new(SystemRandom::new()?);
        FlashDisk::create(backing.flash()?, self, &keys.keys[0], &random)
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        let options = OpenOptions {
            budget: with.options.budget,
            read_only: with.options.read_only,
            policy: with.options.purge_policy,
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom::new()?),
            kept: memory(self, with)?,
        };
        let disk = FlashDisk::open(Arc::clone(backing.flash()?), self, &with.keys.keys[0], &options)?;
        Ok(Box::new(OpenFlashFormat { disk, write_through: with.options.write_through }))
    }
}

/// The memory that a keeper holds for the acknowledged writes of a disk. `None`: that of this
/// process.
fn memory(params: &FlashParams, with: &OpenContext<'_>) -> Result<Option<KeptMemory>> {
    let Some(keeper) = with.keeper.filter(|_| !with.options.read_only) else { return Ok(None) };
    let owner = kept_memory::owner("flash kept memory", &with.keys.keys[0], with.keys.uuid, &params.encode());
    kept_memory::of_disk(&**keeper, &owner, &FlashDisk::kept_layout(with.options.budget))
}

/// An open disk on flash.
struct OpenFlashFormat {
    disk: FlashDisk,
    /// Acknowledge writes only when they are durable.
    write_through: bool,
}

impl OpenFormat for OpenFlashFormat {
    fn disk(&self) -> &dyn Disk {
        &self.disk
    }

    fn needs_flush_per_write(&self) -> bool {
        self.write_through
    }

    /// Refuses a disk with a key that does not match the index (paper 003, section 3.2).
    fn check_while_idle(&self) -> Result<()> {
        let wrong = self.disk.check_keys()?;
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "the key state map does not match the disk")
            .found(format!("{} keys in a wrong state", wrong.len()))
            .expected("a used key for each block that was written, and for nothing else")
            .hint("copy the disk to another one, and destroy this one: deleted data may be recoverable"))
    }

    fn grow(&self, _header: &OpenDiskHeader, _size: Option<u64>) -> Result<Box<dyn Params>> {
        Err(grow::grows_only_closed())
    }

    fn mark_sensitive(&self, blocks: Range<u64>) {
        self.disk.mark_sensitive(blocks);
    }
}
