//! `info`: the public description of a disk, and facts on its open levels.
//!
//! The public part takes no lock, so that it works while the disk is served.

mod forgetting;
mod of_vault;
pub(crate) mod open_levels;
mod opened;

use crate::args::InfoArgs;
use crate::args::cost;
use crate::terminal::console::{self, Console};
use crate::terminal::observer::damaged_copy;
use crate::verbs::empty_level;
use crate::verbs::info::forgetting::Forgetting;
use crate::verbs::info::open_levels::LevelFacts;
use crate::verbs::info::opened::{Told, UNKNOWN};
use lacuna_storage::format::{Description, Detail, Value as Fact};
use lacuna_storage::{About, AboutMedium, Error, Kind, Result, about, human};
use serde_json::{Value, json};
use std::fmt::Write;

/// Everything that `info` shows of a disk.
struct Facts {
    location: String,
    about: About,
    /// The description in the header.
    disk: Description,
    /// The ID, if the disk is open or was opened with a given passphrase.
    id: Option<String>,
    /// Facts on levels that are open or were opened with given passphrases.
    levels: Vec<LevelFacts>,
    /// The recoverable data of a disk on flash, if it is open or was opened with a given
    /// passphrase.
    forgetting: Option<Forgetting>,
}

/// `lacuna info`.
pub(crate) fn run(args: &InfoArgs, console: Console) -> Result<()> {
    if let Some(dir) = args.location.path().filter(|path| path.is_dir()) {
        return of_vault::run(dir, args, console);
    }
    if let Some(anchor) = &args.anchor.anchor {
        return Err(Error::new(Kind::Usage, "cannot use --anchor here")
            .found(format!("{} for what is no vault", anchor.display()))
            .expected("the directory of a vault"));
    }
    let about = about(&args.location, &args.cluster.of(&args.location)?)?;
    let disk = about.parameters.describe();
    let told = Told::of(args, &about, console)?;
    let forgetting = Forgetting::told(&told);
    let levels = open_levels::facts(&told.items);
    let facts = Facts { location: args.location.to_string(), about, disk, id: told.id, levels, forgetting };
    if args.json {
        console::json(&facts.to_json())?;
    } else {
        facts.notes().iter().for_each(|note| console.note(note));
        console::bytes(facts.words().as_bytes())?;
        empty_level::tell(facts.levels.iter().filter_map(LevelFacts::empty), console);
    }
    let About { parameters, medium, .. } = &facts.about;
    match medium {
        AboutMedium::File { len, .. } => parameters.check_length(*len, &args.location),
        AboutMedium::Flash { .. } | AboutMedium::Pool { .. } => Ok(()),
    }
}

impl Facts {
    fn notes(&self) -> Vec<String> {
        let About { parameters, medium, notes, .. } = &self.about;
        // The header of a truncated disk cannot be repaired.
        let cut = matches!(medium, AboutMedium::File { len, .. } if *len < parameters.end());
        notes.iter().map(|note| if cut { note.clone() } else { damaged_copy(note) }).collect()
    }

    fn to_json(&self) -> Value {
        let About { header, parameters, medium, .. } = &self.about;
        let disk = &self.disk;
        let mut out = json!({
            "location": self.location,
            "header": header,
            "id": self.id,
            "size": disk.size,
            "largest_size": disk.largest,
            "cipher": disk.cipher,
            "notes": self.notes(),
        });
        if let Some(layout) = &disk.layout {
            out["layout"] = json!(layout);
        }
        for Detail { name, value, .. } in &disk.details {
            out[*name] = match *value {
                Fact::Number(number) => json!(number),
                Fact::Part(part) => json!(part),
                Fact::Word(word) => json!(word),
            };
        }
        if let Some(sizes) = &disk.hidden_sizes {
            out["hidden_size"] = json!(sizes.iter().sum::<u64>());
            out["hidden_sizes"] = json!(sizes);
            out["overwritten_within"] = json!(disk.overwritten_within.map(|time| time.as_secs_f64()));
            out["levels"] = self.levels.iter().map(LevelFacts::to_json).collect();
        }
        if parameters.format().info().forgets {
            out["forgetting"] = self.forgetting.as_ref().map_or(Value::Null, Forgetting::to_json);
        }
        out["medium"] = match medium {
            AboutMedium::File { len, used, in_use } => {
                json!({ "size": len, "needed": parameters.end(), "used": used, "in_use": in_use })
            }
            AboutMedium::Flash { geometry, used, in_use } => {
                json!({
                    "page": geometry.page,
                    "erase_block": geometry.leb_len,
                    "erase_blocks": geometry.lebs,
                    "used": used,
                    "in_use": in_use,
                })
            }
            AboutMedium::Pool { namespace, objects, snapshots } => {
                out["snapshots"] = json!(snapshots);
                json!({ "namespace": namespace, "objects": objects })
            }
        };
        out
    }

    fn words(&self) -> String {
        let About { header, parameters, medium, .. } = &self.about;
        let disk = &self.disk;
        let mut rows = Vec::new();
        let exact = |bytes: u64| format!("{} ({bytes} bytes)", human(bytes));
        let in_use = match medium {
            AboutMedium::File { in_use: true, .. } | AboutMedium::Flash { in_use: true, .. } => {
                " (being served or used now)"
            }
            _ => "",
        };
        rows.push(("location", format!("{}{in_use}", self.location)));
        rows.push(("UUID", header.uuid.to_string()));
        rows.push(("ID", self.id.clone().unwrap_or_else(|| UNKNOWN.to_owned())));
        let version = disk.version.map_or_else(String::new, |version| format!(" version {version}"));
        rows.push(("format", format!("{}{version}, header version {}", header.format, header.version)));
        rows.push(("size", exact(disk.size)));
        if disk.largest > disk.size {
            rows.push(("can grow to", human(disk.largest)));
        }
        rows.push(("cipher", disk.cipher.to_owned()));
        rows.extend(disk.layout.iter().map(|layout| ("layout", layout.clone())));
        if let Some(sizes) = &disk.hidden_sizes {
            // Deniability contract: the row is the same on a disk without hidden levels.
            rows.push(("hidden levels", format!("none to {}: {}", sizes.len(), disk.hidden_words())));
        }
        rows.extend(disk.overwriting_words().map(|words| ("overwritten", words)));
        rows.extend(disk.details.iter().filter_map(|detail| detail.row.clone()));
        if parameters.format().info().forgets {
            let words = self.forgetting.as_ref().map_or_else(|| UNKNOWN.to_owned(), Forgetting::words);
            rows.push(("recoverable", words));
        }
        rows.push(("passphrase cost", cost::words(&header.cost)));
        rows.push(("generation", header.generation.to_string()));
        match medium {
            AboutMedium::File { len, used, .. } => {
                let used = used.map_or_else(String::new, |used| format!(", {} of it used", human(used)));
                rows.push(("medium", format!("{}{used}", exact(*len))));
            }
            AboutMedium::Flash { geometry, used, .. } => {
                let used =
                    used.map_or_else(String::new, |used| format!(", {} of its file used", human(used)));
                rows.push((
                    "medium",
                    format!(
                        "{} erase blocks of {}, pages of {}{used}",
                        geometry.lebs,
                        human(geometry.leb_len.into()),
                        human(geometry.page.into())
                    ),
                ));
            }
            AboutMedium::Pool { objects, snapshots, .. } => {
                rows.push(("objects", format!("{objects}.*")));
                rows.push(("snapshots", or_none(&snapshots.join(", "))));
            }
        }
        let mut rows: Vec<(String, String)> = rows.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        rows.extend(self.levels.iter().map(LevelFacts::words));
        let line = |mut text: String, (name, value): &(String, String)| {
            let _ = writeln!(text, "{name:<16} {value}");
            text
        };
        rows.iter().fold(String::new(), line)
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}
