//! The part of `doctor` that checks the medium of a disk or vault: the location, the copies of the
//! header, the length, the files, and the free space of the host.

use crate::terminal::option_names;
use crate::verbs::doctor::report::DoctorReport;
use crate::verbs::header::describe_backup;
use lacuna_storage::header::{self, HeaderBackup, backup_at};
use lacuna_storage::vault::{self, HEADER_FILE, is_vault, lacks_header};
use lacuna_storage::{
    ClusterOptions, CopyRemedy, CopyReport, CopyState, Error, Examination, HEADER_AREA, Kind, Location,
    PublicHeader, Result, examine, human_size, shell_word,
};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, statvfs};
use rustix::process::geteuid;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Free space of a file system that is too little for normal operation.
const LITTLE: u64 = 64 << 20;

/// Runs the checks. Returns the header if one of its copies is intact.
pub(crate) fn check(
    location: &Location,
    cluster: &ClusterOptions,
    findings: &mut DoctorReport,
) -> Option<PublicHeader> {
    if let Some(path) = location.path() {
        if !check_location(path, findings) {
            return None;
        }
        if !check_permissions(path, findings) {
            return None;
        }
    }
    match backup_at(location) {
        Ok(None) => {}
        Ok(Some(backup)) => {
            check_backup(&backup, location, findings);
            // A disk with this UUID may be open: it is not this file.
            return None;
        }
        Err(e) => {
            findings.failed("header", &e);
            return None;
        }
    }
    let examined = match examine(location, cluster) {
        Ok(examined) => examined,
        Err(e) => {
            findings.failed("medium", &e);
            return None;
        }
    };
    // A truncated medium lacks the last copy of its header, which cannot be repaired before the
    // medium has its full length.
    check_length(&examined, location, findings);
    check_header_copies(&examined, location, findings);
    if let Some(path) = location.path() {
        check_space(path, &examined, findings);
        if path.is_dir() {
            check_vault_files(path, findings);
        }
    }
    examined.header.header
}

/// Checks the path. `false` if no further check is possible.
fn check_location(path: &Path, findings: &mut DoctorReport) -> bool {
    let shown = path.display();
    let kind = match fs::metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            findings.problem(
                "location",
                Kind::NotFound,
                format!("{shown} is a symbolic link to a missing file"),
                "attach or mount the device that holds it, or correct the link",
            );
            return false;
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            findings.problem(
                "location",
                Kind::NotFound,
                format!("{shown} does not exist"),
                "check the path, and that the file system or device that holds it is there",
            );
            return false;
        }
        Err(e) => {
            let kind = if e.kind() == ErrorKind::PermissionDenied { Kind::Permission } else { Kind::Io };
            findings.problem(
                "location",
                kind,
                format!("{shown} cannot be examined ({e})"),
                "check the directories on the way to it",
            );
            return false;
        }
    };
    if kind.is_dir() && !is_vault(path) {
        let (found, remedy) = if lacks_header(path) {
            (
                "has the files of a vault, and its header, the file lacuna.vault, is missing",
                "`lacuna header restore` brings it back from a backup; without one the vault is lost",
            )
        } else {
            ("is a directory and no vault", "check the path")
        };
        findings.problem("location", Kind::NotFound, format!("{shown} {found}"), remedy);
        return false;
    }
    let what = if kind.is_dir() {
        "the directory of a vault"
    } else if kind.is_file() {
        "a file"
    } else if kind.is_block_device() {
        "a block device"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        findings.problem(
            "location",
            Kind::Usage,
            format!("{shown} is neither a file nor a block device"),
            "check the path",
        );
        return false;
    };
    findings.fine("location", format!("{shown}, {what}"));
    true
}

/// Checks the permissions of this user. `false` if the user may not read it.
fn check_permissions(path: &Path, findings: &mut DoctorReport) -> bool {
    let may = |access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let read_only = statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    if !may(Access::READ_OK) {
        findings.problem("permissions", Kind::Permission, "this user may not read it", permit(path, "u+rw"));
        return false;
    }
    if may(Access::WRITE_OK) {
        findings.fine("permissions", "this user may read and write it");
    } else if read_only {
        findings.note(
            "permissions",
            "the file system that holds it is mounted read-only",
            "open it with --read-only, or mount that file system for writing",
        );
    } else {
        findings.note(
            "permissions",
            "this user may read it and not write it",
            format!("open it with --read-only, or {}", permit(path, "u+w")),
        );
    }
    true
}

/// Advice to get these permissions.
fn permit(path: &Path, mode: &str) -> String {
    let is_owner = fs::metadata(path).is_ok_and(|meta| meta.uid() == geteuid().as_raw());
    if is_owner {
        format!("`chmod {mode} {}`", shell_word(path))
    } else {
        "use sudo, or ask its owner for access".to_owned()
    }
}

/// Describes a file that is no disk, but a whole backup of the header of one.
fn check_backup(backup: &HeaderBackup, location: &Location, findings: &mut DoctorReport) {
    let parameters = match header::parameters(backup) {
        Ok(parameters) => parameters,
        Err(e) => return findings.failed("parameters", &e),
    };
    let (public, size) = (backup.public(), parameters.describe().size);
    let (named, noun) = (shell_word(location.to_string()), public.format.noun());
    let size = if size > 0 { format!("{}, ", human_size(size)) } else { String::new() };
    findings.note(
        "header",
        format!("{}; {size}{}", describe_backup(public), about(public)),
        format!(
            "`lacuna header check {named}` tests it, `lacuna header restore LOCATION {named}` takes it; if the {noun} \
             itself was here, restore that from a backup"
        ),
    );
}

fn about(public: &PublicHeader) -> String {
    format!(
        "format {}, header version {}, generation {}, UUID {}",
        public.format, public.version, public.generation, public.uuid
    )
}

fn check_header_copies(examined: &Examination, location: &Location, findings: &mut DoctorReport) {
    let header = &examined.header;
    if let Err(e) = &examined.foreign {
        findings.failed("medium", e);
    }
    let Some(public) = &header.header else { return no_copy(examined, location, findings) };
    let whole = header.copies.iter().filter(|copy| copy.state == CopyState::Whole).count();
    let all = header.copies.len();
    let about = about(public);
    if whole == all {
        findings.fine("header", format!("all {all} copies are whole and equal; {about}"));
        return;
    }
    let written_over = examined.written_over();
    if let Some(former) = examined.former_copy.filter(|_| whole + 1 == all && written_over.is_none()) {
        let place = format!("the last one is at byte {former}, where the medium ended before it grew");
        findings.note("header", format!("{whole} of {all} copies are in their place; {place}; {about}"), "");
        return;
    }
    let bad = header.copies.iter().filter(|copy| copy.state != CopyState::Whole).map(copy_text);
    let found = format!(
        "{whole} of {all} copies {} whole; {}; {about}",
        if whole == 1 { "is" } else { "are" },
        bad.collect::<Vec<_>>().join("; ")
    );
    if let Some(e) = written_over {
        let remedy =
            e.get_hint().map_or_else(String::new, |advice| advice.render_with(option_names::full_name));
        findings.problem("header", Kind::Corrupt, format!("{}; {found}", e.summary()), remedy);
        return;
    }
    let mut remedy =
        format!("`lacuna header repair {}` rewrites all copies", shell_word(location.to_string()));
    if examined.copy_remedy() == CopyRemedy::Lengthen {
        remedy.push_str(", once the medium is as long as it was");
    }
    findings.problem("header", Kind::Corrupt, found, remedy);
}

/// Adds the finding for a medium without a whole copy.
fn no_copy(examined: &Examination, location: &Location, findings: &mut DoctorReport) {
    let header = &examined.header;
    if let Some(dir) = location.path().filter(|path| path.is_dir()) {
        return no_copy_of_vault(examined, dir, findings);
    }
    if let (false, Ok(Some(foreign))) = (header.has_header(), &examined.foreign) {
        let found = format!("{foreign}, and no lacuna disk");
        return findings.problem("header", Kind::NotFound, found, foreign.advice().to_string());
    }
    if header.has_header() && examined.len < HEADER_AREA {
        let found = format!(
            "{location} was cut short, to {} bytes: every disk has more than {HEADER_AREA}",
            examined.len
        );
        return findings.problem("header", Kind::Corrupt, found, "restore it whole from a backup");
    }
    let found: Vec<String> = header.copies.iter().map(copy_text).collect();
    let (kind, remedy) = if header.has_header() {
        let newer = header.copies.iter().any(|copy| matches!(copy.state, CopyState::UnknownVersion(_)));
        let remedy = if newer {
            "use a newer lacuna"
        } else {
            "`lacuna header restore` brings it back from a backup; without one the disk is lost"
        };
        (if newer { Kind::Other } else { Kind::Corrupt }, remedy)
    } else {
        (
            Kind::NotFound,
            "check that it is the right place; if a disk was there and something wrote over it, `lacuna header restore` brings its header back from a backup",
        )
    };
    findings.problem("header", kind, format!("no whole copy: {}", found.join("; ")), remedy);
}

/// Adds the finding for a vault without a whole copy of its header, which has a file of its own.
fn no_copy_of_vault(examined: &Examination, dir: &Path, findings: &mut DoctorReport) {
    let header = &examined.header;
    let found = match &examined.foreign {
        Ok(Some(foreign)) if !header.has_header() => {
            format!("{foreign} in the file {HEADER_FILE}, and no header of a vault")
        }
        _ => {
            let copies = header.copies.iter().map(copy_text).collect::<Vec<_>>().join("; ");
            format!("no whole copy in the file {HEADER_FILE} of {} bytes: {copies}", examined.len)
        }
    };
    if header.copies.iter().any(|copy| matches!(copy.state, CopyState::UnknownVersion(_))) {
        return findings.problem("header", Kind::Other, found, "use a newer lacuna");
    }
    let kind = if header.has_header() { Kind::Corrupt } else { Kind::NotFound };
    let restore = format!("`lacuna header restore {} BACKUP`", shell_word(dir));
    let remedy = format!("{restore} brings it back from a backup; without one the vault is lost");
    findings.problem("header", kind, found, remedy);
}

fn copy_text(copy: &CopyReport) -> String {
    let at = copy.offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
    let state = match &copy.state {
        CopyState::Whole => "is whole".to_owned(),
        CopyState::Older => format!("is older (generation {})", copy.generation.unwrap_or(0)),
        CopyState::Differs => "differs though it has the same generation".to_owned(),
        CopyState::Missing => "is missing".to_owned(),
        CopyState::Damaged(how) => format!("is damaged ({how})"),
        CopyState::UnknownVersion(version) => format!("has the unknown version {version}"),
        CopyState::Unreadable(why) => format!("cannot be read ({why})"),
    };
    format!("{}{at} {state}", copy.copy)
}

/// Checks the length of the medium.
fn check_length(examined: &Examination, location: &Location, findings: &mut DoctorReport) {
    let parameters = match &examined.parameters {
        Some(Ok(parameters)) => parameters,
        Some(Err(e)) => return findings.failed("parameters", e),
        None => return,
    };
    if !parameters.has_data_beside_header() {
        return;
    }
    let (len, needed) = (examined.len, parameters.medium_len());
    if let Err(e) = parameters.check_length(len, location) {
        return findings.failed("length", &e);
    }
    if let Some(missing) = examined.missing_len() {
        return lost_last_place(missing, len, location, findings);
    }
    let words = lengths(len, needed);
    // A member of an array with the disk in it is longer than the disk, and not for the disk to
    // take.
    if examined.written_over().is_some() {
        findings.fine("length", words);
    } else if let Some(growth) = examined.growth() {
        grown(growth, parameters.grows_on_medium(), location, findings);
    } else if let Some(gain) = examined.gain() {
        let named = shell_word(location.to_string());
        findings.note(
            "length",
            format!("{words}; the disk can take {} more of the device", human_size(gain)),
            format!("`lacuna resize {named}` takes it"),
        );
    } else if examined.is_longer_than_needed() {
        findings.note(
            "length",
            format!("{words}: the header may be one from before the disk grew, or the file a copy of a longer device"),
            "if the disk has grown, `lacuna resize` it to the size that it had; opening it is refused where \
             that would lose data, except data right after the old end, in the same 4 MiB",
        );
    } else {
        findings.fine("length", words);
    }
}

/// Adds the finding for a medium without space for the last copy of the header, which holds the
/// disk; `missing` bytes are gone.
fn lost_last_place(missing: u64, len: u64, location: &Location, findings: &mut DoctorReport) {
    let found = format!(
        "the medium was cut short by {missing} bytes, to {len}. The disk is whole; the place of the last copy of its \
         header is gone"
    );
    let remedy = if location.is_block_device() {
        "make the device as long as it was, then `lacuna header repair` it".to_owned()
    } else {
        let named = shell_word(location.to_string());
        format!("`lacuna header repair {named}` makes the file as long as it was")
    };
    findings.problem("length", Kind::Corrupt, found, remedy);
}

/// The length of the medium and of the disk: in bytes, if they differ by less than rounded numbers
/// show.
fn lengths(len: u64, needed: u64) -> String {
    let (shown, least) = (human_size(len), human_size(needed));
    if len != needed && (shown == least || len.abs_diff(needed) < 1 << 16) {
        return format!("{len} bytes (the disk needs {needed})");
    }
    format!("{shown} (the disk needs {least})")
}

/// Notes that the medium has grown since the header was written. `follows`: the disk can grow, too.
fn grown(growth: u64, follows: bool, location: &Location, findings: &mut DoctorReport) {
    let named = shell_word(location.to_string());
    let repair = format!("`lacuna header repair {named}` writes the last copy of its header at the end");
    let (medium, remedy) = match (location.is_block_device(), follows) {
        (true, true) => ("device", format!("`lacuna resize {named}` takes it")),
        (true, false) => ("device", format!("the disk keeps its size; {repair}")),
        (false, _) => ("file", repair),
    };
    findings.note("length", format!("the {medium} is {} longer than the disk", human_size(growth)), remedy);
}

/// Checks the free space of the file system that holds a file or a vault.
fn check_space(path: &Path, examined: &Examination, findings: &mut DoctorReport) {
    if !path.is_dir() && !path.is_file() {
        return;
    }
    let found = match statvfs(path) {
        Ok(found) => found,
        Err(e) => {
            let what = format!("cannot ask for the space of {}", path.display());
            return findings.failed("space", &Error::io(what, &e.into()));
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // Whether a file that was cut short grows again is not known.
    let is_whole_file = path.is_file() && examined.missing_len().is_none();
    let may_take = examined.used.filter(|_| is_whole_file).map(|used| examined.len.saturating_sub(used));
    let words = format!("{} free on the file system that holds it", human_size(free));
    match may_take {
        Some(0) => findings.fine("space", format!("{words}; the file has all the space that it needs")),
        _ if free < LITTLE => findings.problem(
            "space",
            Kind::NoSpace,
            words,
            "free space there; on the disk, delete and trim (`fstrim`)",
        ),
        Some(more) if more > free => findings.note(
            "space",
            format!("{words}, and the file may come to take {} more", human_size(more)),
            "keep an eye on it, or make disks with --preallocate",
        ),
        _ => findings.fine("space", words),
    }
}

/// The missing files of a vault. Errors: a file that cannot be examined.
fn missing_files(dir: &Path) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for file in vault::FILES {
        match fs::metadata(dir.join(file)) {
            Ok(about) if about.is_file() => {}
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("cannot look at {}", dir.join(file).display()), &e));
            }
            _ => missing.push(file),
        }
    }
    Ok(missing)
}

/// Checks the files of a vault, and its anchor on this machine.
fn check_vault_files(dir: &Path, findings: &mut DoctorReport) {
    match missing_files(dir) {
        Ok(missing) if missing.is_empty() => {
            findings.fine("files", "the superblocks and both journal files are there");
        }
        Ok(missing) => {
            let found = format!("missing in the directory: {}", missing.join(", "));
            let remedy = format!(
                "`lacuna vault check {} --repair` makes one of two superblocks anew; if it refuses, restore the directory from a backup, whole",
                shell_word(dir)
            );
            findings.problem("files", Kind::Corrupt, found, remedy);
        }
        Err(e) => findings.failed("files", &e),
    }
    match vault::public_info(dir, None) {
        Ok(about) => match about.anchored_state {
            Some(state) => findings.fine(
                "anchor",
                format!(
                    "this machine remembers state {}, in {}; opening compares it with the vault",
                    state.number,
                    about.anchor.display()
                ),
            ),
            None => findings.note(
                "anchor",
                format!("this machine remembers no state (it would be in {})", about.anchor.display()),
                "the next opening takes the state that is there, whether or not it is the newest",
            ),
        },
        Err(e) if e.kind() == Kind::NotFound => {}
        Err(e) => findings.failed("anchor", &e),
    }
}
