//! Opening a disk with what was unlocked: the second step, in the process that goes on after a fork.

use crate::claim::Claim;
use crate::cluster::{self, Connection, Target};
use crate::growing::{Growing, Opener as Reopener};
use crate::held_header::HeldHeader;
use crate::observer::Silent;
use crate::open_disk::{Engine, OnFlash, OnObjects, OpenDisk};
use crate::parameters::Parameters;
use crate::remains::Remains;
use lacuna_core::{Budget, Error, Kind, Result, Secret, SystemClock};
use lacuna_crypto::SystemRandom;
use lacuna_deniable::Params as DeniableParams;
use lacuna_flash::{
    FlashDisk, HeaderMedium, OpenOptions as FlashOptions, Params as FlashParams, Policy as PurgePolicy,
};
use lacuna_header::{DiskId, FormatId, Location, PublicHeader, Uuid};
use lacuna_levels::{LevelFormat, Masters, OpenOptions as LevelOptions, Randomness};
use lacuna_medium::Medium;
use lacuna_nand::Flash;
use lacuna_oblivious::Params as ObliviousParams;
use lacuna_sealed::Params;
use lacuna_sealed_objects::{ObjectDisk, ObjectOptions, ObjectParams};
use std::sync::Arc;
use std::time::Duration;

/// What it takes to open the disk. May cross a fork; the lock on a file crosses with it.
pub struct Key {
    pub(crate) place: Place,
    pub(crate) claim: Option<Arc<Claim>>,
    pub(crate) has_levels: bool,
    /// The keys of the opened levels, from 0 up; formats without levels have one.
    pub(crate) masters: Vec<Secret<32>>,
    pub(crate) id: DiskId,
    pub(crate) uuid: [u8; 16],
    /// What is left of the disk is to be read.
    pub(crate) rescue: bool,
    /// For errors.
    pub(crate) location: Location,
}

pub(crate) enum Place {
    Flat { medium: Arc<dyn Medium>, params: Params },
    Deniable { medium: Arc<dyn Medium>, params: DeniableParams },
    Oblivious { medium: Arc<dyn Medium>, params: ObliviousParams },
    Objects(Box<Objects>),
    Flash { flash: Arc<dyn Flash>, params: FlashParams },
}

pub(crate) struct Objects {
    pub(crate) target: Target,
    pub(crate) location: Location,
    pub(crate) steal: bool,
    pub(crate) params: ObjectParams,
    /// As it was unlocked.
    pub(crate) header: PublicHeader,
    /// None if a fork is to come.
    pub(crate) connection: Option<Connection>,
}

/// Why a disk with levels acknowledges no write only when it is durable: in the same words whatever levels there are.
///
/// Deniability contract: what is hidden waits for a write to the medium that comes anyway, and must cause none.
pub fn no_write_through() -> Error {
    Error::new(Kind::Usage, "cannot write through here")
        .found("a disk with levels, whose hidden writes wait for writes that public ones cause, and must cause none")
        .expected("a disk of the format sealed")
        .remedy("leave it out, and flush (sync) after what must not be lost")
}

/// How a disk is opened.
#[derive(Clone, Copy)]
pub struct Opening {
    /// Refuse writes.
    pub read_only: bool,
    /// Memory for all caches.
    pub budget: Budget,
    /// Acknowledge writes when they are durable. Not for disks with levels.
    pub write_through: bool,
    /// How long something hidden waits for public writes on a disk that does not refresh itself.
    pub cover_timeout: Duration,
    /// When a disk on flash is purged unasked. Without it on request and before it is closed, and not else. A purge that was cut is
    /// finished at the opening in any case.
    pub purging: Option<PurgePolicy>,
    /// The disk that it has to be; any if not given.
    pub expect: Option<DiskId>,
}

impl Default for Opening {
    /// For reading and writing, with the usual memory, and a minute of patience for cover.
    fn default() -> Self {
        Opening {
            read_only: false,
            budget: Budget::default(),
            write_through: false,
            cover_timeout: Duration::from_secs(60),
            purging: Some(PurgePolicy::default()),
            expect: None,
        }
    }
}

impl Opening {
    /// For a format with levels.
    fn of_levels(self, random: Arc<SystemRandom>) -> LevelOptions {
        LevelOptions {
            budget: self.budget,
            read_only: self.read_only,
            background: true,
            cover_timeout: self.cover_timeout,
            random: Randomness::of(random),
        }
    }
}

impl Key {
    /// Whether the disk is of a format with levels, however many are open.
    pub fn has_levels(&self) -> bool {
        self.has_levels
    }

    /// The format of the disk.
    pub fn format(&self) -> FormatId {
        match self.place {
            Place::Flat { .. } => FormatId::SEALED,
            Place::Objects(_) => FormatId::SEALED_OBJECTS,
            Place::Deniable { .. } => FormatId::DENIABLE,
            Place::Oblivious { .. } => FormatId::OBLIVIOUS,
            Place::Flash { .. } => FormatId::FLASH,
        }
    }

    /// Whether the disk keeps large blocks of memory for as long as it is open: one with levels, for its stripes and batches,
    /// and one in RADOS, whose client library copies all that is written.
    pub fn keeps_large_memory(&self) -> bool {
        self.has_levels || matches!(self.place, Place::Objects(_))
    }

    /// How many levels are going to be open; 1 where there are none.
    pub fn levels(&self) -> usize {
        self.masters.len()
    }

    /// By which its owner knows the disk again.
    pub fn id(&self) -> DiskId {
        self.id
    }

    /// Opens the disk, and first finishes what a crash interrupted.
    ///
    /// Errors: [`Kind::Corrupt`], also for another disk than the expected one, before anything is written; and what the medium reports.
    pub fn open(self, opening: Opening) -> Result<OpenDisk> {
        self.id.check(opening.expect).map_err(|e| e.context(&self.location))?;
        self.claim.iter().for_each(|claim| claim.renew());
        let opening = Opening { read_only: opening.read_only || self.rescue, ..opening };
        let Opening { read_only, budget, write_through, .. } = opening;
        // Locks on memory do not cross a fork: this copy is locked in the process that goes on.
        let masters: Vec<Secret<32>> = self.masters.clone();
        let master = masters.first().ok_or_else(|| Error::new(Kind::Other, "the header gave no key"))?;
        let keys = Masters { keys: &masters, uuid: &self.uuid };
        let random = Arc::new(SystemRandom::new()?);
        if self.has_levels && write_through {
            return Err(no_write_through());
        }
        let held = |medium: &Arc<dyn Medium>| HeldHeader::new(Arc::clone(medium), read_only);
        let whole = |medium: &Arc<dyn Medium>, parameters: Parameters| {
            parameters.check_length(medium.len(), &self.location)
        };
        // The engines of disks with levels know of places that cannot be read.
        let left = |medium: Arc<dyn Medium>, parameters: Parameters| -> Result<Arc<dyn Medium>> {
            if self.rescue {
                return Ok(Arc::new(Remains::of(medium, parameters.end(), false)));
            }
            whole(&medium, parameters).map(|()| medium)
        };
        // Nothing is waited for as on a medium that may recover.
        let of_levels = |random| LevelOptions { background: !self.rescue, ..opening.of_levels(random) };
        let (engine, header) = match self.place {
            Place::Flat { medium, params } => {
                let (header, master, uuid) = (held(&medium), master.clone(), self.uuid);
                let opener = Reopener { master, uuid, budget, read_only, write_through, random };
                let disk = if self.rescue {
                    Growing::open_to_rescue(medium, &params, opener)
                } else {
                    whole(&medium, Parameters::Flat(params))?;
                    Growing::open(medium, &params, opener)
                };
                (disk.map(Engine::Flat), header)
            }
            Place::Deniable { medium, params } => {
                let (header, medium) = (held(&medium), left(medium, Parameters::Deniable(params))?);
                (with_levels(&params, medium, keys, of_levels(random)), header)
            }
            Place::Oblivious { medium, params } => {
                let (header, medium) = (held(&medium), left(medium, Parameters::Oblivious(params))?);
                (with_levels(&params, medium, keys, of_levels(random)), header)
            }
            Place::Flash { flash, params } => {
                let options = FlashOptions {
                    budget,
                    read_only,
                    policy: opening.purging,
                    clock: Arc::new(SystemClock),
                    random,
                };
                let header = HeldHeader::new(Arc::new(HeaderMedium::new(flash.clone())), read_only);
                let disk = FlashDisk::open(flash, &params, master, &options)
                    .map_err(|e| e.context(&self.location))?;
                (Ok(Engine::Flash(OnFlash { disk, write_through })), header)
            }
            Place::Objects(objects) => {
                let (engine, header) = on_objects(*objects, master, opening, random)?;
                (Ok(engine), header)
            }
        };
        let engine = engine.map_err(|e| e.context(&self.location))?;
        Ok(OpenDisk::new((Uuid(self.uuid), self.id), engine, header, self.claim))
    }
}

/// Opens a disk on objects.
fn on_objects(
    mut objects: Objects,
    master: &Secret<32>,
    opening: Opening,
    random: Arc<SystemRandom>,
) -> Result<(Engine, HeldHeader)> {
    let connection = objects.connect()?;
    let read_only = opening.read_only || objects.target.snapshot().is_some();
    let header = HeldHeader::new(connection.header()?, read_only);
    let options = ObjectOptions {
        budget: opening.budget,
        read_only,
        background: true,
        write_through: opening.write_through,
        snapshot: objects.target.snapshot().map(str::to_owned),
        random,
    };
    let uuid = objects.header.uuid;
    let stores = connection.stores(uuid)?;
    let disk = ObjectDisk::open(stores, &objects.params, master, &uuid.0, options)
        .map_err(|e| e.context(&objects.location))?;
    let prefix = cluster::data_prefix(uuid);
    Ok((Engine::Objects(OnObjects::new(disk, prefix, connection)), header))
}

impl Objects {
    /// The connection that was kept, or one made anew to a disk that must not have changed.
    fn connect(&mut self) -> Result<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let (mut connection, header) = cluster::look(&self.target, &self.location)?;
        // The process that unlocked the disk took it over, and has told.
        cluster::hold(&mut connection, self.steal, &Silent)?;
        cluster::check_unchanged(&*header, &self.header, &self.location)?;
        Ok(connection)
    }
}

/// Opens a disk with levels. Its errors are private.
fn with_levels(
    params: &impl LevelFormat,
    medium: Arc<dyn Medium>,
    masters: Masters<'_>,
    options: LevelOptions,
) -> Result<Engine> {
    params.open(medium, masters, options).map(Engine::with_levels).map_err(Error::private)
}
