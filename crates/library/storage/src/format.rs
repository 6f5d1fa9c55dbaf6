//! The interface of a format: it plans disks, creates them on a backing, and opens them.
//!
//! A [`Format`] has constants and parses [`Params`] from headers; these create and open disks, and
//! an open disk is an [`OpenFormat`]. The formats of this build are in `formats/`. A program may
//! add its own ([`add_format`](crate::add_format)).

use crate::backing::{Backing, BackingKind, ChipShape, NewChip, PoolAccess};
use crate::cost::Cost;
use crate::header::header_lease::OpenDiskHeader;
use crate::human_size;
use crate::opening::open_disk_options::OpenDiskOptions;
use crate::snapshots::Snapshots;
use lacuna_contracts::{
    BLOCK_SIZE, BadBlock, BlockAddr, Disk, DiskCheckReport, Error, Hint, Kind, Result, Setting, check_disk,
};
use lacuna_crypto::Cipher;
use lacuna_deniable::StripeGeometry;
use lacuna_header::{HEADER_AREA, Location};
use lacuna_kept_memory::MemoryKeeper;
use lacuna_levels::{DiskKeys, Pace};
use lacuna_medium::Medium;
use lacuna_nand::FlashGeometry;
use lacuna_oblivious::HidingMode;
use lacuna_sealed_objects::ObjectLayout;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use crate::format_info::FormatInfo;

/// A layout of disks on a medium.
pub trait Format: fmt::Debug + Send + Sync {
    /// The constants of the format.
    fn info(&self) -> FormatInfo;

    /// Parses the parameters of a disk from its header.
    ///
    /// Errors: [`Kind::NotFound`] for another version of the format, [`Kind::Corrupt`] for
    /// malformed parameters.
    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>>;

    /// The parameters of a new disk in the given space.
    ///
    /// Errors: [`Kind::Usage`] for options that do not go together, [`Kind::NoSpace`].
    fn plan(&self, options: &CreateOptions, room: AvailableSpace) -> Result<Box<dyn Params>> {
        Err(options.wrong_backing(room.kind()))
    }

    /// The simulated chip for a new disk of `blocks` blocks.
    fn chip(&self, options: &CreateOptions, _blocks: u64) -> Result<NewChip> {
        Err(options.wrong_backing(BackingKind::Flash))
    }
}

/// The space for a new disk.
#[derive(Clone, Copy, Debug)]
pub enum AvailableSpace {
    /// In a file or on a block device: the bytes of the device before the last copy of the header.
    /// `None` for a file, which is made as long as necessary.
    File(Option<u64>),
    /// On flash with this geometry.
    Flash(FlashGeometry),
    /// In a pool.
    Pool {
        /// Whether its objects have a key-value map.
        has_keys: bool,
    },
}

impl AvailableSpace {
    /// The kind of backing.
    pub fn kind(self) -> BackingKind {
        match self {
            AvailableSpace::File(_) => BackingKind::File,
            AvailableSpace::Flash(_) => BackingKind::Flash,
            AvailableSpace::Pool { .. } => BackingKind::Pool,
        }
    }
}

/// The parameters of a disk, as in its header.
pub trait Params: fmt::Debug + Send + Sync {
    /// The format of the disk.
    fn format(&self) -> &'static dyn Format;

    /// A description of the disk, for display and for programs.
    fn describe(&self) -> Description;

    /// Encodes the parameters for the header.
    fn encode(&self) -> Vec<u8>;

    /// The end of the disk on the medium of its header: the offset of the first byte that belongs
    /// neither to the disk nor to the first copies of the header. If that medium holds only the
    /// header, the end of these copies. The header records it, and a disk whose header says
    /// otherwise is refused.
    fn end(&self) -> u64 {
        HEADER_AREA
    }

    /// The parameters of the same disk with `blocks` blocks, a number that it had or may have.
    fn resized_to(&self, blocks: u64) -> Box<dyn Params>;

    /// The largest number of blocks of the same disk on a device with `room` bytes before the last
    /// copy of the header. `None`: the disk does not grow with a device.
    fn max_blocks_in(&self, _room: u64) -> Option<u64> {
        None
    }

    /// Allocates the space that the disk needs at once after growing to these parameters. The
    /// medium is already long enough.
    fn allocate_growth(&self, _medium: &dyn Medium) -> Result<()> {
        Ok(())
    }

    /// Creates a new disk beside its header, which is written afterwards. Errors: all errors of the
    /// medium or the cluster.
    fn create(&self, _backing: &Backing, _keys: DiskKeys<'_>) -> Result<()> {
        Err(not_a_disk_format())
    }

    /// Opens a disk, after finishing operations that a crash interrupted.
    ///
    /// Errors: [`Kind::Corrupt`], and all errors of the medium or the cluster.
    fn open(&self, _backing: &Backing, _with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        Err(not_a_disk_format())
    }
}

/// The keys and options for opening a disk.
#[derive(Clone, Copy)]
pub struct OpenContext<'k> {
    /// A key for each level to open, at least one.
    pub keys: DiskKeys<'k>,
    /// The options.
    pub options: OpenDiskOptions,
    /// Open a damaged disk, for reading: a block that cannot be read or does not verify fails
    /// alone. The medium of a file or device is passed unwrapped, and may be truncated or have bad
    /// places: if the format's engine would fail on those, the format wraps it, as leniently as the
    /// engine needs. Flash is wrapped below its erase blocks, and a pool needs no wrapper.
    pub rescue: bool,
    /// The holder of memory that outlives this process, for formats that keep acknowledged writes.
    pub keeper: Option<&'k Arc<dyn MemoryKeeper>>,
    /// Whether the cached pages of the medium are those of the medium, because the disk was closed
    /// well and no writer has changed its file since. Ignored by formats whose cached pages never
    /// stay ([`OpenFormat::can_stay_cached`]).
    pub keeps_cached: bool,
}

/// The error for a format without disks.
fn not_a_disk_format() -> Error {
    Error::new(Kind::Usage, "cannot use it as a disk").expected("a format of disks")
}

/// A description of a disk, from its header.
#[derive(Clone, Debug)]
pub struct Description {
    /// The version of the format, if its parameters have one.
    pub version: Option<u32>,
    /// Length of the disk in bytes; 0 for a vault.
    pub size: u64,
    /// The largest size in bytes that `resize` allows.
    pub max_size: u64,
    /// The reason for that limit, in words that follow it.
    pub max_size_reason: &'static str,
    /// The cipher of the blocks; for a vault, the integrity scheme.
    pub cipher: &'static str,
    /// Whether alterations of data are detected.
    pub detects_alterations: bool,
    /// The name of the layout, if the format has several.
    pub layout: Option<String>,
    /// For a format with levels: the largest size in bytes of each possible hidden level, starting
    /// with level 1; the list does not depend on the existing levels. `None` for other formats.
    pub hidden_sizes: Option<Vec<u64>>,
    /// For a format with levels: the time within which the cover of an open disk alone overwrites
    /// everything on levels that are not open. `None` if the disk writes no cover by itself, and
    /// for other formats.
    pub overwritten_within: Option<Duration>,
    /// Further details of this format.
    pub details: Vec<DescriptionDetail>,
}

/// A detail that one format adds to the description of a disk.
#[derive(Clone, Debug)]
pub struct DescriptionDetail {
    /// Its name for programs.
    pub name: &'static str,
    /// Its value for programs.
    pub value: DetailValue,
    /// For display: a label and its text.
    pub row: Option<(&'static str, String)>,
}

/// A value for programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DetailValue {
    /// A count, or a number of bytes.
    Number(u64),
    /// A fraction.
    Fraction(f64),
    /// A word.
    Word(&'static str),
}

impl Description {
    /// The description of a disk with `blocks` blocks, which can have `most`; the other fields have
    /// their most common values.
    pub fn of(blocks: u64, most: u64) -> Description {
        // Unverified parameters may contain any numbers.
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
        Description {
            version: None,
            size: bytes(blocks),
            max_size: bytes(most),
            max_size_reason: "there is no space for more",
            cipher: Cipher::Gcm.name(),
            detects_alterations: true,
            layout: None,
            hidden_sizes: None,
            overwritten_within: None,
            details: Vec::new(),
        }
    }

    /// The sizes of the possible hidden levels, for display.
    pub fn hidden_sizes_text(&self) -> String {
        let sizes: Vec<String> = self.hidden_sizes.iter().flatten().map(|size| human_size(*size)).collect();
        format!("at most {}", sizes.join(", "))
    }
}

impl DescriptionDetail {
    /// A detail for programs only.
    pub fn of(name: &'static str, value: DetailValue) -> DescriptionDetail {
        DescriptionDetail { name, value, row: None }
    }

    /// The same detail, also for display.
    pub fn with_row(self, name: &'static str, words: String) -> DescriptionDetail {
        DescriptionDetail { row: Some((name, words)), ..self }
    }
}

/// An open disk, with operations of its format beyond reading and writing.
pub trait OpenFormat: Send + Sync {
    /// The disk itself, or its level 0.
    fn disk(&self) -> &dyn Disk;

    /// Closes the disk, with all its levels.
    fn close(&self) -> Result<()> {
        self.disk().close()
    }

    /// Whether pages of the medium that the system has cached may stay from one opening to the
    /// next, if the disk was closed without an error.
    fn can_stay_cached(&self) -> bool {
        false
    }

    /// Whether the library must flush every write and discard before it is acknowledged, because
    /// the disk does not do that itself.
    fn needs_flush_per_write(&self) -> bool {
        false
    }

    /// Records the error of a request. Returns the error for the caller.
    fn record_error(&self, e: Error) -> Error {
        e
    }

    /// Reads and verifies every block. Calls `progress` with the number of blocks done, and `bad`
    /// with each block that fails and its level, if there are levels. The disk may be in use.
    /// Errors: errors that prevent further reading, and errors of `progress`, which end the check.
    fn check(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<()>,
        bad: &mut dyn FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        check_disk(self.disk(), progress, |found| bad(None, found))
    }

    /// Verifies data that changes with every write, and so can only be verified while the disk is
    /// not in use.
    fn check_while_idle(&self) -> Result<()> {
        Ok(())
    }

    /// The open levels starting with 0, at least one, for a format with levels
    /// ([`FormatInfo::has_levels`]); empty for other formats. The library makes all errors of
    /// opening and using such a disk or its levels private.
    fn levels(&self) -> &[Arc<dyn Disk>] {
        &[]
    }

    /// Writes the cover traffic of a closing; closing then does not repeat it.
    fn cover_closing(&self, _pace: Pace) -> Result<()> {
        Ok(())
    }

    /// Sets whether a hidden level stops waiting for cover: requests that would wait are then
    /// refused. It has no effect on a level that is not open, or on level 0, which never waits.
    fn give_up(&self, _level: u8, _gives_up: bool) {}

    /// Enlarges the disk, as [`OpenDisk::grow`](crate::OpenDisk::grow) does.
    fn grow(&self, _header: &OpenDiskHeader, _size: Option<u64>) -> Result<Box<dyn Params>> {
        Err(Error::new(Kind::Usage, "cannot resize the disk while it is open")
            .found("a disk of a format that keeps its size while it is open")
            .hint("close it, and resize it then if its format can grow"))
    }

    /// The snapshots of the disk. Errors: [`Kind::Usage`] if it has none.
    fn snapshots(&self) -> Result<&dyn Snapshots> {
        Err(Error::new(Kind::Usage, "the disk keeps no snapshots"))
    }

    /// The name of the object with a block, for a disk on objects.
    fn object_name(&self, _block: BlockAddr) -> Option<String> {
        None
    }

    /// The error for a disk that another client has taken over.
    fn takeover_error(&self) -> Option<Error> {
        None
    }

    /// Marks blocks as sensitive: data deleted among them is purged before the deleting call
    /// returns.
    fn mark_sensitive(&self, _blocks: Range<u64>) {}

    /// Whether a disk that was opened for rescue has a damaged journal.
    fn is_journal_damaged(&self) -> bool {
        false
    }

    /// The snapshot with an interrupted rollback to it, on a disk that was opened for rescue.
    fn unfinished_rollback(&self) -> Option<&str> {
        None
    }

    /// The error of the table of snapshots, on a disk that was opened for rescue without it.
    fn table_error(&self) -> Option<&Error> {
        None
    }

    /// A message for the user after opening.
    fn note(&self) -> Option<&'static str> {
        None
    }
}

/// The format of a new disk and its settings. Settings without a value get the format's default.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The format.
    pub format: &'static dyn Format,
    /// The cipher of a sealed disk. Only [`Cipher::Gcm`], the default, detects altered data. Every
    /// format accepts that one, since the formats without a choice detect altered data, too.
    pub cipher: Option<Cipher>,
    /// The place of the blocks' metadata, for a sealed disk in a pool. By default the layout that
    /// suits the pool.
    pub layout: Option<ObjectLayout>,
    /// The number of levels to make, including the public one; by default only that one.
    pub levels: Option<u8>,
    /// Milliseconds between two cover stripes or batches, 0 for none.
    pub cover_millis: Option<u32>,
    /// Public and hidden slots of a stripe.
    pub geometry: Option<StripeGeometry>,
    /// The part of the log that stays free, in thousandths.
    pub spare_permille: Option<u16>,
    /// The method that hides operations.
    pub hiding: Option<HidingMode>,
    /// Cells that a write rewrites.
    pub cells_per_write: Option<u8>,
    /// Bits of the key of each block on flash: 128 or 256.
    pub key_bits: Option<u16>,
    /// The chip to make, for a location `nand:`.
    pub chip: Option<ChipShape>,
}

impl Shape {
    /// A disk of a format, with defaults for all settings.
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

    /// The settings with a value, by field name; the cipher only if it is not the default.
    pub(crate) fn explicit_settings(&self) -> impl Iterator<Item = Setting> {
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

/// The options of a new disk.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The place: a path where nothing exists, a blank block device, a UBI volume, or a name in a
    /// pool.
    pub location: Location,
    /// The format and its settings.
    pub shape: Shape,
    /// Bytes of the disk, a multiple of 4096; with levels, bytes of the medium, which the levels
    /// share. By default the largest size that fits, on a block device or a UBI volume.
    pub size: Option<u64>,
    /// The cost of one passphrase guess.
    pub cost: Cost,
    /// Overwrite existing content.
    pub force: bool,
    /// Allocate the whole space of a file now, or fail. Otherwise a sealed disk allocates space as
    /// it is written, except for a small reserve; disks with levels allocate all of it if the host
    /// has it.
    pub preallocate: bool,
    /// The access to the cluster, for a disk in a pool.
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

    /// The start of an error message for these options.
    pub fn create_error(&self) -> Error {
        Error::new(Kind::Usage, format!("cannot create {}", self.location))
    }

    /// The error for a missing size; `wherefore` is the place, as in "a file".
    pub fn missing_size(&self, wherefore: &str) -> Error {
        self.create_error()
            .found("no size")
            .expected(format!("the size of a disk in {wherefore}"))
            .hint(Hint::from("give for example ").setting(Setting("size")).text(" 20G"))
    }

    /// The error for a format that cannot have a disk on the backing at the location.
    pub fn wrong_backing(&self, kind: BackingKind) -> Error {
        let info = self.shape.format.info();
        let places: Vec<&str> = info.creatable_on.iter().map(|kind| kind.example_location()).collect();
        let expected = if places.is_empty() {
            "another format: no new disks are made with this one".to_owned()
        } else {
            places.join(", or ")
        };
        let refused = self
            .create_error()
            .found(format!("the format {} {}", info.name, kind.place_phrase()))
            .expected(expected);
        if info.can_purge && kind == BackingKind::File {
            return refused.hint(
                "choose another format: old contents stay below a file or a block device, also on an SSD, so nothing can be purged there",
            );
        }
        refused.hint("choose such a location, or another format")
    }
}
