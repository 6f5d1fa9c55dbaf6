//! What a new disk is to be: its shape, and what else can be said of it.

use crate::cluster::Holder;
use crate::cost::Cost;
use crate::parameters::Parameters;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_deniable::Geometry;
use lacuna_header::{DiskId, Location, NewHeader, PublicHeader};
use lacuna_nand::Wearing;
use lacuna_oblivious::Plan;
use lacuna_sealed_objects::ObjectLayout;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The spare factor, in thousandths, unless one is given: the paper's choice (PD-DM, section 6).
const SPARE: u16 = 200;
/// The milliseconds between two stripes, or batches, of cover unless given.
const COVER_MILLIS: u32 = 1000;

/// Of a thousand nodes for which the log of a disk on flash has room, how many stay free: with fewer, random overwrites of a full disk
/// cost much more (docs/flash.md, Spare).
const FLASH_SPARE: u16 = 150;

/// A simulated chip that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipShape {
    /// Bytes of a page, a power of two from 512 to 65536.
    pub page: u32,
    /// Pages of an erase block, 4 to 4096.
    pub pages: u32,
    /// How it wears out, and what fails.
    pub wearing: Wearing,
}

impl Default for ChipShape {
    /// Pages of 4 KiB, 64 to an erase block; nothing fails.
    fn default() -> ChipShape {
        ChipShape { page: 4096, pages: 64, wearing: Wearing::default() }
    }
}

/// How a disk uses its medium.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// One encrypted disk with unlinkable overwrites (paper 004); `xts` and `hctr2` are there to compare with.
    Sealed {
        /// How blocks are encrypted. Only [`Cipher::Gcm`] notices altered data.
        cipher: Cipher,
        /// Where the metadata of blocks lies: a choice in a pool alone. If not given, what suits the pool.
        layout: Option<ObjectLayout>,
    },
    /// A public level and hidden ones (PD-DM).
    Deniable {
        /// Levels to make, the public one among them.
        levels: u8,
        /// Public and hidden slots of a stripe.
        geometry: Geometry,
        /// The part of the log that stays free, in thousandths.
        spare_permille: u16,
        /// Milliseconds between two stripes of cover, 0 for none.
        cover_millis: u32,
    },
    /// The same, and images do not show which blocks were written (HIVE).
    Oblivious {
        /// Levels to make, the public one among them.
        levels: u8,
        /// What hides operations, and how.
        plan: Plan,
    },
    /// One encrypted disk on flash that forgets what was deleted (DNEFS).
    Flash {
        /// Bits of the key of each block: 128 or 256.
        key_bits: u16,
        /// The part of the log that stays free, in thousandths: more wears the flash less.
        spare_permille: u16,
        /// The chip to make, at a location `nand:`; ignored on flash that is there.
        chip: ChipShape,
    },
}

impl Shape {
    /// The default: AES-256-GCM, metadata where it suits the medium.
    pub fn sealed() -> Shape {
        Shape::Sealed { cipher: Cipher::Gcm, layout: None }
    }

    /// A deniable disk with so many levels, and defaults for everything else.
    pub fn deniable(levels: u8) -> Shape {
        let (geometry, spare_permille, cover_millis) = (Geometry::DEFAULT, SPARE, COVER_MILLIS);
        Shape::Deniable { levels, geometry, spare_permille, cover_millis }
    }

    /// An oblivious disk with so many levels, and defaults for everything else. Hidden flushes wait for batches, so
    /// that there are some even where nobody writes.
    pub fn oblivious(levels: u8) -> Shape {
        Shape::Oblivious { levels, plan: Plan { cover_millis: COVER_MILLIS, ..Plan::DEFAULT } }
    }

    /// A disk on flash, with keys of 256 bits.
    pub fn flash() -> Shape {
        Shape::Flash { key_bits: 256, spare_permille: FLASH_SPARE, chip: ChipShape::default() }
    }

    /// How many levels are made; 1 where there are none.
    pub fn levels(&self) -> u8 {
        match self {
            Shape::Sealed { .. } | Shape::Flash { .. } => 1,
            Shape::Deniable { levels, .. } | Shape::Oblivious { levels, .. } => *levels,
        }
    }
}

/// What is to be made, and where.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Where: a path where nothing exists, a blank block device, a UBI volume, or a name in a pool.
    pub location: Location,
    /// How the disk uses its medium.
    pub shape: Shape,
    /// Bytes of the disk, a multiple of 4096; with levels of the medium, which the levels share. On a block device or a UBI
    /// volume the largest that fits if not given.
    pub size: Option<u64>,
    /// What trying a passphrase costs.
    pub cost: Cost,
    /// Overwrite what is there.
    pub force: bool,
    /// Take the whole space of a file now, or fail. Otherwise a sealed disk takes space as it is written, but for a small
    /// reserve; disks with levels take all of it if the host has it.
    pub preallocate: bool,
    /// Where the cluster is, for a disk in a pool.
    pub holder: Holder,
}

impl CreateOptions {
    /// A disk of `size` bytes at a location, with defaults for everything else.
    pub fn new(location: Location, shape: Shape, size: u64) -> CreateOptions {
        CreateOptions {
            location,
            shape,
            size: Some(size),
            cost: Cost::default(),
            force: false,
            preallocate: false,
            holder: Holder::default(),
        }
    }
}

/// What was made.
pub struct Created {
    /// What the header says of the disk.
    pub parameters: Parameters,
    /// The header, as anybody can read it.
    pub header: PublicHeader,
    /// By which its owner knows the disk again ([`Opening::expect`](crate::Opening::expect)).
    pub id: DiskId,
}

impl Created {
    /// With this header, which is on the medium or about to be.
    pub(crate) fn with(parameters: Parameters, header: &NewHeader) -> Created {
        let unlocked = header.unlocked();
        Created { parameters, header: unlocked.header.clone(), id: unlocked.id() }
    }
}

/// A size in blocks. Errors: [`Kind::Usage`] if it is not a multiple of a block, or 0.
pub fn blocks(size: u64) -> Result<u64> {
    if size > 0 && size.is_multiple_of(BLOCK) {
        return Ok(size / BLOCK);
    }
    let below = (size / BLOCK).max(1) * BLOCK;
    Err(Error::new(Kind::Usage, "cannot use this size")
        .found(format!("{size} bytes"))
        .expected("a multiple of 4096, and not 0")
        .remedy(if size < BLOCK {
            format!("a number without a unit is bytes: give for example {}M", size.clamp(64, 1024))
        } else {
            format!("give for example {below}")
        }))
}
