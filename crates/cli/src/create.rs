//! `create`: makes a new disk, on a file or block device or in RADOS.
//!
//! What can be refused is refused before a passphrase is asked for, and what shall be overwritten is held against
//! others from then on. The header comes last: until it is written there is nothing that looks like a disk, so a
//! power cut leaves either none or a whole one.

use crate::args::{CreateArgs, Format};
use crate::cluster::Site;
use crate::console::Console;
use crate::cost::Wanted;
use crate::create_file;
use crate::create_rados;
use crate::parameters::Parameters;
use crate::passphrase;
use crate::size::{Size, human};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::SystemRandom;
use lacuna_volume::{CreateHeader, FormatId, NewHeader};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// `lacuna create`.
pub fn run(args: &CreateArgs, console: Console) -> Result<()> {
    let Format::Sealed = args.format;
    let wanted = Wanted::from_args(&args.cost)?.unwrap_or_else(Wanted::usual);
    let (parameters, uuid) = match Site::held(&args.location, &args.holder)? {
        Site::Pool(target) => create_rados::run(args, &target, &wanted, console)?,
        Site::File(path) => create_file::run(args, path, &wanted, console)?,
    };
    console.done(&format!(
        "created {}: {}, {}, {}, UUID {}",
        args.location,
        human(parameters.size()),
        parameters.cipher().name(),
        parameters.layout(),
        uuid
    ))
}

/// Asks for the passphrase and makes the header of a disk with these parameters.
pub fn draft(
    args: &CreateArgs,
    parameters: &Parameters,
    wanted: &Wanted,
    console: Console,
) -> Result<NewHeader> {
    let passphrases = passphrase::to_create(&args.passphrase, &args.location.to_string())?;
    if passphrases.len() != 1 {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found(format!("{} passphrases", passphrases.len()))
            .expected("one to begin with")
            .remedy("create the disk with one, then use `lacuna key add`"));
    }
    let header = CreateHeader {
        format: match parameters {
            Parameters::Flat(_) => FormatId::SEALED,
            Parameters::Objects(_) => FormatId::SEALED_OBJECTS,
        },
        params: parameters.encode(),
        cost: wanted.settle(console),
        levels: &[passphrases],
        uuid: None,
    };
    NewHeader::build(header, &SystemRandom::new()?)
}

/// Refuses a layout for a cipher that keeps no metadata, for which it would mean nothing. `only` is the one that
/// such a disk counts as having.
pub fn check_layout(args: &CreateArgs, only: &str) -> Result<()> {
    match args.layout {
        Some(layout) if args.cipher.meta_size() == 0 && layout.name() != only => {
            Err(Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("--layout {} with --cipher {}", layout.name(), args.cipher.name()))
                .expected("a cipher that keeps metadata: xts-random or gcm")
                .remedy("leave --layout away"))
        }
        _ => Ok(()),
    }
}

/// The refusal of a disk without a size.
pub fn no_size(args: &CreateArgs, wherefore: &str) -> Error {
    Error::new(Kind::Usage, format!("cannot create {}", args.location))
        .found("no size")
        .expected(format!("--size for a disk in {wherefore}"))
        .remedy("give for example --size 20G")
}

/// A size in blocks.
pub fn blocks(size: Size) -> Result<u64> {
    if size.0 > 0 && size.0.is_multiple_of(BLOCK) {
        return Ok(size.0 / BLOCK);
    }
    let below = (size.0 / BLOCK).max(1) * BLOCK;
    Err(Error::new(Kind::Usage, "cannot use this --size")
        .found(format!("{} bytes", size.0))
        .expected("a multiple of 4096, and not 0")
        .remedy(format!("give for example --size {below}")))
}
