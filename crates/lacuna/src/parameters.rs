//! What a header says of its disk, whichever of the formats of this build it has.

use crate::human;
use crate::vault_params::VaultParams;
use lacuna_core::{Action, Advice, BLOCK_SIZE, Error, Kind, Result, shell_word};
use lacuna_crypto::Cipher;
use lacuna_deniable::Params as DeniableParams;
use lacuna_flash::Params as FlashParams;
use lacuna_header::{FormatId, HEADER_AREA, HEADER_LEN, Location, PublicHeader, medium_len};
use lacuna_oblivious::{Hiding, Params as ObliviousParams};
use lacuna_sealed::Params;
use lacuna_sealed_objects::ObjectParams;

/// The most blocks of a disk on objects: 16 TiB.
const MOST_ON_OBJECTS: u64 = 1 << 32;

/// The parameters of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Of a sealed disk on a flat medium.
    Flat(Params),
    /// Of a sealed disk on objects.
    Objects(ObjectParams),
    /// Of a deniable disk.
    Deniable(DeniableParams),
    /// Of an oblivious disk.
    Oblivious(ObliviousParams),
    /// Of a disk on flash.
    Flash(FlashParams),
    /// Of a vault, which is no disk: it has no size of its own.
    Vault(VaultParams),
}

/// Refuses a header in a directory that is of no vault: a user who may write to the directory could have put it there.
pub(crate) fn check_place(header: &PublicHeader, location: &Location) -> Result<()> {
    match location {
        Location::Path(path) if path.is_dir() && header.format != FormatId::VAULT => {
            Err(Error::new(Kind::NotFound, format!("{} is not a vault", path.display()))
                .found(format!("the header of a disk, of the format {}, in it", header.format))
                .expected("the header of a vault")
                .remedy("find out who put it there; restore the header of the vault from a backup"))
        }
        _ => Ok(()),
    }
}

impl Parameters {
    /// Reads them from the header that was found at `location`.
    pub fn of(header: &PublicHeader, location: &Location) -> Result<Parameters> {
        check_place(header, location)?;
        match (location, header.format) {
            (Location::Path(_), FormatId::SEALED) => Params::parse(&header.params).map(Parameters::Flat),
            (Location::Path(_), FormatId::DENIABLE) => {
                DeniableParams::parse(&header.params).map(Parameters::Deniable)
            }
            (Location::Path(_), FormatId::OBLIVIOUS) => {
                ObliviousParams::parse(&header.params).map(Parameters::Oblivious)
            }
            (Location::Path(_), FormatId::VAULT) => VaultParams::parse(&header.params).map(Parameters::Vault),
            (Location::Nand(_) | Location::Ubi(_), FormatId::FLASH) => {
                FlashParams::parse(&header.params).map(Parameters::Flash)
            }
            (Location::Rados { .. }, FormatId::SEALED_OBJECTS) => {
                ObjectParams::parse(&header.params).map(Parameters::Objects)
            }
            (_, found) => Err(Error::new(Kind::NotFound, "cannot use this disk")
                .found(format!("the format {found}"))
                .expected(match location {
                    Location::Path(_) => {
                        "a format that this build knows in a file: sealed, deniable, oblivious; in a directory: vault"
                    }
                    Location::Nand(_) | Location::Ubi(_) => {
                        "the format that this build knows on flash: flash"
                    }
                    Location::Rados { .. } => "the format that this build knows in a pool: sealed on objects",
                })
                .remedy("use a version of lacuna that knows it")),
        }
    }

    /// The first byte of the medium behind all that the disk needs. In a pool, on flash and of a vault the
    /// medium holds the header alone.
    pub fn end(&self) -> u64 {
        match self {
            Parameters::Flat(params) => params.geometry().medium_len(),
            Parameters::Deniable(params) => params.medium_len(),
            Parameters::Oblivious(params) => params.medium_len(),
            Parameters::Objects(_) | Parameters::Flash(_) | Parameters::Vault(_) => HEADER_AREA,
        }
    }

    /// Length of the shortest medium with room for the disk and all copies of its header.
    pub fn medium_len(&self) -> u64 {
        medium_len(self.end())
    }

    /// Whether the medium of the header holds the data as well.
    pub fn has_data_beside_header(&self) -> bool {
        matches!(self, Parameters::Flat(_) | Parameters::Deniable(_) | Parameters::Oblivious(_))
    }

    /// Refuses a file or device of `len` bytes at `location` that is shorter than the disk, and says how long it was.
    pub fn check_length(&self, len: u64, location: &Location) -> Result<()> {
        if len >= self.end() {
            return Ok(());
        }
        if len == HEADER_LEN as u64 && !location.is_block_device() {
            return Err(Error::new(Kind::Corrupt, format!("{location} is no disk"))
                .found("a file as long as a backup of a header")
                .expected("the disk of which it is the header")
                .remedy(
                    Advice::from(Action("header::restore"))
                        .text(" takes a backup; if it is what is left of a disk, restore that from a backup"),
                ));
        }
        let whole = self.medium_len();
        let zeros = "what is left be read; what is gone reads as zeros, of which `check` says nothing";
        let longer = if location.is_block_device() {
            format!("a longer device, of {whole} bytes, that begins as this one does lets {zeros}")
        } else {
            format!("`truncate -s {whole} {}` lets {zeros}", shell_word(location.to_string()))
        };
        Err(Error::new(Kind::Corrupt, format!("{location} was cut short"))
            .found(format!("{len} bytes"))
            .expected(format!("at least {} bytes", self.end()))
            .remedy(
                Advice::from("restore it whole from a backup; if there is none, ")
                    .action(Action("rescue"))
                    .text(format!(" copies what is left, or {longer}")),
            ))
    }

    /// The number that stands for the format in the header.
    pub fn format(&self) -> FormatId {
        match self {
            Parameters::Flat(_) => FormatId::SEALED,
            Parameters::Objects(_) => FormatId::SEALED_OBJECTS,
            Parameters::Deniable(_) => FormatId::DENIABLE,
            Parameters::Oblivious(_) => FormatId::OBLIVIOUS,
            Parameters::Flash(_) => FormatId::FLASH,
            Parameters::Vault(_) => FormatId::VAULT,
        }
    }

    /// Whether altered data is noticed.
    pub fn verifies(&self) -> bool {
        match self {
            Parameters::Flat(Params { cipher, .. }) | Parameters::Objects(ObjectParams { cipher, .. }) => {
                cipher.authenticates()
            }
            Parameters::Deniable(_)
            | Parameters::Oblivious(_)
            | Parameters::Flash(_)
            | Parameters::Vault(_) => true,
        }
    }

    /// Whether the disk is of a format with levels, however many there are.
    pub fn has_levels(&self) -> bool {
        matches!(self, Parameters::Deniable(_) | Parameters::Oblivious(_))
    }

    /// The most bytes that each hidden level can have which there can be, from level 1 up: the same whether or not any
    /// exists. Empty for a format without levels.
    pub fn hidden_sizes(&self) -> Vec<u64> {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
        match self {
            Parameters::Flat(_) | Parameters::Objects(_) | Parameters::Flash(_) | Parameters::Vault(_) => {
                Vec::new()
            }
            Parameters::Deniable(params) => {
                (1..=params.hidden_levels()).map(|level| bytes(params.most_blocks(level))).collect()
            }
            Parameters::Oblivious(params) => {
                (1..=ObliviousParams::HIDDEN_LEVELS).map(|level| bytes(params.most_blocks(level))).collect()
            }
        }
    }

    /// The same for people.
    pub fn hidden_words(&self) -> String {
        let sizes: Vec<String> = self.hidden_sizes().into_iter().map(human).collect();
        format!("at most {}", sizes.join(", "))
    }

    /// Refuses so many levels, level 0 among them, if there cannot be as many.
    pub fn check_levels(&self, levels: usize) -> Result<()> {
        let most = 1 + self.hidden_sizes().len();
        if levels <= most {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "too many levels")
            .found(format!("{levels} levels"))
            .expected(format!("at most {most} on a disk of this format and shape, level 0 among them")))
    }

    /// Length of the disk in bytes; of a vault 0.
    pub fn size(&self) -> u64 {
        let blocks = match self {
            Parameters::Flat(params) => params.blocks,
            Parameters::Objects(params) => params.blocks,
            Parameters::Deniable(params) => params.blocks,
            Parameters::Oblivious(params) => params.blocks,
            Parameters::Flash(params) => params.blocks,
            Parameters::Vault(_) => 0,
        };
        // A record of a snapshot that nobody verified may say anything.
        blocks.saturating_mul(BLOCK_SIZE as u64)
    }

    /// How blocks are encrypted; of a vault, how they are verified.
    pub fn cipher(&self) -> &'static str {
        match self {
            Parameters::Flat(params) => params.cipher.name(),
            Parameters::Objects(params) => params.cipher.name(),
            Parameters::Deniable(_) | Parameters::Oblivious(_) | Parameters::Flash(_) => Cipher::Gcm.name(),
            Parameters::Vault(params) => params.integrity.name(),
        }
    }

    /// The name of the layout; none for a sealed disk on a flat medium, all of which have the same.
    pub fn layout(&self) -> Option<String> {
        Some(match self {
            Parameters::Flat(_) => return None,
            Parameters::Objects(params) => params.layout.name().to_owned(),
            Parameters::Deniable(params) => {
                format!("stripes of {}+{} blocks", params.geometry.public, params.geometry.hidden)
            }
            Parameters::Oblivious(params) => {
                format!(
                    "{} cells, {} for each write, {}",
                    params.cells,
                    params.plan.per_write,
                    hiding(params)
                )
            }
            Parameters::Flash(params) => format!(
                "{} erase blocks of {}, keys of {} bits",
                params.flash.lebs,
                human(params.flash.leb_len.into()),
                u32::from(params.key_len) * 8
            ),
            Parameters::Vault(_) => "one backing file for each file".to_owned(),
        })
    }

    /// The size to which `resize` can take the disk, in bytes.
    pub fn largest(&self) -> u64 {
        let blocks = match self {
            Parameters::Flat(params) => u64::from(params.map_capacity) * lacuna_core::SEGMENT_BLOCKS,
            Parameters::Objects(_) => MOST_ON_OBJECTS,
            Parameters::Deniable(params) => params.blocks,
            Parameters::Oblivious(params) => params.blocks,
            Parameters::Flash(params) => params.most_blocks,
            Parameters::Vault(_) => 0,
        };
        blocks * BLOCK_SIZE as u64
    }

    /// The same disk with `blocks` blocks.
    pub fn grown(&self, blocks: u64) -> Result<Parameters> {
        let refused = || {
            Error::new(Kind::Usage, "cannot resize the disk")
                .found(format!("a size of {} bytes", blocks.saturating_mul(BLOCK_SIZE as u64)))
        };
        let wanted = blocks.saturating_mul(BLOCK_SIZE as u64);
        if matches!(self, Parameters::Vault(_)) {
            return Err(
                refused().expected("a disk: a vault has no size, it grows and shrinks with what is in it")
            );
        }
        if wanted < self.size() {
            return Err(refused()
                .expected(format!("at least its present size, {} bytes", self.size()))
                .remedy("a disk cannot shrink: create a smaller one and copy what you need"));
        }
        if wanted > self.largest() {
            let room = match self {
                Parameters::Flat(_) if self.largest() == self.size() => "its map has no room for more",
                Parameters::Flat(_) => "its map has room for that",
                Parameters::Objects(_) => "there is no room for more",
                Parameters::Deniable(_) => "its log has room for that",
                Parameters::Oblivious(_) => "its cells have room for that",
                Parameters::Flash(_) => "its keys and its log are laid out for that",
                Parameters::Vault(_) => "it has none",
            };
            let most = self.largest();
            return Err(refused()
                .expected(format!("at most {} ({most} bytes): {room}", human(most)))
                .remedy("create a larger disk and copy what you need"));
        }
        Ok(self.as_of(blocks))
    }

    /// Those of the same disk when it had `blocks` blocks.
    pub fn as_of(&self, blocks: u64) -> Parameters {
        match self {
            Parameters::Flat(params) => Parameters::Flat(Params { blocks, ..*params }),
            Parameters::Objects(params) => {
                let mut resized = *params;
                resized.blocks = blocks;
                Parameters::Objects(resized)
            }
            Parameters::Deniable(params) => Parameters::Deniable(DeniableParams { blocks, ..*params }),
            Parameters::Flash(params) => Parameters::Flash(FlashParams { blocks, ..*params }),
            Parameters::Vault(params) => Parameters::Vault(*params),
            Parameters::Oblivious(params) => Parameters::Oblivious(ObliviousParams { blocks, ..*params }),
        }
    }

    /// The parameters as they stand in the header.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Parameters::Flat(params) => params.encode().to_vec(),
            Parameters::Objects(params) => params.encode().to_vec(),
            Parameters::Deniable(params) => params.encode().to_vec(),
            Parameters::Oblivious(params) => params.encode().to_vec(),
            Parameters::Flash(params) => params.encode().to_vec(),
            Parameters::Vault(params) => params.encode().to_vec(),
        }
    }
}

/// What hides the operations of hidden levels, by name.
pub fn hiding(params: &ObliviousParams) -> &'static str {
    match params.plan.hiding {
        Hiding::Plausible => "plausible",
        Hiding::Opportunistic => "opportunistic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sealed_objects::ObjectLayout;

    #[test]
    fn grows_within_the_map_and_never_shrinks() {
        let flat = Params::plan(Cipher::Gcm, 16384, None).unwrap();
        let old = Parameters::Flat(flat);
        let new = old.grown(50_000).unwrap();
        assert_eq!(new, Parameters::Flat(Params { blocks: 50_000, ..flat }));
        assert_eq!(Params::parse(&new.encode()).map(Parameters::Flat).unwrap(), new);
        let most = old.largest() / BLOCK_SIZE as u64;
        assert_eq!(Params::parse(&old.grown(most).unwrap().encode()).unwrap().blocks, most);
        for bad in [16383, most + 1, u64::MAX / BLOCK_SIZE as u64] {
            assert_eq!(old.grown(bad).unwrap_err().kind(), Kind::Usage);
        }
        let objects = Parameters::Objects(ObjectParams::plan(Cipher::Gcm, ObjectLayout::Kv, 5000).unwrap());
        assert!(objects.grown(MOST_ON_OBJECTS).is_ok());
        for bad in [4999, MOST_ON_OBJECTS + 1, u64::MAX / BLOCK_SIZE as u64] {
            assert_eq!(objects.grown(bad).unwrap_err().kind(), Kind::Usage);
        }
    }
}
