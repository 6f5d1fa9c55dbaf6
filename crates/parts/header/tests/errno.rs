//! Every system error at every call of the medium while a header is made, restored and repaired,
//! and while passphrases and parameters change. A failed read costs one copy and goes unnoticed.
//! Any other failed call fails the operation, and the caller gets its error; the header is then the
//! old one or the new one, even after a power cut, and the operation can be repeated at once.
//!
//! There are few calls, so every error is tried at each.

mod fixture;

use fixture::*;
use lacuna_contracts::{Kind, Result};
use lacuna_crypto::SeededRandom;
use lacuna_header::{
    FormatId, HEADER_AREA, HeaderBackup, Keyring, OpenHeader, add_passphrase, change_keys, change_passphrase,
    open, read_public, remove_passphrase, repair, update_params,
};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, MediumImage, OpKind, Rng, reports_failure, sweep_cases};
use std::sync::Arc;

type Faulty = FaultMedium<CrashMedium>;

/// An operation on a header.
struct HeaderOperation<'c> {
    name: &'c str,
    start: MediumImage,
    /// Passphrases that open before and after the operation.
    kept: &'c [&'c str],
    /// The passphrase that opens until the operation is done, and the passphrase that opens after
    /// it.
    old: Option<&'c str>,
    new: Option<&'c str>,
    act: &'c dyn Fn(&dyn Medium) -> Result<()>,
    /// Whether the operation is done; called if the passphrases do not tell.
    done: &'c dyn Fn(&dyn Medium) -> bool,
}

impl HeaderOperation<'_> {
    /// Whether the operation is done. Asserts that exactly the passphrases that must open do.
    fn is_done(&self, medium: &dyn Medium, what: &str) -> bool {
        for &passphrase in self.kept {
            assert_eq!(level_of(medium, &[passphrase]), Ok(0), "{what}: {passphrase}");
        }
        let opens = |passphrase: &str| match level_of(medium, &[passphrase]) {
            Ok(0) => true,
            Err(Kind::Passphrase) => false,
            other => panic!("{what}: {passphrase}: {other:?}"),
        };
        match (self.old.map(opens), self.new.map(opens)) {
            (None, None) => (self.done)(medium),
            (None, Some(new)) => new,
            (Some(old), None) => !old,
            (Some(old), Some(new)) => {
                assert!(old != new, "{what}: old {old}, new {new}");
                new
            }
        }
    }

    /// Repeats the operation if it is not done; repairs the copies if it is.
    fn repeat_or_repair(&self, medium: &dyn Medium, what: &str) {
        let again = if self.is_done(medium, what) {
            let owner = self.kept.first().copied().or(self.new).expect("a passphrase that works");
            open(medium, &secrets(&[owner])).and_then(|mut unlocked| repair(medium, &mut unlocked))
        } else {
            (self.act)(medium)
        };
        again.unwrap_or_else(|e| panic!("{what}, again: {e}"));
        assert!(self.is_done(medium, what), "{what}: not even then");
        assert_eq!(read_public(medium).unwrap().1, Vec::<String>::new(), "{what}");
    }

    /// Runs the operation with an error at call `nth`. Returns whether it failed.
    fn run(&self, nth: u64, errno: i32) -> bool {
        let medium = failing(&self.start, nth, errno);
        let done = (self.act)(&*medium);
        let hit = medium.last_fired().unwrap_or_else(|| panic!("{}: call {nth} was never made", self.name));
        let error_text = std::io::Error::from_raw_os_error(errno);
        let what = format!("{}, call {nth}, {hit:?}: {error_text}", self.name);
        assert_eq!(done.is_ok(), hit == OpKind::Read, "{what}: {done:?}");
        if let Err(e) = &done {
            assert!(
                reports_failure(e, errno, hit.makes_durable()),
                "{what}: the caller gets {:?}: {e}",
                e.kind()
            );
        }
        for left in media_after(&medium, nth) {
            assert!(self.is_done(&left, &what) || done.is_err(), "{what}: it is not done");
            self.repeat_or_repair(&left, &what);
        }
        done.is_err()
    }

    /// Runs the operation with every error at every call.
    fn sweep(&self) {
        let medium = failing(&self.start, 0, 0);
        assert!(!self.is_done(&**medium.inner(), self.name), "{}: there is nothing to do", self.name);
        (self.act)(&*medium).unwrap();
        let calls = medium.operations();
        let noticed = sweep_cases(calls, None).filter(|(nth, errno)| self.run(*nth, *errno)).count();
        println!("{}: {calls} calls, {noticed} errors were noticed", self.name);
        assert!(calls >= 6 && noticed > 0, "{}: {calls} calls, {noticed} noticed", self.name);
    }
}

/// A medium with the contents of `start` where call `nth` fails; no call fails if `nth` is 0.
fn failing(start: &MediumImage, nth: u64, errno: i32) -> Arc<Faulty> {
    let medium = Arc::new(Faulty::new(Arc::new(CrashMedium::from_image(start.clone()))));
    if nth > 0 {
        medium.add(Fault::Errno { nth, errno });
    }
    medium
}

/// The medium as it is, and after a power cut.
fn media_after(medium: &Faulty, nth: u64) -> [CrashMedium; 2] {
    let inner = medium.inner();
    [inner.image(), inner.after_cut(&mut Rng::new(nth))].map(CrashMedium::from_image)
}

/// A sealed disk with these passphrases.
fn start(passphrases: &[&str]) -> MediumImage {
    let medium = CrashMedium::new(room());
    make_as(FormatId::SEALED, &medium, &[passphrases], 1, |_| Ok(())).unwrap();
    medium.durable_image()
}

fn undecided(_: &dyn Medium) -> bool {
    unreachable!("passphrases tell")
}

#[test]
fn a_single_passphrase_change_survives_any_error() {
    let random = SeededRandom::new(7);
    let add = |medium: &dyn Medium| {
        let mut unlocked = open(medium, &secrets(&["given"]))?;
        add_passphrase(medium, &mut unlocked, &secret("new"), &random).map(drop)
    };
    let change = |medium: &dyn Medium| {
        let mut unlocked = open(medium, &secrets(&["given"]))?;
        change_passphrase(medium, &mut unlocked, &secret("new"), &random).map(drop)
    };
    let remove = |medium: &dyn Medium| {
        let mut unlocked = open(medium, &secrets(&["given"]))?;
        remove_passphrase(medium, &mut unlocked, &secret("gone"), &random).map(drop)
    };
    let (both, kept) = (&["given", "kept"][..], &["kept"][..]);
    let cases = [
        HeaderOperation {
            name: "add",
            start: start(both),
            kept: both,
            old: None,
            new: Some("new"),
            act: &add,
            done: &undecided,
        },
        HeaderOperation {
            name: "change",
            start: start(both),
            kept,
            old: Some("given"),
            new: Some("new"),
            act: &change,
            done: &undecided,
        },
        HeaderOperation {
            name: "remove",
            start: start(&["given", "kept", "gone"]),
            kept: both,
            old: Some("gone"),
            new: None,
            act: &remove,
            done: &undecided,
        },
    ];
    cases.iter().for_each(HeaderOperation::sweep);
}

#[test]
fn a_key_slot_rewrite_survives_any_error() {
    let medium = CrashMedium::new(room());
    make(&medium, &[&["old"]], 1).unwrap();
    let random = SeededRandom::new(7);
    let change = |medium: &dyn Medium| {
        let mut unlocked = open(medium, &secrets(&["old"]))?;
        let mut ring = Keyring::from_opened(&unlocked, secrets(&["old"]))?;
        ring.change(&secret("old"), secret("new"))?;
        change_keys(medium, &mut unlocked, &ring, cost(), &random)
    };
    let case = HeaderOperation {
        name: "key slots",
        start: medium.durable_image(),
        kept: &[],
        old: Some("old"),
        new: Some("new"),
        act: &change,
        done: &undecided,
    };
    case.sweep();
}

#[test]
fn a_parameter_change_survives_any_error() {
    let update = |medium: &dyn Medium| {
        let mut unlocked = open(medium, &secrets(&["given"]))?;
        update_params(&mut unlocked, medium, b"new".to_vec(), HEADER_AREA + 4096)
    };
    let done = |medium: &dyn Medium| read_public(medium).unwrap().0.params == b"new";
    let kept = &["given", "kept"];
    let case = HeaderOperation {
        name: "parameters",
        start: start(kept),
        kept,
        old: None,
        new: None,
        act: &update,
        done: &done,
    };
    case.sweep();
}

#[test]
fn a_restore_survives_any_error() {
    let medium = CrashMedium::from_image(start(&["given", "kept"]));
    let backup = HeaderBackup::take(medium.len(), &|offset, buf| medium.read_at(offset, buf)).unwrap().0;
    let mut unlocked = open(&medium, &secrets(&["given"])).unwrap();
    change_passphrase(&medium, &mut unlocked, &secret("later"), &SeededRandom::new(7)).unwrap();
    let restore = |medium: &dyn Medium| backup.restore(medium);
    let case = HeaderOperation {
        name: "restore",
        start: medium.durable_image(),
        kept: &["kept"],
        old: Some("later"),
        new: Some("given"),
        act: &restore,
        done: &undecided,
    };
    case.sweep();
}

#[test]
fn a_repair_survives_any_error() {
    for (broken, place) in ["A", "B", "C"].into_iter().zip(copies()) {
        let kept = &["given", "kept"];
        let mut damaged = start(kept);
        damaged.write(place + 4000, &[0x5a; 64]).unwrap();
        let act = |medium: &dyn Medium| {
            let mut unlocked = open(medium, &secrets(&["given"]))?;
            repair(medium, &mut unlocked)
        };
        let done = |medium: &dyn Medium| read_public(medium).unwrap().1.is_empty();
        let name = format!("repair of copy {broken}");
        let case = HeaderOperation {
            name: &name,
            start: damaged,
            kept,
            old: None,
            new: None,
            act: &act,
            done: &done,
        };
        case.sweep();
    }
}

/// The first calls of a creation, which clear the older header.
const CLEARS: u64 = 3;

fn create(medium: &dyn Medium) -> Result<()> {
    let contents = |_: &OpenHeader| medium.write_at(HEADER_AREA, &[7; 4096]);
    make_as(FormatId::SEALED, medium, &[&["new"]], 2, contents).map(drop)
}

/// Checks a medium after its creation failed at call `nth`, and creates the disk again.
fn assert_none_or_whole(medium: &CrashMedium, nth: u64, what: &str) {
    let opens = |passphrase: &str| level_of(medium, &[passphrase]) == Ok(0);
    let has_contents = || {
        let mut found = [0; 4096];
        medium.read_at(HEADER_AREA, &mut found).unwrap();
        found == [7; 4096]
    };
    assert!(!opens("new") || has_contents(), "{what}: a header before its contents");
    // Once the older header is durably gone it stays gone.
    assert!(!opens("old") || nth <= CLEARS, "{what}: the older disk is back");
    create(medium).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert!(opens("new") && !opens("old") && has_contents(), "{what}: not even then");
}

#[test]
fn a_creation_leaves_no_disk_or_a_whole_one_and_never_an_older_one() {
    for (name, start) in [("blank", CrashMedium::new(room()).image()), ("over another disk", start(&["old"]))]
    {
        let medium = failing(&start, 0, 0);
        create(&*medium).unwrap();
        let calls = medium.operations();
        assert_eq!(calls, CLEARS + 2 + 6, "contents and three copies");
        for (nth, errno) in sweep_cases(calls, None) {
            let medium = failing(&start, nth, errno);
            let failed = create(&*medium).unwrap_err();
            let hit = medium.last_fired().expect("it came");
            let said = std::io::Error::from_raw_os_error(errno);
            let what = format!("{name}, call {nth}, {hit:?}: {said}");
            assert!(
                reports_failure(&failed, errno, hit.makes_durable()),
                "{what}: the caller learns {:?}",
                failed.kind()
            );
            media_after(&medium, nth).iter().for_each(|left| assert_none_or_whole(left, nth, &what));
        }
    }
}
