//! An NBD client that sends requests: the server answers or disconnects.
#![no_main]

use lacuna_contracts::ByteDisk;
use lacuna_fuzz::{nbd_client, ram_disk::RamDisk};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

const BLOCKS: usize = 64;

fuzz_target!(|input: &[u8]| {
    let disk = ByteDisk::new(Arc::new(RamDisk::new(BLOCKS)));
    let len = disk.len();
    lacuna_nbd::serve_replayed(&nbd_client::requests(input, len), disk);
});
