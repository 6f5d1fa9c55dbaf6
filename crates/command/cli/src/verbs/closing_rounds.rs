//! The order in which disks and vaults are closed that keep each other busy: the file of one lies
//! in the mount of another, or a mount lies below another.

use crate::verbs::open_instances::{OpenInstances, OpenMount};
use lacuna_storage::Location;
use std::path::Path;

/// The open disks and vaults in parts, in the order of closing: a disk or vault that keeps a mount
/// busy is in an earlier part than that mount. Otherwise mounts come before served disks, since a
/// mount may be made from a served disk. Within a part the order stays.
///
/// Deniability contract: all levels of a disk are in one part, in which the cover of the closing
/// starts.
pub(crate) fn of(open: OpenInstances) -> Vec<OpenInstances> {
    let parts = rounds(open.mounts, open.served, |peer| &peer.record.location);
    parts.into_iter().map(|(mounts, served)| OpenInstances { mounts, served }).collect()
}

/// [`of`] for served disks of a type of which `location` gives the location.
fn rounds<S>(
    mut mounts: Vec<OpenMount>,
    mut served: Vec<S>,
    location: impl Fn(&S) -> &str,
) -> Vec<(Vec<OpenMount>, Vec<S>)> {
    let mut rounds = Vec::new();
    while !mounts.is_empty() {
        let is_busy = |mount: &&OpenMount| {
            mounts.iter().any(|other| keeps_busy(other, mount))
                || served.iter().any(|one| lies_in(location(one), mount))
        };
        let busy: Vec<OpenMount> = mounts.iter().filter(is_busy).cloned().collect();
        let (later, now): (Vec<_>, Vec<_>) =
            mounts.into_iter().partition(|mount| busy.iter().any(|other| is_same_disk(mount, other)));
        if !now.is_empty() {
            rounds.push((now, Vec::new()));
            mounts = later;
            continue;
        }
        let (inside, beside): (Vec<_>, Vec<_>) =
            served.into_iter().partition(|one| later.iter().any(|mount| lies_in(location(one), mount)));
        served = beside;
        if inside.is_empty() {
            // Mounts alone keep each other busy: closing them reports that.
            rounds.push((later, inside));
            break;
        }
        rounds.push((Vec::new(), inside));
        mounts = later;
    }
    rounds.push((Vec::new(), served));
    rounds
}

/// Whether the first mount keeps the second one, which is of another disk, busy.
fn keeps_busy(inner: &OpenMount, outer: &OpenMount) -> bool {
    let is_below = || inner.mountpoint.starts_with(&outer.mountpoint);
    let has_file_there = || inner.location.as_deref().is_some_and(|location| lies_in(location, outer));
    !is_same_disk(inner, outer) && (is_below() || has_file_there())
}

/// Whether the file of a disk or the directory of a vault lies in the mount.
fn lies_in(location: &str, mount: &OpenMount) -> bool {
    let lies = |path: &Path| path.starts_with(&mount.mountpoint);
    Location::parse(location).is_ok_and(|location| location.path().is_some_and(lies))
}

/// Whether these are levels of one disk, or lie over each other.
fn is_same_disk(one: &OpenMount, other: &OpenMount) -> bool {
    one.mountpoint == other.mountpoint || one.location.is_some() && one.location == other.location
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds of mounts, each a mount point and a location, and of served disks by location:
    /// the mount points and locations of each round.
    fn rounds_of(mounts: &[(&str, &str)], served: &[&'static str]) -> Vec<Vec<String>> {
        let mount = |(at, location): &(&str, &str)| {
            let (mountpoint, location) = (at.into(), (!location.is_empty()).then(|| (*location).to_owned()));
            OpenMount { mountpoint, location, is_vault: false, peer: None }
        };
        let rounds = rounds(mounts.iter().map(mount).collect(), served.to_vec(), |location| location);
        let words = |(mounts, served): (Vec<OpenMount>, Vec<&str>)| {
            let at = mounts.into_iter().map(|mount| mount.mountpoint.display().to_string());
            at.chain(served.into_iter().map(str::to_owned)).collect::<Vec<_>>()
        };
        rounds.into_iter().map(words).filter(|round| !round.is_empty()).collect()
    }

    #[test]
    fn what_lies_in_a_mount_is_closed_before_it() {
        // A served disk keeps a mount busy, another may be what a mount is made from.
        let served = ["/m/d.img", "/d.img"];
        assert_eq!(rounds_of(&[("/m", "/o.img")], &served), [["/m/d.img"], ["/m"], ["/d.img"]]);
        // A vault in a hidden level, with the level of the same disk that it does not lie in.
        let hidden = [("/b", "/disk"), ("/a", "/disk"), ("/c", "/b/v")];
        assert_eq!(rounds_of(&hidden, &[]), [&["/c"][..], &["/b", "/a"]]);
        // A chip, and a chain of three.
        assert_eq!(rounds_of(&[("/m", "/o.img"), ("/n", "nand:/m/chip")], &[]), [["/n"], ["/m"]]);
        let chain = [("/1", "/x"), ("/2", "/1/y"), ("/3", "/2/z")];
        assert_eq!(rounds_of(&chain, &["/3/s"]), [["/3/s"], ["/3"], ["/2"], ["/1"]]);
    }

    #[test]
    fn a_mount_below_another_is_closed_before_it() {
        assert_eq!(
            rounds_of(&[("/a", "/x"), ("/a/b", "/y"), ("/c", "")], &[]),
            [&["/a/b", "/c"][..], &["/a"]]
        );
        // The levels of one disk: their numbers give the order.
        assert_eq!(rounds_of(&[("/a", "/x"), ("/a/b", "/x")], &[]), [["/a", "/a/b"]]);
        // Its file keeps no mount below busy that is named like it.
        assert_eq!(rounds_of(&[("/a", "/x"), ("/b", "/ax")], &[]), [["/a", "/b"]]);
    }

    #[test]
    fn the_order_is_kept_otherwise() {
        assert_eq!(rounds_of(&[("/b", "/y"), ("/a", "/x")], &["/s", "/r"]), [["/b", "/a"], ["/s", "/r"]]);
        // A vault over its own directory; two disks over each other.
        assert_eq!(rounds_of(&[("/v", "/v")], &[]), [["/v"]]);
        assert_eq!(rounds_of(&[("/a", "/x"), ("/a", "/y")], &[]), [["/a", "/a"]]);
        assert_eq!(rounds_of(&[("/a", "rados:pool/x")], &["rados:pool/y"]), [["/a"], ["rados:pool/y"]]);
        // Mounts that keep each other busy, as they say, are tried all the same.
        assert_eq!(rounds_of(&[("/a", "/b/x"), ("/b", "/a/y")], &["/s"]), [&["/a", "/b"][..], &["/s"]]);
        assert!(rounds_of(&[], &[]).is_empty());
    }
}
