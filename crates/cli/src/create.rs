//! `create`: makes a new disk, on a file or block device or in RADOS.
//!
//! What can be refused is refused before a passphrase is asked for, and what is to be overwritten is held against
//! others from then on. The header comes last: until it is written there is nothing that looks like a disk, so a
//! power cut leaves either none or a whole one.

use crate::args::{CreateArgs, Format};
use crate::cluster::Site;
use crate::console::Console;
use crate::cost::{self, Wanted};
use crate::create_file;
use crate::create_rados;
use crate::size::human;
use lacuna_core::{Error, Kind, Result};
use lacuna_crypto::Cipher;

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
