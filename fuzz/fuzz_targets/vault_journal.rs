//! A store whose superblock and journal somebody with the keys made up.
#![no_main]

use lacuna_medium::Folder;
use lacuna_sim::CrashFolder;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|input: &[u8]| {
    let folder: Arc<dyn Folder> = Arc::new(CrashFolder::new());
    lacuna_vault_store::fuzz_journal(input, &folder);
});
