//! `info`: what a disk says about itself without a passphrase.

use crate::args::InfoArgs;
use crate::console::{self, Console};
use crate::cost;
use crate::size::human;
use crate::unlock::{params_of, path_of};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_medium::{Access, FileMedium, MemoryMedium};
use lacuna_sealed::Params;
use lacuna_volume::{HEADER_AREA, PublicHeader};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The medium as the system sees it.
struct Medium {
    len: u64,
    used: Option<u64>,
    in_use: bool,
    start: MemoryMedium,
}

/// `lacuna info`.
pub fn run(args: &InfoArgs, console: Console) -> Result<()> {
    let path = path_of(&args.location)?;
    let medium = Medium::look(path)?;
    let naming = |e: Error| e.context(&args.location);
    let (header, notes) = lacuna_volume::read_public(&medium.start).map_err(naming)?;
    let params = params_of(&header).map_err(naming)?;
    if args.json {
        console::json(&to_json(path, &header, &params, &medium, &notes))?;
    } else {
        notes.iter().for_each(|note| console.note(note));
        console::bytes(words(path, &header, &params, &medium).as_bytes())?;
    }
    let needed = params.geometry().medium_len();
    if medium.len >= needed {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("{} was cut short", path.display()))
        .found(format!("{} bytes", medium.len))
        .expected(format!("at least {needed} bytes"))
        .remedy("restore it whole from a backup"))
}

impl Medium {
    /// Takes no lock: the header has two copies, of which one is whole at any moment, so that a disk can be
    /// looked at while it is served.
    fn look(path: &Path) -> Result<Medium> {
        // Refuses directories and the like in the words that all verbs use.
        let in_use = match FileMedium::open(path, Access::Read) {
            Ok(_) => false,
            Err(e) if e.kind() == Kind::Busy => true,
            Err(e) => return Err(e),
        };
        let failed = |e: std::io::Error| Error::io(format!("cannot read {}", path.display()), &e);
        let mut file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let mut start = Vec::new();
        (&mut file).take(HEADER_AREA).read_to_end(&mut start).map_err(failed)?;
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let used = meta.is_file().then(|| meta.blocks() * 512);
        Ok(Medium { len, used, in_use, start: MemoryMedium::from_bytes(start) })
    }
}

fn to_json(path: &Path, header: &PublicHeader, params: &Params, medium: &Medium, notes: &[String]) -> Value {
    json!({
        "location": path.to_string_lossy(),
        "header": header,
        "size": params.blocks * BLOCK_SIZE as u64,
        "largest_size": largest(params),
        "cipher": params.cipher.name(),
        "layout": params.layout.name(),
        "ring": params.ring_len,
        "data_offset": params.geometry().data,
        "medium": {
            "size": medium.len,
            "needed": params.geometry().medium_len(),
            "used": medium.used,
            "in_use": medium.in_use,
        },
        "notes": notes,
    })
}

/// The size to which `resize` can take the disk.
pub fn largest(params: &Params) -> u64 {
    u64::from(params.map_capacity) * lacuna_sealed::SEGMENT_BLOCKS * BLOCK_SIZE as u64
}

fn words(path: &Path, header: &PublicHeader, params: &Params, medium: &Medium) -> String {
    let used = medium.used.map_or_else(String::new, |used| format!(", {} of it used", human(used)));
    let in_use = if medium.in_use { " (being served or used now)" } else { "" };
    let exact = |bytes: u64| format!("{} ({bytes} bytes)", human(bytes));
    let rows = [
        ("location", format!("{}{in_use}", path.display())),
        ("UUID", header.uuid.to_string()),
        ("format", format!("{}, header version {}", header.format, header.version)),
        ("size", exact(params.blocks * BLOCK_SIZE as u64)),
        ("can grow to", human(largest(params))),
        ("cipher", params.cipher.name().to_owned()),
        ("layout", params.layout.name().to_owned()),
        ("ring", human(params.ring_len)),
        ("passphrase cost", cost::words(&header.cost)),
        ("generation", header.generation.to_string()),
        ("medium", format!("{}{used}", exact(medium.len))),
    ];
    rows.iter().map(|(name, value)| format!("{name:<16} {value}\n")).collect()
}
