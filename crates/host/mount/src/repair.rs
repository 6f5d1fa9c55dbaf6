//! The repair of an ext2, ext3 or ext4 after a crash, before a program serves it that replays no
//! journal.

use crate::tool;
use lacuna_contracts::{Advice, Error, Kind, Result, Setting};
use std::ffi::OsStr;
use std::path::Path;

/// Exit codes of e2fsck, which are bits: errors were repaired; errors were left; these, or
/// something could not be done at all.
const REPAIRED: i32 = 1;
const LEFT: i32 = 4;
const LEFT_OR_FAILED: i32 = !3;
/// How often e2fsck is run before it is left to a person.
const REPAIRS: u32 = 5;

/// Repairs what a crash left of an ext2, ext3 or ext4 in `file`: replays its journal, and makes its
/// maps of free space and its directories right. fuse2fs writes no journal itself, so this is what
/// makes a crash harmless.
///
/// Only what e2fsck repairs without asking is repaired. It gives up at one thing after it has
/// repaired another, and goes on from there when it runs again. Errors: where more is wrong than
/// that.
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
    let advice = Advice::from("open it with ").setting(Setting("raw"));
    Err(Error::new(Kind::Other, what)
        .found(format!("e2fsck: {}", said.join(" / ")))
        .expected("errors that it repairs without asking")
        .remedy(advice.text(", and run `e2fsck MOUNTPOINT/disk`, which asks before each repair")))
}
