//! An NBD client that negotiates: the server answers or disconnects.
#![no_main]

use lacuna_contracts::ByteDisk;
use lacuna_fuzz::{nbd_client, ram_disk::RamDisk};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fuzz_target!(|input: &[u8]| {
    let disk = ByteDisk::new(Arc::new(RamDisk::new(4)));
    lacuna_nbd::serve_replayed(&nbd_client::options(input), disk);
});
