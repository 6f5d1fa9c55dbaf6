//! Vaults: file systems in an untrusted directory, such as one on a server or one that a program
//! synchronises.
//!
//! A vault is a directory of ciphertext; any alteration, exchange, removal or rollback of its files
//! is detected. A small file outside, the *anchor*, stores the last state.
//!
//! ```
//! use lacuna_storage::vault::{self, NewVault, OpenVaultOptions};
//! use lacuna_storage::{Cost, Kind, Passphrase, Silent};
//!
//! # fn main() -> lacuna_storage::Result<()> {
//! # let temporary = tempfile::tempdir().unwrap();
//! # let dir = temporary.path().join("photos");
//! # let anchor = temporary.path().join("anchor");
//! let passphrase = || Passphrase::new(b"correct horse battery staple".to_vec());
//!
//! // Cheap guesses for the example; by default one guess takes a second.
//! // By default the anchor lies in this machine's state directory.
//! let cost = Cost::fixed(1024, 1)?;
//! let new = NewVault { cost, anchor: Some(anchor.clone()), ..NewVault::new(&dir) };
//! vault::create(&new, &Silent, || Ok(passphrase()))?;
//!
//! let opening = OpenVaultOptions { anchor: Some(anchor), ..OpenVaultOptions::default() };
//! let open = vault::open(&dir, vec![passphrase()], opening.clone(), &Silent)?;
//! assert_eq!(open.vault().check(&mut |_, _| ())?.bad.len(), 0);
//! open.close()?;
//!
//! // A vault is open only once: another opening is refused.
//! let open = vault::open(&dir, vec![passphrase()], opening.clone(), &Silent)?;
//! let second = vault::open(&dir, vec![passphrase()], opening, &Silent);
//! assert_eq!(second.err().map(|e| e.kind()), Some(Kind::Busy));
//! open.close()?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod anchor;
pub(crate) mod directory;
pub(crate) mod rescue;

use crate::backing::{FileLocation, PoolAccess};
use crate::cost::Cost;
use crate::foreign;
use crate::header::copy_remedy::CopyRemedy;
use crate::inspect::examine::remedy_for;
use crate::observer::{Observer, run_step};
use crate::opening::claim::DiskClaim;
use crate::sync_directory::sync_directory;
use crate::unlock::{HeaderOpener, PassphraseMatch};
use lacuna_contracts::{Budget, Error, Kind, Result, SecretVec};
use lacuna_crypto::SystemRandom;
use lacuna_header::{
    DiskId, FormatId, HEADER_AREA, Location, NewHeader, NewHeaderSpec, OpenHeader, PublicHeader, Uuid,
};
pub use lacuna_integrity::{Choice, Scheme};
use lacuna_medium::{Access, DiskFolder, FsSpace, Medium, check_takes_files};
use lacuna_vault::store::{Anchor, AnchorState, FileAnchor};
pub use lacuna_vault::store::{FILES, RollbackPolicy};
pub use lacuna_vault::{BadFile, CheckReport, FileStat, FsError, Rescue, Vault, VaultLog};
use lacuna_vault::{SystemWallClock, VaultBacking, VaultOpenOptions, VaultOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::formats::vault::{VaultParams, integrity_choices};
pub use crate::vault::anchor::default_anchor;
pub use crate::vault::directory::{HEADER_FILE, is_vault, lacks_header};
pub use crate::vault::rescue::{MissingPart, RescueReport, check_rescue_target, rescue};

/// The options of a new vault.
#[derive(Clone, Debug)]
pub struct NewVault {
    /// The directory, which is created if it does not exist; otherwise it must be empty.
    pub dir: PathBuf,
    /// The integrity scheme of files without one of their own.
    pub integrity: Choice,
    /// The path of this machine's anchor, if not [`default_anchor`].
    pub anchor: Option<PathBuf>,
    /// The cost of one passphrase guess.
    pub cost: Cost,
}

impl NewVault {
    /// A vault in this directory, with defaults for everything else.
    pub fn new(dir: impl Into<PathBuf>) -> NewVault {
        NewVault { dir: dir.into(), integrity: Choice::Auto, anchor: None, cost: Cost::default() }
    }
}

/// A new vault.
pub struct CreatedVault {
    /// The public part of the header.
    pub header: PublicHeader,
    /// The identity that lets the owner recognise the vault ([`OpenVaultOptions::expect`]).
    pub id: DiskId,
    /// The path of this machine's anchor.
    pub anchor: PathBuf,
}

/// Refuses an existing path for the anchor of a new vault: after a failure the anchor is removed,
/// so it must be ours. Refuses a path at which this user cannot make it, too.
fn check_anchor_absent(anchor: &Path) -> Result<()> {
    match std::fs::symlink_metadata(anchor) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            // Missing directories above it are made with it.
            let folder = anchor.ancestors().skip(1).find(|folder| folder.is_dir());
            folder.map_or(Ok(()), check_takes_files).map_err(|e| {
                Error::io(format!("cannot make the anchor {}", anchor.display()), &e)
                    .hint("choose a place for the anchor that you may write to")
            })
        }
        Err(e) => Err(Error::io(format!("cannot look for an anchor at {}", anchor.display()), &e)),
        Ok(_) => Err(Error::new(
            Kind::Exists,
            format!("cannot use {} for the anchor of a new vault", anchor.display()),
        )
        .found("an existing file, perhaps the anchor of another vault")
        .expected("a path where nothing exists")),
    }
}

/// Makes a vault. `passphrase` is called after all checks.
///
/// Errors: [`Kind::Exists`] if the directory is not empty, [`Kind::NotFound`] if its parent does
/// not exist, [`Kind::NoSpace`], and all errors of the system. After a failure nothing is left of
/// the vault.
pub fn create(
    new: &NewVault,
    observer: &dyn Observer,
    passphrase: impl FnOnce() -> Result<SecretVec>,
) -> Result<CreatedVault> {
    directory::NewVaultDir::check_available(&new.dir)?;
    let random = Arc::new(SystemRandom::new()?);
    let uuid = Uuid::random(&*random);
    let anchor = anchor::anchor_path(&new.dir, new.anchor.as_deref(), uuid)?;
    check_anchor_absent(&anchor)?;
    let header = NewHeaderSpec {
        format: FormatId::VAULT,
        params: VaultParams { integrity: new.integrity }.encode().to_vec(),
        end: HEADER_AREA,
        cost: new.cost.resolve(observer),
        levels: &[vec![passphrase()?]],
        uuid: Some(uuid),
    };
    let header =
        run_step(observer, "deriving keys from the passphrase", || NewHeader::build(header, &*random))?;
    let (public, id) = (header.unlocked().header.clone(), header.unlocked().id());
    let mut place = directory::NewVaultDir::make(&new.dir)?;
    let file = new.dir.join(HEADER_FILE);
    let medium = place.make_header()?;
    let naming = |e: Error| e.context(format!("cannot make a vault in {}", new.dir.display()));
    // The header comes last: until it is written, nothing looks like a vault.
    let made = header.write(&medium, |unlocked| {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let options = VaultOptions { choice: new.integrity, uid, gid, ..VaultOptions::default() };
        let paths = VaultPaths { dir: &new.dir, uuid, anchor: &anchor };
        let base = open_backing(&paths, false, random.clone())?;
        Vault::create(base, &unlocked.master_keys[0], uuid.0, &options)?.close()
    });
    let synced = made.and_then(|_| sync_directory(&file));
    let synced = synced.and_then(|()| sync_directory(&new.dir));
    synced.map_err(naming).inspect_err(|_| drop(std::fs::remove_file(&anchor)))?;
    place.keep();
    Ok(CreatedVault { header: public, id, anchor })
}

/// The options for opening a vault.
#[derive(Clone)]
pub struct OpenVaultOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// Accept the present state although this machine's anchor has another one, for example after a
    /// backup was restored on purpose. The consent applies to the state that was read at the
    /// question.
    pub accept: Option<RollbackPolicy>,
    /// Memory for all caches.
    pub budget: Budget,
    /// The path of this machine's anchor, if not [`default_anchor`].
    pub anchor: Option<PathBuf>,
    /// Receives findings: data that does not verify, by plain path, backing file and block.
    pub log: VaultLog,
    /// The expected vault; any vault if not given.
    pub expect: Option<DiskId>,
}

impl Default for OpenVaultOptions {
    /// For reading and writing, with the default memory and anchor.
    fn default() -> Self {
        OpenVaultOptions {
            read_only: false,
            accept: None,
            budget: Budget::default(),
            anchor: None,
            log: Arc::new(|_| ()),
            expect: None,
        }
    }
}

/// An unlocked vault, which is held. May cross a fork, together with the lock.
pub struct UnlockedVault {
    dir: PathBuf,
    header: Arc<dyn Medium>,
    claim: Option<Arc<DiskClaim>>,
    unlocked: OpenHeader,
}

/// Holds a vault, then gets passphrases, then opens its header, as [`crate::unlock`] does for
/// disks.
///
/// Errors: [`Kind::NotFound`] if there is no vault, [`Kind::Busy`] while another process has it,
/// [`Kind::Passphrase`], [`Kind::Corrupt`], and the errors of `ask`.
pub fn unlock(
    dir: &Path,
    access: Access,
    observer: &dyn Observer,
    ask: impl FnOnce(&PublicHeader, HeaderOpener<'_>) -> Result<PassphraseMatch>,
) -> Result<UnlockedVault> {
    directory::check_is_vault(dir)?;
    // Absolute paths: the process may change its directory before they are used.
    let dir = dir.canonicalize().map_err(|e| Error::io(format!("cannot open {}", dir.display()), &e))?;
    let location = Location::Path(dir.clone());
    let volume = crate::unlock::unlock(&location, &PoolAccess::default(), access, observer, ask)?;
    if !volume.parameters.is_vault() {
        return Err(Error::new(Kind::NotFound, format!("{} is not a vault", dir.display()))
            .found(format!("the header of a disk in {HEADER_FILE}")));
    }
    let (header, unlocked, claim) = volume.into_vault_parts();
    Ok(UnlockedVault { dir, header, claim, unlocked })
}

/// Opens a vault with these passphrases; each must open its header.
///
/// Errors: those of [`unlock`] and [`UnlockedVault::open`].
pub fn open(
    dir: &Path,
    passphrases: Vec<SecretVec>,
    opening: OpenVaultOptions,
    observer: &dyn Observer,
) -> Result<OpenVault> {
    let given = |_: &PublicHeader, open: HeaderOpener<'_>| Ok((open(&passphrases)?, passphrases));
    let access = if opening.read_only { Access::Read } else { Access::Write };
    unlock(dir, access, observer, given)?.open(opening)
}

impl UnlockedVault {
    /// The UUID of the vault.
    pub fn uuid(&self) -> Uuid {
        self.unlocked.header.uuid
    }

    /// The identity that lets the owner recognise the vault.
    pub fn id(&self) -> DiskId {
        self.unlocked.id()
    }

    /// The number of passphrases that open the vault.
    ///
    /// Errors: those of [`OpenHeader::passphrase_count`].
    pub fn passphrase_count(&self) -> Result<Option<usize>> {
        self.unlocked.passphrase_count()
    }

    /// The path of this machine's anchor: `given`, or the default one.
    ///
    /// Errors: [`Kind::Usage`] for an unsuitable path.
    pub fn anchor(&self, given: Option<&Path>) -> Result<PathBuf> {
        anchor::anchor_path(&self.dir, given, self.uuid())
    }

    /// Opens the vault, after finishing operations that a crash interrupted.
    ///
    /// Errors: [`Kind::RolledBack`] if the present state is older than the anchored state, or of
    /// another history; [`Kind::Corrupt`], also for another vault than the expected one; and all
    /// errors of the system.
    pub fn open(&self, opening: OpenVaultOptions) -> Result<OpenVault> {
        self.claim.iter().for_each(|claim| claim.adopt_after_fork());
        let OpenVaultOptions { read_only, accept, budget, anchor, log, expect } = opening;
        self.id().check_vault(expect).map_err(|e| e.context(self.dir.display()))?;
        let anchor = self.anchor(anchor.as_deref())?;
        let options =
            VaultOpenOptions { read_only, on_rollback: accept, budget, log, ..VaultOpenOptions::default() };
        let base = open_backing(&self.paths(&anchor), read_only, Arc::new(SystemRandom::new()?))?;
        // Memory locks do not survive a fork: this copy is locked in the surviving process.
        let master = self.unlocked.master_keys[0].clone();
        let naming = |e: Error| e.context(format!("cannot open {}", self.dir.display()));
        let vault = Arc::new(Vault::open(base, &master, self.uuid().0, &options).map_err(naming)?);
        Ok(OpenVault { vault, _header: Arc::clone(&self.header), _claim: self.claim.clone() })
    }

    fn paths<'v>(&'v self, anchor: &'v Path) -> VaultPaths<'v> {
        VaultPaths { dir: &self.dir, uuid: self.uuid(), anchor }
    }

    /// Opens a damaged vault to read the data that verifies. The settings `read_only`, `accept` and
    /// `expect` of `opening` are ignored.
    ///
    /// Errors: [`Kind::Corrupt`] if no data can be reached, and all errors of the system.
    pub fn open_to_rescue(&self, opening: OpenVaultOptions) -> Result<Rescue> {
        self.claim.iter().for_each(|claim| claim.adopt_after_fork());
        let OpenVaultOptions { budget, anchor, log, .. } = opening;
        let anchor = self.anchor(anchor.as_deref())?;
        let options = VaultOpenOptions { budget, log, ..VaultOpenOptions::default() };
        let base = open_backing(&self.paths(&anchor), true, Arc::new(SystemRandom::new()?))?;
        let naming = |e: Error| e.context(format!("cannot open {}", self.dir.display()));
        Rescue::open(base, &self.unlocked.master_keys[0].clone(), self.uuid().0, &options).map_err(naming)
    }
}

/// The paths of a vault and its anchor.
struct VaultPaths<'v> {
    dir: &'v Path,
    uuid: Uuid,
    /// The path of this machine's anchor.
    anchor: &'v Path,
}

/// The backing of a vault.
fn open_backing(paths: &VaultPaths<'_>, read_only: bool, random: Arc<SystemRandom>) -> Result<VaultBacking> {
    let access = if read_only { Access::Read } else { Access::Write };
    Ok(VaultBacking {
        folder: Arc::new(DiskFolder::open(paths.dir, access)?),
        anchor: Arc::new(FileAnchor::open(paths.anchor, paths.uuid.0, read_only)?),
        random,
        clock: Arc::new(SystemWallClock),
    })
}

/// An open vault. Dropping it releases the directory; call [`OpenVault::close`] first.
pub struct OpenVault {
    vault: Arc<Vault>,
    // The locks, released after the vault.
    _header: Arc<dyn Medium>,
    _claim: Option<Arc<DiskClaim>>,
}

impl OpenVault {
    /// The vault, for front ends.
    pub fn vault(&self) -> &Arc<Vault> {
        &self.vault
    }

    /// Whether this machine had no anchored state of the vault, so that the freshness of the
    /// present state could not be checked.
    pub fn is_first_opening(&self) -> bool {
        self.vault.first_opening()
    }

    /// Makes everything durable and closes the vault.
    pub fn close(self) -> Result<()> {
        self.vault.close()
    }
}

/// The public information about a vault.
pub struct VaultInfo {
    /// The public part of the header.
    pub header: PublicHeader,
    /// The parameters in the header.
    pub params: VaultParams,
    /// Warnings about the copies of the header, as sentences.
    pub notes: Vec<String>,
    /// The way back to whole copies, for each of these warnings.
    pub copy_remedy: CopyRemedy,
    /// Whether a process has it open.
    pub in_use: bool,
    /// The file system that holds it.
    pub space: FsSpace,
    /// The path of this machine's anchor.
    pub anchor: PathBuf,
    /// The anchored state; none before the first opening on this machine.
    pub anchored_state: Option<AnchorState>,
}

/// The public information about a vault. Nothing of it is authenticated, except the anchored state.
///
/// Errors: [`Kind::NotFound`] if there is no vault.
pub fn public_info(dir: &Path, anchor: Option<&Path>) -> Result<VaultInfo> {
    directory::check_is_vault(dir)?;
    let look = FileLocation::VaultHeader(dir).probe()?;
    let location = Location::Path(dir.to_owned());
    let naming = |e: Error| e.context(dir.display());
    let (header, notes) =
        lacuna_header::read_public(&look).map_err(|e| naming(foreign::named_in(e, &look, &location)))?;
    if header.format != FormatId::VAULT {
        return Err(Error::new(Kind::NotFound, format!("{} is not a vault", dir.display()))
            .found(format!("the format {} in {HEADER_FILE}", header.format))
            .expected("the format vault"));
    }
    let copy_remedy = remedy_for(&notes, &look, &location);
    let params = VaultParams::parse(&header.params).map_err(naming)?;
    let anchor = anchor::anchor_path(dir, anchor, header.uuid)?;
    let remembered = FileAnchor::open(&anchor, header.uuid.0, true)?.load()?;
    let space = space(dir)?;
    let (in_use, anchored_state) = (look.in_use, remembered);
    Ok(VaultInfo { header, params, notes, copy_remedy, in_use, space, anchor, anchored_state })
}

/// The space of a directory's file system; the directory is not held.
fn space(dir: &Path) -> Result<FsSpace> {
    let found = rustix::fs::statvfs(dir)
        .map_err(|e| Error::io(format!("cannot ask for the space of {}", dir.display()), &e.into()))?;
    Ok(found.into())
}
