//! `info` of a vault: its public description, and the state in the anchor of this machine.

use crate::args::InfoArgs;
use crate::args::cost;
use crate::terminal::console::{self, Console};
use crate::terminal::observer::with_remedy;
use crate::terminal::utc::utc;
use crate::verbs::info::open_facts::{OpenFacts, UNKNOWN, count_text};
use lacuna_daemon::set_path;
use lacuna_storage::format::Params;
use lacuna_storage::vault::{VaultInfo, public_info};
use lacuna_storage::{Result, human_size};
use serde_json::{Value, json};
use std::path::Path;

/// `lacuna info` of the vault in `dir`.
pub(crate) fn run(dir: &Path, args: &InfoArgs, console: Console) -> Result<()> {
    // Refuses options that do not apply to a path.
    args.cluster.options_for(&args.location)?;
    let about = public_info(dir, args.anchor.anchor.as_deref())?;
    let facts = OpenFacts::of_vault(dir, args, &about, console)?;
    if args.json {
        return console::json(&to_json(dir, &about, &facts));
    }
    notes(&about).iter().for_each(|note| console.note(note));
    console::table(rows(dir, &about, facts))
}

fn notes(about: &VaultInfo) -> Vec<String> {
    about.notes.iter().map(|note| with_remedy(note, &about.copy_remedy)).collect()
}

fn to_json(dir: &Path, about: &VaultInfo, facts: &OpenFacts) -> Value {
    let remembered = about.anchored_state.as_ref();
    let mut out = json!({
        "header": about.header,
        "id": facts.id,
        "passphrases": facts.passphrases,
        "version": about.params.describe().version,
        "integrity": about.params.integrity.name(),
        "notes": notes(about),
        "anchor": {
            "number": remembered.map(|state| state.number),
            "time": remembered.map(|state| state.time),
        },
        "medium": {
            "total": about.space.total_bytes,
            "free": about.space.free_bytes,
            "in_use": about.in_use,
        },
    });
    set_path(&mut out, "location", dir);
    set_path(&mut out["anchor"], "path", &about.anchor);
    out
}

fn rows(dir: &Path, about: &VaultInfo, facts: OpenFacts) -> [(&'static str, String); 10] {
    let in_use = if about.in_use { " (open now)" } else { "" };
    let remembered = match &about.anchored_state {
        Some(state) => {
            format!("state {} of {}, in {}", state.number, utc(state.time), about.anchor.display())
        }
        None => format!("nothing yet; it would be in {}", about.anchor.display()),
    };
    let version = about.params.describe().version;
    let version = version.map_or_else(String::new, |version| format!(" version {version}"));
    [
        ("location", format!("{}{in_use}", dir.display())),
        ("UUID", about.header.uuid.to_string()),
        ("ID", facts.id.unwrap_or_else(|| UNKNOWN.replace("disk", "vault"))),
        ("format", format!("{}{version}, header version {}", about.header.format, about.header.version)),
        ("integrity", about.params.integrity.name().to_owned()),
        ("passphrases", count_text(facts.passphrases).replace("disk", "vault")),
        ("passphrase cost", cost::to_text(&about.header.cost)),
        ("generation", about.header.generation.to_string()),
        ("remembered", remembered),
        (
            "file system",
            format!("{} free of {}", human_size(about.space.free_bytes), human_size(about.space.total_bytes)),
        ),
    ]
}
