//! A machine that uses copies of a folder, and a store that it made.

use super::{base, keys, options, page};
use lacuna_contracts::{Error, Result};
use lacuna_sim::{CrashFolder, FolderImage, Lies, Rng};
use lacuna_vault_store::{Anchor, MemoryAnchor, ObjectId, PAGE, Recovered, Store, StoreOptions};
use std::sync::Arc;

/// One machine that uses copies of a folder.
pub(crate) struct Machine {
    pub(crate) anchor: Arc<MemoryAnchor>,
    pub(crate) seed: u64,
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Machine {
        Machine { anchor: Arc::default(), seed }
    }

    pub(crate) fn create(&self, folder: &CrashFolder) -> Store {
        Store::create(base(folder, &self.anchor, self.seed), keys(), &options()).unwrap()
    }

    pub(crate) fn open_as(
        &mut self,
        folder: &CrashFolder,
        options: &StoreOptions,
    ) -> Result<(Store, Recovered)> {
        self.seed += 100;
        Store::open(base(folder, &self.anchor, self.seed), keys(), options)
    }

    pub(crate) fn open(&mut self, folder: &CrashFolder) -> Result<(Store, Recovered)> {
        self.open_as(folder, &options())
    }

    /// The error of opening a folder, which must fail.
    pub(crate) fn refused(&mut self, folder: &CrashFolder) -> Error {
        self.open(folder).err().expect("a refusal")
    }

    pub(crate) fn number(&self) -> u64 {
        self.anchor.load().unwrap().unwrap().number
    }
}

pub(crate) fn copy(image: &FolderImage) -> CrashFolder {
    CrashFolder::from_image(image)
}

/// A folder that passed through some images in order. Some reads return past or altered content,
/// and sometimes look-ups of names lie as well.
pub(crate) fn lying_folder<'i>(
    images: impl IntoIterator<Item = &'i FolderImage>,
    rng: &mut Rng,
) -> CrashFolder {
    let folder = CrashFolder::new();
    folder.keep_history();
    images.into_iter().for_each(|image| folder.restore(image));
    let of_a_thousand = *rng.pick(&[20, 60, 150, 300, 500]);
    let lies = Lies { per_mille: of_a_thousand, rng: Rng::new(rng.next_u64()), may_forge: rng.chance(1, 2) };
    folder.set_lies(Some(&lies), |_| true);
    folder.set_name_lies(rng.chance(1, 4).then_some(lies));
    folder
}

/// Makes all later reads of a folder true.
pub(crate) fn be_honest(folder: &CrashFolder) {
    folder.set_lies(None, |_| true);
    folder.set_name_lies(None);
}

/// A store with an object; states 1 to `states` write its page 0.
pub(crate) fn store_with_states(states: u64) -> (Machine, CrashFolder, Store, ObjectId) {
    let (machine, folder) = (Machine::new(1), CrashFolder::new());
    let store = machine.create(&folder);
    let object = store.new_object().unwrap();
    for state in 1..=states {
        write(&store, object, state);
        commit(&store, state);
    }
    (machine, folder, store, object)
}

pub(crate) fn write(store: &Store, object: ObjectId, stamp: u64) {
    store.write(object, 0, &page(stamp)).unwrap();
}

pub(crate) fn commit(store: &Store, stamp: u64) {
    store.commit(&stamp.to_le_bytes(), None).unwrap();
}

pub(crate) fn content(store: &Store, object: ObjectId) -> u64 {
    let mut bytes = vec![0; PAGE];
    store.read(object, 0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}
