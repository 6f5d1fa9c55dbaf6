//! `deniable`: a public level and hidden ones (PD-DM).

use crate::backing::Backing;
use crate::format::{
    AvailableSpace, CreateOptions, Description, DescriptionDetail, DetailValue, Format, FormatInfo,
    OpenContext, OpenFormat, Params, Shape,
};
use crate::formats::levels::{self, COVER_MILLIS};
use lacuna_contracts::Result;
use lacuna_deniable::{Params as DeniableParams, StripeGeometry, VERSION};
use lacuna_header::FormatId;
use lacuna_levels::DiskKeys;

/// The default spare factor, in thousandths: the paper's choice (PD-DM, section 6).
const SPARE: u16 = 200;

#[derive(Debug)]
pub(crate) struct DeniableFormat;

impl Shape {
    /// A deniable disk with this number of levels, and defaults for everything else.
    pub fn deniable(levels: u8) -> Shape {
        Shape { levels: Some(levels), ..Shape::of(&DeniableFormat) }
    }
}

impl Format for DeniableFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo {
            summary: "A public level and hidden ones: no number of images reveals that they exist",
            settings: &["levels", "cover_millis", "geometry", "spare_permille"],
            ..levels::info(FormatId::DENIABLE, "deniable")
        }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(DeniableParams::parse(params)?))
    }

    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        let Shape { geometry, spare_permille, cover_millis, .. } = options.shape;
        let (geometry, spare) =
            (geometry.unwrap_or(StripeGeometry::DEFAULT), spare_permille.unwrap_or(SPARE));
        let cover = cover_millis.unwrap_or(COVER_MILLIS);
        levels::plan(options, room, |bytes| DeniableParams::plan(bytes, geometry, spare, cover))
    }
}

impl Params for DeniableParams {
    fn format(&self) -> &'static dyn Format {
        &DeniableFormat
    }

    fn describe(&self) -> Description {
        let spare = f64::from(self.spare_permille) / 1000.0;
        let cover = levels::cover_text("refresh stripe", self.cover_millis);
        let hidden = (1..=self.hidden_levels()).map(|level| self.max_blocks(level));
        Description {
            version: Some(VERSION.into()),
            max_size_reason: "its log has room for that",
            layout: Some(format!("stripes of {}+{} blocks", self.geometry.public, self.geometry.hidden)),
            hidden_sizes: Some(levels::sizes(hidden)),
            // The log comes round once.
            overwritten_within: levels::cover_time(self.stripes, self.cover_millis),
            details: vec![
                DescriptionDetail::of("spare", DetailValue::Fraction(spare))
                    .with_row("spare", format!("{spare} of the log")),
                DescriptionDetail::of("cover_ms", DetailValue::Number(self.cover_millis.into()))
                    .with_row("cover", cover),
                DescriptionDetail::of("stripes", DetailValue::Number(self.stripes)),
            ],
            ..Description::of(self.blocks, self.blocks)
        }
    }

    fn encode(&self) -> Vec<u8> {
        DeniableParams::encode(self).to_vec()
    }

    fn end(&self) -> u64 {
        DeniableParams::end(self)
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(DeniableParams { blocks, ..*self })
    }

    fn create(&self, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
        levels::create(self, backing, keys)
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        levels::open(self, backing, with)
    }
}
