//! What a store knows of objects is bounded by its journal, and not by how many of them were ever
//! written.

mod store_world;

use lacuna_sim::CrashFolder;
use lacuna_vault_store::{MemoryAnchor, PAGE, Store};
use std::sync::Arc;
use store_world::{base, keys, options, page};

fn pages(first_stamp: u64, count: u64) -> Vec<u8> {
    (first_stamp..first_stamp + count).flat_map(page).collect()
}

/// Objects of which the store knows something beside their files.
fn known(store: &Store) -> u64 {
    let status = store.status();
    status.items.iter().find(|item| item.name == "objects_changed").unwrap().value
}

/// Appended pages go to their places, so no checkpoint has anything to do with the object.
#[test]
fn an_object_that_was_appended_to_is_forgotten_like_any_other() {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let store = Store::create(base(&folder, &anchor, 1), keys(), &options()).unwrap();
    let [appended, other] = [(); 2].map(|()| store.new_object().unwrap());
    let append = |first: u64, root: Option<&[u8]>| {
        store.write(appended, first, &pages(first + 1, 40)).unwrap();
        store.commit(b"appended", root).unwrap();
    };
    append(0, None);
    // The checkpoint brings its first pages to their places, and it goes on to be appended to.
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
