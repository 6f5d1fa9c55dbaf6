//! The journal bounds the store's memory of objects, whatever number of them was ever written.

mod store_harness;

use lacuna_sim::CrashFolder;
use lacuna_vault_store::{MemoryAnchor, PAGE, Store};
use std::sync::Arc;
use store_harness::{base, keys, options, page};

fn pages(first_stamp: u64, count: u64) -> Vec<u8> {
    (first_stamp..first_stamp + count).flat_map(page).collect()
}

/// The number of objects with entries in the store's table.
fn known(store: &Store) -> u64 {
    let status = store.status();
    status.items.iter().find(|item| item.name == "objects_changed").unwrap().value
}

/// Appended pages are written in place, so no checkpoint involves the object: its entry is dropped
/// all the same.
#[test]
fn the_table_drops_appended_objects() {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let store = Store::create(base(&folder, &anchor, 1), keys(), &options()).unwrap();
    let [appended, other] = [(); 2].map(|()| store.new_object().unwrap());
    let append = |first: u64, root: Option<&[u8]>| {
        store.write(appended, first, &pages(first + 1, 40)).unwrap();
        store.commit(b"appended", root).unwrap();
    };
    append(0, None);
    // The checkpoint writes the first pages back, and later pages are appended.
    append(40, Some(b"root"));
    append(80, None);
    for root in [None, Some(&b"root"[..])] {
        store.write(other, 0, &page(7)).unwrap();
        store.commit(b"other", root).unwrap();
    }
    assert_eq!(known(&store), 0);
    append(120, None);
    drop(store);
    let (store, _) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
    let mut found = vec![0; 160 * PAGE];
    store.read(appended, 0, &mut found).unwrap();
    assert!(found == pages(1, 160));
}
