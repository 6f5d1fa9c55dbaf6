//! A folder in memory that simulates power cuts, errors, full file systems and an adversary.

mod file;
mod image;
mod name_history;
mod names;
mod op;
mod state;

pub use image::FolderImage;
pub use op::FolderOp;

use crate::nth_call::NthCall;
use crate::power::Power;
use crate::{CrashMedium, Lies, LossPolicy, Rng, RunDigest};
use file::CrashFile;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Folder, FolderFile, FsSpace, Medium, check_name};
use name_history::NameHistory;
use names::{Names, REMOVED};
use parking_lot::{Mutex, MutexGuard};
use state::{CrashFolderState, FolderFault};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A folder of files in memory.
///
/// Files are [`CrashMedium`]s: each keeps synced data, and loses, reorders and tears unsynced data
/// at 512 bytes. Each unsynced creation, removal and rename may be lost independently. Creations,
/// removals, renames, writes, punches, changes of length and syncs count as one operation each;
/// opens, lists and reads do not.
pub struct CrashFolder(Arc<Mutex<CrashFolderState>>);

impl CrashFolder {
    /// An empty folder.
    pub fn new() -> Self {
        Self::from_image(&FolderImage::default())
    }

    /// A folder with these files durable.
    pub fn from_image(image: &FolderImage) -> Self {
        let mut state = CrashFolderState {
            files: BTreeMap::new(),
            next_file: 0,
            sweep_at: 64,
            names: Names::default(),
            name_history: NameHistory::default(),
            power: Power::default(),
            faults: Vec::new(),
            bad_pages: BTreeSet::new(),
            nth_call: NthCall::default(),
            capacity: u64::MAX,
            quota: u64::MAX,
            max_file_len: (u64::MAX, false),
            ignore_syncs: false,
            keeps_history: false,
            read_only: false,
            digest: RunDigest::new(),
        };
        for (name, content) in &image.files {
            let id = state.next_file;
            state.next_file += 1;
            state.files.insert(id, Arc::new(CrashMedium::from_image(content.clone())));
            state.names.set_durable(name, id);
        }
        CrashFolder(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, CrashFolderState> {
        self.0.lock()
    }

    /// Lets the next `n` operations succeed and cuts the power in the middle of the operation after
    /// them.
    pub fn cut_after(&self, n: u64) {
        self.state().power.cut_after(n);
    }

    /// Cuts the power now, between two operations.
    pub fn cut_now(&self) {
        self.state().power.cut_now();
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.state().power.is_off()
    }

    /// The number of operations, including an operation in flight at the cut.
    pub fn ops(&self) -> u64 {
        self.state().power.ops()
    }

    /// Makes an operation of this kind fail after `after` further ones succeeded, and with
    /// `forever` all later ones. A write that is refused, as with [`Kind::NoSpace`], has written
    /// the first half of its pages, even if they were allocated: copy-on-write file systems and
    /// quotas refuse overwrites as well.
    pub fn fail(&self, op: FolderOp, after: u64, kind: Kind, forever: bool) {
        self.state().faults.push(FolderFault { op, after, kind, forever });
    }

    /// Makes the `nth` call after this one fail with this errno, whatever its kind; 0 disables
    /// this. A write that is refused has written the first half of its pages.
    pub fn fail_call(&self, nth: u64, errno: i32) {
        self.state().nth_call.fail(nth, errno);
    }

    /// The number of calls since [`CrashFolder::fail_call`], and the call that failed.
    pub fn calls_and_failure(&self) -> (u64, Option<FolderOp>) {
        let state = self.state();
        (state.nth_call.calls(), state.nth_call.failed_call())
    }

    /// Makes every read of a page of an existing file fail with [`Kind::Io`], as a bad sector does,
    /// until the page is written.
    pub fn spoil_page(&self, name: &str, page: u64) {
        let mut state = self.state();
        let id = state.names.current[name];
        state.bad_pages.insert((id, page));
    }

    /// Removes all scheduled failures, and makes all pages readable.
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.bad_pages.clear();
        state.nth_call.fail(0, 0);
    }

    /// Limits the total allocation of files to this many bytes. A write that needs more, past the
    /// end of a file or in a hole, writes its pages in order while there is room, and then fails
    /// with [`Kind::NoSpace`].
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Limits the total allocation of files to this many bytes, like a quota on a copy-on-write
    /// file system: `space` does not report the limit, and a write needs room for all of its pages,
    /// allocated ones included. It writes its pages in order while there is room, and then fails
    /// with EDQUOT.
    pub fn set_quota(&self, bytes: u64) {
        self.state().quota = bytes;
    }

    /// Limits the length of a file: writes beyond it fail with EFBIG. `reported`: whether files
    /// report the limit.
    pub fn set_max_file_len(&self, bytes: u64, reported: bool) {
        self.state().max_file_len = (bytes, reported);
    }

    /// The total allocation of files in bytes.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Makes every change fail, or allows changes again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Makes every later sync return success without making anything durable. A crash test that
    /// still passes with this does not test the syncs.
    pub fn ignore_syncs(&self, ignore: bool) {
        let mut state = self.state();
        state.ignore_syncs = ignore;
        state.files.values().for_each(|file| file.ignore_syncs(ignore));
    }

    /// Starts to keep every version of every page of every file, for [`CrashFolder::set_lies`],
    /// and every file that a name refers to, for [`CrashFolder::set_name_lies`].
    pub fn keep_history(&self) {
        let mut state = self.state();
        state.keeps_history = true;
        state.files.values().for_each(|file| file.keep_history());
    }

    /// Starts or ends lying about the content and length of files, as [`CrashMedium::set_lies`]
    /// does. `to` selects the files by name.
    pub fn set_lies(&self, lies: Option<&Lies>, to: impl Fn(&str) -> bool) {
        let (state, mut seeds) = (self.state(), lies.map(|lies| lies.rng.clone()));
        for (name, id) in &state.names.current {
            let rng = seeds.as_mut().map(|seeds| Rng::new(seeds.next_u64()));
            let own = lies.zip(rng).map(|(lies, rng)| Lies { rng, ..lies.clone() });
            state.files[id].set_lies(own.filter(|_| to(name)));
        }
    }

    /// Starts or ends lying about names. Some opens and lists then see the names of another time,
    /// or the file of another name, so two opens of one name may differ. Creations, removals and
    /// renames are not affected.
    pub fn set_name_lies(&self, lies: Option<Lies>) {
        self.state().name_history.set_lies(lies);
    }

    /// The image that an adversarial file system leaves after the cut, or after a cut now. May be
    /// called many times.
    pub fn after_cut(&self, rng: &mut Rng) -> FolderImage {
        let state = self.state();
        let loss = LossPolicy::pick(rng);
        let names = state.names.after_cut(loss, rng);
        let left = names.into_iter().map(|(name, id)| (name, state.files[&id].after_cut_with(loss, rng)));
        FolderImage { files: left.collect() }
    }

    /// The files as reads see them: an adversary's copy, or the image after an orderly shutdown.
    pub fn snapshot(&self) -> FolderImage {
        let state = self.state();
        let seen = state.names.current.iter().map(|(name, id)| (name.clone(), state.files[id].image()));
        FolderImage { files: seen.collect() }
    }

    /// Durably restores all files of a snapshot while the folder is open, as an adversary does:
    /// open files with a restored name read the restored content.
    pub fn restore(&self, image: &FolderImage) {
        let gone = |name: &String| !image.files.contains_key(name);
        let names: Vec<String> = self.state().names.current.keys().cloned().collect();
        names.iter().filter(|name| gone(name)).for_each(|name| self.replace_file(name, None));
        image.files.iter().for_each(|(name, content)| self.replace_file(name, Some(content)));
    }

    /// Durably replaces or removes one file while it may be open, as an adversary does.
    pub fn replace_file(&self, name: &str, content: Option<&crate::MediumImage>) {
        let mut state = self.state();
        let known = state.names.current.get(name).copied();
        state.save_names(std::iter::once(name));
        match (known, content) {
            (Some(id), Some(content)) => {
                state.files[&id].replace(content.clone());
                state.names.set_durable(name, id);
            }
            (None, Some(content)) => {
                let (id, file) = (state.next_file, Arc::new(CrashMedium::from_image(content.clone())));
                state.next_file += 1;
                if state.keeps_history {
                    file.keep_history();
                }
                state.files.insert(id, file);
                state.names.set_durable(name, id);
            }
            (_, None) => state.names.remove_durable(name),
        }
        state.sweep();
    }

    /// A digest of all operations so far and of the files.
    pub fn digest(&self) -> u64 {
        let state = self.state();
        let mut digest = RunDigest::new();
        digest.add_word(state.digest.0);
        digest.add_word(state.power.ops());
        for (name, id) in &state.names.current {
            digest.add_bytes(name.as_bytes());
            digest.add_word(state.files[id].digest());
        }
        digest.add_word(state.names.unsynced() as u64);
        digest.0
    }

    /// Changes names.
    fn change_names(&self, op: FolderOp, changes: &[(&str, Option<u64>)]) -> Result<()> {
        let mut state = self.state();
        state.read_only()?;
        let cut = state.begin(op)?;
        state.save_names(changes.iter().map(|(name, _)| *name));
        state.names.change(changes, cut);
        state.sweep();
        if cut { Err(Power::error()) } else { Ok(()) }
    }
}

impl Default for CrashFolder {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for CrashFolder {
    /// Another handle of the same folder.
    fn clone(&self) -> Self {
        CrashFolder(self.0.clone())
    }
}

impl Folder for CrashFolder {
    fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        check_name(name)?;
        let mut state = self.state();
        state.begin(FolderOp::Open)?;
        let CrashFolderState { names, name_history: told_names, .. } = &mut *state;
        let id = told_names.resolve(&names.current, name);
        let id = id.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no {name}")))?;
        Ok(Arc::new(CrashFile { folder: self.0.clone(), id, file: state.files[&id].clone() }))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        check_name(name)?;
        let file = Arc::new(CrashMedium::new(0));
        let id = {
            let mut state = self.state();
            file.ignore_syncs(state.ignore_syncs);
            if state.keeps_history {
                file.keep_history();
            }
            let id = state.next_file;
            state.next_file += 1;
            state.files.insert(id, file.clone());
            id
        };
        self.change_names(FolderOp::Create, &[(name, Some(id))])?;
        Ok(Arc::new(CrashFile { folder: self.0.clone(), id, file }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let there = self.state().names.current.contains_key(name);
        let change = [(name, REMOVED)];
        self.change_names(FolderOp::Remove, &change[..usize::from(there)])
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from).and(check_name(to))?;
        let known = self.state().names.current.get(from).copied();
        let id = known.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no {from}")))?;
        self.change_names(FolderOp::Rename, &[(from, REMOVED), (to, Some(id))])
    }

    fn list(&self, subfolder: &str) -> Result<Vec<String>> {
        let mut state = self.state();
        state.begin(FolderOp::Open)?;
        let there = state.names.list(subfolder);
        Ok(state.name_history.list(subfolder, there))
    }

    fn sync_names(&self, subfolder: &str) -> Result<()> {
        let mut state = self.state();
        if state.begin(FolderOp::SyncNames)? {
            return Err(Power::error());
        }
        if !state.ignore_syncs {
            state.names.sync(Some(subfolder));
            state.sweep();
        }
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        let mut state = self.state();
        let cut = state.begin(FolderOp::SyncAll)?;
        for file in state.files.values() {
            if cut {
                file.cut_after(0);
            }
            // At the cut the sync fails, and everything unsynced is in flight.
            let _synced = file.sync();
        }
        if cut {
            return Err(Power::error());
        }
        if !state.ignore_syncs {
            state.names.sync(None);
            state.sweep();
        }
        Ok(())
    }

    fn space(&self) -> Result<FsSpace> {
        let state = self.state();
        let total_bytes = state.capacity.min(1 << 40);
        let free_bytes = total_bytes.saturating_sub(state.used());
        Ok(FsSpace { total_bytes, free_bytes, total_files: 1 << 20, free_files: 1 << 19 })
    }

    fn read_only(&self) -> bool {
        self.state().read_only
    }
}
