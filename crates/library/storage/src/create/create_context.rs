//! The common part of creating a disk: its passphrases, its header, and the checks that do not
//! depend on the place.

use crate::backing::{Backing, BackingKind};
use crate::format::{CreateOptions, Params};
use crate::formats::table::format_names;
use crate::observer::{Observer, run_step};
use crate::opening::claim::DiskClaim;
use lacuna_contracts::{Hint, Kind, Result, SecretVec, Setting};
use lacuna_crypto::SystemRandom;
use lacuna_header::{DiskId, Location, NewHeader, NewHeaderSpec, OpenHeader, PublicHeader, Uuid};
use lacuna_levels::DiskKeys;
use lacuna_medium::Medium;

/// A description of an existing disk.
pub(crate) fn describe_disk(there: &PublicHeader) -> String {
    format!("a lacuna disk (UUID {})", there.uuid)
}

/// The public header of the disk on a medium; `None` if there is no header, not even a damaged one.
/// Errors: if it cannot be read.
pub(crate) fn header_on(medium: &dyn Medium) -> Result<Option<PublicHeader>> {
    match lacuna_header::read_public(medium) {
        Ok((there, _)) => Ok(Some(there)),
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The advice about existing content in the place of a new disk.
pub(crate) fn overwrite_hint() -> Hint {
    Hint::from("make sure that nothing there is needed, then give ")
        .setting(Setting("force"))
        .text(" to overwrite it, or choose another place")
}

/// A disk that is about to be created, for the request of passphrases.
#[derive(Clone, Copy, Debug)]
pub struct NewDisk {
    /// Its future UUID.
    pub uuid: Uuid,
    /// Its future number of levels.
    pub levels: u8,
}

/// The closure that returns the passphrases of a new disk: one or more for each level.
pub(crate) type CreatePrompt<'a> = Box<dyn FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>> + 'a>;

/// The context of a creation.
pub(crate) struct CreateContext<'a> {
    pub(crate) options: &'a CreateOptions,
    pub(crate) observer: &'a dyn Observer,
}

/// A created disk.
pub struct CreatedDisk {
    /// The parameters in its header.
    pub parameters: Box<dyn Params>,
    /// The public part of the header.
    pub header: PublicHeader,
    /// The identity that lets the owner recognise the disk
    /// ([`OpenDiskOptions::expect`](crate::OpenDiskOptions::expect)).
    pub id: DiskId,
}

impl CreatedDisk {
    /// For a disk with this header, which is on the medium or about to be written.
    pub(crate) fn from_header(parameters: Box<dyn Params>, header: &NewHeader) -> CreatedDisk {
        let unlocked = header.unlocked();
        CreatedDisk { parameters, header: unlocked.header.clone(), id: unlocked.id() }
    }
}

/// The keys of a disk with this header.
pub(crate) fn master_keys(unlocked: &OpenHeader) -> DiskKeys<'_> {
    DiskKeys { keys: &unlocked.master_keys, uuid: &unlocked.header.uuid.0 }
}

/// Creates a disk on a backing that also holds its header; the header is written last.
pub(crate) fn write_disk(backing: &Backing, params: &dyn Params, header: NewHeader) -> Result<()> {
    header.write(&*backing.header()?, |unlocked| params.create(backing, master_keys(unlocked))).map(drop)
}

impl CreateContext<'_> {
    /// Refuses a format that does not support this backing, and settings that the format does not
    /// have.
    pub(crate) fn check_format(&self, kind: BackingKind) -> Result<()> {
        let (options, shape) = (self.options, &self.options.shape);
        let info = shape.format.info();
        if !info.creatable_on.contains(&kind) {
            let refused = options.wrong_backing(kind);
            let fitting = format_names(|info| info.creatable_on.contains(&kind));
            let remedy = format!("choose such a location, or the format {fitting}");
            return Err(if info.can_purge { refused } else { refused.hint(remedy) });
        }
        let refused = |setting: Setting, found: String, expected: String| {
            let advice = Hint::from("leave out ").setting(setting).text(", or choose another format");
            Err(options.create_error().found(found).expected(expected).hint(advice))
        };
        if let Some(setting) = shape.explicit_settings().find(|setting| !info.settings.contains(&setting.0)) {
            let found = format!("a setting that the format {} does not have", info.name);
            let having = format_names(|info| info.settings.contains(&setting.0));
            return refused(setting, found, format!("the format {having} with it"));
        }
        if shape.chip.is_some() && !matches!(options.location, Location::Nand(_)) {
            let expected = "a location nand:PATH, for which a simulated chip is made";
            return refused(
                Setting("chip"),
                "a simulated chip for another location".to_owned(),
                expected.to_owned(),
            );
        }
        Ok(())
    }

    /// Claims the existing disk before it is overwritten: it may be open under another name. If its
    /// header cannot be read, a note is sent.
    pub(crate) fn claim(&self, there: Result<Option<PublicHeader>>) -> Result<Option<DiskClaim>> {
        let location = &self.options.location;
        match there {
            Ok(Some(disk)) => {
                let what = format!("cannot overwrite {location}");
                DiskClaim::take(disk.uuid, disk.format, &what, self.observer)
            }
            Ok(None) => Ok(None),
            Err(e) => {
                self.observer.note(&format!(
                    "the content of {location} cannot be read ({}): make sure that it is not open under another name",
                    e.summary()
                ));
                Ok(None)
            }
        }
    }

    /// Gets the passphrases and builds the header of a disk with these parameters.
    pub(crate) fn build_header(
        &self,
        parameters: &dyn Params,
        passphrases: CreatePrompt<'_>,
    ) -> Result<NewHeader> {
        let levels = self.options.shape.levels.unwrap_or(1);
        parameters.check_levels(usize::from(levels))?;
        let random = SystemRandom::new()?;
        let uuid = Uuid::random(&random);
        let passphrases = passphrases(NewDisk { uuid, levels })?;
        if passphrases.len() != usize::from(levels) {
            return Err(self
                .options
                .create_error()
                .found(match passphrases.len() {
                    1 => "one passphrase".to_owned(),
                    several => format!("{several} passphrases"),
                })
                .expected(if parameters.has_levels() {
                    format!("{levels}, one for each level")
                } else {
                    "one passphrase".to_owned()
                })
                .hint(
                    "give one passphrase for each level; more for the same level can be added afterwards",
                ));
        }
        let header = NewHeaderSpec {
            format: parameters.format().info().id,
            params: parameters.encode(),
            end: parameters.end(),
            cost: self.options.cost.resolve(self.observer),
            levels: &passphrases,
            uuid: Some(uuid),
        };
        run_step(self.observer, "deriving keys from the passphrase", || NewHeader::build(header, &random))
    }
}
