//! `info`: what a disk says about itself without a passphrase, and of its open levels.
//!
//! The first part takes no lock, so that a disk can be looked at while it is served.

use crate::args::InfoArgs;
use crate::console::{self, Console};
use crate::cost;
use crate::info_levels::{self, LevelFacts};
use lacuna::human;
use lacuna::{Connection, Look, Parameters, Site, Target, snapshots};
use lacuna_core::{Error, Kind, Result};
use lacuna_header::{Location, PublicHeader};
use serde_json::{Value, json};
use std::path::Path;

/// What is known of a disk.
struct Facts {
    location: String,
    header: PublicHeader,
    parameters: Parameters,
    notes: Vec<String>,
    medium: MediumFacts,
    /// Those of its levels that are open, or opened with what was given.
    levels: Vec<LevelFacts>,
}

/// What is known of where it rests.
enum MediumFacts {
    /// A file or block device, as the system sees it.
    File { len: u64, used: Option<u64>, in_use: bool },
    /// A pool.
    Pool { namespace: Option<String>, objects: String, snapshots: Vec<String> },
}

/// `lacuna info`.
pub(crate) fn run(args: &InfoArgs, console: Console) -> Result<()> {
    let mut facts = match Site::of(&args.location, &args.cluster.of(&args.location)?) {
        Site::File(path) => Facts::of_file(&args.location, path),
        Site::Pool(target) => Facts::in_pool(&args.location, &target),
    }?;
    facts.levels = info_levels::gather(args, facts.parameters.has_levels(), console)?;
    if args.json {
        console::json(&facts.to_json())?;
    } else {
        facts.notes.iter().for_each(|note| console.note(note));
        console::bytes(facts.words().as_bytes())?;
    }
    facts.check_length()
}

impl Facts {
    fn of_file(location: &Location, path: &Path) -> Result<Facts> {
        let look = Look::at(path)?;
        let header = lacuna_header::read_public_with(look.len, &|offset, buf| look.read(offset, buf));
        Self::read(location, header, |_, _| {
            Ok(MediumFacts::File { len: look.len, used: look.used, in_use: look.in_use })
        })
    }

    fn in_pool(location: &Location, target: &Target) -> Result<Facts> {
        let connection = Connection::open(target)?;
        let medium = connection.header()?;
        Self::read(location, lacuna_header::read_public(&*medium), |header, parameters| {
            if let Some(name) = target.snapshot() {
                let then = snapshots::named(&connection, header.uuid, name)?;
                *parameters = parameters.as_of(then.blocks);
            }
            let snapshots = snapshots::over(&connection, header.uuid)?;
            Ok(MediumFacts::Pool {
                namespace: target.namespace().map(str::to_owned),
                objects: lacuna::data_prefix(header.uuid),
                snapshots: snapshots.into_iter().map(|snapshot| snapshot.name).collect(),
            })
        })
    }

    fn read(
        location: &Location,
        found: Result<(PublicHeader, Vec<String>)>,
        about_medium: impl FnOnce(&PublicHeader, &mut Parameters) -> Result<MediumFacts>,
    ) -> Result<Facts> {
        let naming = |e: Error| e.context(location);
        let (header, notes) = found.map_err(naming)?;
        let mut parameters = Parameters::of(&header, location).map_err(naming)?;
        let medium = about_medium(&header, &mut parameters).map_err(naming)?;
        let levels = Vec::new();
        Ok(Facts { location: location.to_string(), header, parameters, notes, medium, levels })
    }

    fn to_json(&self) -> Value {
        let mut out = json!({
            "location": self.location,
            "header": self.header,
            "size": self.parameters.size(),
            "largest_size": self.parameters.largest(),
            "cipher": self.parameters.cipher(),
            "layout": self.parameters.layout(),
            "notes": self.notes,
        });
        if let Parameters::Flat(params) = &self.parameters {
            out["ring"] = json!(params.journal_len);
            out["data_offset"] = json!(params.geometry().data);
        }
        if self.parameters.has_levels() {
            out["hidden_size"] = json!(self.parameters.hidden_sizes().iter().sum::<u64>());
            out["hidden_sizes"] = json!(self.parameters.hidden_sizes());
            out["levels"] = self.levels.iter().map(LevelFacts::to_json).collect();
        }
        if let Parameters::Deniable(params) = &self.parameters {
            out["spare"] = json!(f64::from(params.spare_permille) / 1000.0);
            out["cover_ms"] = json!(params.cover_millis);
            out["stripes"] = json!(params.stripes);
        }
        if let Parameters::Oblivious(params) = &self.parameters {
            out["cover_ms"] = json!(params.plan.cover_millis);
            out["cells"] = json!(params.cells);
            out["cells_per_write"] = json!(params.plan.per_write);
            out["hiding"] = json!(lacuna::hiding(params));
        }
        out["medium"] = match &self.medium {
            MediumFacts::File { len, used, in_use } => {
                json!({ "size": len, "needed": self.parameters.end(), "used": used, "in_use": in_use })
            }
            MediumFacts::Pool { namespace, objects, snapshots } => {
                out["snapshots"] = json!(snapshots);
                json!({ "namespace": namespace, "objects": objects })
            }
        };
        out
    }

    fn check_length(&self) -> Result<()> {
        let needed = self.parameters.end();
        match &self.medium {
            MediumFacts::File { len, .. } if *len < needed => {
                Err(Error::new(Kind::Corrupt, format!("{} was cut short", self.location))
                    .found(format!("{len} bytes"))
                    .expected(format!("at least {needed} bytes"))
                    .remedy(format!(
                        "restore it whole from a backup; if there is none, `truncate -s {needed}` lets what is left be read"
                    )))
            }
            _ => Ok(()),
        }
    }

    fn words(&self) -> String {
        let (Facts { header, parameters, .. }, mut rows) = (self, Vec::new());
        let exact = |bytes: u64| format!("{} ({bytes} bytes)", human(bytes));
        let in_use = match &self.medium {
            MediumFacts::File { in_use: true, .. } => " (being served or used now)",
            _ => "",
        };
        rows.push(("location", format!("{}{in_use}", self.location)));
        rows.push(("UUID", header.uuid.to_string()));
        let version = match parameters {
            Parameters::Deniable(params) => format!(" version {}", params.version.number()),
            Parameters::Oblivious(params) => format!(" version {}", params.format_version()),
            Parameters::Objects(params) => format!(" version {}", params.format_version()),
            Parameters::Flat(_) => String::new(),
        };
        rows.push(("format", format!("{}{version}, header version {}", header.format, header.version)));
        rows.push(("size", exact(parameters.size())));
        if parameters.largest() > parameters.size() {
            rows.push(("can grow to", human(parameters.largest())));
        }
        rows.push(("cipher", parameters.cipher().to_owned()));
        rows.push(("layout", parameters.layout()));
        if let Parameters::Flat(params) = parameters {
            rows.push(("ring", human(params.journal_len)));
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
        if let Parameters::Oblivious(params) = parameters {
            rows.push(("cover", cover_words("batch", params.plan.cover_millis)));
        }
        rows.push(("passphrase cost", cost::words(&header.cost)));
        rows.push(("generation", header.generation.to_string()));
        match &self.medium {
            MediumFacts::File { len, used, .. } => {
                let used = used.map_or_else(String::new, |used| format!(", {} of it used", human(used)));
                rows.push(("medium", format!("{}{used}", exact(*len))));
            }
            MediumFacts::Pool { objects, snapshots, .. } => {
                rows.push(("objects", format!("{objects}.*")));
                rows.push(("snapshots", or_none(&snapshots.join(", "))));
            }
        }
        let mut rows: Vec<(String, String)> = rows.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        rows.extend(self.levels.iter().map(LevelFacts::words));
        rows.iter().map(|(name, value)| format!("{name:<16} {value}\n")).collect()
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
