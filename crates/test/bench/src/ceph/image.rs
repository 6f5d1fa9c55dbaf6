//! The subjects on Ceph: a server program with an image of its own in the pool, ours or librbd's.

use crate::ceph::cluster::{BenchCluster, POOL};
use crate::program;
use crate::serving::subject::{LEAST_KDF, Named};
use crate::workspace::Workspace;
use lacuna_contracts::Result;
use std::path::Path;
use std::process::Command;

/// A server and the kind of image behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CephImage {
    /// `lacuna serve`.
    Lacuna {
        /// `--cipher`.
        cipher: &'static str,
        /// `--layout`, for ciphers with metadata.
        layout: Option<&'static str>,
    },
    /// `qemu-nbd` with librbd's own LUKS2 encryption.
    RbdLuks,
}

impl Named for CephImage {
    fn name(self) -> String {
        CephImage::name(self)
    }
}

impl CephImage {
    pub(crate) fn name(self) -> String {
        match self {
            CephImage::Lacuna { cipher, layout: None } => format!("lacuna {cipher}"),
            CephImage::Lacuna { cipher, layout: Some(layout) } => format!("lacuna {cipher} {layout}"),
            CephImage::RbdLuks => "librbd LUKS2".into(),
        }
    }

    /// The name without the program, for display.
    pub(crate) fn short(self) -> String {
        self.name().trim_start_matches("lacuna ").to_owned()
    }

    /// The reason that it cannot be measured here, if any.
    pub(crate) fn unavailable_reason(self) -> Option<String> {
        let driver = || program::output(Command::new("qemu-img").args(["create", "-f", "rbd", "-o", "help"]));
        let absent = match self {
            CephImage::Lacuna { .. } => false,
            CephImage::RbdLuks => {
                !program::is_runnable("qemu-nbd", &["--version"])
                    || !driver().is_ok_and(|text| text.contains("encrypt.format"))
            }
        };
        absent.then(|| format!("{} is skipped: qemu-nbd has no rbd driver that encrypts", self.name()))
    }

    /// Its name in the pool, distinct from those of other runs.
    fn pool_name(self) -> String {
        format!("bench-{}-{}", std::process::id(), self.name().replace(' ', "-"))
    }

    fn location(self) -> String {
        format!("rados:{POOL}/{}", self.pool_name())
    }

    /// Creates the image, of `size` bytes.
    pub(crate) fn create(self, work: &Workspace, cluster: &BenchCluster, size: u64) -> Result<()> {
        let mut command = match self {
            CephImage::Lacuna { cipher, layout } => {
                let mut command = Command::new(&work.lacuna);
                command.args(["--quiet", "create", &self.location(), "--size", &size.to_string()]);
                command.args(["--cipher", cipher]).args(LEAST_KDF);
                command.args(layout.iter().flat_map(|layout| ["--layout", layout]));
                command.arg("--key-file").arg(work.key_file()).arg("--ceph-conf").arg(&cluster.conf);
                command
            }
            CephImage::RbdLuks => {
                let mut command = Command::new("qemu-img");
                command.args(["create", "-q", "-f", "rbd", "--object", &work.secret()]);
                command.args(["-o", "encrypt.format=luks2,encrypt.key-secret=key"]);
                command.arg(format!("rbd:{POOL}/{}:conf={}", self.pool_name(), cluster.conf.display()));
                command.arg(size.to_string());
                command
            }
        };
        program::output(&mut command).map(drop)
    }

    /// The command that serves the image on `socket`.
    pub(crate) fn serve(self, work: &Workspace, cluster: &BenchCluster, socket: &Path) -> Result<Command> {
        Ok(match self {
            CephImage::Lacuna { .. } => {
                let mut command = Command::new(&work.lacuna);
                command.args(["serve", &self.location(), "--socket"]).arg(socket);
                command.arg("--key-file").arg(work.key_file()).arg("--ceph-conf").arg(&cluster.conf);
                command.args(work.alone()?);
                command
            }
            CephImage::RbdLuks => {
                let mut command = Command::new("qemu-nbd");
                command.args(["-t", "-e", "8", "--cache=writeback", "-k"]).arg(socket);
                command.args(["--object", &work.secret(), "--image-opts"]);
                command.arg(format!(
                    "driver=rbd,pool={POOL},image={},conf={},encrypt.format=luks2,encrypt.key-secret=key",
                    self.pool_name(),
                    cluster.conf.display()
                ));
                command
            }
        })
    }

    /// Removes the image.
    pub(crate) fn remove(self, work: &Workspace, cluster: &BenchCluster) -> Result<()> {
        let mut command = match self {
            CephImage::Lacuna { .. } => {
                let mut command = Command::new(&work.lacuna);
                command.args(["--quiet", "delete", "--yes", "--steal", &self.location()]);
                command.arg("--ceph-conf").arg(&cluster.conf);
                command
            }
            CephImage::RbdLuks => {
                let mut command = Command::new("rbd");
                command.arg("--conf").arg(&cluster.conf).args(["--no-progress", "rm"]);
                command.arg(format!("{POOL}/{}", self.pool_name()));
                command
            }
        };
        program::output(&mut command).map(drop)
    }
}
