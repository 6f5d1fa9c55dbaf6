//! A build without the layout `kv` refuses such disks before anything is read or written.
#![cfg(not(feature = "kv-layout"))]

use lacuna_core::{Budget, Kind, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::MemoryMedium;
use lacuna_sealed::{Layout, OpenOptions, Params, Sealed};
use std::sync::Arc;

#[test]
fn the_layout_kv_is_refused() {
    let params = Params::plan(Cipher::Gcm, Layout::Kv, 1000, Some(1 << 40)).unwrap();
    let (medium, master) = (Arc::new(MemoryMedium::new(0)), Secret::copy_from(&[1; 32]));
    assert_eq!(Sealed::create(&*medium, &params, &master).unwrap_err().kind(), Kind::Usage);
    let random = Arc::new(SeededRandom::new(1));
    let budget = Budget::default();
    let options = OpenOptions { budget, read_only: true, write_through: false, background: false, random };
    let refused = Sealed::open(medium, &params, &master, &[0; 16], options).err().expect("a refusal");
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.to_string().contains("lacks the layout kv"), "{refused}");
}
