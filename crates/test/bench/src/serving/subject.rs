//! The measured subjects: a server program with a disk of its own, ours or a peer's.

use crate::program;
use crate::workspace::Workspace;
use lacuna_contracts::{BLOCK_SIZE, Error, Result};
use lacuna_deniable::{Params, StripeGeometry};
use lacuna_oblivious::Plan;
use std::fs::File;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::process::Command;

const LUKS_ATTEMPTS: u32 = 20;
const DEEP_KEY: &str = "deep.key";
/// The cheapest key derivation that `lacuna create` accepts.
pub(crate) const LEAST_KDF: [&str; 4] = ["--kdf-memory", "128K", "--kdf-passes", "1"];
/// The default spare factor of `lacuna create`, in thousandths.
pub(crate) const SPARE_PERMILLE: u16 = 200;

/// A server and the kind of disk behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// `lacuna serve`.
    Lacuna {
        /// `--cipher`.
        cipher: &'static str,
    },
    /// `lacuna serve` of a deniable disk.
    Levels(DeniableShape),
    /// `lacuna serve` of an oblivious disk with levels of the size of the written data.
    Oblivious(ObliviousVariant),
    /// `nbdkit file`, no encryption.
    NbdkitFile,
    /// `nbdkit file` below the luks filter.
    NbdkitLuks,
    /// `qemu-nbd` with its LUKS driver.
    QemuLuks,
}

/// The shapes of deniable disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeniableShape {
    /// Level 0 has the size of the written data.
    Full,
    /// As `Full`, for random writes.
    Worn,
    /// Level 0 has twice the size of the written data.
    Half,
    /// As `Full`, in the paper's geometry.
    Paper,
    /// As `Half`, with a hidden level open.
    Hidden,
    /// The medium has the size, and level 0 is smaller; the disk is not filled.
    Sparse,
}

/// The variants of oblivious disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ObliviousVariant {
    /// HIVE-B.
    Opportunistic,
    /// HIVE-B, with its hidden level measured.
    Hidden,
    /// HIVE: reads write as well.
    Plausible,
}

impl ObliviousVariant {
    /// Bytes of the smallest medium with levels that hold `size` bytes.
    fn medium(self, size: u64) -> u64 {
        least_medium(size, |medium| {
            lacuna_oblivious::Params::plan(medium, Plan::DEFAULT).is_ok_and(|params| {
                // A hidden level may be shorter by a sixteenth.
                let hidden = params.max_blocks(1) / 16 * 15;
                let blocks =
                    if self == ObliviousVariant::Hidden { params.blocks.min(hidden) } else { params.blocks };
                blocks >= size / BLOCK_SIZE as u64
            })
        })
    }
}

/// The least whole number of MiB, at least `size`, that fits.
fn least_medium(size: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let step = 1 << 20;
    let mut medium = size.next_multiple_of(step);
    while !fits(medium) {
        medium += step;
    }
    medium
}

impl DeniableShape {
    /// Bytes of the smallest medium with levels that hold `size` bytes, or twice that for half full
    /// levels; `size` itself for a sparse one.
    fn medium(self, size: u64) -> u64 {
        if self == DeniableShape::Sparse {
            return size;
        }
        let geometry =
            if self == DeniableShape::Paper { StripeGeometry::PAPER } else { StripeGeometry::DEFAULT };
        let half = matches!(self, DeniableShape::Half | DeniableShape::Hidden);
        let wanted = if half { 2 * size } else { size } / BLOCK_SIZE as u64;
        least_medium(size, |medium| {
            // A hidden level is shorter than the maximum by up to a sixteenth.
            let holds = |params: Params| match self {
                DeniableShape::Hidden => params.max_blocks(1) * 15 / 16,
                _ => params.blocks,
            };
            Params::plan(medium, geometry, SPARE_PERMILLE, 0).is_ok_and(|params| holds(params) >= wanted)
        })
    }
}

/// The address-tweaked baseline.
pub(crate) const XTS: Subject = Subject::Lacuna { cipher: "xts" };

/// A measured subject with a name for tables.
pub(crate) trait Named: Copy + Eq + Hash {
    /// The name for display.
    fn name(self) -> String;
}

impl Named for Subject {
    fn name(self) -> String {
        Subject::name(self)
    }
}

impl Subject {
    pub(crate) fn name(self) -> String {
        match self {
            Subject::Lacuna { cipher } => format!("lacuna {cipher}"),
            Subject::Levels(shape) => format!("levels {shape:?}").to_lowercase(),
            Subject::Oblivious(ObliviousVariant::Opportunistic) => "oblivious".into(),
            Subject::Oblivious(variant) => format!("oblivious {variant:?}").to_lowercase(),
            Subject::NbdkitFile => "nbdkit file".into(),
            Subject::NbdkitLuks => "nbdkit luks".into(),
            Subject::QemuLuks => "qemu-nbd LUKS".into(),
        }
    }

    /// The reason that it cannot be measured here, if any.
    pub(crate) fn unavailable_reason(self) -> Option<String> {
        let needs: &[(&str, &[&str])] = match self {
            Subject::Lacuna { .. } | Subject::Levels(_) | Subject::Oblivious(_) => &[],
            Subject::NbdkitFile => &[("nbdkit", &["file", "--version"])],
            Subject::NbdkitLuks => {
                &[("nbdkit", &["--filter=luks", "file", "--version"]), ("qemu-img", &["--version"])]
            }
            Subject::QemuLuks => &[("qemu-nbd", &["--version"]), ("qemu-img", &["--version"])],
        };
        let absent = needs.iter().find(|(name, args)| !program::is_runnable(name, args))?;
        Some(format!("{} is skipped: `{} {}` does not run", self.name(), absent.0, absent.1.join(" ")))
    }

    /// The file of its disk.
    pub(crate) fn disk(self, work: &Workspace) -> PathBuf {
        work.path(&format!("{}.disk", self.name().replace(' ', "-")))
    }

    /// Creates the disk, of `size` bytes.
    pub(crate) fn create(self, work: &Workspace, size: u64) -> Result<()> {
        let disk = self.disk(work);
        match self {
            Subject::Lacuna { cipher } => self.create_ours(work, size, &["--cipher", cipher]),
            Subject::Levels(shape) => {
                let geometry: &[&str] =
                    if shape == DeniableShape::Paper { &["--geometry", "paper"] } else { &[] };
                self.create_ours(work, shape.medium(size), &[&["--format", "deniable"], geometry].concat())
            }
            Subject::Oblivious(variant) => {
                let plausible = variant == ObliviousVariant::Plausible;
                let hiding: &[&str] = if plausible { &["--hiding", "plausible"] } else { &[] };
                self.create_ours(work, variant.medium(size), &[&["--format", "oblivious"], hiding].concat())
            }
            Subject::NbdkitFile => File::create(&disk)
                .and_then(|file| file.set_len(size))
                .map_err(|e| Error::io("cannot make a disk for nbdkit", &e)),
            Subject::NbdkitLuks | Subject::QemuLuks => luks(work, &disk, size),
        }
    }

    /// Creates a lacuna disk on a medium of `medium` bytes. Only a hidden level has paced cover,
    /// because cover would be measured.
    fn create_ours(self, work: &Workspace, medium: u64, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&work.lacuna);
        command.args(["--quiet", "create", "--size", &medium.to_string()]).args(words).args(LEAST_KDF);
        command.arg("--key-file").arg(work.key_file());
        if self.has_hidden_level() {
            let deep = work.path(DEEP_KEY);
            std::fs::write(&deep, "deep").map_err(|e| Error::io("cannot write a key file", &e))?;
            command.args(["--cover", "1000", "--levels", "2", "--key-file"]).arg(deep);
        } else if !matches!(self, Subject::Lacuna { .. }) {
            command.args(["--cover", "0"]);
        }
        program::output(command.arg(self.disk(work))).map(drop)
    }

    /// Writable bytes of a disk that was created with `size`.
    pub(crate) fn served_bytes(self, size: u64) -> Result<u64> {
        match self {
            Subject::Levels(DeniableShape::Sparse) => {
                let params = Params::plan(size, StripeGeometry::DEFAULT, SPARE_PERMILLE, 0)?;
                Ok(params.blocks * BLOCK_SIZE as u64)
            }
            _ => Ok(size),
        }
    }

    /// Whether its hidden level is measured.
    pub(crate) fn has_hidden_level(self) -> bool {
        matches!(self, Subject::Levels(DeniableShape::Hidden) | Subject::Oblivious(ObliviousVariant::Hidden))
    }

    /// The command that serves the disk on `socket`.
    pub(crate) fn serve(self, work: &Workspace, socket: &Path) -> Result<Command> {
        let disk = self.disk(work);
        let mut command = match self {
            Subject::Lacuna { .. } | Subject::Levels(_) | Subject::Oblivious(_) => Command::new(&work.lacuna),
            Subject::NbdkitFile | Subject::NbdkitLuks => Command::new("nbdkit"),
            Subject::QemuLuks => Command::new("qemu-nbd"),
        };
        match self {
            Subject::Lacuna { .. } | Subject::Levels(_) | Subject::Oblivious(_) => {
                command.args(["--quiet", "serve"]).arg(&disk).arg("--socket").arg(socket);
                let key = if self.has_hidden_level() { work.path(DEEP_KEY) } else { work.key_file() };
                command.arg("--key-file").arg(key).args(work.alone()?);
            }
            Subject::NbdkitFile => {
                command.args(["-f", "-U"]).arg(socket).arg("file").arg(&disk);
            }
            Subject::NbdkitLuks => {
                command.args(["-f", "-U"]).arg(socket).args(["--filter=luks", "file"]).arg(&disk);
                command.arg(format!("passphrase=+{}", work.key_file().display()));
            }
            Subject::QemuLuks => {
                command.args(["-t", "-e", "8", "-k"]).arg(socket);
                command.args([
                    "--cache=writeback",
                    "--aio=threads",
                    "--image-opts",
                    "--object",
                    &work.secret(),
                ]);
                let file = disk.display();
                command.arg(format!("driver=luks,key-secret=key,file.driver=file,file.filename={file}"));
            }
        }
        Ok(command)
    }
}

/// Creates a LUKS disk: a copy of a common image, because creating an image takes seconds.
fn luks(work: &Workspace, disk: &Path, size: u64) -> Result<()> {
    let image = work.path("luks.image");
    if !image.exists() {
        let make = || {
            let mut command = Command::new("qemu-img");
            command.args(["create", "-q", "-f", "luks", "--object", &work.secret()]);
            command.args(["-o", "key-secret=key,iter-time=10"]).arg(&image).arg(size.to_string());
            program::output(&mut command).map(drop)
        };
        // qemu-img times its key derivation, and sometimes gives up because the clock of the
        // process is too coarse.
        (1..LUKS_ATTEMPTS).find_map(|_| make().ok()).map_or_else(make, Ok)?;
    }
    let copied = std::fs::copy(&image, disk);
    copied.map(drop).map_err(|e| Error::io("cannot copy a LUKS image", &e))
}
