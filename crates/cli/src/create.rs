//! `create`: makes a new disk, on a file or block device or in RADOS.
//!
//! What can be refused is refused before a passphrase is asked for, and what shall be overwritten is held against
//! others from then on. The header comes last: until it is written there is nothing that looks like a disk, so a
//! power cut leaves either none or a whole one.

use crate::args::{CreateArgs, Format};
use crate::cluster::Site;
use crate::console::Console;
use crate::cost::{self, Wanted};
use crate::create_file;
use crate::create_rados;
use crate::parameters::Parameters;
use crate::passphrase;
use crate::size::{Size, human};
use crate::working;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::{Cipher, SystemRandom};
use lacuna_header::{CreateHeader, NewHeader};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// `lacuna create`.
pub fn run(args: &CreateArgs, console: Console) -> Result<()> {
    check_format(args)?;
    let wanted = Wanted::from_args(&args.cost)?.unwrap_or_else(Wanted::usual);
    let (parameters, public) = match Site::held(&args.location, &args.holder)? {
        Site::Pool(target) => create_rados::run(args, &target, &wanted, console)?,
        Site::File(path) => create_file::run(args, path, &wanted, console)?,
    };
    let shares = if parameters.has_levels() {
        // The same words whatever was created (deniability contract).
        format!(" for level 0, for hidden levels {}", parameters.hidden_words())
    } else {
        String::new()
    };
    console.done(&format!(
        "created {}: {}{shares}, {}, {}, UUID {}\ntrying a passphrase costs {}",
        args.location,
        human(parameters.size()),
        parameters.cipher(),
        parameters.layout(),
        public.uuid,
        cost::words(&public.cost)
    ))
}

/// Refuses options of one format for another.
fn check_format(args: &CreateArgs) -> Result<()> {
    let refused = |found: &str, expected: &str| {
        Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found(found)
            .expected(expected)
            .remedy("leave the option away, or choose another --format"))
    };
    if let Some((option, format)) = args.shape.misplaced(args.format) {
        return refused(option, &format!("--format {format} with it"));
    }
    match args.format {
        Format::Sealed => Ok(()),
        Format::Deniable | Format::Oblivious if args.cipher.is_some_and(|cipher| cipher != Cipher::Gcm) => {
            refused("--cipher", "the one cipher of a disk with levels, gcm")
        }
        Format::Deniable if args.layout.is_some() => refused("--layout", "its one layout, stripes"),
        Format::Oblivious if args.layout.is_some() => refused("--layout", "its one layout, cells"),
        Format::Deniable | Format::Oblivious => Ok(()),
    }
}

/// Asks for the passphrase and makes the header of a disk with these parameters.
pub fn draft(
    args: &CreateArgs,
    parameters: &Parameters,
    wanted: &Wanted,
    console: Console,
) -> Result<NewHeader> {
    let levels = args.shape.levels.unwrap_or(1);
    if parameters.has_levels() {
        parameters.check_levels(usize::from(levels))?;
    }
    let passphrases = passphrase::to_create(&args.passphrase, &args.location.to_string(), levels)?;
    if passphrases.len() != usize::from(levels) {
        return Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found(format!("{} passphrases", passphrases.len()))
            .expected(match args.format {
                Format::Sealed => "one to begin with".to_owned(),
                Format::Deniable | Format::Oblivious => {
                    format!("{levels}, one for each level (--levels {levels})")
                }
            })
            .remedy("give one passphrase for each level; `lacuna key add` adds more for the same level"));
    }
    let levels: Vec<_> = passphrases.into_iter().map(|passphrase| vec![passphrase]).collect();
    let header = CreateHeader {
        format: parameters.format(),
        params: parameters.encode(),
        end: parameters.end(),
        cost: wanted.settle(console),
        levels: &levels,
        uuid: None,
    };
    let random = SystemRandom::new()?;
    working::show(console, "making keys of the passphrase", |_| NewHeader::build(header, &random))
}

/// Refuses a layout for a cipher that keeps no metadata, for which it would mean nothing. `only` is the one that
/// such a disk counts as having.
pub fn check_layout(args: &CreateArgs, only: &str) -> Result<()> {
    let cipher = args.cipher();
    match args.layout {
        Some(layout) if cipher.meta_size() == 0 && layout.name() != only => {
            Err(Error::new(Kind::Usage, "cannot use this layout")
                .found(format!("--layout {} with --cipher {}", layout.name(), cipher.name()))
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
