//! Two bad blocks anywhere in a vault, including the file of its header, also after a power cut in
//! a checkpoint: a rescue recovers everything outside them, under its name.

mod rescue_fixture;

use lacuna_sim::{FolderImage, Rng, env_number};
use lacuna_storage::vault::{self, HEADER_FILE, NewVault, OpenVaultOptions};
use lacuna_storage::{Access, Cost, Kind, Passphrase, Silent};
use lacuna_vault::store::{FILES, PAGE, SuperblockStatus};
use rescue_fixture::{
    Block, ExpectedFiles, InterruptedVault, KilledVault, RescueFixture, changed, compare, content,
    destroy_page, rescue_to_temp, write,
};
use std::sync::Arc;

/// Every block that was ever written, of the selected files.
fn written(image: &FolderImage, is_wanted: impl Fn(&str) -> bool) -> Vec<Block> {
    let files = image.files.iter().filter(|(name, _)| is_wanted(name));
    files.flat_map(|(name, file)| file.written_pages().map(|page| (name.clone(), page))).collect()
}

/// All pairs of superblocks, which random choices rarely meet.
fn pairs_of_superblocks() -> Vec<(Block, Block)> {
    let files = FILES.into_iter().filter(|name| name.starts_with("super"));
    let blocks: Vec<Block> = files.map(|name| (name.to_owned(), 0)).collect();
    assert_eq!(blocks.len(), 3);
    let pair = |one: usize, other: usize| (blocks[one].clone(), blocks[other].clone());
    vec![pair(0, 1), pair(0, 2), pair(1, 2)]
}

/// A copy of the directory with both blocks destroyed, and a description for messages.
fn destroy_pair(image: &FolderImage, pair: &(Block, Block), rng: &mut Rng) -> (FolderImage, String) {
    let mut damaged = image.clone();
    for (name, page) in [&pair.0, &pair.1] {
        destroy_page(&mut damaged, name, *page, rng);
    }
    (damaged, format!("{pair:?}"))
}

#[test]
fn two_bad_blocks_of_a_closed_vault_cost_a_rescue_only_their_content() {
    let (mut fixture, mut expected_files, mut rng) =
        (RescueFixture::new(), ExpectedFiles::new(), Rng::new(6));
    let vault = fixture.create();
    for n in 0..20 {
        let path = format!("{}/a file with a longer name, number {n}", ["a", "b"][n % 2]);
        let content = content(&path, 0, &mut rng);
        write(&vault, &mut expected_files, &path, &content[..content.len().min(9000)]);
    }
    vault.close().unwrap();
    drop(vault);
    let image = fixture.folder.snapshot();
    let blocks = written(&image, |_| true);
    let mut pairs = pairs_of_superblocks();
    pairs.extend(
        (0..env_number("LACUNA_PAIRS", 100)).map(|_| (rng.pick(&blocks).clone(), rng.pick(&blocks).clone())),
    );
    let (mut lost, mut by_third) = (0, 0);
    for pair in &pairs {
        let (damaged, context) = destroy_pair(&image, pair, &mut rng);
        let seen = fixture.open_to_rescue(&damaged).unwrap_or_else(|e| panic!("{context}: {e}"));
        let is_by_third = seen.vault().opening_report().superblocks == SuperblockStatus::Lost;
        assert_eq!(seen.detours().is_some(), is_by_third, "{context}: {:?}", seen.detours());
        let (target, report) = rescue_to_temp(&seen);
        let (absent, bad) = compare(target.path(), &expected_files, &context);
        assert!(absent.is_empty() && bad <= 2, "{context}: {absent:?}, {bad} blocks");
        assert_eq!(report.lost > 0, bad > 0, "{context}: {report:?}");
        lost += bad;
        by_third += u64::from(is_by_third);
    }
    println!("{} blocks, {} pairs, {lost} blocks of files lost", blocks.len(), pairs.len());
    assert!(lost > pairs.len() as u64 / 20 && by_third > 0);
}

/// The ways in which blocks are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockDamage {
    /// They have other content.
    Altered,
    /// Every read of them fails.
    Unreadable,
}

/// Rescues a killed vault without pairs of blocks; without an anchor unless `has_anchor`.
fn rescue_killed_vault(kind: BlockDamage, has_anchor: bool) {
    let mut rng = Rng::new(7);
    let KilledVault { mut fixture, image, states, newest } = KilledVault::new(1..12, &mut rng);
    if !has_anchor {
        fixture.anchor = Arc::default();
    }
    let (all, journal) = (written(&image, |_| true), written(&image, |name| name.starts_with("journal")));
    let mut pairs = pairs_of_superblocks();
    // Each block of the journal is in one pair.
    for one in journal {
        pairs.push((one, rng.pick(&all).clone()));
    }
    for _ in 0..env_number("LACUNA_PAIRS", 40) {
        pairs.push((rng.pick(&all).clone(), rng.pick(&all).clone()));
    }
    let (mut cut_short, mut by_third, mut lost) = (0, 0, 0);
    for pair in &pairs {
        let (damaged, context) = destroy_pair(&image, pair, &mut rng);
        let context = format!("{kind:?}, anchor {has_anchor}, {context}");
        let seen = match kind {
            BlockDamage::Altered => fixture.open_to_rescue(&damaged),
            BlockDamage::Unreadable => {
                fixture.open_to_rescue_without(&image, &[pair.0.clone(), pair.1.clone()])
            }
        };
        let seen = seen.unwrap_or_else(|e| panic!("{context}: {e}"));
        let found = seen.vault().opening_report();
        let state = found.state.number;
        // The lost records are in the journal.
        let in_journal = [&pair.0, &pair.1].iter().any(|(name, _)| name.starts_with("journal"));
        assert!(state == newest || in_journal, "{context}: state {state} of {newest}");
        let (target, report) = rescue_to_temp(&seen);
        let (absent, bad) = compare(target.path(), &states[&state], &context);
        assert!(absent.is_empty() && bad <= 2, "{context}: {absent:?}, {bad} blocks");
        // Only the anchor shows that there was a later state.
        let knows_later = has_anchor && state < newest;
        assert!(report.lost >= bad + u64::from(knows_later), "{context}: {report:?}");
        cut_short += u64::from(state < newest);
        by_third += u64::from(found.superblocks == SuperblockStatus::Lost);
        lost += bad;
    }
    println!("{kind:?}: {} pairs, {cut_short} states cut short, {lost} blocks of files lost", pairs.len());
    assert!(cut_short > 5 && by_third > 0 && lost > 0);
}

/// A process is killed. Bad blocks with journal records lose the commits starting with those
/// records, and nothing else is missing.
#[test]
fn two_bad_blocks_of_a_killed_vault_cost_a_rescue_only_their_content() {
    rescue_killed_vault(BlockDamage::Altered, true);
}

/// The same if the medium gives an error for them, also on a machine without an anchor, where the
/// last record counts only with all its pages.
#[test]
fn two_unreadable_blocks_of_a_killed_vault_cost_a_rescue_only_their_content() {
    for has_anchor in [true, false] {
        rescue_killed_vault(BlockDamage::Unreadable, has_anchor);
    }
}

/// The pages of the record with the highest number in the journal.
fn newest_record(image: &FolderImage) -> Vec<Block> {
    let (mut newest, mut pages) = (0, Vec::new());
    for name in &FILES[2..4] {
        let bytes = image.files[*name].to_vec();
        let page_of = |page: u64| ((*name).to_owned(), page);
        for (page, head) in (0..).zip(bytes.chunks_exact(PAGE)) {
            let number = u64::from_le_bytes(head[8..16].try_into().unwrap());
            if head.starts_with(b"lacunarc") && number > newest {
                let len = u32::from_le_bytes(head[60..64].try_into().unwrap()) as usize;
                let end = page + (96 + len).div_ceil(PAGE) as u64;
                newest = number;
                pages = (page..end.min((bytes.len() / PAGE) as u64)).map(page_of).collect();
            }
        }
    }
    pages
}

/// The ways to the states of vaults that were cut short.
#[derive(Default)]
struct Ways {
    newest: u64,
    by_root_before: u64,
    past_gap: u64,
    earlier: u64,
    by_third: u64,
    no_superblock: u64,
    /// Blocks of files.
    lost: u64,
}

impl InterruptedVault {
    /// The most blocks of files that a rescue of the state `state` without two blocks may miss.
    fn may_miss(&self, state: u64, skips_damaged_record: bool) -> u64 {
        let (_, newest) = self.states.last_key_value().unwrap();
        if skips_damaged_record {
            // The blocks that only damaged records list.
            2 + 2 * self.changed_at_once(0)
        } else if state < self.fixture.number() {
            // The checkpoint may have written blocks of later states in place.
            2 + changed(&self.states[&state], newest)
        } else {
            2
        }
    }

    /// Examines the directory without two blocks.
    fn look_without(&mut self, damaged: &FolderImage, pair: &(Block, Block), context: &str, ways: &mut Ways) {
        let blocks = [&pair.0, &pair.1];
        let seen = match self.fixture.open_to_rescue(damaged) {
            Ok(seen) => seen,
            // The cut tore the third superblock.
            Err(e) => {
                let are_super = blocks.iter().all(|(name, _)| name.starts_with("super"));
                assert!(are_super && e.kind() == Kind::Corrupt, "{context}: {e}");
                ways.no_superblock += 1;
                return;
            }
        };
        let (found, anchored) = (seen.vault().opening_report(), self.fixture.number());
        let state = found.state.number;
        let in_journal = blocks.iter().any(|(name, _)| name.starts_with("journal"));
        assert!(state >= anchored || in_journal, "{context}: state {state} of {anchored}");
        let (target, report) = rescue_to_temp(&seen);
        let (absent, bad) = compare(target.path(), &self.states[&state], context);
        let may_miss = self.may_miss(state, seen.skips_damaged_record());
        assert!(absent.is_empty() && bad <= may_miss, "{context}: {absent:?}, {bad} blocks of {may_miss}");
        assert!(report.lost > 0 || (bad == 0 && state >= anchored), "{context}: {report:?}");
        let way = if state < anchored {
            &mut ways.earlier
        } else if seen.skips_damaged_record() {
            &mut ways.past_gap
        } else if seen.uses_previous_root() {
            &mut ways.by_root_before
        } else {
            &mut ways.newest
        };
        *way += 1;
        ways.by_third += u64::from(found.superblocks == SuperblockStatus::Lost);
        ways.lost += bad;
    }
}

/// The power fails in a checkpoint, and then two blocks are bad. Everything that was synced and
/// does not lie in them is recovered. In half of the pairs, the first block is one of the newest
/// record, of a superblock or of the journal.
#[test]
fn two_bad_blocks_after_a_checkpoint_that_was_cut_short_cost_what_lies_in_them() {
    const AT_EACH_CUT: u64 = 8;
    let operations = InterruptedVault::new(u64::MAX / 2).operations;
    let (mut rng, mut ways) = (Rng::new(9), Ways::default());
    let cuts = env_number("LACUNA_PAIRS", 128).div_ceil(AT_EACH_CUT);
    for _ in 0..cuts {
        let cut = rng.below(operations);
        let mut vault = InterruptedVault::new(cut);
        let all = written(&vault.image, |_| true);
        let journal = written(&vault.image, |name| name.starts_with("journal"));
        let superblocks = written(&vault.image, |name| name.starts_with("super"));
        let record = newest_record(&vault.image);
        for nth in 0..AT_EACH_CUT {
            let first = match nth {
                0 | 1 if !record.is_empty() => rng.pick(&record),
                2 => rng.pick(&superblocks),
                3 => rng.pick(&journal),
                _ => rng.pick(&all),
            };
            let pair = (first.clone(), rng.pick(&all).clone());
            let (damaged, pair_words) = destroy_pair(&vault.image, &pair, &mut rng);
            vault.look_without(&damaged, &pair, &format!("cut {cut}, {pair_words}"), &mut ways);
        }
    }
    let Ways { newest, by_root_before, past_gap, earlier, by_third, no_superblock, lost } = ways;
    println!(
        "{operations} operations, {cuts} cuts: {newest} newest states, {by_root_before} by the root before, \
         {past_gap} past a gap, {earlier} earlier, {by_third} by the third superblock, {no_superblock} without \
         any; {lost} blocks of files lost"
    );
    assert_eq!(newest + by_root_before + past_gap + earlier + no_superblock, cuts * AT_EACH_CUT);
    assert!(newest > cuts && earlier > 0 && lost > 0);
}

/// Without an anchor and without two of the superblocks, the freshness of the state is unknown, and
/// a rescue says so.
#[test]
fn a_rescue_reports_an_unknown_freshness() {
    let (mut fixture, mut expected_files, mut rng) =
        (RescueFixture::new(), ExpectedFiles::new(), Rng::new(8));
    let vault = fixture.create();
    write(&vault, &mut expected_files, "a/file", b"content");
    vault.close().unwrap();
    drop(vault);
    let pair = &pairs_of_superblocks()[0];
    let (damaged, _) = destroy_pair(&fixture.folder.snapshot(), pair, &mut rng);
    let used = fixture.open_to_rescue(&damaged).unwrap().detours().unwrap();
    assert!(used.contains("by the third one") && !used.contains("it is unknown whether"), "{used}");
    fixture.anchor = Arc::default();
    let seen = fixture.open_to_rescue(&damaged).unwrap();
    let used = seen.detours().unwrap();
    let state = format!("it is unknown whether state {}", seen.vault().opening_report().state.number);
    assert!(used.contains(&state), "{used}");
    assert_eq!(compare(rescue_to_temp(&seen).0.path(), &expected_files, "without an anchor"), (vec![], 0));
}

/// The header is a file in the directory with three copies in it: with one bad block the vault
/// still opens, and with two a rescue is still possible.
#[test]
fn two_bad_blocks_of_the_header_cost_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (dir, anchor) = (home.path().join("v"), home.path().join("anchor"));
    let passphrase = || Passphrase::new(b"correct horse battery staple".to_vec());
    let cost = Cost::fixed(1024, 1).unwrap();
    let new = NewVault { cost, anchor: Some(anchor.clone()), ..NewVault::new(&dir) };
    vault::create(&new, &Silent, || Ok(passphrase())).unwrap();
    let opening = OpenVaultOptions { anchor: Some(anchor), ..OpenVaultOptions::default() };
    let open = vault::open(&dir, vec![passphrase()], opening.clone(), &Silent).unwrap();
    let mut expected_files = ExpectedFiles::new();
    write(open.vault(), &mut expected_files, "a/file", b"content");
    open.close().unwrap();
    let file = dir.join(HEADER_FILE);
    let whole = std::fs::read(&file).unwrap();
    let is_written = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
    let blocks: Vec<usize> =
        whole.chunks(PAGE).enumerate().filter(|(_, block)| is_written(block)).map(|(nth, _)| nth).collect();
    assert!(blocks.len() >= 9, "{blocks:?}");
    for (nth, one) in blocks.iter().enumerate() {
        for other in &blocks[nth..] {
            let context = format!("blocks {one} and {other} of {HEADER_FILE}");
            let mut bytes = whole.clone();
            for block in [one, other] {
                bytes[block * PAGE..(block + 1) * PAGE].fill(0xa5);
            }
            std::fs::write(&file, bytes).unwrap();
            if one == other {
                let looking = OpenVaultOptions { read_only: true, ..opening.clone() };
                let open = vault::open(&dir, vec![passphrase()], looking, &Silent);
                open.and_then(vault::OpenVault::close).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
            let key = vault::unlock(&dir, Access::Read, &Silent, |_, open| {
                let given = vec![passphrase()];
                Ok((open(&given)?, given))
            });
            let key = key.unwrap_or_else(|e| panic!("{context}: {e}"));
            let seen = key.open_to_rescue(opening.clone()).unwrap_or_else(|e| panic!("{context}: {e}"));
            let (target, report) = rescue_to_temp(&seen);
            assert_eq!(compare(target.path(), &expected_files, &context), (vec![], 0), "{context}");
            assert_eq!(report.lost, 0, "{context}: {report:?}");
        }
    }
}
