//! `info`: what a disk says about itself without a passphrase, and of its open levels.
//!
//! The first part takes no lock, so that a disk can be looked at while it is served.

use crate::args::InfoArgs;
use crate::console::{self, Console};
use crate::cost;
use crate::forgetting::Forgetting;
use crate::info_levels::{self, LevelFacts};
use crate::info_opened::{Told, UNKNOWN};
use crate::observer::damaged_copy;
use crate::vault_info;
use lacuna::{About, AboutMedium, Error, Kind, Parameters, Result, about, human};
use serde_json::{Value, json};
use std::fmt::Write;

/// What is known of a disk.
struct Facts {
    location: String,
    about: About,
    /// Of a disk that is open, or was opened with what was given.
    id: Option<String>,
    /// Those of its levels that are open, or opened with what was given.
    levels: Vec<LevelFacts>,
    /// Of a disk on flash that is open, or was opened with what was given.
    forgetting: Option<Forgetting>,
}

/// `lacuna info`.
pub(crate) fn run(args: &InfoArgs, console: Console) -> Result<()> {
    if let Some(dir) = args.location.path().filter(|path| path.is_dir()) {
        return vault_info::run(dir, args, console);
    }
    if let Some(anchor) = &args.anchor.anchor {
        return Err(Error::new(Kind::Usage, "cannot use --anchor here")
            .found(format!("{} for what is no vault", anchor.display()))
            .expected("the directory of a vault"));
    }
    let about = about(&args.location, &args.cluster.of(&args.location)?)?;
    let told = Told::of(args, &about, console)?;
    let forgetting = Forgetting::told(&told);
    let levels = info_levels::facts(&told.items);
    let facts = Facts { location: args.location.to_string(), about, id: told.id, levels, forgetting };
    if args.json {
        console::json(&facts.to_json())?;
    } else {
        facts.notes().iter().for_each(|note| console.note(note));
        console::bytes(facts.words().as_bytes())?;
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
        // Where part of the disk is gone, nothing mends its header.
        let cut = matches!(medium, AboutMedium::File { len, .. } if *len < parameters.end());
        notes.iter().map(|note| if cut { note.clone() } else { damaged_copy(note) }).collect()
    }

    fn to_json(&self) -> Value {
        let About { header, parameters, medium, .. } = &self.about;
        let mut out = json!({
            "location": self.location,
            "header": header,
            "id": self.id,
            "size": parameters.size(),
            "largest_size": parameters.largest(),
            "cipher": parameters.cipher(),
            "notes": self.notes(),
        });
        if let Some(layout) = parameters.layout() {
            out["layout"] = json!(layout);
        }
        if let Parameters::Flat(params) = parameters {
            out["ring"] = json!(params.journal_len);
            out["data_offset"] = json!(params.geometry().data);
        }
        if parameters.has_levels() {
            out["hidden_size"] = json!(parameters.hidden_sizes().iter().sum::<u64>());
            out["hidden_sizes"] = json!(parameters.hidden_sizes());
            out["levels"] = self.levels.iter().map(LevelFacts::to_json).collect();
        }
        if let Parameters::Deniable(params) = parameters {
            out["spare"] = json!(f64::from(params.spare_permille) / 1000.0);
            out["cover_ms"] = json!(params.cover_millis);
            out["stripes"] = json!(params.stripes);
        }
        if let Parameters::Flash(params) = parameters {
            out["key_bits"] = json!(u32::from(params.key_len) * 8);
            out["key_blocks"] = json!(params.key_blocks());
            out["spare"] = json!(f64::from(params.spare().unwrap_or(0)) / 1000.0);
            out["forgetting"] = self.forgetting.as_ref().map_or(Value::Null, Forgetting::to_json);
        }
        if let Parameters::Oblivious(params) = parameters {
            out["cover_ms"] = json!(params.plan.cover_millis);
            out["cells"] = json!(params.cells);
            out["cells_per_write"] = json!(params.plan.per_write);
            out["hiding"] = json!(lacuna::hiding(params));
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
        let version = match parameters {
            Parameters::Deniable(_) => format!(" version {}", lacuna::DENIABLE_VERSION),
            Parameters::Oblivious(_) => format!(" version {}", lacuna::OBLIVIOUS_VERSION),
            Parameters::Objects(_) => format!(" version {}", lacuna::OBJECTS_VERSION),
            Parameters::Flash(_) => format!(" version {}", lacuna::FLASH_VERSION),
            Parameters::Flat(_) | Parameters::Vault(_) => String::new(),
        };
        rows.push(("format", format!("{}{version}, header version {}", header.format, header.version)));
        rows.push(("size", exact(parameters.size())));
        if parameters.largest() > parameters.size() {
            rows.push(("can grow to", human(parameters.largest())));
        }
        rows.push(("cipher", parameters.cipher().to_owned()));
        rows.extend(parameters.layout().map(|layout| ("layout", layout)));
        if let Parameters::Flat(params) = parameters {
            rows.push(("journal", human(params.journal_len)));
        }
        if parameters.has_levels() {
            // What a disk without hidden levels says as well.
            let most = parameters.hidden_sizes().len();
            rows.push(("hidden levels", format!("none to {most}: {}", parameters.hidden_words())));
        }
        if let Parameters::Deniable(params) = parameters {
            rows.push(("spare", format!("{} of the log", f64::from(params.spare_permille) / 1000.0)));
            rows.push(("cover", cover_words("refresh stripe", params.cover_millis)));
        }
        if let Parameters::Flash(params) = parameters {
            let keys = u64::from(params.key_blocks()) * u64::from(params.flash.leb_len);
            rows.push(("keys", format!("{} of them, in {} erase blocks", human(keys), params.key_blocks())));
            let words = self.forgetting.as_ref().map_or_else(|| UNKNOWN.to_owned(), Forgetting::words);
            rows.push(("recoverable", words));
        }
        if let Parameters::Oblivious(params) = parameters {
            rows.push(("cover", cover_words("batch", params.plan.cover_millis)));
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

fn cover_words(write: &str, millis: u32) -> String {
    match millis {
        0 => "none of its own".to_owned(),
        millis => format!("a {write} every {} s while open", f64::from(millis) / 1000.0),
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}
