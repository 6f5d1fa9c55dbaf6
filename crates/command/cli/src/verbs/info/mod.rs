//! `info`: the public description of a disk, and facts on its open levels.
//!
//! The public part takes no lock, so that it works while the disk is served.

mod backup_info;
mod open_facts;
pub(crate) mod open_levels;
mod recoverable;
mod vault_info;

use crate::args::InfoArgs;
use crate::args::cost;
use crate::terminal::console::{self, Console};
use crate::terminal::observer::with_remedy;
use crate::verbs::empty_level;
use crate::verbs::info::open_facts::{OpenFacts, UNKNOWN, count_text};
use crate::verbs::info::open_levels::LevelInfo;
use crate::verbs::info::recoverable::RecoverableData;
use lacuna_daemon::set_path;
use lacuna_storage::format::{Description, DescriptionDetail, DetailValue as Fact};
use lacuna_storage::header::backup_at;
use lacuna_storage::{Error, Kind, Location, MediumInfo, PublicInfo, Result, human_size, public_info};
use serde_json::{Value, json};

/// Everything that `info` shows of a disk.
struct DiskInfo {
    location: Location,
    about: PublicInfo,
    /// The description in the header.
    disk: Description,
    /// The ID, if the disk is open or was opened with a given passphrase.
    id: Option<String>,
    /// The number of passphrases that work, if a given passphrase opened the disk.
    passphrases: Option<usize>,
    /// Facts on levels that are open or were opened with given passphrases.
    levels: Vec<LevelInfo>,
    /// The recoverable data of a disk on flash, if it is open or was opened with a given
    /// passphrase.
    recoverable: Option<RecoverableData>,
}

/// `lacuna info`.
pub(crate) fn run(args: &InfoArgs, console: Console) -> Result<()> {
    if let Some(dir) = args.location.path().filter(|path| path.is_dir()) {
        return vault_info::run(dir, args, console);
    }
    if let Some(anchor) = &args.anchor.anchor {
        return Err(Error::new(Kind::Usage, "cannot use --anchor here")
            .found(format!("{} for a disk", anchor.display()))
            .expected("the directory of a vault"));
    }
    if let Some(backup) = backup_at(&args.location)? {
        return backup_info::run(&backup, args);
    }
    let about = public_info(&args.location, &args.cluster.options_for(&args.location)?)?;
    let disk = about.parameters.describe();
    let open_facts = OpenFacts::of(args, &about, console)?;
    let forgetting = RecoverableData::from_facts(&open_facts);
    let levels = open_levels::parse(&open_facts.items);
    let facts = DiskInfo {
        location: args.location.clone(),
        about,
        disk,
        id: open_facts.id,
        passphrases: open_facts.passphrases,
        levels,
        recoverable: forgetting,
    };
    if args.json {
        console::json(&facts.to_json())?;
    } else {
        facts.notes().iter().for_each(|note| console.note(note));
        console::table(facts.rows())?;
        empty_level::print_notes(facts.levels.iter().filter_map(LevelInfo::empty), console);
    }
    let PublicInfo { parameters, medium, .. } = &facts.about;
    match medium {
        MediumInfo::File { len, .. } => parameters.check_length(*len, &args.location),
        MediumInfo::Flash { .. } | MediumInfo::Pool { .. } => Ok(()),
    }
}

impl DiskInfo {
    fn notes(&self) -> Vec<String> {
        let PublicInfo { notes, copy_remedy, .. } = &self.about;
        notes.iter().map(|note| with_remedy(note, copy_remedy)).collect()
    }

    fn to_json(&self) -> Value {
        let PublicInfo { header, parameters, medium, .. } = &self.about;
        let disk = &self.disk;
        let mut out = json!({
            "header": header,
            "id": self.id,
            "size": disk.size,
            "largest_size": disk.max_size,
            "cipher": disk.cipher,
            "notes": self.notes(),
        });
        set_path(&mut out, "location", self.location.to_os_string());
        // Deniability contract: a disk with levels has no such field, whatever levels it has.
        if header.can_change_one_slot() {
            out["passphrases"] = json!(self.passphrases);
        }
        if let Some(layout) = &disk.layout {
            out["layout"] = json!(layout);
        }
        for DescriptionDetail { name, value, .. } in &disk.details {
            out[*name] = match *value {
                Fact::Number(number) => json!(number),
                Fact::Fraction(part) => json!(part),
                Fact::Word(word) => json!(word),
            };
        }
        if let Some(sizes) = &disk.hidden_sizes {
            out["hidden_size"] = json!(sizes.iter().sum::<u64>());
            out["hidden_sizes"] = json!(sizes);
            out["overwritten_within"] = json!(disk.overwritten_within.map(|time| time.as_secs_f64()));
            out["levels"] = self.levels.iter().map(LevelInfo::to_json).collect();
        }
        if parameters.format().info().can_purge {
            out["forgetting"] = self.recoverable.as_ref().map_or(Value::Null, RecoverableData::to_json);
        }
        out["medium"] = match medium {
            MediumInfo::File { len, used, in_use } => {
                json!({ "size": len, "needed": parameters.end(), "used": used, "in_use": in_use })
            }
            MediumInfo::Flash { geometry, used, in_use } => {
                json!({
                    "page": geometry.page,
                    "erase_block": geometry.leb_len,
                    "erase_blocks": geometry.lebs,
                    "used": used,
                    "in_use": in_use,
                })
            }
            MediumInfo::Pool { namespace, objects, snapshots } => {
                out["snapshots"] = json!(snapshots);
                json!({ "namespace": namespace, "objects": objects })
            }
        };
        out
    }

    fn rows(&self) -> Vec<(String, String)> {
        let PublicInfo { header, parameters, medium, .. } = &self.about;
        let disk = &self.disk;
        let mut rows = Vec::new();
        let exact = |bytes: u64| format!("{} ({bytes} bytes)", human_size(bytes));
        let in_use = match medium {
            MediumInfo::File { in_use: true, .. } | MediumInfo::Flash { in_use: true, .. } => {
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
        if disk.max_size > disk.size {
            rows.push(("can grow to", human_size(disk.max_size)));
        }
        rows.push(("cipher", disk.cipher.to_owned()));
        rows.extend(disk.layout.iter().map(|layout| ("layout", layout.clone())));
        if let Some(sizes) = &disk.hidden_sizes {
            // Deniability contract: the row is the same on a disk without hidden levels.
            rows.push(("hidden levels", format!("none to {}: {}", sizes.len(), disk.hidden_sizes_text())));
        }
        rows.extend(disk.overwriting_words().map(|words| ("overwritten", words)));
        rows.extend(disk.details.iter().filter_map(|detail| detail.row.clone()));
        if parameters.format().info().can_purge {
            let words =
                self.recoverable.as_ref().map_or_else(|| UNKNOWN.to_owned(), RecoverableData::to_text);
            rows.push(("recoverable", words));
        }
        if header.can_change_one_slot() {
            rows.push(("passphrases", count_text(self.passphrases)));
        }
        rows.push(("passphrase cost", cost::to_text(&header.cost)));
        rows.push(("generation", header.generation.to_string()));
        match medium {
            MediumInfo::File { len, used, .. } => {
                let used = used.map_or_else(String::new, |used| format!(", {} of it used", human_size(used)));
                rows.push(("medium", format!("{}{used}", exact(*len))));
            }
            MediumInfo::Flash { geometry, used, .. } => {
                let used =
                    used.map_or_else(String::new, |used| format!(", {} of its file used", human_size(used)));
                rows.push((
                    "medium",
                    format!(
                        "{} erase blocks of {}, pages of {}{used}",
                        geometry.lebs,
                        human_size(geometry.leb_len.into()),
                        human_size(geometry.page.into())
                    ),
                ));
            }
            MediumInfo::Pool { objects, snapshots, .. } => {
                rows.push(("objects", format!("{objects}.*")));
                rows.push(("snapshots", or_none(&snapshots.join(", "))));
            }
        }
        let mut rows: Vec<(String, String)> = rows.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        rows.extend(self.levels.iter().map(LevelInfo::to_row));
        rows
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}
