//! What `create` does alike wherever the disk is to be: its passphrases, the header, and what it refuses.

use crate::args::{CreateArgs, Format};
use crate::console::Console;
use crate::cost::Wanted;
use crate::parameters::Parameters;
use crate::passphrase;
use crate::size::Size;
use crate::working;
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::SystemRandom;
use lacuna_header::{CreateHeader, NewHeader};

const BLOCK: u64 = BLOCK_SIZE as u64;

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
