//! A disk that is being made: its passphrases, its header, and what is refused wherever it is to
//! be.

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

/// A disk that is there already, in words.
pub(crate) fn lacuna_disk(there: &PublicHeader) -> String {
    format!("a lacuna disk (UUID {})", there.uuid)
}

/// What a medium says of the disk on it; none where no header is, not even a damaged one. Errors:
/// what keeps it from being read.
pub(crate) fn disk_on(medium: &dyn Medium) -> Result<Option<PublicHeader>> {
    match lacuna_header::read_public(medium) {
        Ok((there, _)) => Ok(Some(there)),
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// What to do about something that is in the way of a new disk.
pub(crate) fn overwrite() -> Advice {
    Advice::from("make sure that nothing there is needed, then give ")
        .setting(Setting("force"))
        .text(" to overwrite it, or choose another place")
}

/// What passphrases are asked for: a disk that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewDisk {
    /// The name that it is going to have.
    pub uuid: Uuid,
    /// How many levels it is going to have.
    pub levels: u8,
}

/// What gives the passphrases of a new disk: one or more for each level.
pub(crate) type Passphrases<'a> = Box<dyn FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>> + 'a>;

/// A disk that is being made.
pub(crate) struct Making<'a> {
    pub(crate) options: &'a CreateOptions,
    pub(crate) observer: &'a dyn Observer,
}

/// What was made.
pub struct Created {
    /// What the header says of the disk.
    pub parameters: Box<dyn Params>,
    /// The header, as anybody can read it.
    pub header: PublicHeader,
    /// By which its owner knows the disk again ([`Opening::expect`](crate::Opening::expect)).
    pub id: DiskId,
}

impl Created {
    /// With this header, which is on the medium or about to be.
    pub(crate) fn with(parameters: Box<dyn Params>, header: &NewHeader) -> Created {
        let unlocked = header.unlocked();
        Created { parameters, header: unlocked.header.clone(), id: unlocked.id() }
    }
}

/// The keys of a disk with this header.
pub(crate) fn keys(unlocked: &Unlocked) -> Masters<'_> {
    Masters { keys: &unlocked.master_keys, uuid: &unlocked.header.uuid.0 }
}

/// Lays a disk on what holds its header as well, the header last.
pub(crate) fn lay(backing: &Backing, params: &dyn Params, header: NewHeader) -> Result<()> {
    header.write(&*backing.header()?, |unlocked| params.create(backing, keys(unlocked))).map(drop)
}

impl Making<'_> {
    /// Refuses a format that cannot be made on this, and settings that the format does not have.
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

    /// Claims the disk that is there and is about to be overwritten: it may be open under another
    /// name. What cannot be read is said.
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

    /// Gets the passphrases and makes the header of a disk with these parameters.
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
