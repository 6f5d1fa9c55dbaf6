//! A vault with one file, for measurements of the schemes.

use crate::vaults::file::failed;
use lacuna_contracts::{Error, Result, Secret};
use lacuna_crypto::SystemRandom;
use lacuna_integrity::Choice;
use lacuna_medium::{Access, DiskFolder};
use lacuna_vault::store::MemoryAnchor;
use lacuna_vault::{NewNode, ROOT, SystemWallClock, Vault, VaultBacking, VaultOpenOptions, VaultOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const UUID: [u8; 16] = [0x12; 16];
const MASTER: [u8; 32] = [0x21; 32];
/// The file in the vault.
pub(crate) const FILE: &str = "file";

/// The directory of a vault for a measurement, and its anchor.
pub(crate) struct BenchVault {
    dir: PathBuf,
    folder: Arc<DiskFolder>,
    anchor: Arc<MemoryAnchor>,
    random: Arc<SystemRandom>,
}

impl BenchVault {
    /// Creates a directory with a vault in it that has an empty file.
    pub(crate) fn make(dir: &Path, choice: Choice) -> Result<BenchVault> {
        let made = std::fs::create_dir(dir);
        made.map_err(|e| Error::io(format!("cannot make {}", dir.display()), &e))?;
        let bench_vault = BenchVault {
            dir: dir.to_owned(),
            folder: Arc::new(DiskFolder::open(dir, Access::Write)?),
            anchor: Arc::new(MemoryAnchor::default()),
            random: Arc::new(SystemRandom::new()?),
        };
        let options = VaultOptions { choice, open: options(), ..VaultOptions::default() };
        let vault = Vault::create(bench_vault.base(), &Secret::copy_from(&MASTER), UUID, &options)?;
        vault.create_node(ROOT, FILE.as_bytes(), NewNode::File, 0o644, 0, 0).map_err(failed)?;
        vault.close()?;
        Ok(bench_vault)
    }

    /// Opens the vault.
    pub(crate) fn open(&self) -> Result<Vault> {
        Vault::open(self.base(), &Secret::copy_from(&MASTER), UUID, &options())
    }

    /// Removes the directory. The vault must be closed.
    pub(crate) fn remove(self) -> Result<()> {
        let gone = std::fs::remove_dir_all(&self.dir);
        gone.map_err(|e| Error::io(format!("cannot remove {}", self.dir.display()), &e))
    }

    fn base(&self) -> VaultBacking {
        VaultBacking {
            folder: self.folder.clone(),
            anchor: self.anchor.clone(),
            random: self.random.clone(),
            clock: Arc::new(SystemWallClock),
        }
    }
}

/// Options without periodic commits: only syncs of a measurement commit.
fn options() -> VaultOpenOptions {
    VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() }
}
