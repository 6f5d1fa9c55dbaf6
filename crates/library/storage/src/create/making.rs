//! The common part of creating a disk: its passphrases, its header, and the checks that do not
//! depend on the place.

use crate::backing::{Backing, BackingKind};
use crate::claim::Claim;
use crate::format::{CreateOptions, Params};
use crate::formats::table::names_of;
use crate::observer::{Observer, during};
use lacuna_contracts::{Advice, Kind, Result, SecretVec, Setting};
use lacuna_crypto::SystemRandom;
use lacuna_header::{CreateHeader, DiskId, Location, NewHeader, PublicHeader, Unlocked, Uuid};
use lacuna_levels::Masters;
use lacuna_medium::Medium;

/// A description of an existing disk.
pub(crate) fn lacuna_disk(there: &PublicHeader) -> String {
    format!("a lacuna disk (UUID {})", there.uuid)
}

/// The public header of the disk on a medium; `None` if there is no header, not even a damaged one.
/// Errors: if it cannot be read.
pub(crate) fn disk_on(medium: &dyn Medium) -> Result<Option<PublicHeader>> {
    match lacuna_header::read_public(medium) {
        Ok((there, _)) => Ok(Some(there)),
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The advice about existing content in the place of a new disk.
pub(crate) fn overwrite() -> Advice {
    Advice::from("make sure that nothing there is needed, then give ")
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
pub(crate) type Passphrases<'a> = Box<dyn FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>> + 'a>;

/// The context of a creation.
pub(crate) struct Making<'a> {
    pub(crate) options: &'a CreateOptions,
    pub(crate) observer: &'a dyn Observer,
}

/// A created disk.
pub struct Created {
    /// The parameters in its header.
    pub parameters: Box<dyn Params>,
    /// The public part of the header.
    pub header: PublicHeader,
    /// The identity that lets the owner recognise the disk
    /// ([`Opening::expect`](crate::Opening::expect)).
    pub id: DiskId,
}

impl Created {
    /// For a disk with this header, which is on the medium or about to be written.
    pub(crate) fn with(parameters: Box<dyn Params>, header: &NewHeader) -> Created {
        let unlocked = header.unlocked();
        Created { parameters, header: unlocked.header.clone(), id: unlocked.id() }
    }
}

/// The keys of a disk with this header.
pub(crate) fn keys(unlocked: &Unlocked) -> Masters<'_> {
    Masters { keys: &unlocked.master_keys, uuid: &unlocked.header.uuid.0 }
}

/// Creates a disk on a backing that also holds its header; the header is written last.
pub(crate) fn lay(backing: &Backing, params: &dyn Params, header: NewHeader) -> Result<()> {
    header.write(&*backing.header()?, |unlocked| params.create(backing, keys(unlocked))).map(drop)
}

impl Making<'_> {
    /// Refuses a format that does not support this backing, and settings that the format does not
    /// have.
    pub(crate) fn check_format(&self, kind: BackingKind) -> Result<()> {
        let (options, shape) = (self.options, &self.options.shape);
        let info = shape.format.info();
        if !info.made_on.contains(&kind) {
            let refused = options.misplaced(kind);
            let fitting = names_of(|info| info.made_on.contains(&kind));
            let remedy = format!("choose such a location, or the format {fitting}");
            return Err(if info.forgets { refused } else { refused.remedy(remedy) });
        }
        let refused = |setting: Setting, found: String, expected: String| {
            let advice = Advice::from("leave out ").setting(setting).text(", or choose another format");
            Err(options.refused().found(found).expected(expected).remedy(advice))
        };
        if let Some(setting) = shape.given().find(|setting| !info.settings.contains(&setting.0)) {
            let found = format!("a setting that the format {} does not have", info.name);
            let having = names_of(|info| info.settings.contains(&setting.0));
            return refused(setting, found, format!("the format {having} with it"));
        }
        if shape.chip.is_some() && !matches!(options.location, Location::Nand(_)) {
            let expected = "a location nand:PATH, for which a simulated chip is made";
            return refused(
                Setting("chip"),
                "a chip to make where one is there".to_owned(),
                expected.to_owned(),
            );
        }
        Ok(())
    }

    /// Claims the existing disk before it is overwritten: it may be open under another name. If its
    /// header cannot be read, a note is sent.
    pub(crate) fn claim(&self, there: Result<Option<PublicHeader>>) -> Result<Option<Claim>> {
        let location = &self.options.location;
        match there {
            Ok(Some(disk)) => Claim::take(disk.uuid, &format!("cannot overwrite {location}"), self.observer),
            Ok(None) => Ok(None),
            Err(e) => {
                self.observer.note(&format!(
                    "what is on {location} cannot be read ({}): see to it that it is not open under another name",
                    e.finding()
                ));
                Ok(None)
            }
        }
    }

    /// Gets the passphrases and builds the header of a disk with these parameters.
    pub(crate) fn draft(&self, parameters: &dyn Params, passphrases: Passphrases<'_>) -> Result<NewHeader> {
        let levels = self.options.shape.levels.unwrap_or(1);
        parameters.check_levels(usize::from(levels))?;
        let random = SystemRandom::new()?;
        let uuid = Uuid::random(&random);
        let passphrases = passphrases(NewDisk { uuid, levels })?;
        if passphrases.len() != usize::from(levels) {
            return Err(self
                .options
                .refused()
                .found(match passphrases.len() {
                    1 => "one passphrase".to_owned(),
                    several => format!("{several} passphrases"),
                })
                .expected(if parameters.has_levels() {
                    format!("{levels}, one for each level")
                } else {
                    "one to begin with".to_owned()
                })
                .remedy(
                    "give one passphrase for each level; more for the same level can be added afterwards",
                ));
        }
        let header = CreateHeader {
            format: parameters.format().info().id,
            params: parameters.encode(),
            end: parameters.end(),
            cost: self.options.cost.settle(self.observer),
            levels: &passphrases,
            uuid: Some(uuid),
        };
        during(self.observer, "making keys of the passphrase", || NewHeader::build(header, &random))
    }
}
