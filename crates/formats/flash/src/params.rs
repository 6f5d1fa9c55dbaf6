//! The parameters of a disk on flash, and the layout of its areas.

use crate::header_area::header_lebs;
use crate::ids::{KeyBlock, Unit};
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_nand::{FlashGeometry, Leb};

/// Random bytes at the start of each page of the key storage area.
pub(crate) const SALT_LEN: usize = 16;
/// Index entries on one index page.
pub(crate) const INDEX_FANOUT: u64 = 512;
/// Logical erase blocks of the log that never count as capacity: the targets of garbage collection,
/// the next block of the log, the one being written, and ends of blocks too short for a group.
const LOG_RESERVE: u32 = 10;
/// One in this many logical erase blocks of the log may be needed for dirty pages of the index.
const DIRTY_SHARE: u32 = 64;

/// The parameters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Length in blocks.
    pub blocks: u64,
    /// The length to which it can grow. Its areas are laid out for it.
    pub most_blocks: u64,
    /// Bytes of a key: 16 or 32. With the feature `keys-off` also 0, for a disk without secure
    /// deletion that benchmarks compare with.
    pub key_len: u8,
    /// The geometry of the flash.
    pub flash: FlashGeometry,
}

/// The layout of the areas. All lengths follow from the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a unit. The header of a group takes one unit, a node a whole number of units.
    pub(crate) unit: u32,
    /// Units of a logical erase block.
    pub(crate) units: u32,
    /// Bytes of a page, a whole number of units.
    pub(crate) page: u32,
    /// Bytes of a logical erase block that are used, a whole number of pages.
    pub(crate) leb_len: u32,
    /// Pages of index entries.
    pub(crate) index_pages: u32,
    /// Keys on a page of the key storage area.
    pub(crate) page_keys: u32,
    /// Keys in a block of the key storage area.
    pub(crate) leb_keys: u32,
    pub(crate) key_len: usize,
    /// First logical erase block of the key storage area, and their number.
    pub(crate) keys: (u32, u32),
    /// First logical erase block of the two checkpoints, and their number for each.
    pub(crate) checkpoints: (u32, u32),
    /// First logical erase block of the log, and their number.
    pub(crate) log: (u32, u32),
}

impl Params {
    /// The longest disk that fits flash of this geometry and leaves `spare` thousandths of its log
    /// free.
    ///
    /// Errors: [`Kind::NoSpace`] if the flash is too small for any disk.
    pub fn fitting(flash: FlashGeometry, key_len: u8, spare: u32) -> Result<Params> {
        Params::check_leb(flash)?;
        let (mut least, mut most) = (0, u64::from(flash.lebs) * u64::from(flash.leb_len) / BLOCK_SIZE as u64);
        let fits = |blocks: u64| {
            let params = Params { blocks, most_blocks: blocks, key_len, flash };
            params.layout().is_ok_and(|layout| layout.spare(blocks) >= spare)
        };
        while least < most {
            let middle = (least + most).div_ceil(2);
            if fits(middle) { least = middle } else { most = middle - 1 }
        }
        let params = Params { blocks: least, most_blocks: least, key_len, flash };
        if least == 0 { Err(params.refused(&flash)) } else { Ok(params) }
    }

    /// Least bytes of a logical erase block, on flash with pages of `page` bytes: two nodes, and
    /// two pages.
    pub fn min_leb_len(page: u32) -> u32 {
        2 * page.max(BLOCK_SIZE as u32)
    }

    /// Refuses flash with logical erase blocks that are too short.
    ///
    /// Errors: [`Kind::Usage`].
    pub fn check_leb(flash: FlashGeometry) -> Result<()> {
        let least = Params::min_leb_len(flash.page);
        if flash.leb_len >= least {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "the erase blocks of this flash are too short for a disk")
            .found(format!("logical erase blocks of {} bytes, pages of {}", flash.leb_len, flash.page))
            .expected(format!("at least {least} bytes: two pages, and 8192 bytes"))
            .hint(
                "use flash with longer erase blocks, or a simulated chip with more pages in each (two hold \
                 headers)",
            ))
    }

    fn refused(&self, flash: &FlashGeometry) -> Error {
        Error::new(Kind::NoSpace, format!("a disk of {} blocks does not fit this flash", self.most_blocks))
            .found(format!("{} logical erase blocks of {} bytes", flash.lebs, flash.leb_len))
            .expected("room for the blocks, an index, their keys, two checkpoints, and some to spare")
            .hint("make a smaller disk, or use more flash")
    }

    /// Logical erase blocks of the key storage area, which begins behind the header.
    pub fn key_blocks(&self) -> u32 {
        self.layout().map_or(0, |layout| layout.keys.1)
    }

    /// Keys in one block of the key storage area.
    pub fn keys_per_block(&self) -> u32 {
        self.layout().map_or(0, |layout| layout.leb_keys)
    }

    /// Logical erase blocks for keys: 0.8 % of the flash for 32-byte keys, 0.4 % for 16-byte keys.
    /// There are more keys than blocks, to allow for keys deleted between two purges; the more
    /// there are, the more new keys a replaced block has. The number is at least one key for each
    /// block plus 1/64 more, and at most one for each block plus 1/8 more.
    fn key_storage(&self, leb_keys: u32) -> u32 {
        if self.is_without_keys() {
            return 0;
        }
        let share = u64::from(self.flash.lebs) * u64::from(self.key_len) / 4000;
        let for_blocks_and = |more: u64| (self.most_blocks + more).div_ceil(u64::from(leb_keys));
        // The keys of a group are assigned before the keys of the nodes that it replaces become
        // free.
        let least = (self.most_blocks / 64).max(2 * u64::from(crate::log::group::MAX_ORDINALS));
        share.clamp(for_blocks_and(least), for_blocks_and(least.max(self.most_blocks / 8))).max(2) as u32
    }

    /// Whether this is the log without keys that the benchmark compares with: everything is
    /// encrypted under one key of the disk.
    pub(crate) fn is_without_keys(&self) -> bool {
        is_without_keys(self.key_len.into())
    }

    /// Free thousandths of the log's node capacity when the disk is full. None if the disk does not
    /// fit its flash.
    pub fn spare(&self) -> Option<u32> {
        self.layout().ok().map(|layout| layout.spare(self.most_blocks))
    }

    /// The layout of the areas.
    ///
    /// Errors: [`Kind::NoSpace`] if the disk does not fit its flash, [`Kind::Usage`] for impossible
    /// parameters.
    pub fn layout(&self) -> Result<Layout> {
        let flash = self.flash;
        let unit = flash.page.min(BLOCK_SIZE as u32);
        let possible = flash.page.is_power_of_two()
            && (512..=1 << 16).contains(&flash.page)
            && flash.leb_len >= Params::min_leb_len(flash.page)
            && (matches!(self.key_len, 16 | 32) || self.is_without_keys())
            && (1..=self.most_blocks).contains(&self.blocks)
            && self.most_blocks < u64::from(u32::MAX / 2);
        if !possible {
            return Err(Error::new(Kind::Usage, "no disk on flash has these parameters")
                .found(format!(
                    "{} blocks, keys of {} bytes, erase blocks of {} bytes, pages of {}",
                    self.most_blocks, self.key_len, flash.leb_len, flash.page
                ))
                .expected("keys of 16 or 32 bytes, pages of 512 bytes to 64 KiB, logical erase blocks of at least two pages and 8192 bytes"));
        }
        let leb_len = flash.leb_len / flash.page * flash.page;
        let key_len = usize::from(self.key_len);
        let page_keys = (flash.page - SALT_LEN as u32).checked_div(u32::from(self.key_len)).unwrap_or(0);
        let leb_keys = leb_len / flash.page * page_keys;
        let index_pages = self.most_blocks.div_ceil(INDEX_FANOUT) as u32;
        let mut layout = Layout {
            unit,
            units: leb_len / unit,
            page: flash.page,
            leb_len,
            index_pages,
            page_keys,
            leb_keys,
            key_len,
            keys: (header_lebs(flash), 0),
            checkpoints: (0, 0),
            log: (0, 0),
        };
        layout.keys.1 = self.key_storage(leb_keys);
        let used = u64::from(header_lebs(flash)) + u64::from(layout.keys.1);
        let left = u64::from(flash.lebs).saturating_sub(used) as u32;
        layout.checkpoints = (used as u32, layout.checkpoint_lebs(left));
        let before = used + 2 * u64::from(layout.checkpoints.1);
        layout.log = (before as u32, u64::from(flash.lebs).saturating_sub(before) as u32);
        let possible = layout.log.1 > LOG_RESERVE
            && layout.capacity() > self.most_blocks + u64::from(index_pages)
            && u64::from(flash.lebs) * u64::from(layout.units) <= u64::from(Unit::MAX)
            && u64::from(layout.keys.1) * u64::from(leb_keys) <= u64::from(crate::ids::KeyPosition::MAX);
        if possible { Ok(layout) } else { Err(self.refused(&flash)) }
    }
}

fn is_without_keys(key_len: usize) -> bool {
    cfg!(feature = "keys-off") && key_len == 0
}

impl Layout {
    /// See [`Params::is_without_keys`].
    pub(crate) fn is_without_keys(&self) -> bool {
        is_without_keys(self.key_len)
    }

    /// Logical erase blocks of one checkpoint: its head, its front, the fresh blocks of keys, the
    /// root, the table of the log, two bits for each key, and the count of doubtful keys of each
    /// block of keys.
    fn checkpoint_lebs(&self, log: u32) -> u32 {
        let bytes = u64::from(self.page)
            + 64
            + 8 * u64::from(self.keys.1)
            + 8 * u64::from(self.index_pages)
            + 12 * u64::from(log)
            + u64::from(self.keys.1) * 2 * (1 + u64::from(self.leb_keys).div_ceil(8));
        bytes.div_ceil(u64::from(self.leb_len)) as u32
    }

    /// Units of a node.
    pub(crate) fn node_units(&self) -> u32 {
        BLOCK_SIZE as u32 / self.unit
    }

    /// Nodes in a logical erase block of the log that is written at once.
    pub(crate) fn leb_nodes(&self) -> u32 {
        self.nodes_in(self.units)
    }

    fn nodes_in(&self, units: u32) -> u32 {
        let pages_of = |nodes: u32| (1 + nodes * self.node_units()).next_multiple_of(self.page / self.unit);
        let group = crate::log::group::max_nodes(self.unit);
        let whole = units / pages_of(group);
        let rest = units % pages_of(group);
        let more = (0..group).rev().find(|nodes| *nodes == 0 || pages_of(*nodes) <= rest).unwrap_or(0);
        whole * group + more
    }

    /// Nodes for which the log has room. Garbage collection usually spreads the nodes of one block
    /// over two, so one page of each block is set aside for the header of one more group.
    fn capacity(&self) -> u64 {
        let nodes = self.nodes_in(self.units - self.page_units());
        u64::from(self.log.1.saturating_sub(LOG_RESERVE)) * u64::from(nodes)
    }

    /// The most pages of the index that may be dirty; there is room for them beside a full disk.
    /// All pages, if that is possible.
    pub(crate) fn max_dirty(&self) -> u32 {
        let full = u64::from(self.index_pages) * (INDEX_FANOUT + 1);
        let spare = self.capacity().saturating_sub(full) / u64::from(self.leb_nodes());
        let lebs = (self.log.1 / DIRTY_SHARE).min(spare as u32 / 4).max(1);
        (lebs * self.leb_nodes()).min(self.index_pages)
    }

    /// Free thousandths of the log's node capacity when a disk of `blocks` blocks is full.
    pub(crate) fn spare(&self, blocks: u64) -> u32 {
        let capacity = self.capacity();
        let needed = blocks + u64::from(self.index_pages);
        (capacity.saturating_sub(needed) * 1000 / capacity.max(1)) as u32
    }

    /// Units of a page.
    pub(crate) fn page_units(&self) -> u32 {
        self.page / self.unit
    }

    /// The logical erase block of a block of the key storage area.
    pub(crate) fn leb_of_keys(&self, block: KeyBlock) -> Leb {
        Leb(self.keys.0 + block.0)
    }

    /// The block of the key storage area in this logical erase block, if there is one.
    pub(crate) fn keys_of_leb(&self, leb: Leb) -> Option<KeyBlock> {
        let number = leb.0.checked_sub(self.keys.0)?;
        (number < self.keys.1).then_some(KeyBlock(number))
    }
}
