//! `create` and `delete`: translate options to calls of the library, and print the results.

use crate::args::cost;
use crate::args::{CreateArgs, DeleteArgs, HidingArg, ShapeArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::observer::RemovalObserver;
use crate::terminal::passphrase;
use lacuna_storage::format::{Description, DetailValue};
use lacuna_storage::{
    CreateOptions, Error, HidingMode, Kind, Location, Result, Shape, create_with, human_size,
};
use std::fs::File;
use std::io::{Seek, SeekFrom};

/// `lacuna create`.
pub(crate) fn run(args: &CreateArgs, console: Console) -> Result<()> {
    let options = CreateOptions {
        location: args.location.clone(),
        shape: shape(args),
        size: args.size.map(|size| size.0),
        cost: cost::from_args(&args.cost)?.unwrap_or_default(),
        force: args.force,
        preallocate: args.preallocate,
        pool_access: args.pool_access.access_for(&args.location)?,
    };
    // A script that gives the passphrase is not asked for confirmation.
    let observer = RemovalObserver::new(console, passphrase::is_interactive(&args.passphrase));
    let location = args.location.to_string();
    let passphrases = |new| passphrase::for_create(&args.passphrase, args.recovery, &location, new);
    let created = create_with(&options, &observer, passphrases).map_err(|e| match e.kind() {
        // An existing disk is a usage error of `create`, like its other refusals.
        Kind::Exists => e.with_kind(Kind::Usage),
        Kind::ReadOnly => e.hint("choose a place that can be written"),
        _ => e,
    })?;
    drop(observer);
    let disk = created.parameters.describe();
    let shares = if disk.hidden_sizes.is_some() {
        // Deniability contract: the text does not depend on the number of levels created.
        format!(" for level 0, for hidden levels {}", disk.hidden_sizes_text())
    } else {
        String::new()
    };
    let layout = disk.layout.as_ref().map(|layout| format!(", {layout}")).unwrap_or_default();
    let (size, cipher, uuid) = (human_size(disk.size), disk.cipher, created.header.uuid);
    console.done_lines(&[
        format!("created {location}: {size}{shares}, {cipher}{layout}, UUID {uuid}"),
        format!("ID {}", created.id),
        format!("trying a passphrase costs {}", cost::to_text(&created.header.cost)),
    ])?;
    // A disk that was given all of the device leaves nothing, except the rest of a segment.
    let end = |len: u64| args.size.map_or(len, |_| created.parameters.medium_len().min(len));
    let device_uses = device_len(&args.location).map(|len| uses(&disk, end(len), len));
    device_uses.map_or(Ok(()), |uses| console.done(&uses))
}

/// The length of a block device, if it is known.
fn device_len(location: &Location) -> Option<u64> {
    let path = location.path().filter(|_| location.is_block_device())?;
    // The disk is made; without the length only the uses of the device are not shown.
    File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0))).ok()
}

/// The share of a device that the disk gets, and the uses of the rest, on a line of its own. The
/// bytes from `end` on are not used.
fn uses(disk: &Description, end: u64, device: u64) -> String {
    let number = |name: &str| {
        let value = disk.details.iter().find(|detail| detail.name == name)?.value;
        if let DetailValue::Number(number) = value { Some(number) } else { None }
    };
    let (whole, percent) = (human_size(device), 100.0 * disk.size as f64 / device as f64);
    let unused = match device - end {
        0 => String::new(),
        unused => format!("; {} of it are not used", human_size(unused)),
    };
    if disk.hidden_sizes.is_some() {
        // Deniability contract: the text does not depend on the number of levels created.
        return format!(
            "of {whole} on the device level 0 gets {percent:.1}%{unused}; the rest is for hidden levels, whether \
             there are any or not, and for spare room"
        );
    }
    let gets = format!("of {whole} on the device the disk gets {percent:.1}%{unused}");
    let (Some(journal), Some(data_offset)) = (number("ring"), number("data_offset")) else { return gets };
    let [journal, map, tags] = shares(end, disk.size, journal, data_offset).map(human_size);
    format!(
        "{gets}; journal {journal}, spare segments and tags {tags}, header and map with room to grow {map}"
    )
}

/// The bytes of the first `len` of a device for the journal, for the header and the map, and for
/// the rest.
fn shares(len: u64, size: u64, journal: u64, data_offset: u64) -> [u64; 3] {
    let map = data_offset.saturating_sub(journal);
    [journal, map, len.saturating_sub(size.saturating_add(journal).saturating_add(map))]
}

fn shape(args: &CreateArgs) -> Shape {
    let ShapeArgs { levels, cover, geometry, spare, hiding, cells_per_write } = args.shape;
    Shape {
        format: args.format(),
        cipher: args.cipher,
        layout: args.layout,
        levels,
        cover_millis: cover,
        geometry,
        spare_permille: spare,
        hiding: hiding.map(|hiding| match hiding {
            HidingArg::Plausible => HidingMode::Plausible,
            HidingArg::Opportunistic => HidingMode::Opportunistic,
        }),
        cells_per_write,
        key_bits: args.flash.key_bits.as_deref().and_then(|bits| bits.parse().ok()),
        chip: args.flash.chip,
    }
}

/// `lacuna delete`.
pub(crate) fn delete(args: &DeleteArgs, console: Console) -> Result<()> {
    if !args.yes && args.location.path().is_none() && !console::can_ask() {
        return Err(Error::new(Kind::Usage, format!("cannot delete {}", args.location))
            .found("no terminal to ask whether to go on")
            .hint("to remove all its data and its snapshots, give --yes"));
    }
    let namespace = args.pool_access.cluster.namespace.as_ref();
    let place = namespace.map(|namespace| format!(" in the namespace {namespace}")).unwrap_or_default();
    let observer = RemovalObserver::new(console, false);
    lacuna_storage::delete(
        &args.location,
        &args.pool_access.access_for(&args.location)?,
        &observer,
        |uuid| {
            let lost =
                format!("all data of {}{place} (UUID {uuid}) and its snapshots will be gone", args.location);
            console.confirm(&lost, args.yes)
        },
    )?;
    drop(observer);
    console.done(&format!("deleted {}{place}", args.location))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_storage::format::DescriptionDetail;

    #[test]
    fn the_shares_of_a_device_add_up_to_it() {
        let (device, size) = (1 << 30, 968 << 20);
        let shares = shares(device, size, 20 << 20, 22 << 20);
        assert_eq!(shares, [20 << 20, 2 << 20, 34 << 20]);
        assert_eq!(shares.iter().sum::<u64>() + size, device);
    }

    #[test]
    fn the_share_of_the_disk_is_told_and_what_the_rest_is_for() {
        let detail = |name, bytes| DescriptionDetail::of(name, DetailValue::Number(bytes));
        let sealed = Description {
            details: vec![detail("ring", 20 << 20), detail("data_offset", 22 << 20)],
            ..Description::of((968 << 20) / 4096, 0)
        };
        assert_eq!(
            uses(&sealed, 1 << 30, 1 << 30),
            "of 1 GiB on the device the disk gets 94.5%; journal 20 MiB, spare segments and tags 34 MiB, header \
             and map with room to grow 2 MiB"
        );
        // With a size that was given, the end of the device is neither spare room nor tags.
        let small = uses(&sealed, 1 << 30, 4 << 30);
        assert!(
            small.starts_with("of 4 GiB on the device the disk gets 23.6%; 3 GiB of it are not used; "),
            "{small}"
        );
        assert!(small.contains("spare segments and tags 34 MiB,"), "{small}");
        let with_levels =
            Description { hidden_sizes: Some(vec![1 << 30]), ..Description::of((2 << 30) / 4096, 0) };
        let words = uses(&with_levels, 4 << 30, 4 << 30);
        assert!(words.starts_with("of 4 GiB on the device level 0 gets 50.0%; the rest is for"), "{words}");
        let small = uses(&with_levels, 4 << 30, 8 << 30);
        assert!(small.contains(" gets 25.0%; 4 GiB of it are not used; the rest is for"), "{small}");
        assert_eq!(
            uses(&Description::of((3 << 30) / 4096, 0), 4 << 30, 4 << 30),
            "of 4 GiB on the device the disk gets 75.0%"
        );
    }
}
