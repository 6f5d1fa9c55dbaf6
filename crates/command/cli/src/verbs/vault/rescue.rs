//! `vault rescue`: copies the data of a damaged vault that verifies, and lists missing files.

use crate::args::VaultRescueArgs;
use crate::args::size::budget;
use crate::terminal::console::{self, Console};
use crate::terminal::progress;
use crate::verbs::unlock::UnlockArgs;
use crate::verbs::vault::{count_text, unlock_vault};
use lacuna_daemon::set_path;
use lacuna_storage::vault::{MissingPart, OpenVaultOptions, RescueReport, check_rescue_target, rescue};
use lacuna_storage::{Access, Error, Kind, Result, human_size, printable};
use serde_json::json;

/// `lacuna vault rescue`.
pub(crate) fn run(args: &VaultRescueArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    // An existing target is a usage error, as with `create`.
    let usage = |e: Error| if e.kind() == Kind::Exists { e.with_kind(Kind::Usage) } else { e };
    check_rescue_target(&args.target).map_err(usage)?;
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let key = unlock_vault(&args.dir, Access::Read, given, console)?;
    let opening =
        OpenVaultOptions { budget, anchor: args.anchor.anchor.clone(), ..OpenVaultOptions::default() };
    let damaged =
        progress::show(console, &format!("opening {}", args.dir.display()), |_| key.open_to_rescue(opening))?;
    if let Some(used) = damaged.detours() {
        console.note(&used);
    }
    let bar = console.progress(0, "{per_sec} files");
    let report = rescue(&damaged, &args.target, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    verdict(args, &report.map_err(usage)?)
}

/// Prints the result. Errors: [`Kind::Corrupt`] if something is missing.
fn verdict(args: &VaultRescueArgs, report: &RescueReport) -> Result<()> {
    let RescueReport { files, directories, bytes, nameless, lost, missing } = report;
    if args.json {
        let named = missing.iter().map(|MissingPart { path, what }| {
            let mut part = json!({ "what": what });
            set_path(&mut part, "path", path);
            part
        });
        let mut out = json!({
            "files": files,
            "directories": directories,
            "bytes": bytes,
            "nameless": nameless,
            "lost": lost,
            "missing": named.collect::<Vec<_>>(),
            "missing_truncated": *lost > missing.len() as u64,
        });
        set_path(&mut out, "location", &args.dir);
        set_path(&mut out, "target", &args.target);
        console::json(&out)?;
    } else {
        for MissingPart { path, what } in missing {
            console::line(&format!("missing: {}: {}", printable(&path.to_string_lossy()), printable(what)))?;
        }
        if *lost > missing.len() as u64 {
            console::line("and more, which are only counted")?;
        }
        console::line(&format!(
            "rescued {} of {}, in {}",
            count_text(*files, "file"),
            human_size(*bytes),
            if *directories == 1 { "1 directory".to_owned() } else { format!("{directories} directories") }
        ))?;
    }
    if *lost == 0 {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("not everything in {} could be rescued", args.dir.display()))
        .found(if *lost == 1 { "1 item is missing".to_owned() } else { format!("{lost} items are missing") })
        .hint(format!(
            "the items that could be read are in {}; take the rest from a backup",
            args.target.display()
        )))
}
