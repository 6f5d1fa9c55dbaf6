//! The output of `vault rescue` for damaged vaults: everything outside the damaged blocks, under
//! its name, and a list of missing parts.

mod rescue_fixture;

use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_storage::Kind;
use lacuna_storage::vault::rescue;
use lacuna_vault::store::{Anchor, FILES, MemoryAnchor, RollbackPolicy};
use lacuna_vault::{NewNode, ROOT, SetXattrMode, Vault, VaultOpenOptions};
use rescue_fixture::{
    ExpectedFiles, InterruptedVault, KilledVault, RescueFixture, UUID, compare, content, destroy_page,
    directory, master, options, rescue_to_temp, write,
};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[test]
fn a_rescue_copies_everything_of_an_intact_vault() {
    let (mut fixture, mut expected_files, mut rng) =
        (RescueFixture::new(), ExpectedFiles::new(), Rng::new(1));
    let vault = fixture.create();
    for n in 0..30 {
        let path = format!("directory {}/file {n}", n % 3);
        let content = content(&path, 0, &mut rng);
        write(&vault, &mut expected_files, &path, &content);
    }
    vault.create_node(ROOT, b"link", NewNode::Symlink(b"../elsewhere"), 0o777, 0, 0).unwrap();
    vault.create_node(ROOT, b"pipe", NewNode::Fifo, 0o600, 0, 0).unwrap();
    vault.create_node(ROOT, b"a\nb\xff", NewNode::File, 0o4755, 0, 0).unwrap();
    let sparse = vault.create_node(ROOT, b"sparse", NewNode::File, 0o600, 0, 0).unwrap().ino;
    vault.write(sparse, 1 << 30, b"far").unwrap();
    vault.set_xattr(sparse, b"user.colour", b"green", SetXattrMode::Any).unwrap();
    vault.close().unwrap();
    drop(vault);
    let image = fixture.folder.snapshot();
    let (target, report) = rescue_to_temp(&fixture.open_to_rescue(&image).unwrap());
    // Some file systems have no extended attributes.
    assert!(
        report.missing.iter().all(|missing| missing.what.contains("user.colour")),
        "{:?}",
        report.missing
    );
    assert_eq!((report.files, report.directories, report.nameless), (34, 3, 0));
    assert_eq!(compare(target.path(), &expected_files, "whole"), (vec![], 0));
    assert_eq!(std::fs::read_link(target.path().join("link")).unwrap(), Path::new("../elsewhere"));
    let mode =
        |name: &str| std::fs::metadata(target.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("directory 1"), mode("directory 1/file 1")), (0o750, 0o640));
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a\nb\xff");
    // The setuid bit is removed.
    assert_eq!(std::fs::metadata(target.path().join(odd)).unwrap().permissions().mode() & 0o7777, 0o755);
    let about = std::fs::metadata(target.path().join("sparse")).unwrap();
    assert_eq!(about.len(), (1 << 30) + 3);
    assert!(report.bytes < 1 << 20, "{}", report.bytes);
    // A second rescue to the same target fails.
    let refused = rescue(&fixture.open_to_rescue(&image).unwrap(), target.path(), &mut |_| ()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Exists);
}

/// The content of every file below a directory.
fn contents(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents(&path, found);
        } else {
            found.insert(std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The path of a directory is longer than the system permits: the directory comes out by inode
/// number, with everything below it.
#[test]
fn a_path_that_the_target_cannot_hold_costs_a_rescue_only_a_name() {
    const DEPTH: usize = 20;
    let mut fixture = RescueFixture::new();
    let vault = fixture.create();
    let (mut parent, mut expected, name) = (ROOT, BTreeSet::new(), "d".repeat(250));
    for depth in 0..=DEPTH {
        let file = vault.create_node(parent, b"file", NewNode::File, 0o600, 0, 0).unwrap().ino;
        let text = format!("at depth {depth}");
        vault.write(file, 0, text.as_bytes()).unwrap();
        expected.insert(text);
        if depth < DEPTH {
            let made = vault.create_node(parent, name.as_bytes(), NewNode::Directory, 0o700, 0, 0);
            parent = made.unwrap().ino;
        }
    }
    vault.close().unwrap();
    drop(vault);
    let image = fixture.folder.snapshot();
    let (target, report) = rescue_to_temp(&fixture.open_to_rescue(&image).unwrap());
    let mut found = BTreeSet::new();
    contents(target.path(), &mut found);
    assert_eq!(found, expected);
    assert_eq!((report.files, report.directories), (DEPTH as u64 + 1, DEPTH as u64));
    let [refused, placed] = &report.missing[..] else { panic!("{:?}", report.missing) };
    assert!(
        refused.path.to_str().is_some_and(|path| path.ends_with(&name))
            && refused.what.contains("File name too long"),
        "{refused:?}"
    );
    assert!(placed.what.contains("lost+found/inode"), "{placed:?}");
    assert_eq!(report.nameless, 1);
}

/// A process is killed. Without any single block of its journal, everything before that block is
/// recovered, and the rest is listed.
#[test]
fn a_bad_journal_block_costs_a_rescue_only_later_commits() {
    let mut rng = Rng::new(2);
    let KilledVault { mut fixture, image, states, newest } = KilledVault::new(0..14, &mut rng);
    let (mut cut_short, mut named, mut blocks) = (0, 0, 0);
    for name in &FILES[2..4] {
        for page in image.files[*name].written_pages().collect::<Vec<_>>() {
            let context = format!("page {page} of {name}");
            let mut damaged = image.clone();
            destroy_page(&mut damaged, name, page, &mut rng);
            let seen = fixture.open_to_rescue(&damaged).unwrap_or_else(|e| panic!("{context}: {e}"));
            let state = seen.vault().opening_report().state.number;
            let (target, report) = rescue_to_temp(&seen);
            let (absent, bad) = compare(target.path(), &states[&state], &context);
            assert!(absent.is_empty() && bad <= 1, "{context}: {absent:?}, {bad} blocks");
            assert!(report.lost >= bad + u64::from(state < newest), "{context}: {report:?}");
            let refused = fixture.open(true).err().map(|e| e.kind());
            if state == newest {
                assert_eq!(refused, None, "{context}");
                blocks += bad;
                continue;
            }
            cut_short += 1;
            let kinds = if state + 1 == newest {
                vec![Kind::RolledBack]
            } else {
                vec![Kind::Corrupt, Kind::RolledBack]
            };
            assert!(refused.is_some_and(|kind| kinds.contains(&kind)), "{context}: {refused:?}");
            // The changes of the commit with the lost record are unknown; those of later commits
            // are known.
            let missing: BTreeSet<&str> =
                report.missing.iter().filter_map(|missing| missing.path.to_str()).collect();
            let Some(next) = states.range(state + 1..).next().map(|(number, _)| *number) else { continue };
            let changed =
                states[&newest].iter().filter(|(path, content)| states[&next].get(*path) != Some(content));
            let (known, unknown): (Vec<_>, Vec<_>) =
                changed.partition(|(path, _)| missing.contains(&*format!("/{path}")));
            named += known.len();
            // A file with a name only in the lost record is listed by inode number.
            let by_number = missing.iter().filter(|path| path.starts_with("(inode")).count();
            assert!(unknown.len() <= by_number, "{context}: {unknown:?} are not named: {missing:?}");
        }
    }
    println!("{cut_short} states cut short, {named} files named, {blocks} blocks of files");
    assert!(cut_short > 5 && named > 20 && blocks > 5);
}

/// The examined cases, and the ways that found the names.
#[derive(Default)]
struct RescueCounts {
    looked: u64,
    by_root_before: u64,
    past_gap: u64,
    opened: u64,
    accepted: u64,
}

impl InterruptedVault {
    /// Examines the directory without a page of the journal. Returns the recovered state, and the
    /// number of its blocks that may be missing.
    fn rescue_without(
        &mut self,
        damaged: &FolderImage,
        context: &str,
        ways: &mut RescueCounts,
    ) -> (u64, u64) {
        let seen = self.fixture.open_to_rescue(damaged).unwrap_or_else(|e| panic!("{context}: {e}"));
        let (state, anchored) = (seen.vault().opening_report().state.number, self.fixture.number());
        let may_miss = if seen.skips_damaged_record() {
            // The blocks that only the damaged record lists.
            self.changed_at_once(0)
        } else if state + 1 == anchored {
            // The damaged record is the checkpoint's: changes of its commit may be in place
            // already, without tags.
            1 + self.changed_at_once(state)
        } else {
            1
        };
        let (target, report) = rescue_to_temp(&seen);
        let (absent, bad) = compare(target.path(), &self.states[&state], context);
        assert!(absent.is_empty() && bad <= may_miss, "{context}: {absent:?}, {bad} blocks of {may_miss}");
        assert!(report.lost > 0 || (bad == 0 && state >= anchored), "{context}: {report:?}");
        ways.looked += 1;
        ways.by_root_before += u64::from(seen.uses_previous_root());
        ways.past_gap += u64::from(seen.skips_damaged_record());
        (state, may_miss)
    }

    /// Opens the directory for writing. In any case a rescue afterwards recovers the same as
    /// before.
    fn open_without(
        &self,
        damaged: &FolderImage,
        (state, may_miss): (u64, u64),
        context: &str,
        ways: &mut RescueCounts,
    ) {
        let anchored = self.fixture.number();
        // The checkpoint's record is damaged; with consent the vault continues at the state before
        // it.
        let accept = Some(RollbackPolicy::accept()).filter(|_| state + 1 == anchored);
        let mut other = RescueFixture {
            folder: CrashFolder::from_image(damaged),
            anchor: Arc::new(MemoryAnchor::new(self.fixture.anchor.load().unwrap())),
            sessions: AtomicU64::new(1000),
        };
        let accepts = accept.is_some();
        match Vault::open(
            other.backing(),
            &master(),
            UUID,
            &VaultOpenOptions { on_rollback: accept, ..options() },
        ) {
            Ok(vault) => {
                assert_eq!(vault.opening_report().state.number, state, "{context}");
                ways.opened += 1;
                ways.accepted += u64::from(accepts);
                vault.close().unwrap();
            }
            Err(e) => {
                assert!([Kind::Corrupt, Kind::RolledBack].contains(&e.kind()), "{context}: {e}");
                assert!(!accepts, "{context}: {e}");
            }
        }
        let left = other.folder.snapshot();
        let seen = other.open_to_rescue(&left).unwrap_or_else(|e| panic!("{context}, written to: {e}"));
        let (target, _) = rescue_to_temp(&seen);
        let (absent, bad) = compare(target.path(), &self.states[&state], context);
        assert!(
            absent.is_empty() && bad <= may_miss,
            "{context}, written to: {absent:?}, {bad} of {may_miss}"
        );
    }
}

/// The power fails in a checkpoint. Without any single block of the journal, all committed data
/// outside that block is recovered, and an opening for writing destroys none of it. `LACUNA_PAIRS`
/// tests every page after every cut, otherwise a sample.
#[test]
fn a_bad_journal_block_after_an_interrupted_checkpoint_loses_nothing_else() {
    let all = std::env::var_os("LACUNA_PAIRS").is_some();
    let operations = InterruptedVault::new(u64::MAX / 2).operations;
    let (mut ways, mut rng) = (RescueCounts::default(), Rng::new(5));
    for cut in (0..operations).filter(|cut| all || cut % 4 == 0) {
        // Of four cuts every second page, in the short test.
        let dense = all || [1, 2, 3, 4].iter().any(|part| cut / 4 == part * operations / 20);
        let mut vault = InterruptedVault::new(cut);
        for name in &FILES[2..4] {
            let pages: Vec<u64> = vault.image.files[*name].written_pages().collect();
            for (nth, page) in pages.iter().copied().enumerate() {
                let taken = all || (dense && nth % 2 == 0) || rng.chance(2, pages.len() as u64);
                if !taken {
                    continue;
                }
                let mut damaged = vault.image.clone();
                destroy_page(&mut damaged, name, page, &mut rng);
                let context = format!("cut {cut}, page {page} of {name}");
                let shown = vault.rescue_without(&damaged, &context, &mut ways);
                if all || !dense || nth % 6 == 0 || shown.0 + 1 == vault.fixture.number() {
                    vault.open_without(&damaged, shown, &context, &mut ways);
                }
            }
        }
    }
    let RescueCounts { looked, by_root_before, past_gap, opened, accepted } = ways;
    println!(
        "{operations} operations; {looked} looked at, {by_root_before} by the root before, {past_gap} past a gap; \
         {opened} opened, {accepted} of them accepted"
    );
    assert!(looked > 100 && by_root_before > 0 && past_gap > 0 && opened > 20 && accepted > 0);
}

/// Damages all three copies of a page of the namespace: reachable files are recovered, by name or
/// by number, and the rest is listed.
#[test]
fn a_namespace_page_lost_in_all_copies_costs_a_rescue_only_its_names() {
    let (mut fixture, mut expected_files, mut rng) =
        (RescueFixture::new(), ExpectedFiles::new(), Rng::new(3));
    let vault = fixture.create();
    let mut of_files = BTreeSet::new();
    for n in 0..160 {
        let path = format!("directory {}/a file with a longer name, number {n}", n % 3);
        let content = format!("{path}. ").into_bytes().repeat(40);
        write(&vault, &mut expected_files, &path, &content);
    }
    vault.sync().unwrap();
    for path in expected_files.keys() {
        let (parent, name) = path.split_once('/').unwrap();
        let ino = vault.lookup(directory(&vault, parent), name.as_bytes()).unwrap().ino;
        of_files.extend(vault.file_stat(ino).unwrap().backing);
    }
    vault.close().unwrap();
    drop(vault);
    let image = fixture.folder.snapshot();
    let of_names = |name: &String| !FILES.contains(&name.as_str()) && !of_files.contains(name);
    let mut alike = BTreeMap::<Vec<u8>, Vec<String>>::new();
    for name in image.files.keys().filter(|name| of_names(name)) {
        alike.entry(image.files[name].to_vec()).or_default().push(name.clone());
    }
    let (mut refused, mut partly, mut nameless) = (0, 0, 0);
    for copies in alike.values() {
        assert_eq!(copies.len(), 3);
        for page in image.files[&copies[0]].written_pages().collect::<Vec<_>>() {
            let context = format!("page {page} of {copies:?}");
            // Damage to any two of the copies loses nothing.
            let mut damaged = image.clone();
            let kept = rng.below(3) as usize;
            let destroyed = copies.iter().enumerate().filter(|(nth, _)| *nth != kept);
            destroyed.for_each(|(_, name)| destroy_page(&mut damaged, name, page, &mut rng));
            let (target, report) = rescue_to_temp(
                &fixture.open_to_rescue(&damaged).unwrap_or_else(|e| panic!("{context}, but {kept}: {e}")),
            );
            assert_eq!(
                compare(target.path(), &expected_files, &context),
                (vec![], 0),
                "{context}, but {kept}"
            );
            assert_eq!((report.lost, report.nameless), (0, 0), "{context}, but {kept}: {report:?}");
            destroy_page(&mut damaged, &copies[kept], page, &mut rng);
            let Ok(seen) = fixture.open_to_rescue(&damaged) else {
                refused += 1;
                continue;
            };
            let (target, report) = rescue_to_temp(&seen);
            let (absent, bad) = compare(target.path(), &expected_files, &context);
            assert!(report.lost >= bad, "{context}");
            let missing: BTreeSet<&str> =
                report.missing.iter().filter_map(|missing| missing.path.to_str()).collect();
            for path in &absent {
                let (parent, _) = path.split_once('/').unwrap();
                let listed = [format!("/{path}"), format!("/{parent}"), "/".to_owned()];
                assert!(
                    listed.iter().any(|path| missing.contains(&**path)),
                    "{context}: {path} is not listed"
                );
            }
            partly += u64::from(report.lost > 0);
            nameless += report.nameless;
        }
    }
    println!("{refused} refused, {partly} came out in part, {nameless} by number");
    assert!(partly > 5 && nameless > 20, "{partly}, {nameless}");
}
