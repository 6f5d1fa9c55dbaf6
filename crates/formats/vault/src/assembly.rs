//! Assembles the parts of an open vault on its store, namespace and settings.

use crate::commits::group_commit::GroupCommit;
use crate::content::file_contents::FileContents;
use crate::content::open_files::OpenFiles;
use crate::names::directories::Directories;
use crate::names::entries::NameHash;
use crate::names::tree::Tree;
use crate::namespace::Namespace;
use crate::nodes::inodes::Inodes;
use crate::nodes::open_handles::OpenHandles;
use crate::options::VaultOpenOptions;
use crate::services::Services;
use crate::settings::Settings;
use crate::space_budget::SpaceBudget;
use crate::startup::VaultBacking;
use lacuna_contracts::{FailStop, Secret};
use lacuna_vault_store::Store;
use parking_lot::Mutex;
use std::sync::Arc;

/// The store, the namespace and the settings of a vault.
pub(crate) struct Storage {
    pub(crate) store: Arc<Store>,
    pub(crate) namespace: Namespace,
    pub(crate) settings: Settings,
}

/// The parts of a vault that use its storage.
pub(crate) struct VaultParts {
    pub(crate) contents: Arc<FileContents>,
    pub(crate) handles: Arc<OpenHandles>,
    pub(crate) tree: Tree,
    pub(crate) commits: Arc<GroupCommit>,
}

impl Storage {
    /// Makes the other parts.
    pub(crate) fn assemble(
        self,
        base: VaultBacking,
        master: &Secret<32>,
        uuid: [u8; 16],
        options: &VaultOpenOptions,
    ) -> VaultParts {
        let Storage { store, namespace, settings } = self;
        let namespace = Arc::new(namespace);
        let services = Arc::new(Services {
            clock: base.clock,
            log: options.log.clone(),
            read_only: options.read_only,
            health: FailStop::of_vault(),
        });
        let inodes = Inodes::new(namespace.clone(), settings.next_inode, options.budget.share(1, 8));
        let inodes = Arc::new(inodes);
        let space = Arc::new(SpaceBudget::new(store.clone(), namespace.clone(), inodes.clone()));
        let files = OpenFiles::new(master.clone(), settings.choice, options.budget);
        let contents = FileContents::new(
            services.clone(),
            store,
            namespace.clone(),
            inodes.clone(),
            space.clone(),
            files,
        );
        let contents = Arc::new(contents);
        let handles = Arc::new(OpenHandles::new(namespace.clone(), inodes.clone(), contents.clone()));
        let tree = Tree {
            services,
            inodes,
            namespace: namespace.clone(),
            directories: Directories::new(namespace, NameHash::new(master, &uuid)),
            handles: handles.clone(),
            change_lock: Mutex::new(()),
        };
        let commits = Arc::new(GroupCommit::new(contents.clone(), space));
        VaultParts { contents, handles, tree, commits }
    }
}
