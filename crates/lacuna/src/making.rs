//! A disk that is being made: its passphrases, its header, and what is refused wherever it is to be.

use crate::claim::Claim;
use crate::observer::{Observer, during};
use crate::parameters::Parameters;
use crate::shape::CreateOptions;
use lacuna_core::{Advice, Error, Kind, Result, SecretVec, Setting};
use lacuna_crypto::SystemRandom;
use lacuna_header::{CreateHeader, NewHeader, PublicHeader, Uuid};
use lacuna_medium::Medium;

/// A disk that is there already, in words.
pub(crate) fn lacuna_disk(there: &PublicHeader) -> String {
    format!("a lacuna disk (UUID {})", there.uuid)
}

/// What a medium says of the disk on it; none where no header is, not even a damaged one. Errors: what keeps it from being read.
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

/// A disk that is being made.
pub(crate) struct Making<'a> {
    pub(crate) options: &'a CreateOptions,
    pub(crate) observer: &'a dyn Observer,
}

impl Making<'_> {
    /// The beginning of a refusal.
    pub(crate) fn refused(&self) -> Error {
        Error::new(Kind::Usage, format!("cannot create {}", self.options.location))
    }

    /// Claims the disk that is there and is about to be overwritten: it may be open under another name. What cannot be read is said.
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
    pub(crate) fn draft(
        &self,
        parameters: &Parameters,
        passphrases: impl FnOnce(NewDisk) -> Result<Vec<Vec<SecretVec>>>,
    ) -> Result<NewHeader> {
        let levels = self.options.shape.levels();
        if parameters.has_levels() {
            parameters.check_levels(usize::from(levels))?;
        }
        let random = SystemRandom::new()?;
        let uuid = Uuid::random(&random);
        let passphrases = passphrases(NewDisk { uuid, levels })?;
        if passphrases.len() != usize::from(levels) {
            return Err(self
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
            format: parameters.format(),
            params: parameters.encode(),
            end: parameters.end(),
            cost: self.options.cost.settle(self.observer),
            levels: &passphrases,
            uuid: Some(uuid),
        };
        during(self.observer, "making keys of the passphrase", || NewHeader::build(header, &random))
    }

    /// The refusal of a disk without a size.
    pub(crate) fn no_size(&self, wherefore: &str) -> Error {
        self.refused()
            .found("no size")
            .expected(format!("the size of a disk in {wherefore}"))
            .remedy(Advice::from("give for example ").setting(Setting("size")).text(" 20G"))
    }
}
