//! `header backup|check|restore|repair`: questions and messages around the operations of
//! [`lacuna_storage::header`].

use crate::args::{
    ExpectArgs, HeaderBackupArgs, HeaderCheckArgs, HeaderRepairArgs, HeaderRestoreArgs, PassphraseArgs,
    PassphraseSource, cost,
};
use crate::terminal::console::{self, Console};
use crate::terminal::descriptor;
use crate::terminal::passphrase;
use crate::verbs::remote_ops;
use crate::verbs::unlock::{explain_busy, explain_busy_uuid};
use lacuna_daemon::set_path;
use lacuna_storage::format::Description;
use lacuna_storage::header::{self, HeaderBackup, RestoreOverrides};
use lacuna_storage::{DiskRef, Error, Kind, LeasedHeader, Location, PublicHeader, Result, human_size};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// The name of standard input and standard output in place of a file.
const STREAM: &str = "-";

/// `lacuna header backup`.
pub(crate) fn backup(args: &HeaderBackupArgs, console: Console) -> Result<()> {
    let is_stream = args.file == Path::new(STREAM);
    if is_stream && io::stdout().is_terminal() {
        return Err(Error::new(Kind::Usage, "cannot write the backup of a header to a terminal")
            .found("`-`, which is standard output")
            .expected("a pipe, or the name of a file")
            .hint("for a file of this name write ./-"));
    }
    let backup = header::backup(&args.location, &args.cluster.options_for(&args.location)?, &console)?;
    let public = backup.public();
    let wrote = |place: &str| {
        let (location, uuid, generation) = (&args.location, public.uuid, public.generation);
        format!("wrote the header of {location} (UUID {uuid}, generation {generation}) to {place}")
    };
    let care = format!(
        "it opens with the passphrases of today, even after they are removed: keep it as safe as the {}",
        public.format.noun()
    );
    if is_stream {
        to_stdout(&backup)?;
        console.note(&wrote("standard output"));
        console.note(&care);
        return Ok(());
    }
    header::save(&backup, &args.file)?;
    console.done_lines(&[wrote(&args.file.display().to_string()).as_str(), care.as_str()])
}

/// Unlike other output, a backup that its reader did not take whole is a failure.
fn to_stdout(backup: &HeaderBackup) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(backup.bytes()).and_then(|()| out.flush());
    written.map_err(|e| Error::io("cannot write the backup to standard output", &e))
}

/// The backup in a file or on standard input, which then cannot have a passphrase, too.
fn load(file: &Path, passphrase: &PassphraseArgs) -> Result<HeaderBackup> {
    if file != Path::new(STREAM) {
        return header::load(file);
    }
    let refused = || Error::new(Kind::Usage, "cannot read a backup from standard input");
    let is_stdin = |source: &PassphraseSource| match source {
        PassphraseSource::File(path) => path == Path::new(STREAM),
        PassphraseSource::Descriptor(number) => *number == 0,
        PassphraseSource::Token(_) => false,
    };
    if passphrase.sources.iter().any(is_stdin) {
        return Err(refused()
            .found("the passphrase there, too")
            .hint("give the name of one of the two files"));
    }
    let stdin = descriptor::stdin()?;
    if stdin.is_terminal() {
        return Err(refused().found("a terminal").expected("a pipe, or the name of a file"));
    }
    header::read(stdin, "standard input")
}

/// `lacuna header check`.
///
/// Deniability contract: the output does not depend on the level that a passphrase opens.
pub(crate) fn check(args: &HeaderCheckArgs) -> Result<()> {
    let backup = load(&args.file, &args.passphrase).map_err(|e| match e.kind() {
        Kind::NotFound if args.file.exists() => {
            e.hint("if it is a disk, `lacuna doctor` examines its header, and `lacuna check` its blocks")
        }
        _ => e,
    })?;
    let is_stream = args.file == Path::new(STREAM);
    let shown = if is_stream { "standard input".to_owned() } else { args.file.display().to_string() };
    let tested = TestedBackup::of(&backup, &args.passphrase, &shown)?;
    if args.json {
        let mut out = tested.to_json();
        if is_stream {
            out["file"] = json!(shown);
        } else {
            set_path(&mut out, "file", &args.file);
        }
        return console::json(&out);
    }
    let mut rows = vec![("backup", format!("{shown}, whole"))];
    rows.extend(tested.rows());
    console::table(rows)
}

/// A description of a file with a whole backup of this header, which is at no other place.
pub(crate) fn describe_backup(header: &PublicHeader) -> String {
    let noun = header.format.noun();
    format!("a backup of the header of a {noun}, whole; the {noun} itself is elsewhere")
}

/// A whole backup, which was opened if a passphrase was given.
pub(crate) struct TestedBackup<'b> {
    header: &'b PublicHeader,
    disk: Description,
    /// The ID of the disk, if a passphrase opened the backup.
    id: Option<String>,
}

impl<'b> TestedBackup<'b> {
    /// Tests a backup, which is called `shown` in errors and questions.
    pub(crate) fn of(backup: &'b HeaderBackup, passphrase: &PassphraseArgs, shown: &str) -> Result<Self> {
        let naming = |e: Error| e.context(shown);
        let parameters = header::parameters(backup).map_err(naming)?;
        let header = backup.public();
        let mut id = None;
        if passphrase.is_given() {
            let open = |given: &[lacuna_storage::Passphrase]| backup.open(given).map_err(naming);
            let (unlocked, _) = passphrase::open_header(passphrase, shown, header, &open)?;
            id = Some(unlocked.id().to_string());
        }
        Ok(TestedBackup { header, disk: parameters.describe(), id })
    }

    /// A description of a file with the backup.
    pub(crate) fn description(&self) -> String {
        describe_backup(self.header)
    }

    /// The size of the disk in bytes; a vault has none.
    fn size(&self) -> Option<u64> {
        (self.disk.size > 0).then_some(self.disk.size)
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let opened = self.id.is_some();
        json!({ "header": self.header, "id": self.id, "size": self.size(), "opened": opened })
    }

    /// For display.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        let (header, id) = (self.header, self.id.clone());
        let version = self.disk.version.map_or_else(String::new, |version| format!(" version {version}"));
        let tried = match id {
            Some(_) => "each of those given opens it",
            None => "none was tried: with one, the backup is opened",
        };
        let mut rows = vec![
            ("UUID", header.uuid.to_string()),
            ("ID", id.unwrap_or_else(|| "shown with a passphrase".to_owned())),
            ("format", format!("{}{version}, header version {}", header.format, header.version)),
            ("generation", header.generation.to_string()),
        ];
        rows.extend(self.size().map(|size| ("size", format!("{} ({size} bytes)", human_size(size)))));
        rows.push(("passphrase cost", cost::to_text(&header.cost)));
        rows.push(("passphrases", tried.to_owned()));
        rows
    }
}

/// `lacuna header restore`.
pub(crate) fn restore(args: &HeaderRestoreArgs, console: Console) -> Result<()> {
    let backup = load(&args.file, &args.passphrase).map_err(|e| match header::backup_at(&args.location) {
        Ok(Some(swapped)) => {
            let noun = swapped.public().format.noun();
            e.hint(format!("the {noun} comes first: `lacuna header restore LOCATION BACKUP`"))
        }
        _ => e,
    })?;
    let holder = args.pool_access.access_for(&args.location)?;
    let may_lose = RestoreOverrides { older: args.older, replace: args.replace };
    let opens = format!("the backup of {}", args.location);
    header::restore(
        DiskRef { location: &args.location, pool_access: &holder },
        &backup,
        may_lose,
        &console,
        |open| passphrase::open_header(&args.passphrase, &opens, backup.public(), open),
        |words| {
            if !args.yes && !console::can_ask() {
                console.note(words);
                return Err(unasked_restore(&args.location));
            }
            console.confirm(words, args.yes)
        },
    )
    .map_err(|e| explain_busy_uuid(&args.location, backup.public().uuid, e, console))?;
    let generation = backup.public().generation;
    console.done(&format!("restored the header of {} (generation {generation})", args.location))
}

fn unasked_restore(location: &Location) -> Error {
    Error::new(Kind::Usage, format!("cannot restore the header of {location}"))
        .found("no terminal to ask whether to go on")
        .hint("to go on, give --yes")
}

/// `lacuna header repair`.
pub(crate) fn repair(args: &HeaderRepairArgs, console: Console) -> Result<()> {
    let location = &args.location;
    let shown = location.to_string();
    let ask = |disk: &PublicHeader, open: lacuna_storage::HeaderOpener<'_>| {
        passphrase::open_header(&args.passphrase, &shown, disk, open)
    };
    match remote_ops::header(location, &args.pool_access, ExpectArgs { expect: None })? {
        Some(medium) => header::repair_leased(&LeasedHeader { location, medium }, &console, ask)?,
        None => header::repair(
            DiskRef { location, pool_access: &args.pool_access.access_for(location)? },
            &console,
            ask,
        )
        .map_err(|e| explain_busy(location, e, console))?,
    }
    console.done(&format!("rewrote all copies of the header of {location}"))
}
