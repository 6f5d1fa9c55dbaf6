//! Repairs an ext2, ext3 or ext4 file system after a crash, before fuse2fs serves it, which replays
//! no journal.

use crate::command;
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use std::ffi::OsStr;
use std::path::Path;

/// Exit code bits of e2fsck: errors were repaired; errors were left; any bit that means neither
/// success nor repair.
const REPAIRED: i32 = 1;
const ERRORS_LEFT: i32 = 4;
const ERRORS_LEFT_OR_FAILED: i32 = !3;
/// How often e2fsck is run before the repair is left to the user.
const REPAIRS: u32 = 5;

/// Repairs an ext2, ext3 or ext4 file system in `file` after a crash: replays its journal and
/// corrects its free-space maps and directories. fuse2fs writes no journal itself, so this makes a
/// crash harmless.
///
/// Makes only repairs that e2fsck makes without asking. After one repair e2fsck may stop at the
/// next problem and continue when it runs again. Errors: problems that need more than that.
pub(crate) fn repair(file: &Path) -> Result<()> {
    let what = "cannot check the file system";
    let mut said = String::new();
    for _ in 0..REPAIRS {
        let finished =
            command::run("e2fsck", &[OsStr::new("-p"), file.as_os_str()]).map_err(|e| e.context(what))?;
        match finished.code {
            Some(code) if code & ERRORS_LEFT_OR_FAILED == 0 => return Ok(()),
            _ => said = if finished.stderr.is_empty() { finished.stdout } else { finished.stderr },
        }
        if finished.code != Some(ERRORS_LEFT) && finished.code != Some(ERRORS_LEFT | REPAIRED) {
            break;
        }
    }
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let advice = Hint::from("open it with ").setting(Setting("raw"));
    Err(Error::new(Kind::Other, what)
        .found(format!("e2fsck: {}", said.join(" / ")))
        .expected("errors that it repairs without asking")
        .hint(advice.text(", and run `e2fsck MOUNTPOINT/disk`, which asks before each repair")))
}
