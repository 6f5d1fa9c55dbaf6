//! The erase blocks that hold the header of the disk. This crate reserves them; the caller reads
//! and writes them.

use lacuna_nand::FlashGeometry;

/// Copies of the header, each in erase blocks of its own.
const COPIES: u32 = 3;
/// Bytes of a copy of the header.
pub const HEADER_COPY_LEN: u32 = 16384;

/// Logical erase blocks at the start of the flash that hold the copies of the header.
pub fn header_lebs(flash: FlashGeometry) -> u32 {
    let whole_pages = flash.leb_len / flash.page * flash.page;
    COPIES * HEADER_COPY_LEN.div_ceil(whole_pages.max(1))
}
