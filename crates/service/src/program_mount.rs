//! A file system that a program serves from the file of a disk through FUSE: fuse2fs or lklfuse. The program is a child of the
//! server. What it had not written when it ended is on the disk only after it has ended well.

use crate::tool::{self, Talking};
use crate::unmount::{busy_or_failed, unmount_gently, unmount_lazily};
use crate::way::Way;
use crate::{mount_table, shell_word};
use lacuna_core::{Advice, Error, Kind, Result, Setting};
use parking_lot::{Condvar, Mutex};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the mount is there.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a program may go on after its mount is gone before it is looked where else it is mounted.
const LONG: Duration = Duration::from_secs(10);
/// Exit codes of e2fsck, which are bits: errors were repaired; errors were left; these, or something could not be done at all.
const REPAIRED: i32 = 1;
const LEFT: i32 = 4;
const LEFT_OR_FAILED: i32 = !3;
/// How often e2fsck is run before it is left to a person.
const REPAIRS: u32 = 5;

/// What to mount, and how.
pub(crate) struct ProgramRequest<'r> {
    /// Which program.
    pub way: Way,
    /// The file of the disk.
    pub file: &'r Path,
    /// Type of the file system on it.
    pub kind: &'r str,
    /// Where to mount it, canonical.
    pub mountpoint: &'r Path,
    /// More options.
    pub options: Option<&'r str>,
    /// Whether nothing may be written.
    pub read_only: bool,
}

/// The mount and its program. Dropping it unmounts if nobody uses it.
pub(crate) struct ProgramMount {
    way: Way,
    file: PathBuf,
    mountpoint: PathBuf,
    life: Arc<Life>,
}

/// How the program ended, once it has.
#[derive(Default)]
struct Life {
    ending: Mutex<Option<Ending>>,
    changed: Condvar,
}

/// How a program ended.
#[derive(Clone)]
struct Ending {
    /// Whether it says that all went well. Some say so of what they refuse to begin, too.
    well: bool,
    /// Its last words.
    words: String,
}

impl Life {
    fn end(&self, ending: Ending) {
        *self.ending.lock() = Some(ending);
        self.changed.notify_all();
    }

    /// Waits at most so long for the end.
    fn wait(&self, limit: Duration) -> Option<Ending> {
        let mut ending = self.ending.lock();
        if ending.is_none() {
            self.changed.wait_for(&mut ending, limit);
        }
        ending.clone()
    }
}

impl ProgramMount {
    /// Starts the program and waits until it has mounted. Calls `ended` when it ends, from a thread of its own.
    pub(crate) fn start(request: &ProgramRequest<'_>, ended: impl FnOnce() + Send + 'static) -> Result<Self> {
        let program = request.way.name();
        let talking = tool::start_talking(program, &words(request))?;
        let life = Arc::new(Life::default());
        let told = Arc::clone(&life);
        let wait = move |talking: Talking| {
            let finished = talking.finish();
            told.end(match finished {
                Ok(finished) => Ending { well: finished.success(), words: finished.words() },
                Err(words) => Ending { well: false, words },
            });
            ended();
        };
        std::thread::Builder::new()
            .name(format!("lacuna-{program}"))
            .spawn(move || wait(talking))
            .map_err(|e| Error::io(format!("cannot wait for {program}"), &e))?;
        let (file, mountpoint) = (request.file.to_owned(), request.mountpoint.to_owned());
        let mount = ProgramMount { way: request.way, file, mountpoint, life };
        loop {
            let ending = mount.life.wait(LOOK_AGAIN);
            match ending {
                Some(Ending { words: said, .. }) => {
                    let kind = if tool::denied(&said) { Kind::Permission } else { Kind::Other };
                    return Err(Error::new(kind, format!("cannot mount with {program}")).found(said));
                }
                None if mount.is_listed()? => return Ok(mount),
                None => {}
            }
        }
    }

    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// Whether it is mounted, and nothing over it.
    pub(crate) fn is_on_top(&self) -> Result<bool> {
        Ok(mount_table::at(&self.mountpoint)?.is_some_and(|top| top.is_served_from(&self.file)))
    }

    fn is_listed(&self) -> Result<bool> {
        let entries = mount_table::entries()?;
        Ok(entries.iter().any(|e| e.mountpoint == self.mountpoint && e.is_served_from(&self.file)))
    }

    /// How the program ended; `None` while it runs. Errors: it ended before it had written everything.
    pub(crate) fn ended(&self) -> Option<Result<()>> {
        let ending = self.life.ending.lock().clone()?;
        Some(if ending.well { Ok(()) } else { Err(self.failed(&ending.words)) })
    }

    fn failed(&self, words: &str) -> Error {
        let program = self.way.name();
        Error::new(Kind::Io, format!("{program} failed, which served {}", self.mountpoint.display()))
            .found(words)
            .expected("it to run until it is unmounted")
            .remedy(format!(
                "open it again after `lacuna close {}`, which repairs the file system; what was written last and not fsynced may \
                 be lost",
                shell_word(&self.mountpoint)
            ))
    }

    /// Unmounts, unless someone did already or someone uses it ([`Kind::Busy`]), and waits until the program has written
    /// everything. Calls `detached` as soon as nobody can use it any more.
    pub(crate) fn unmount(&self, detached: impl Fn()) -> Result<()> {
        if self.is_listed()? {
            if !self.is_on_top()? {
                return Err(Error::new(Kind::Busy, format!("cannot unmount {}", self.mountpoint.display()))
                    .found("another file system mounted over it")
                    .remedy("unmount that one first"));
            }
            if self.ended().is_some() {
                unmount_lazily(&self.mountpoint, || self.is_listed())?;
            } else {
                let finished = unmount_gently(&self.mountpoint)?;
                if self.is_listed()? {
                    return Err(busy_or_failed(&self.mountpoint, &finished));
                }
            }
        }
        detached();
        while self.life.wait(LONG).is_none() {
            if let Some(process) = mounted_elsewhere(&self.file) {
                let what = format!("cannot close {}", self.mountpoint.display());
                return Err(Error::new(Kind::Busy, what)
                    .found(format!(
                        "unmounted here, but still mounted in the mount namespace of process {process}"
                    ))
                    .remedy("unmount it there; the server then ends by itself"));
            }
        }
        Ok(())
    }
}

impl Drop for ProgramMount {
    fn drop(&mut self) {
        if self.life.ending.lock().is_none() {
            let _ = self.unmount(|| {});
        }
    }
}

/// The arguments of the program.
fn words(request: &ProgramRequest<'_>) -> Vec<OsString> {
    let given = request.options.into_iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty());
    let mut options: Vec<String> = request.read_only.then(|| "ro".to_owned()).into_iter().collect();
    if request.way == Way::Lklfuse {
        options.push(format!("type={}", request.kind));
        options.push(format!("fsname={}", request.file.display()));
        let given: Vec<&str> = given.collect();
        if !given.is_empty() {
            options.push(format!("opts={}", given.join("\\,").replace('=', "\\=")));
        }
    } else {
        // The kernel's ext4 has other names for one thing.
        let known = |option: &str| if option == "noload" { "norecovery" } else { option }.to_owned();
        options.extend(given.map(known));
    }
    let mut words: Vec<OsString> = vec![request.file.into(), request.mountpoint.into(), "-f".into()];
    if !options.is_empty() {
        words.extend(["-o".into(), options.join(",").into()]);
    }
    words
}

/// Repairs what a crash left of an ext2, ext3 or ext4 in `file`: replays its journal, and makes its maps of free space and its
/// directories right. fuse2fs writes no journal itself, so this is what makes a crash harmless.
///
/// Only what e2fsck repairs without asking is repaired. It gives up at one thing after it has repaired another, and goes on from there
/// when it runs again. Errors: where more is wrong than that.
pub(crate) fn repair(file: &Path) -> Result<()> {
    let what = "cannot check the file system";
    let mut said = String::new();
    for _ in 0..REPAIRS {
        let finished =
            tool::run("e2fsck", &[OsStr::new("-p"), file.as_os_str()]).map_err(|e| e.context(what))?;
        match finished.code {
            Some(code) if code & LEFT_OR_FAILED == 0 => return Ok(()),
            _ => said = if finished.stderr.is_empty() { finished.stdout } else { finished.stderr },
        }
        if finished.code != Some(LEFT) && finished.code != Some(LEFT | REPAIRED) {
            break;
        }
    }
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let advice = Advice::from("open it with ").setting(Setting::Raw);
    Err(Error::new(Kind::Other, what)
        .found(format!("e2fsck: {}", said.join(" / ")))
        .expected("errors that it repairs without asking")
        .remedy(advice.text(", and run `e2fsck MOUNTPOINT/disk`, which asks before each repair")))
}

/// A process in whose mount namespace the file system that rests on `file` is mounted, as far as this user may look.
fn mounted_elsewhere(file: &Path) -> Option<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|pid| {
        let entries = mount_table::entries_of(&pid.to_string()).unwrap_or_default();
        entries.iter().any(|entry| entry.is_served_from(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(way: Way, options: Option<&str>, read_only: bool) -> String {
        let request = ProgramRequest {
            way,
            file: Path::new("/run/x/disk"),
            kind: "ext4",
            mountpoint: Path::new("/mnt/a b"),
            options,
            read_only,
        };
        let words = words(&request);
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        words.join("|")
    }

    #[test]
    fn programs_are_told_in_their_own_words() {
        assert_eq!(told(Way::Fuse2fs, None, false), "/run/x/disk|/mnt/a b|-f");
        let read = "/run/x/disk|/mnt/a b|-f|-o|ro,norecovery,noatime";
        assert_eq!(told(Way::Fuse2fs, Some("noload,noatime"), true), read);
        let lkl = r"/run/x/disk|/mnt/a b|-f|-o|ro,type=ext4,fsname=/run/x/disk,opts=noload\,commit\=9";
        assert_eq!(told(Way::Lklfuse, Some("noload,commit=9"), true), lkl);
    }
}
