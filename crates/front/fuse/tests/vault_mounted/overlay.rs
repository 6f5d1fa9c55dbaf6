//! A vault as the upper layer of an overlay file system, which container programs use.

use crate::fixture::VaultFixture;
use crate::machine::{run, skipped};
use crate::serving::MountMode;
use rustix::fs::FileType;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directories of an overlay in a test's place.
struct Layers {
    lower: PathBuf,
    upper: PathBuf,
    work: PathBuf,
    merged: PathBuf,
}

impl Layers {
    /// Makes the directories. The upper layer is in the mounted vault.
    fn new(place: &VaultFixture) -> Self {
        let layers = Layers {
            lower: place.dir().join("lower"),
            upper: place.mountpoint().join("upper"),
            work: place.mountpoint().join("work"),
            merged: place.dir().join("merged"),
        };
        for dir in [&layers.lower, &layers.upper, &layers.work, &layers.merged] {
            fs::create_dir(dir).unwrap();
        }
        layers
    }

    fn mount(&self) {
        let Layers { lower, upper, work, merged } = self;
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(merged));
    }

    fn unmount(&self) {
        VaultFixture::umount(&self.merged);
    }

    /// Whether this machine mounts overlays of directories alone.
    fn are_mounted_here(&self, other: &Path) -> bool {
        let options = format!("lowerdir={}:{}", self.lower.display(), other.display());
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&self.merged);
        let mounted = mount.stderr(Stdio::null()).status().unwrap().success();
        if mounted {
            self.unmount();
        }
        mounted
    }
}

/// The overlay shows the changes that [`overlay_keeps_its_changes_in_a_vault`] makes.
#[track_caller]
fn assert_changed(merged: &Path) {
    let read = |name: &str| fs::read_to_string(merged.join(name));
    let names = fs::read_dir(merged).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names, ["changed", "directory", "elsewhere", "new"]);
    assert_eq!(read("changed").unwrap(), "changed anew");
    assert_eq!(read("elsewhere").unwrap(), "moved");
    assert_eq!(read("new").unwrap(), "new");
    assert_eq!(fs::read_dir(merged.join("directory")).unwrap().count(), 0);
}

#[test]
fn overlay_keeps_its_changes_in_a_vault() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let layers = Layers::new(&place);
    if !layers.are_mounted_here(&place.backing()) {
        place.unmount(server);
        return skipped("overlays are not mounted here");
    }
    let Layers { lower, upper, merged, .. } = &layers;
    for name in ["changed", "removed", "moved"] {
        fs::write(lower.join(name), name).unwrap();
    }
    fs::create_dir(lower.join("directory")).unwrap();
    fs::write(lower.join("directory/file"), b"hidden").unwrap();

    layers.mount();
    fs::write(merged.join("changed"), "changed anew").unwrap();
    fs::write(merged.join("new"), "new").unwrap();
    fs::remove_file(merged.join("removed")).unwrap();
    fs::rename(merged.join("moved"), merged.join("elsewhere")).unwrap();
    // The new directory hides the old one.
    fs::remove_dir_all(merged.join("directory")).unwrap();
    fs::create_dir(merged.join("directory")).unwrap();
    assert_changed(merged);
    layers.unmount();
    for name in ["removed", "moved"] {
        let whiteout = rustix::fs::lstat(upper.join(name)).unwrap();
        let kind = FileType::from_raw_mode(whiteout.st_mode);
        assert_eq!((kind, whiteout.st_rdev), (FileType::CharacterDevice, 0), "{name}");
    }
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    layers.mount();
    assert_changed(merged);
    layers.unmount();
    place.unmount_and_verify(server);
}
