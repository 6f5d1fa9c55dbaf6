//! `create` and `delete`: what the options ask for, and what was done, in words.

use crate::args::{CreateArgs, DeleteArgs, Format, HidingArg, ShapeArgs};
use crate::console::{self, Console};
use crate::cost;
use crate::observer::Removing;
use crate::passphrase;
use lacuna::{CreateOptions, Error, Hiding, Kind, Location, Result, Shape, create_with, human};

/// `lacuna create`.
pub(crate) fn run(args: &CreateArgs, console: Console) -> Result<()> {
    check_format(args)?;
    let options = CreateOptions {
        location: args.location.clone(),
        shape: shape(args),
        size: args.size.map(|size| size.0),
        cost: cost::from_args(&args.cost)?.unwrap_or_default(),
        force: args.force,
        preallocate: args.preallocate,
        holder: args.holder.of(&args.location)?,
    };
    // A script that gives the passphrase means what it says.
    let observer = Removing::new(console, passphrase::is_asked_for(&args.passphrase));
    let location = args.location.to_string();
    let passphrases = |new| passphrase::to_create(&args.passphrase, args.recovery, &location, new);
    let created = create_with(&options, &observer, passphrases).map_err(|e| match e.kind() {
        // To be there already is a wrong use of `create`, as in all its refusals.
        Kind::Exists => e.with_kind(Kind::Usage),
        _ => e,
    })?;
    drop(observer);
    let parameters = created.parameters;
    let shares = if parameters.has_levels() {
        // The same words whatever was created (deniability contract).
        format!(" for level 0, for hidden levels {}", parameters.hidden_words())
    } else {
        String::new()
    };
    let layout = parameters.layout().map(|layout| format!(", {layout}")).unwrap_or_default();
    console.done(&format!(
        "created {location}: {}{shares}, {}{layout}, UUID {}\nID {}\ntrying a passphrase costs {}",
        human(parameters.size()),
        parameters.cipher(),
        created.header.uuid,
        created.id,
        cost::words(&created.header.cost)
    ))
}

fn shape(args: &CreateArgs) -> Shape {
    let ShapeArgs { levels, cover, geometry, spare, hiding, cells_per_write } = args.shape;
    let levels = levels.unwrap_or(1);
    if args.format() == Format::Flash
        && let Shape::Flash { key_bits, spare_permille, chip } = Shape::flash()
    {
        let given = args.flash.key_bits.as_deref().and_then(|bits| bits.parse().ok());
        return Shape::Flash {
            key_bits: given.unwrap_or(key_bits),
            spare_permille: spare.unwrap_or(spare_permille),
            chip: args.flash.chip.unwrap_or(chip),
        };
    }
    match (args.format(), Shape::deniable(levels), Shape::oblivious(levels)) {
        (Format::Deniable, Shape::Deniable { geometry: usual, spare_permille, cover_millis, .. }, _) => {
            Shape::Deniable {
                levels,
                geometry: geometry.unwrap_or(usual),
                spare_permille: spare.unwrap_or(spare_permille),
                cover_millis: cover.unwrap_or(cover_millis),
            }
        }
        (Format::Oblivious, _, Shape::Oblivious { mut plan, .. }) => {
            plan.hiding = match hiding {
                Some(HidingArg::Plausible) => Hiding::Plausible,
                Some(HidingArg::Opportunistic) | None => Hiding::Opportunistic,
            };
            plan.per_write = cells_per_write.unwrap_or(plan.per_write);
            plan.cover_millis = cover.unwrap_or(plan.cover_millis);
            Shape::Oblivious { levels, plan }
        }
        _ => Shape::Sealed { cipher: args.cipher(), layout: args.layout },
    }
}

/// Refuses options of one format for another.
fn check_format(args: &CreateArgs) -> Result<()> {
    let refused = |found: &str, expected: &str| {
        Err(Error::new(Kind::Usage, format!("cannot create {}", args.location))
            .found(found)
            .expected(expected)
            .remedy("leave the option away, or choose another --format"))
    };
    if let Some((option, format)) = args.shape.misplaced(args.format()) {
        return refused(option, &format!("--format {format} with it"));
    }
    if let Some(option) = args.flash.given().filter(|_| args.format() != Format::Flash) {
        return refused(option, "--format flash with it");
    }
    if args.flash.chip.is_some() && !matches!(args.location, Location::Nand(_)) {
        return refused("--chip", "a location nand:PATH, for which a simulated chip is made");
    }
    match args.format() {
        Format::Flash if args.cipher.is_some_and(|cipher| cipher != lacuna::Cipher::Gcm) => {
            refused("--cipher", "the one cipher of a disk on flash, gcm")
        }
        Format::Flash if args.layout.is_some() => refused("--layout", "its one layout"),
        Format::Deniable | Format::Oblivious
            if args.cipher.is_some_and(|cipher| cipher != lacuna::Cipher::Gcm) =>
        {
            refused("--cipher", "the one cipher of a disk with levels, gcm")
        }
        Format::Deniable if args.layout.is_some() => refused("--layout", "its one layout, stripes"),
        Format::Oblivious if args.layout.is_some() => refused("--layout", "its one layout, cells"),
        _ => Ok(()),
    }
}

/// `lacuna delete`.
pub(crate) fn delete(args: &DeleteArgs, console: Console) -> Result<()> {
    if !args.yes && args.location.path().is_none() && !console::can_ask() {
        return Err(Error::new(Kind::Usage, format!("cannot delete {}", args.location))
            .found("no terminal to ask whether to go on")
            .remedy("to remove all its data and its snapshots, give --yes"));
    }
    let namespace = args.holder.cluster.namespace.as_ref();
    let place = namespace.map(|namespace| format!(" in the namespace {namespace}")).unwrap_or_default();
    let observer = Removing::new(console, false);
    lacuna::delete(&args.location, &args.holder.of(&args.location)?, &observer, |uuid| {
        console.note(&format!(
            "all data of {}{place} (UUID {uuid}) and its snapshots will be gone",
            args.location
        ));
        if args.yes { Ok(()) } else { console::confirm() }
    })?;
    drop(observer);
    console.done(&format!("deleted {}{place}", args.location))
}
