//! `sealed`: one encrypted disk with unlinkable overwrites (paper 004), on a flat medium. In a
//! pool, a disk of this shape has the format `sealed_objects`.

use crate::backing::{Backing, BackingKind};
use crate::format::{
    AvailableSpace, CreateOptions, Description, DescriptionDetail, DetailValue, Format, FormatInfo,
    OpenContext, OpenFormat, Params, Shape,
};
use crate::formats::sealed_disk::GrowableSealedDisk;
use crate::formats::sealed_objects;
use crate::size::{human_size, size_in_blocks};
use lacuna_contracts::{Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_header::FormatId;
use lacuna_levels::DiskKeys;
use lacuna_medium::Medium;
use lacuna_sealed::{Params as SealedParams, SealedDisk, VERSION};

#[derive(Debug)]
pub(crate) struct SealedFormat;

impl Shape {
    /// The default: AES-256-GCM, with the metadata layout that suits the medium.
    pub fn sealed() -> Shape {
        Shape::of(&SealedFormat)
    }
}

impl Format for SealedFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo {
            summary: "One encrypted disk with unlinkable overwrites",
            creatable_on: &[BackingKind::File, BackingKind::Pool],
            settings: &["cipher", "layout"],
            keeps_writes: true,
            ..FormatInfo::of(FormatId::SEALED, "sealed", BackingKind::File)
        }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(SealedParams::parse(params)?))
    }

    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        let room = match room {
            AvailableSpace::File(room) => room,
            AvailableSpace::Pool { has_keys } => return sealed_objects::plan(options, has_keys),
            AvailableSpace::Flash(_) => return Err(options.wrong_backing(room.kind())),
        };
        if let Some(layout) = options.shape.layout {
            return Err(Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("the layout {} for {}", layout.name(), options.location))
                .expected("no layout: layouts are a choice of rados: locations")
                .hint("leave it out"));
        }
        let cipher = options.shape.cipher.unwrap_or(Cipher::Gcm);
        Ok(Box::new(match (options.size, room) {
            (Some(size), _) => SealedParams::plan(cipher, size_in_blocks(size)?, room)?,
            (None, Some(room)) => SealedParams::largest(cipher, room)?,
            (None, None) => return Err(options.missing_size("a file")),
        }))
    }
}

impl Params for SealedParams {
    fn format(&self) -> &'static dyn Format {
        &SealedFormat
    }

    fn describe(&self) -> Description {
        let most = u64::from(self.map_capacity) * SEGMENT_BLOCKS;
        let limit =
            if most == self.blocks { "its map has no room for more" } else { "its map has room for that" };
        Description {
            version: Some(VERSION.into()),
            max_size_reason: limit,
            cipher: self.cipher.name(),
            detects_alterations: self.cipher.authenticates(),
            details: vec![
                DescriptionDetail::of("ring", DetailValue::Number(self.journal_len))
                    .with_row("journal", human_size(self.journal_len)),
                DescriptionDetail::of("data_offset", DetailValue::Number(self.geometry().data)),
            ],
            ..Description::of(self.blocks, most)
        }
    }

    fn encode(&self) -> Vec<u8> {
        SealedParams::encode(self).to_vec()
    }

    fn end(&self) -> u64 {
        self.geometry().end()
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(SealedParams { blocks, ..*self })
    }

    fn max_blocks_in(&self, room: u64) -> Option<u64> {
        Some(self.grown_into(room).blocks)
    }

    fn allocate_growth(&self, medium: &dyn Medium) -> Result<()> {
        SealedDisk::reserve_map(medium, self)
    }

    fn create(&self, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
        SealedDisk::create(&**backing.medium()?, self, &keys.keys[0])
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        Ok(Box::new(GrowableSealedDisk::open(backing.medium()?, self, with)?))
    }
}
