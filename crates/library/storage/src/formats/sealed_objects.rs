//! `sealed` on the objects of a pool: a separate engine with snapshots.

use crate::backing::rados::data_prefix;
use crate::backing::{Backing, BackingKind, PoolConnection};
use crate::format::{CreateOptions, Description, Format, FormatInfo, OpenContext, OpenFormat, Params};
use crate::header::header_lease::OpenDiskHeader;
use crate::opening::kept_memory;
use crate::resize::grow;
use crate::size::size_in_blocks;
use crate::snapshots::Snapshots;
use lacuna_contracts::{
    BadBlock, BlockAddr, Disk, DiskCheckReport, Error, Hint, Kind, Result, SEGMENT_BLOCKS, Setting,
};
use lacuna_crypto::{Cipher, SystemRandom};
use lacuna_header::{FormatId, Uuid};
use lacuna_kept_memory::KeptMemory;
use lacuna_levels::DiskKeys;
use lacuna_sealed_objects::{ObjectAccess, ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, VERSION};
use std::sync::{Arc, OnceLock};

/// The most blocks of a disk: 16 TiB.
const MOST_BLOCKS: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct SealedObjectsFormat;

impl Format for SealedObjectsFormat {
    fn info(&self) -> FormatInfo {
        FormatInfo {
            keeps_writes: true,
            creatable_on: &[],
            ..FormatInfo::of(FormatId::SEALED_OBJECTS, "sealed on objects", BackingKind::Pool)
        }
    }

    fn parse(&self, params: &[u8]) -> Result<Box<dyn Params>> {
        Ok(Box::new(ObjectParams::parse(params)?))
    }
}

/// The parameters of a new disk; `has_keys`: the pool's objects have key-value maps.
pub(crate) fn plan(options: &CreateOptions, has_keys: bool) -> Result<Box<dyn Params>> {
    let (cipher, layout) = (options.shape.cipher.unwrap_or(Cipher::Gcm), options.shape.layout);
    // A layout would have no meaning for a cipher without metadata.
    if let Some(layout) = layout.filter(|l| cipher.meta_size() == 0 && *l != ObjectLayout::SegmentEnd) {
        return Err(Error::new(Kind::Usage, "cannot use this layout")
            .found(format!("the layout {} with the cipher {}", layout.name(), cipher.name()))
            .expected("a cipher with metadata: xts-random or gcm")
            .hint("leave out the layout"));
    }
    let size = options.size.ok_or_else(|| options.missing_size("RADOS"))?;
    if options.preallocate {
        return Err(options
            .create_error()
            .found("preallocation in a pool, where the first write to an object creates it")
            .expected("a file")
            .hint("leave it out"));
    }
    let beside = cipher.meta_size() == 0 || !has_keys;
    let usual = if beside { ObjectLayout::SegmentEnd } else { ObjectLayout::Adaptive };
    let params = ObjectParams::plan(cipher, layout.unwrap_or(usual), size_in_blocks(size)?)?;
    if has_keys || !params.layout.needs_keys() {
        return Ok(Box::new(params));
    }
    Err(options
        .create_error()
        .found(format!(
            "the layout {} in an erasure-coded pool: its objects have no keys to keep metadata in",
            params.layout.name()
        ))
        .expected("a layout that keeps metadata beside the data")
        .hint(
            Hint::from("use the layout segment-end (")
                .setting(Setting("layout"))
                .text("), or a replicated pool"),
        ))
}

impl Params for ObjectParams {
    fn format(&self) -> &'static dyn Format {
        &SealedObjectsFormat
    }

    fn describe(&self) -> Description {
        Description {
            version: Some(VERSION.into()),
            cipher: self.cipher.name(),
            detects_alterations: self.cipher.authenticates(),
            layout: Some(self.layout.name().to_owned()),
            ..Description::of(self.blocks, MOST_BLOCKS)
        }
    }

    fn encode(&self) -> Vec<u8> {
        ObjectParams::encode(self).to_vec()
    }

    fn resized_to(&self, blocks: u64) -> Box<dyn Params> {
        Box::new(ObjectParams { blocks, ..*self })
    }

    fn create(&self, backing: &Backing, keys: DiskKeys<'_>) -> Result<()> {
        let stores = backing.pool()?.stores(Uuid(*keys.uuid))?;
        ObjectDisk::create(&stores, self, &keys.keys[0], keys.uuid)
    }

    fn open(&self, backing: &Backing, with: &OpenContext<'_>) -> Result<Box<dyn OpenFormat>> {
        let (connection, keys) = (Arc::clone(backing.pool()?), with.keys);
        let uuid = Uuid(*keys.uuid);
        let access = match (with.rescue, with.options.read_only) {
            (true, _) => ObjectAccess::Rescue,
            (false, true) => ObjectAccess::Read,
            (false, false) => ObjectAccess::Write,
        };
        let options = ObjectOptions {
            budget: with.options.budget,
            access,
            background: true,
            write_through: with.options.write_through,
            snapshot: connection.location().snapshot().map(str::to_owned),
            random: Arc::new(SystemRandom::new()?),
            kept: memory(self, with, access)?,
        };
        let disk = ObjectDisk::open(connection.stores(uuid)?, self, &keys.keys[0], keys.uuid, options)?;
        Ok(Box::new(OpenObjectsFormat {
            disk,
            prefix: data_prefix(uuid),
            takeover: OnceLock::new(),
            connection,
        }))
    }
}

/// The memory for acknowledged writes: that of the last server, or new memory. `None`: that of this
/// process.
fn memory(params: &ObjectParams, with: &OpenContext<'_>, access: ObjectAccess) -> Result<Option<KeptMemory>> {
    let Some(keeper) = with.keeper.filter(|_| access == ObjectAccess::Write) else { return Ok(None) };
    let layout = ObjectDisk::kept_layout(params, with.options.budget, with.options.write_through);
    let (master, params) = (&with.keys.keys[0], ObjectParams::encode(params));
    let owner = kept_memory::owner("sealed-objects kept memory", master, with.keys.uuid, &params);
    kept_memory::of_disk(&**keeper, &owner, &layout)
}

/// An open disk on objects.
struct OpenObjectsFormat {
    // Dropped before the lock on it.
    disk: ObjectDisk,
    /// The prefix of its data objects.
    prefix: String,
    /// The first error showing that another client has taken over the disk. Later errors are less
    /// clear.
    takeover: OnceLock<Error>,
    /// Holds the lock on the disk.
    connection: Arc<PoolConnection>,
}

impl OpenFormat for OpenObjectsFormat {
    fn disk(&self) -> &dyn Disk {
        &self.disk
    }

    fn close(&self) -> Result<()> {
        let closed = self.disk.close();
        if closed.is_err() {
            // A failed write may still reach the cluster, but not after another client writes.
            self.connection.abandon_lock();
        }
        self.takeover_error().map_or(closed, Err)
    }

    /// Records an error that says that another client has taken over the disk.
    fn record_error(&self, e: Error) -> Error {
        if e.kind() == Kind::Fenced {
            self.takeover.get_or_init(|| e.clone());
        }
        e
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<()>,
        bad: &mut dyn FnMut(Option<u8>, BadBlock),
    ) -> Result<DiskCheckReport> {
        self.disk.check(progress, |found| bad(None, found))
    }

    fn grow(&self, _header: &OpenDiskHeader, _size: Option<u64>) -> Result<Box<dyn Params>> {
        Err(grow::grows_only_closed())
    }

    fn snapshots(&self) -> Result<&dyn Snapshots> {
        Ok(&self.disk)
    }

    fn unfinished_rollback(&self) -> Option<&str> {
        self.disk.unfinished_rollback()
    }

    fn table_error(&self) -> Option<&Error> {
        self.disk.table_error()
    }

    fn object_name(&self, block: BlockAddr) -> Option<String> {
        Some(format!("{}.{:016x}", self.prefix, block.0 / SEGMENT_BLOCKS))
    }

    fn takeover_error(&self) -> Option<Error> {
        self.takeover.get().cloned().or_else(|| self.connection.check_taken_over().err())
    }
}
