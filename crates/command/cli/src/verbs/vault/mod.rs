//! `vault init|check|accept|stat`: questions and messages around the operations of
//! [`lacuna_storage::vault`].

pub(crate) mod disk_verbs;
pub(crate) mod rescue;

use crate::args::cost;
use crate::args::size::budget;
use crate::args::{VaultAcceptArgs, VaultCheckArgs, VaultInitArgs, VaultStatArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::passphrase;
use crate::terminal::progress;
use crate::verbs::file_identity::file_at;
use crate::verbs::remote_ops;
use crate::verbs::unlock::{UnlockArgs, check_id};
use lacuna_daemon::{ControlOp, MountRecord, Peer, Registry, set_path};
use lacuna_storage::vault::{
    self, BadFile, CheckReport, NewVault, OpenVault, OpenVaultOptions, RollbackPolicy, UnlockedVault,
};
use lacuna_storage::{
    Access, ClusterOptions, Error, HeaderOpener, Hint, Kind, Location, PublicHeader, Result, Setting,
    human_size, printable,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The note if the anchor of this machine has no state of the vault.
const FIRST_OPENING: &str =
    "first time on this computer: lacuna cannot tell whether this copy of the vault is the newest";

/// `lacuna vault init`.
pub(crate) fn init(args: &VaultInitArgs, console: Console) -> Result<()> {
    let dir = &args.dir;
    let new = NewVault {
        dir: dir.clone(),
        integrity: args.integrity,
        anchor: args.anchor.anchor.clone(),
        cost: cost::from_args(&args.cost)?.unwrap_or_default(),
    };
    let given = || {
        if let Some(token) = args.passphrase.tokens().next() {
            return Err(Error::new(Kind::Usage, format!("cannot make a vault in {}", dir.display()))
                .found(format!("the token {token} as its first passphrase"))
                .expected("a passphrase, which is also the recovery passphrase")
                .hint(format!("enrol the token with `lacuna key add DIR --token {token}` afterwards")));
        }
        let given = passphrase::first_passphrases(&args.passphrase, &dir.display().to_string())?;
        let [passphrase] = given.try_into().map_err(|given: Vec<_>| {
            Error::new(Kind::Usage, format!("cannot make a vault in {}", dir.display()))
                .found(format!("{} passphrases", given.len()))
                .expected("one passphrase")
                .hint("add more with `lacuna key add` afterwards")
        })?;
        Ok(passphrase)
    };
    // An existing vault is a usage error, as with `create`.
    let usage = |e: Error| if e.kind() == Kind::Exists { e.with_kind(Kind::Usage) } else { e };
    let made = vault::create(&new, &console, given).map_err(usage)?;
    let (integrity, uuid) = (args.integrity.name(), made.header.uuid);
    console.done_lines(&[
        format!("made a vault in {}, integrity {integrity}, UUID {uuid}", dir.display()),
        format!("ID {}", made.id),
        format!("its last state is remembered in {}", made.anchor.display()),
        format!("trying a passphrase costs {}", cost::to_text(&made.header.cost)),
    ])
}

/// Locks a vault and opens its header, with a passphrase from options or the terminal. Refuses a
/// vault that is not the required one.
pub(crate) fn unlock_vault(
    dir: &Path,
    access: Access,
    given: UnlockArgs<'_>,
    console: Console,
) -> Result<UnlockedVault> {
    let shown = dir.display().to_string();
    let ask = |disk: &PublicHeader, open: HeaderOpener<'_>| {
        let opened = passphrase::open_header(given.passphrase, &shown, disk, open)?;
        check_id(opened, given.expect.expect, &shown)
    };
    vault::unlock(dir, access, &console, ask).map_err(|e| {
        if e.kind() != Kind::Busy {
            return e;
        }
        match server_of(dir) {
            Ok(Some(server)) => server.busy(&shown),
            Ok(None) => e,
            Err(unseen) => e.hint(format!("cannot determine which user has it open: {}", unseen.summary())),
        }
    })
}

/// A server of this user that keeps a vault from being opened.
struct VaultServer {
    mountpoint: PathBuf,
    process: u32,
    /// Whether the open directory is another one: a copy of this vault, or its original.
    has_copy: bool,
}

impl VaultServer {
    /// The error for an opening of the vault in the directory `shown`.
    fn busy(&self, shown: &str) -> Error {
        let VaultServer { mountpoint, process, has_copy } = self;
        let (at, close) = (mountpoint.display(), lacuna_storage::shell_word(mountpoint));
        let busy = Error::new(Kind::Busy, format!("cannot open {shown}"));
        if *has_copy {
            busy.found(format!("a copy of it is open at {at} (process {process})"))
                .expected("a vault that is open once; a copy counts as the same vault")
                .hint(
                    Hint::from(format!("`lacuna close {close}` first, or open it with "))
                        .setting(Setting("read_only")),
                )
        } else {
            busy.found(format!("it is open at {at} (process {process})"))
                .hint(format!("use it there, or `lacuna close {close}` first"))
        }
    }
}

/// This user's server of a vault or of a copy of it. Errors: a server that cannot be inspected.
fn server_of(dir: &Path) -> Result<Option<VaultServer>> {
    let location = Location::Path(dir.to_owned());
    let (file, mut peers) = (file_at(&location), mounted_vaults()?);
    let same = peers.iter().position(|peer| file.is_same(peer.record.file));
    let writer = remote_ops::writer_process(&location, &ClusterOptions::default());
    let copy = || peers.iter().position(|peer| writer == Some(peer.record.pid));
    let Some(at) = same.or_else(copy) else { return Ok(None) };
    let peer = peers.swap_remove(at);
    let (process, has_copy) = (peer.record.pid, same.is_none());
    let server =
        |mount: &MountRecord| VaultServer { mountpoint: mount.mountpoint.clone(), process, has_copy };
    Ok(peer.mount().map(server))
}

/// The vaults that this user has mounted. Errors: a server that cannot be inspected.
fn mounted_vaults() -> Result<Vec<Peer>> {
    let mut peers = Registry::open(None)?.all()?;
    peers.retain(|peer| peer.alive && peer.mount().is_some_and(MountRecord::is_vault));
    Ok(peers)
}

/// Prints notes on a vault that was just opened.
pub(crate) fn notes(open: &OpenVault, read_only: bool) {
    if open.is_first_opening() {
        // A read-only opening stores no state in the anchor.
        let later = if read_only { "" } else { "; from now on it can" };
        // `--quiet` does not hide this note: a vault that was rolled back before would pass for
        // new.
        console::print_always(&format!("note: {FIRST_OPENING}{later}"));
    }
}

/// `lacuna vault check`.
pub(crate) fn check(args: &VaultCheckArgs, console: Console) -> Result<()> {
    let budget = budget(args.cache)?;
    // A read-only check creates no new state, which might conflict with a state of another machine.
    let access = if args.repair { Access::Write } else { Access::Read };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let key = unlock_vault(&args.dir, access, given, console)?;
    let opening = OpenVaultOptions {
        read_only: !args.repair,
        budget,
        anchor: args.anchor.anchor.clone(),
        ..OpenVaultOptions::default()
    };
    let opening_it = format!("opening {}", args.dir.display());
    let open = progress::show(console, &opening_it, |_| key.open(opening));
    let open = open?;
    notes(&open, !args.repair);
    let bar = console.progress(0, "{per_sec} files");
    let report = open.vault().check(&mut |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let repaired = report.and_then(|report| {
        // Even if the report has no missing copy: a check reads no third copies.
        let pages = if args.repair { open.vault().repair()? } else { 0 };
        Ok((report, pages))
    });
    let closed = open.close();
    console::combine(repaired.and_then(|(report, pages)| verdict(args, &report, pages)), closed)
}

/// Prints the result of a check, after which `repaired` pages were rewritten. Errors:
/// [`Kind::Corrupt`] with advice.
fn verdict(args: &VaultCheckArgs, report: &CheckReport, repaired: u64) -> Result<()> {
    if args.json {
        console::json(&check_json(&args.dir, report, repaired))?;
    } else {
        report.bad.iter().try_for_each(|bad| console::line(&bad_file_text(bad)))?;
        if !report.lists_all() {
            console::line("and more, which are only counted")?;
        }
        console::line(&format!(
            "{} and {} verified, {} bad",
            count_text(report.files, "file"),
            count_text(report.blocks, "block"),
            report.bad_count
        ))?;
        copies_text(report, repaired).iter().try_for_each(|line| console::line(line))?;
    }
    if report.bad_count == 0 {
        return copies_verdict(args, report, repaired);
    }
    Err(Error::new(Kind::Corrupt, format!("{} is damaged or was altered", args.dir.display()))
        .found(format!("{} that cannot be read", count_text(report.bad_count, "place")))
        .hint("bring the named backing files back, or write these files anew; everything else can be read"))
}

/// Sentences on the copies of the namespace and the superblock.
fn copies_text(report: &CheckReport, repaired: u64) -> Vec<String> {
    let mut words = Vec::new();
    if report.single_copy_pages > 0 {
        words.push(format!(
            "{} of the namespace in one backing file alone",
            count_text(report.single_copy_pages, "page")
        ));
    }
    if report.lacks_superblock {
        words.push("one of the two superblocks does not verify".to_owned());
    }
    if repaired > 0 {
        words.push(format!("{} written anew", count_text(repaired, "page")));
    }
    words
}

/// Errors: [`Kind::Corrupt`] if everything can be read, but a copy of the superblock or of a page
/// of the namespace is missing.
fn copies_verdict(args: &VaultCheckArgs, report: &CheckReport, repaired: u64) -> Result<()> {
    let is_repaired = args.repair && repaired >= report.single_copy_pages;
    if (report.single_copy_pages == 0 && !report.lacks_superblock) || is_repaired {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, format!("{} is damaged or was altered", args.dir.display()))
        .found(copies_text(report, repaired).join(", "))
        .expected(
            "two copies of each page of the namespace and of the superblock; everything can be read from the \
             remaining copies",
        )
        .hint(format!(
            "`lacuna vault check {} --repair` writes them anew",
            lacuna_storage::shell_word(&args.dir)
        )))
}

fn check_json(dir: &Path, report: &CheckReport, repaired: u64) -> Value {
    let named = report.bad.iter().map(|BadFile { path, backing, block, blocks, reason: why, .. }| {
        let mut run = json!({ "backing": backing, "block": block, "blocks": blocks, "error": why });
        set_path(&mut run, "path", path);
        run
    });
    let mut out = json!({
        "files": report.files,
        "blocks": report.blocks,
        "bad": report.bad_count,
        "single_copies": report.single_copy_pages,
        "lacks_superblock": report.lacks_superblock,
        "repaired": repaired,
        "bad_blocks": named.collect::<Vec<_>>(),
        "bad_blocks_truncated": !report.lists_all(),
    });
    set_path(&mut out, "location", dir);
    out
}

fn bad_file_text(BadFile { path, backing, block, blocks, reason: why, .. }: &BadFile) -> String {
    let mut words = path.display().to_string();
    let _ = match block {
        Some(first) if *blocks > 1 => write!(words, ", blocks {first}-{}", first + blocks - 1),
        Some(block) => write!(words, ", block {block}"),
        None => Ok(()),
    };
    if !backing.is_empty() {
        let _ = write!(words, " (backing file {backing})");
    }
    let _ = write!(words, ": {why}");
    printable(&words).into_owned()
}

/// `lacuna vault accept`.
pub(crate) fn accept(args: &VaultAcceptArgs, console: Console) -> Result<()> {
    let (dir, shown) = (&args.dir, args.dir.display());
    let refused =
        |what: &str| Error::new(Kind::Usage, format!("cannot accept the state of {shown}")).found(what);
    if !args.yes && !console::can_ask() {
        return Err(refused("no terminal to ask whether to go on").hint("to go on, give --yes"));
    }
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let key = unlock_vault(dir, Access::Write, given, console)?;
    let opening = OpenVaultOptions { anchor: args.anchor.anchor.clone(), ..OpenVaultOptions::default() };
    let looking = OpenVaultOptions { read_only: true, ..opening.clone() };
    match key.open(looking).map(|open| (open.is_first_opening(), open.close())) {
        Ok((first, closed)) => {
            closed?;
            let why = if first { "this machine remembers no other" } else { "this machine remembers it" };
            return console
                .done(&format!("nothing to accept: the state of {shown} is as it should be; {why}"));
        }
        // A damaged journal leaves the state before the damage, which can be accepted too.
        Err(e) if matches!(e.kind(), Kind::RolledBack | Kind::Corrupt) => {}
        Err(e) => return Err(e),
    }
    let declined = Arc::new(OnceLock::new());
    let accept = Some(consent(args.yes, console, Arc::clone(&declined)));
    let open = key.open(OpenVaultOptions { accept, ..opening });
    // An answer of no is no failure to open the vault.
    let open = open.map_err(|e| declined.get().cloned().unwrap_or(e))?;
    let accepted = open.vault().opening_report().accepted;
    open.close()?;
    if !accepted {
        return console.done(&format!(
            "nothing was accepted: another state of {shown} is there by now, and it is as it should be"
        ));
    }
    console.done(&format!("accepted the state of {shown}; `lacuna open` will take it"))
}

/// Shows the state that was read, and asks. Exactly this state is accepted, even if the vault has
/// another one by then. `declined` gets the error of an answer other than yes.
fn consent(yes: bool, console: Console, declined: Arc<OnceLock<Error>>) -> RollbackPolicy {
    RollbackPolicy::ask(move |refusal| {
        let console = if yes { console } else { console.before_question() };
        console.note_error(&refusal.hint("go on only if this is the state that you want"));
        let about = "accepting it makes this state the newest one: data written to the vault in states outside its \
            history is gone";
        console.confirm(about, yes).inspect_err(|e| {
            let _first = declined.set(e.clone());
        })
    })
}

/// `lacuna vault stat`.
pub(crate) fn stat(args: &VaultStatArgs, console: Console) -> Result<()> {
    let shown = args.file.display();
    let failed = |e: &std::io::Error| Error::io(format!("cannot look at {shown}"), e);
    let about = std::fs::metadata(&args.file).map_err(|e| failed(&e))?;
    let (mountpoint, peer) = mount_of(about.dev())?.ok_or_else(|| {
        Error::new(Kind::NotFound, format!("cannot tell how {shown} is protected"))
            .found("a file that is in no vault which this user has open")
            .expected("a path below the mount point of a vault")
    })?;
    if about.is_file() {
        // Sync, so that data not yet written back is counted. The kernel reports a write-back error
        // only once, so it is returned.
        match std::fs::File::open(&args.file) {
            Ok(file) => file.sync_all().map_err(|e| Error::io(format!("cannot sync {shown}"), &e))?,
            // A user without read permission may still ask how the file is protected.
            Err(e) => {
                let why = format!("cannot open {shown}: {e}");
                console.note(&format!("the last writes may not be counted: {why}"));
            }
        }
    }
    let found = with_paths(peer.ask(&ControlOp::Stat { ino: about.ino() })?, &args.file, &mountpoint)?;
    if args.json { console::json(&found) } else { console::table(stat_rows(&found)) }
}

/// Adds the paths to a server's answer. Errors: an answer that does not describe a file.
fn with_paths(mut found: Value, file: &Path, mountpoint: &Path) -> Result<Value> {
    if !found.is_object() {
        return Err(Error::new(Kind::Other, format!("cannot tell how {} is protected", file.display()))
            .found("an answer of the server that makes no sense")
            .hint("close the vault and open it again with this version"));
    }
    set_path(&mut found, "path", file);
    set_path(&mut found, "mountpoint", mountpoint);
    Ok(found)
}

/// The vault that is mounted as this device.
fn mount_of(device: u64) -> Result<Option<(PathBuf, Peer)>> {
    let is_it = |at: &Path| std::fs::metadata(at).is_ok_and(|top| top.dev() == device);
    let mut mounted =
        mounted_vaults()?.into_iter().filter_map(|peer| Some((peer.mount()?.mountpoint.clone(), peer)));
    Ok(mounted.find(|(mountpoint, _)| is_it(mountpoint)))
}

fn stat_rows(found: &Value) -> [(&'static str, String); 7] {
    let number = |field: &str| found[field].as_u64().unwrap_or(0);
    let text = |field: &str| found[field].as_str().unwrap_or("none yet").to_owned();
    [
        ("file", text("path")),
        ("scheme", format!("{} (asked for: {})", text("scheme"), text("integrity"))),
        ("blocks", blocks_text(found)),
        ("trusted", human_size(number("trusted_bytes"))),
        ("untrusted", format!("{} beside the blocks", human_size(number("untrusted_bytes")))),
        ("counters", count_text(number("intervals"), "interval")),
        ("backing file", text("backing")),
    ]
}

/// The number of blocks, and the number of those that look random or do not compress, if the server
/// counts or estimates them.
fn blocks_text(found: &Value) -> String {
    let blocks = found["blocks"].as_u64().unwrap_or(0);
    let Some(counted) = found["random_looking"].as_u64().filter(|_| blocks > 0) else {
        return blocks.to_string();
    };
    let share = counted as f64 / blocks as f64 * 100.0;
    match found["scheme"].as_str() {
        Some("comp") => format!("{blocks}, {counted} of them incompressible ({share:.1}%)"),
        Some("mt") => {
            format!("{blocks}, about {counted} of them random-looking ({share:.1}%), by samples")
        }
        _ => format!("{blocks}, {counted} of them random-looking ({share:.1}%)"),
    }
}

/// A count with its noun.
pub(crate) fn count_text(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The log of a running vault's findings: the log of its server.
pub(crate) fn log(say: &lacuna_mount::ServerLog) -> vault::VaultLog {
    let say = Arc::clone(say);
    Arc::new(move |line: &str| say(&Error::new(Kind::Corrupt, line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn blocks_are_described_as_the_scheme_counts_them() {
        let text = |scheme: &str, random: Value| {
            blocks_text(&json!({ "scheme": scheme, "blocks": 8, "random_looking": random }))
        };
        assert_eq!(text("mt", Value::Null), "8");
        assert_eq!(text("mt", json!(6)), "8, about 6 of them random-looking (75.0%), by samples");
        assert_eq!(text("rand", json!(0)), "8, 0 of them random-looking (0.0%)");
        assert_eq!(text("comp", json!(2)), "8, 2 of them incompressible (25.0%)");
        assert_eq!(blocks_text(&json!({ "scheme": "rand", "blocks": 0, "random_looking": 0 })), "0");
    }

    #[test]
    fn a_path_in_a_vault_that_is_no_text_comes_with_its_bytes() {
        let (path, backing, reason) =
            (OsStr::from_bytes(b"/caf\xe9").to_owned(), String::new(), String::new());
        let bad = BadFile { path, backing, block: Some(1), blocks: 1, kind: Kind::Corrupt, reason };
        let report = CheckReport { bad: vec![bad], bad_count: 1, ..CheckReport::default() };
        let json = check_json(Path::new("v"), &report, 0);
        let run = &json["bad_blocks"][0];
        assert_eq!((&run["path"], &run["path_bytes"]), (&json!("/caf\u{fffd}"), &json!("2f636166e9")));
    }

    #[test]
    fn a_malformed_answer_is_an_error() {
        let of = |found: Value| with_paths(found, Path::new("/mnt/file"), Path::new("/mnt"));
        let answer = of(json!({ "blocks": 7 })).unwrap();
        assert_eq!(answer, json!({ "blocks": 7, "path": "/mnt/file", "mountpoint": "/mnt" }));
        for nonsense in [json!(7), json!("blocks"), json!([]), json!(true), Value::Null] {
            assert_eq!(of(nonsense.clone()).unwrap_err().kind(), Kind::Other, "{nonsense}");
        }
    }
}
