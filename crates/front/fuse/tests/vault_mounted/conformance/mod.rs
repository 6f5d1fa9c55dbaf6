//! Small checks of a file system's behaviour, by theme. Each theme runs in a mounted vault, and in
//! a plain directory of the machine, which validates the checks.

mod acls;
mod check_dir;
mod copies;
mod data;
mod deleted_files;
mod directories;
mod durability;
mod holes;
mod length;
mod links;
mod mapped;
mod mapping;
mod names;
mod nodes;
mod open_flags;
mod permissions;
mod rename;
mod rename_matrix;
mod set_ids;
mod space;
mod symlinks;
mod times;
mod xattrs;

pub(crate) use mapping::MemoryMap;

use crate::fixture::{VaultFixture, lacking_root, open_directory, skip_if};
use check_dir::CheckDir;
use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// One check: it gets an empty directory and panics if the file system misbehaves.
struct ConformanceCheck {
    name: &'static str,
    run: fn(&CheckDir),
}

/// Lists the checks of a theme with their names.
macro_rules! checks {
    ($($check:ident),* $(,)?) => {
        &[$($crate::conformance::ConformanceCheck { name: stringify!($check), run: $check }),*]
    };
}

use checks;

macro_rules! themes {
    ($($theme:ident),* $(,)?) => {
        mod plain {
            $(#[test] fn $theme() { super::in_plain_directory(super::$theme::CHECKS); })*
        }
        mod vault {
            $(#[test] fn $theme() { super::in_vault(super::$theme::CHECKS); })*
        }
    };
}

themes![
    acls,
    copies,
    data,
    directories,
    durability,
    holes,
    length,
    links,
    mapped,
    names,
    nodes,
    open_flags,
    permissions,
    deleted_files,
    rename,
    rename_matrix,
    set_ids,
    space,
    symlinks,
    times,
    xattrs,
];

fn in_plain_directory(checks: &[ConformanceCheck]) {
    skip_if!(lacking_root());
    let dir = open_directory();
    let failed = run_all(checks, dir.path(), false);
    assert!(failed.is_empty(), "{} of {} checks failed:\n{}", failed.len(), checks.len(), failed.join("\n"));
}

fn in_vault(checks: &[ConformanceCheck]) {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let failed = run_all(checks, &place.mountpoint(), true);
    assert!(failed.is_empty(), "{} of {} checks failed:\n{}", failed.len(), checks.len(), failed.join("\n"));
    place.unmount_and_verify(server);
}

/// Runs each check in a directory of its own; returns the failed checks with their panic messages.
fn run_all(checks: &[ConformanceCheck], base: &Path, vault: bool) -> Vec<String> {
    let failures = checks.iter().filter_map(|check| {
        let at = CheckDir { dir: base.join(check.name), vault };
        fs::create_dir(&at.dir).unwrap();
        let failed = catch_unwind(AssertUnwindSafe(|| (check.run)(&at))).err()?;
        Some(format!("  {}: {}", check.name, words(failed.as_ref())))
    });
    failures.collect()
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
