//! `oblivious`: a public level and hidden ones; images do not reveal the written blocks (HIVE).

use crate::backing::Backing;
use crate::format::{
    AvailableSpace, CreateOptions, Description, DescriptionDetail, DetailValue, Format, FormatInfo,
    OpenContext, OpenFormat, Params, Shape,
};
use crate::formats::levels::{self, COVER_MILLIS};
use lacuna_contracts::Result;
use lacuna_header::FormatId;
use lacuna_levels::DiskKeys;
use lacuna_oblivious::{HidingMode, Params as ObliviousParams, Plan, VERSION};

#[derive(Debug)]
pub(crate) struct ObliviousFormat;

impl Shape {
    /// An oblivious disk with this number of levels, and defaults for everything else. Hidden
    /// flushes wait for batches, so the default writes cover batches even without public writes.
    pub fn oblivious(levels: u8) -> Shape {
        Shape { levels: Some(levels), ..Shape::of(&ObliviousFormat) }
    }
}

impl Format for ObliviousFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo {
            summary: "The same, and images do not reveal which blocks are written: a write-only ORAM, much slower",
            settings: &["levels", "cover_millis", "hiding", "cells_per_write"],
            ..levels::info(FormatId::OBLIVIOUS, "oblivious")
        }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(ObliviousParams::parse(params)?))
    }

    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        let Shape { hiding, cells_per_write, cover_millis, .. } = options.shape;
        let usual = Plan::DEFAULT;
        let plan = Plan {
            hiding: hiding.unwrap_or(usual.hiding),
            per_write: cells_per_write.unwrap_or(usual.per_write),
            cover_millis: cover_millis.unwrap_or(COVER_MILLIS),
            ..usual
        };
        levels::plan(options, room, |bytes| ObliviousParams::plan(bytes, plan))
    }
}

impl Params for ObliviousParams {
    fn format(&self) -> &'static dyn Format {
        &ObliviousFormat
    }

    fn describe(&self) -> Description {
        let Plan { per_write, cover_millis, .. } = self.plan;
        let hiding = match self.plan.hiding {
            HidingMode::Plausible => "plausible",
            HidingMode::Opportunistic => "opportunistic",
        };
        let hidden = (1..=ObliviousParams::HIDDEN_LEVELS).map(|level| self.max_blocks(level));
        Description {
            version: Some(VERSION.into()),
            max_size_reason: "its cells have room for that",
            layout: Some(format!("{} cells, {per_write} for each write, {hiding}", self.cells)),
            hidden_sizes: Some(levels::sizes(hidden)),
            // A level opens only as long as the journal has a head of it.
            overwritten_within: levels::cover_time(self.journal.into(), cover_millis),
            details: vec![
                DescriptionDetail::of("cover_ms", DetailValue::Number(cover_millis.into()))
                    .with_row("cover", levels::cover_text("batch", cover_millis)),
                DescriptionDetail::of("cells", DetailValue::Number(self.cells)),
                DescriptionDetail::of("cells_per_write", DetailValue::Number(per_write.into())),
                DescriptionDetail::of("hiding", DetailValue::Word(hiding)),
            ],
            ..Description::of(self.blocks, self.blocks)
        }
    }

    fn encode(&self) -> Vec<u8> {
        ObliviousParams::encode(self).to_vec()
    }

    fn end(&self) -> u64 {
        ObliviousParams::end(self)
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(ObliviousParams { blocks, ..*self })
    }

    fn create(&self, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
        levels::create(self, backing, keys)
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        levels::open(self, backing, with)
    }
}
