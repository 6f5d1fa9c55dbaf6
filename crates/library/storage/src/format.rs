//! What the library asks of a format: how its disks are planned, laid on what they rest on, and
//! opened.
//!
//! A [`Format`] has constants and reads [`Params`] from headers; these lay disks and open them, and
//! an open disk is an [`OpenFormat`]. The formats of this build are in `formats/`. A program may
//! have more ([`add_format`](crate::add_format)).

use crate::backing::{Backing, BackingKind, ChipShape, NewChip, PoolAccess};
use crate::cost::Cost;
use crate::held_header::HeldHeader;
use crate::human;
use crate::opening::Opening;
use crate::snapshots::Snapshots;
use lacuna_contracts::{
    Advice, BLOCK_SIZE, BadBlock, BlockAddr, CheckReport, Disk, Error, Kind, Result, Setting, check,
};
use lacuna_crypto::Cipher;
use lacuna_deniable::Geometry;
use lacuna_header::{HEADER_AREA, Location};
use lacuna_levels::{Masters, Pace};
use lacuna_medium::Medium;
use lacuna_nand::FlashGeometry;
use lacuna_oblivious::Hiding;
use lacuna_sealed_objects::ObjectLayout;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use crate::format_info::FormatInfo;

/// How disks are laid on a medium.
pub trait Format: fmt::Debug + Send + Sync {
    /// The constants of the format.
    fn info(&self) -> FormatInfo;

    /// Reads the parameters of a disk as they stand in its header.
    ///
    /// Errors: [`Kind::NotFound`] for another version of the format, [`Kind::Corrupt`] for what no
    /// version has.
    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>>;

    /// The parameters of a new disk where there is this room.
    ///
    /// Errors: [`Kind::Usage`] for options that do not go together, [`Kind::NoSpace`].
    fn plan(&self, options: &CreateOptions, room: Room) -> Result<Box<dyn Params>> {
        Err(options.misplaced(room.kind()))
    }

    /// The simulated chip for a new disk of so many blocks.
    fn chip(&self, options: &CreateOptions, _blocks: u64) -> Result<NewChip> {
        Err(options.misplaced(BackingKind::Flash))
    }
}

/// The room for a new disk.
#[derive(Clone, Copy, Debug)]
pub enum Room {
    /// In a file or on a block device: the bytes of the device before the last copy of the header.
    /// None of a file, which is as long as it has to be.
    File(Option<u64>),
    /// On flash that is divided like this.
    Flash(FlashGeometry),
    /// In a pool.
    Pool {
        /// Whether its objects have a key-value map.
        has_keys: bool,
    },
}

impl Room {
    /// What it is the room of.
    pub fn kind(self) -> BackingKind {
        match self {
            Room::File(_) => BackingKind::File,
            Room::Flash(_) => BackingKind::Flash,
            Room::Pool { .. } => BackingKind::Pool,
        }
    }
}

/// The parameters of a disk, as its header has them.
pub trait Params: fmt::Debug + Send + Sync {
    /// The format of the disk.
    fn format(&self) -> &'static dyn Format;

    /// What they say, for people and programs.
    fn describe(&self) -> Description;

    /// The parameters as they stand in the header.
    fn encode(&self) -> Vec<u8>;

    /// Where the disk ends on the medium of its header: the offset of the first byte that belongs
    /// neither to the disk nor to the copies of the header at the beginning. Where that medium
    /// holds the header alone, the end of these copies.
    fn end(&self) -> u64 {
        HEADER_AREA
    }

    /// Those of the same disk with `blocks` blocks, as many as it had or may have.
    fn as_of(&self, blocks: u64) -> Box<dyn Params>;

    /// The blocks of the same disk as large as a device lets it be that has `room` bytes before the
    /// last copy of the header. None: the disk does not grow with a device.
    fn blocks_in(&self, _room: u64) -> Option<u64> {
        None
    }

    /// Takes the space on a medium, which is long enough by now, that the disk needs at once when
    /// it has grown to these parameters.
    fn reserve(&self, _medium: &dyn Medium) -> Result<()> {
        Ok(())
    }

    /// Lays a new disk beside its header, which is written afterwards. Errors: what the medium or
    /// the cluster reports.
    fn create(&self, _backing: &Backing, _keys: Masters<'_>) -> Result<()> {
        Err(no_disk())
    }

    /// Opens a disk, and first finishes what a crash interrupted.
    ///
    /// Errors: [`Kind::Corrupt`], and what the medium or the cluster reports.
    fn open(&self, _backing: &Backing, _with: &OpenWith<'_>) -> Result<Box<dyn OpenFormat>> {
        Err(no_disk())
    }
}

/// What a disk is opened with.
#[derive(Clone, Copy)]
pub struct OpenWith<'k> {
    /// A key for each level to open, at least one.
    pub keys: Masters<'k>,
    /// How it is opened.
    pub opening: Opening,
    /// Open what is left of it, for reading: a block that cannot be read, or does not verify, fails
    /// alone. The medium of a file or device comes as it is, and may end early and have bad places:
    /// a format whose engine would give up there wraps it, as leniently as the engine needs. Flash
    /// comes wrapped below its erase blocks, and a pool needs no wrapper.
    pub rescue: bool,
}

/// The error of a format that has no disks.
fn no_disk() -> Error {
    Error::new(Kind::Usage, "cannot use it as a disk").expected("a format of disks")
}

/// What the header of a disk says of it.
#[derive(Clone, Debug)]
pub struct Description {
    /// The version of the format, if its parameters have one.
    pub version: Option<u32>,
    /// Length of the disk in bytes; of a vault 0.
    pub size: u64,
    /// The size in bytes to which `resize` can take it.
    pub largest: u64,
    /// What sets that limit, in words that follow it.
    pub limit: &'static str,
    /// How blocks are encrypted; of a vault, how they are verified.
    pub cipher: &'static str,
    /// Whether altered data is noticed.
    pub verifies: bool,
    /// The name of the layout, if the format has several.
    pub layout: Option<String>,
    /// Of a format with levels the most bytes that each hidden level can have which there can be,
    /// from level 1 up: the same whether or not any exists. None of other formats.
    pub hidden_sizes: Option<Vec<u64>>,
    /// What this format says besides.
    pub details: Vec<Detail>,
}

/// Something that one format says of a disk.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Its name for programs.
    pub name: &'static str,
    /// Its value for programs.
    pub value: Value,
    /// For people: a name and what stands beside it.
    pub row: Option<(&'static str, String)>,
}

/// A value for programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count, or bytes.
    Number(u64),
    /// A part of a whole.
    Part(f64),
    /// A word.
    Word(&'static str),
}

impl Description {
    /// Of a disk that has `blocks` blocks and can have `most`; everything else as most formats have
    /// it.
    pub fn of(blocks: u64, most: u64) -> Description {
        // What was not verified may say anything.
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
        Description {
            version: None,
            size: bytes(blocks),
            largest: bytes(most),
            limit: "there is no room for more",
            cipher: Cipher::Gcm.name(),
            verifies: true,
            layout: None,
            hidden_sizes: None,
            details: Vec::new(),
        }
    }

    /// The sizes of the hidden levels that there can be, for people.
    pub fn hidden_words(&self) -> String {
        let sizes: Vec<String> = self.hidden_sizes.iter().flatten().map(|size| human(*size)).collect();
        format!("at most {}", sizes.join(", "))
    }
}

impl Detail {
    /// For programs alone.
    pub fn of(name: &'static str, value: Value) -> Detail {
        Detail { name, value, row: None }
    }

    /// For people as well.
    pub fn shown(self, name: &'static str, words: String) -> Detail {
        Detail { row: Some((name, words)), ..self }
    }
}

/// An open disk, with what its format can do beside reading and writing.
pub trait OpenFormat: Send + Sync {
    /// The disk itself, or its level 0.
    fn disk(&self) -> &dyn Disk;

    /// Closes the disk, with all its levels.
    fn close(&self) -> Result<()> {
        self.disk().close()
    }

    /// Whether every write and discard is to be flushed before it is acknowledged, which the disk
    /// does not do by itself.
    fn flushes_writes(&self) -> bool {
        false
    }

    /// Takes note of the error of a request. Gives what the request fails with.
    fn noting(&self, e: Error) -> Error {
        e
    }

    /// Reads and verifies every block, telling `progress` how many are done and `bad` of each that
    /// fails, with its level where there are levels. The disk may be in use. Errors: what stops
    /// reading, and what `progress` says, which ends the check.
    fn check(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<()>,
        bad: &mut dyn FnMut(Option<u8>, BadBlock),
    ) -> Result<CheckReport> {
        check(self.disk(), progress, |found| bad(None, found))
    }

    /// Verifies what changes with every write, and so can be verified only while the disk is not in
    /// use.
    fn check_unused(&self) -> Result<()> {
        Ok(())
    }

    /// The open levels from 0 up, at least one, of a format with levels
    /// ([`FormatInfo::has_levels`]); nothing of other formats. The library makes private all errors
    /// of opening such a disk and of using it or a level of it.
    fn levels(&self) -> &[Arc<dyn Disk>] {
        &[]
    }

    /// Writes the cover that closing takes; closing does not write it once more then.
    fn cover_closing(&self, _pace: Pace) -> Result<()> {
        Ok(())
    }

    /// Sets whether a hidden level gives up what waits for cover: from then on requests that would
    /// wait are refused. A level that is not open, and level 0, which never waits, stay as they
    /// are.
    fn give_up(&self, _level: u8, _gives_up: bool) {}

    /// Makes the disk larger, as [`OpenDisk::grow`](crate::OpenDisk::grow) does.
    fn grow(&self, _header: &HeldHeader, _size: Option<u64>) -> Result<Box<dyn Params>> {
        Err(Error::new(Kind::Usage, "cannot resize the disk while it is open")
            .found("a disk of a format that keeps its size while it is open")
            .remedy("close it, and resize it then if its format lets it grow at all"))
    }

    /// The snapshots that it keeps. Errors: [`Kind::Usage`] if it keeps none.
    fn snapshots(&self) -> Result<&dyn Snapshots> {
        Err(Error::new(Kind::Usage, "the disk keeps no snapshots"))
    }

    /// The name of the object that a block rests in, where there are objects.
    fn object_of(&self, _block: BlockAddr) -> Option<String> {
        None
    }

    /// The error of a disk that is another client's now.
    fn taken_over(&self) -> Option<Error> {
        None
    }

    /// From now on, whatever is deleted among these blocks is purged before the call that deletes
    /// it returns.
    fn mark_sensitive(&self, _blocks: Range<u64>) {}

    /// Whether a disk that was opened to rescue what there is has a damaged journal.
    fn is_journal_damaged(&self) -> bool {
        false
    }

    /// What a person should know who has just opened it.
    fn note(&self) -> Option<&'static str> {
        None
    }
}

/// How a disk uses its medium: its format, and what is asked of that. What is not given is as the
/// format has it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The format.
    pub format: &'static dyn Format,
    /// How blocks are encrypted, of a sealed disk. Only [`Cipher::Gcm`], the default, notices
    /// altered data. Every format takes that one, for those that have no choice notice altered
    /// data, too.
    pub cipher: Option<Cipher>,
    /// Where the metadata of blocks lies, of a sealed disk in a pool. Otherwise what suits the
    /// pool.
    pub layout: Option<ObjectLayout>,
    /// Levels to make, the public one among them; otherwise that one alone.
    pub levels: Option<u8>,
    /// Milliseconds between two stripes or batches of cover, 0 for none.
    pub cover_millis: Option<u32>,
    /// Public and hidden slots of a stripe.
    pub geometry: Option<Geometry>,
    /// The part of the log that stays free, in thousandths.
    pub spare_permille: Option<u16>,
    /// What hides operations.
    pub hiding: Option<Hiding>,
    /// Cells that a write rewrites.
    pub cells_per_write: Option<u8>,
    /// Bits of the key of each block on flash: 128 or 256.
    pub key_bits: Option<u16>,
    /// The chip to make, at a location `nand:`.
    pub chip: Option<ChipShape>,
}

impl Shape {
    /// A disk of a format, with defaults for everything else.
    pub const fn of(format: &'static dyn Format) -> Shape {
        Shape {
            format,
            cipher: None,
            layout: None,
            levels: None,
            cover_millis: None,
            geometry: None,
            spare_permille: None,
            hiding: None,
            cells_per_write: None,
            key_bits: None,
            chip: None,
        }
    }

    /// The settings that are given, by the names of the fields, and of the cipher only another than
    /// the default.
    pub(crate) fn given(&self) -> impl Iterator<Item = Setting> {
        let all = [
            (Setting("cipher"), self.cipher.is_some_and(|cipher| cipher != Cipher::Gcm)),
            (Setting("layout"), self.layout.is_some()),
            (Setting("levels"), self.levels.is_some()),
            (Setting("cover_millis"), self.cover_millis.is_some()),
            (Setting("geometry"), self.geometry.is_some()),
            (Setting("spare_permille"), self.spare_permille.is_some()),
            (Setting("hiding"), self.hiding.is_some()),
            (Setting("cells_per_write"), self.cells_per_write.is_some()),
            (Setting("key_bits"), self.key_bits.is_some()),
            (Setting("chip"), self.chip.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(setting, _)| setting)
    }
}

/// What is to be made, and where.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Where: a path where nothing exists, a blank block device, a UBI volume, or a name in a pool.
    pub location: Location,
    /// How the disk uses its medium.
    pub shape: Shape,
    /// Bytes of the disk, a multiple of 4096; with levels of the medium, which the levels share. On
    /// a block device or a UBI volume the largest that fits if not given.
    pub size: Option<u64>,
    /// What trying a passphrase costs.
    pub cost: Cost,
    /// Overwrite what is there.
    pub force: bool,
    /// Take the whole space of a file now, or fail. Otherwise a sealed disk takes space as it is
    /// written, but for a small reserve; disks with levels take all of it if the host has it.
    pub preallocate: bool,
    /// Where the cluster is, for a disk in a pool.
    pub pool_access: PoolAccess,
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
            pool_access: PoolAccess::default(),
        }
    }

    /// The beginning of a refusal.
    pub fn refused(&self) -> Error {
        Error::new(Kind::Usage, format!("cannot create {}", self.location))
    }

    /// The refusal of a disk without a size, in words such as "a file".
    pub fn no_size(&self, wherefore: &str) -> Error {
        self.refused()
            .found("no size")
            .expected(format!("the size of a disk in {wherefore}"))
            .remedy(Advice::from("give for example ").setting(Setting("size")).text(" 20G"))
    }

    /// The refusal of a format of which no disk can be made on what is at the location.
    pub fn misplaced(&self, kind: BackingKind) -> Error {
        let info = self.shape.format.info();
        let places: Vec<&str> = info.made_on.iter().map(|kind| kind.example()).collect();
        let expected = if places.is_empty() {
            "another format: no disk is made by the name of this one".to_owned()
        } else {
            places.join(", or ")
        };
        let refused =
            self.refused().found(format!("the format {} {}", info.name, kind.words())).expected(expected);
        if info.forgets && kind == BackingKind::File {
            return refused.remedy(
                "choose another format: below a file or a block device, an SSD among them, old contents stay, and nothing can be forgotten there",
            );
        }
        refused.remedy("choose such a location, or another format")
    }
}
