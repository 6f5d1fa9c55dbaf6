//! The library's behaviour with formats, including those of a program, according to their
//! constants.

use lacuna_storage::format::{
    AvailableSpace, CreateOptions, Description, Format, FormatInfo, OpenContext, OpenFormat, Params,
};
use lacuna_storage::{
    BLOCK_SIZE, Backing, BackingKind, BadBlock, BlockAddr, ChipShape, Cipher, Cost, Disk, DiskCheckReport,
    DiskKeys, Error, Extent, FormatId, Kind, Location, ObjectLayout, OpenDisk, OpenDiskOptions, Pace,
    Passphrase, Result, Shape, Silent, Status, StripeGeometry, add_format, create, open, size_in_blocks,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of a format without levels, of one that wrongly claims to have levels, and of one
/// with errors that reveal its levels.
const PLAIN: u16 = 0x8101;
const CLAIMS_LEVELS: u16 = 0xc101;
const LEAKY: u16 = 0xc102;
/// A number that no format of this build has, but a later one may have.
const RESERVED: u16 = 0x7fff;

/// A format with disks that read as zeros.
#[derive(Debug)]
struct Zeros<const ID: u16>;

impl<const ID: u16> Format for Zeros<ID> {
    fn info(&self) -> FormatInfo {
        let name = match ID {
            PLAIN => "zeros",
            CLAIMS_LEVELS => "untrue zeros",
            RESERVED => "later zeros",
            _ => "telling zeros",
        };
        FormatInfo::of(FormatId(ID), name, BackingKind::File)
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        let blocks: [u8; 8] =
            params.try_into().map_err(|_| Error::new(Kind::Corrupt, "cannot read the parameters"))?;
        Ok(Box::new(ZerosParams::<ID> { blocks: u64::from_le_bytes(blocks) }))
    }

    fn plan(&self, options: &CreateOptions, _room: AvailableSpace) -> Result<Box<dyn Params>> {
        let size = options.size.ok_or_else(|| options.missing_size("a test"))?;
        self.parse(&size_in_blocks(size)?.to_le_bytes())
    }
}

#[derive(Debug)]
struct ZerosParams<const ID: u16> {
    blocks: u64,
}

impl<const ID: u16> Params for ZerosParams<ID> {
    fn format(&self) -> &'static dyn Format {
        &Zeros::<ID>
    }

    fn describe(&self) -> Description {
        Description::of(self.blocks, self.blocks)
    }

    fn encode(&self) -> Vec<u8> {
        self.blocks.to_le_bytes().to_vec()
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(ZerosParams::<ID> { blocks })
    }

    fn create(&self, _backing: &Backing, _keys: DiskKeys<'_>) -> Result<()> {
        Ok(())
    }

    fn open(&self, _backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        if ID == LEAKY {
            let levels: [Arc<dyn Disk>; 1] = [Arc::new(LeakyLevel)];
            return if with.options.read_only {
                Err(revealing_error())
            } else {
                Ok(Box::new(LeakyDisk { levels }))
            };
        }
        Ok(Box::new(ZerosDisk { blocks: self.blocks, write_through: with.options.write_through }))
    }
}

/// Flushes of open disks.
static FLUSHES: AtomicU64 = AtomicU64::new(0);

struct ZerosDisk {
    blocks: u64,
    write_through: bool,
}

impl Disk for ZerosDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, _first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write(&self, _first: BlockAddr, _data: &[u8]) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _first: BlockAddr, _count: u64) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        FLUSHES.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn extents(&self, _first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        Ok(vec![Extent { blocks: count, written: false }])
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl OpenFormat for ZerosDisk {
    fn disk(&self) -> &dyn Disk {
        self
    }

    fn needs_flush_per_write(&self) -> bool {
        self.write_through
    }
}

/// An error that no log may contain.
fn revealing_error() -> Error {
    Error::new(Kind::Io, "level 1 cannot be used")
}

/// A level with failing operations only.
struct LeakyLevel;

impl Disk for LeakyLevel {
    fn blocks(&self) -> u64 {
        1
    }

    fn read(&self, _first: BlockAddr, _buf: &mut [u8]) -> Result<()> {
        Err(revealing_error())
    }

    fn write(&self, _first: BlockAddr, _data: &[u8]) -> Result<()> {
        Err(revealing_error())
    }

    fn discard(&self, _first: BlockAddr, _count: u64) -> Result<()> {
        Err(revealing_error())
    }

    fn flush(&self) -> Result<()> {
        Err(revealing_error())
    }

    fn extents(&self, _first: BlockAddr, _count: u64) -> Result<Vec<Extent>> {
        Err(revealing_error())
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        Err(revealing_error())
    }
}

/// A disk with only that level, which does not mark its errors as private.
struct LeakyDisk {
    levels: [Arc<dyn Disk>; 1],
}

impl OpenFormat for LeakyDisk {
    fn disk(&self) -> &dyn Disk {
        &*self.levels[0]
    }

    fn check(
        &self,
        _progress: &mut dyn FnMut(u64) -> Result<()>,
        _bad: &mut dyn FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        Err(revealing_error())
    }

    fn levels(&self) -> &[Arc<dyn Disk>] {
        &self.levels
    }

    fn cover_closing(&self, _: Pace) -> Result<()> {
        Err(revealing_error())
    }
}

fn passphrase() -> Passphrase {
    Passphrase::new(b"key".to_vec())
}

fn location(dir: &Path) -> Location {
    Location::parse(dir.join("disk.img").to_str().unwrap()).unwrap()
}

/// Makes a disk; each call of the returned closure opens it.
fn create_disk(format: &'static dyn Format, dir: &Path) -> impl Fn(bool) -> Result<Arc<OpenDisk>> {
    let location = location(dir);
    let cost = Cost::fixed(1024, 1).unwrap();
    let options = CreateOptions { cost, ..CreateOptions::new(location.clone(), Shape::of(format), 1 << 20) };
    create(&options, &Silent, |_levels| Ok(vec![passphrase()])).unwrap();
    move |write_through| {
        let opening = OpenDiskOptions { write_through, ..OpenDiskOptions::default() };
        open(&location, vec![passphrase()], opening, &Silent)
    }
}

#[test]
fn write_through_flushes_writes_and_discards() {
    add_format(&Zeros::<PLAIN>).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let open = create_disk(&Zeros::<PLAIN>, dir.path());
    for (write_through, flushed) in [(true, [1, 2]), (false, [0, 0])] {
        let disk = open(write_through).unwrap();
        assert!(!disk.has_levels());
        FLUSHES.store(0, Ordering::SeqCst);
        disk.write(BlockAddr(0), &[0; BLOCK_SIZE]).unwrap();
        let written = FLUSHES.load(Ordering::SeqCst);
        disk.discard(BlockAddr(0), 1).unwrap();
        assert_eq!([written, FLUSHES.load(Ordering::SeqCst)], flushed);
        disk.close().unwrap();
    }
}

#[test]
fn a_format_without_the_levels_of_its_number_is_refused() {
    add_format(&Zeros::<CLAIMS_LEVELS>).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let refused = create_disk(&Zeros::<CLAIMS_LEVELS>, dir.path())(false).err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.to_string().contains("a disk without levels"), "{refused}");
}

#[test]
fn reserved_format_numbers_are_refused() {
    assert_eq!(add_format(&Zeros::<RESERVED>).unwrap_err().kind(), Kind::Usage);
    assert_eq!(add_format(&Zeros::<{ FormatId::SEALED.0 }>).unwrap_err().kind(), Kind::Exists);
}

#[test]
fn all_errors_of_a_disk_with_levels_are_private() {
    add_format(&Zeros::<LEAKY>).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let disk = create_disk(&Zeros::<LEAKY>, dir.path())(false).unwrap();
    let (first, mut block) = (BlockAddr(0), [0; BLOCK_SIZE]);
    let errors = [
        disk.read(first, &mut block).err(),
        disk.write(first, &[0; BLOCK_SIZE]).err(),
        disk.discard(first, 1).err(),
        disk.flush().err(),
        disk.extents(first, 1).err(),
        disk.levels()[0].flush().err(),
        disk.check(|_| Ok(()), |_, _| ()).err(),
        disk.cover_closing(Pace::Immediate).err(),
        disk.close().err(),
    ];
    for (call, e) in errors.into_iter().enumerate() {
        assert!(e.unwrap().is_confidential(), "call {call}");
    }
    drop(disk);
    let opening = OpenDiskOptions { read_only: true, ..OpenDiskOptions::default() };
    let refused = open(&location(dir.path()), vec![passphrase()], opening, &Silent).err().unwrap();
    assert!(refused.is_confidential(), "{refused}");
}

/// The error for a disk of this shape, before anything is created or any passphrase is requested.
fn refusal(shape: Shape, location: &Location) -> String {
    let options = CreateOptions::new(location.clone(), shape, 64 << 20);
    let refused = create(&options, &Silent, |_levels| unreachable!("a refused call needs no passphrase"));
    let refused = refused.err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
    refused.to_string()
}

#[test]
fn settings_of_other_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = location(dir.path());
    let zeros = Shape::of(&Zeros::<PLAIN>);
    for (shape, setting, having) in [
        (Shape { levels: Some(2), ..Shape::sealed() }, "levels", "deniable or oblivious"),
        (Shape { cipher: Some(Cipher::Xts), ..Shape::deniable(1) }, "cipher", "sealed"),
        (Shape { layout: Some(ObjectLayout::Kv), ..Shape::oblivious(1) }, "layout", "sealed"),
        (Shape { geometry: Some(StripeGeometry::DEFAULT), ..Shape::oblivious(1) }, "geometry", "deniable"),
        (Shape { cells_per_write: Some(3), ..Shape::deniable(1) }, "cells_per_write", "oblivious"),
        (Shape { chip: Some(ChipShape::default()), ..Shape::sealed() }, "chip", "flash"),
        (Shape { cipher: Some(Cipher::Xts), ..zeros }, "cipher", "sealed"),
        (Shape { spare_permille: Some(100), ..zeros }, "spare_permille", "deniable or flash"),
    ] {
        let refusal = refusal(shape, &place);
        assert!(refusal.contains(&format!("leave out `{setting}`")), "{refusal}");
        assert!(refusal.contains(&format!("the format {having} with it")), "{refusal}");
    }
    assert!(!dir.path().join("disk.img").exists());
}

#[test]
fn a_format_is_refused_on_the_wrong_backing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let chip = Location::parse(&format!("nand:{}", path.display())).unwrap();
    for (shape, location, words) in [
        (Shape::flash(), &location(dir.path()), "nothing can be purged there"),
        (Shape::sealed(), &chip, "the format sealed on flash"),
        (Shape::deniable(1), &chip, "the path of a file or block device"),
        (Shape::of(&Zeros::<PLAIN>), &chip, "the format flash"),
    ] {
        let refusal = refusal(shape, location);
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(!path.exists());
}
