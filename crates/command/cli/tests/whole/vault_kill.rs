//! A vault with a killed server, and with a page of its journal lost afterwards.

use crate::harness::noise;
use crate::vault_harness::VaultScene;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;

/// Bytes of a page of the journal.
const PAGE: usize = 4096;
/// Number of files that are written one after the other, each synced by itself.
const FILES: u64 = 6;
/// Maximum number of pages per journal file that are lost, one at a time.
const TRIED: usize = 40;

fn name(number: u64) -> String {
    format!("file {number}")
}

fn content(number: u64) -> Vec<u8> {
    noise(number + 1, 9000)
}

/// The results of the loss of single pages.
#[derive(Debug, Default)]
struct LossResults {
    /// Number of files that were not rescued and were named.
    named: usize,
    /// Exit codes of refused openings.
    codes: BTreeSet<i32>,
}

impl LossResults {
    /// Rescues the vault. Files that are not rescued as written must be reported, with exit code
    /// 10.
    fn rescue(&mut self, scene: &VaultScene, what: &str) {
        let ran = scene.keyed(&["vault", "rescue", "v", "out", "--json"]);
        assert!([0, 10].contains(&ran.code), "{what}: {} {}", ran.code, ran.stderr);
        let said = ran.json();
        let missing = said["missing"].as_array().unwrap();
        let missing: BTreeSet<&str> = missing.iter().map(|one| one["path"].as_str().unwrap()).collect();
        let out = scene.0.path("out");
        let is_whole =
            |number: &u64| fs::read(out.join(name(*number))).is_ok_and(|bytes| bytes == content(*number));
        let lost: Vec<u64> = (0..FILES).filter(|number| !is_whole(number)).collect();
        let is_told = ran.code == 10 && !missing.is_empty() && said["lost"].as_u64() > Some(0);
        assert!(lost.is_empty() || is_told, "{what}: {lost:?} did not come out: {said}");
        self.named += lost.iter().filter(|number| missing.contains(&*format!("/{}", name(**number)))).count();
        fs::remove_dir_all(out).unwrap();
    }

    /// Checks whether the vault opens. If it does not, an opening for writing fails in the same way
    /// and leaves the vault unchanged.
    fn check(&mut self, scene: &VaultScene, what: &str) {
        let ran = scene.keyed(&["vault", "check", "v"]);
        let words = &ran.stderr;
        let is_refused = match ran.code {
            0 => false,
            10 => words.contains("the journal of the vault is damaged"),
            11 => {
                assert!(words.contains("older"), "{what}: {words}");
                true
            }
            code => panic!("{what}: {code} {words}"),
        };
        if is_refused && self.codes.insert(ran.code) {
            scene.open().code(ran.code);
        }
    }
}

/// All data before the lost page is rescued, and lost files are named. If the journal shows that it
/// had more records, `open` reports damage (exit code 10); if the newest record itself is lost, the
/// vault cannot be told from an older one that was restored (11).
#[test]
fn files_lost_with_a_journal_page_are_named() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.open().code(0);
    for number in 0..FILES {
        scene.write(&name(number), &content(number));
        fs::File::open(scene.0.path("mnt").join(name(number))).unwrap().sync_all().unwrap();
    }
    scene.kill_server();
    let mut led = LossResults::default();
    for journal in ["journal.0", "journal.1"] {
        let path = scene.0.path("v").join(journal);
        let whole = fs::read(&path).unwrap();
        let held = |page: &usize| whole[page * PAGE..][..PAGE].iter().any(|byte| *byte != 0);
        let pages: Vec<usize> = (0..whole.len() / PAGE).filter(held).collect();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for page in pages.iter().step_by(pages.len().div_ceil(TRIED).max(1)) {
            let (at, what) = (page * PAGE, format!("page {page} of {journal}"));
            file.write_all_at(&[0; PAGE], at as u64).unwrap();
            led.rescue(&scene, &what);
            led.check(&scene, &what);
            file.write_all_at(&whole[at..][..PAGE], at as u64).unwrap();
        }
    }
    assert!(led.named > 0 && led.codes.contains(&10), "{led:?}");
    // The vault is unchanged.
    scene.open().code(0);
    assert!((0..FILES).all(|number| scene.read(&name(number)).unwrap() == content(number)));
    scene.close().code(0);
    scene.keyed(&["vault", "check", "v"]).code(0);
}
