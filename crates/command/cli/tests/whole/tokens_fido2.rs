//! FIDO2 tokens, through the real libfido2 to a token in software: enrolment, use, and refusals
//! with remedies.

use crate::authenticator::{Authenticator, Fault};
use crate::harness::{CHEAP, RunOutput, Scene, can_mount, is_program_available, skip_unless, skipped};
use crate::keys::{answering, asked};
use crate::pty::PtySession;
use std::fs;
use std::process::Command;

const TOKEN: &str = "fido2:device=socket:token.sock";

/// Returns `None`, with a message, if libfido2 is not installed.
fn library() -> Option<String> {
    let found = Command::new("sh")
        .args(["-c", "readlink -f /usr/lib/*/libfido2.so.1 /usr/lib*/libfido2.so.1"])
        .output()
        .unwrap();
    let found = String::from_utf8_lossy(&found.stdout)
        .lines()
        .find(|line| std::path::Path::new(line).exists())
        .map(str::to_owned);
    if found.is_none() {
        skipped("this machine has no libfido2");
    }
    found
}

fn scene() -> Option<Scene> {
    library().map(|_| Scene::with_disk(&["--size", "64M"]))
}

fn lacuna(scene: &Scene, words: &[&str], answers: &str) -> RunOutput {
    answering(scene, answers);
    scene.lacuna(&[words, &["--askpass", "./ask"]].concat())
}

#[test]
fn one_credential_in_the_token_opens_every_disk_with_a_secret_of_its_own() {
    let Some(scene) = scene() else { return };
    scene.create("other.img", &["--size", "64M"]).code(0);
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 1, None);
    let add =
        |disk: &str, token: &str| scene.lacuna(&["key", "add", disk, "--key-file", "key", "--token", token]);
    let check = |disk: &str, token: &str| scene.lacuna(&["check", disk, "--token", token]);
    // A check makes no credential in the token.
    assert!(check("disk.img", TOKEN).code(2).stderr.contains("no credential for lacuna on it"));
    assert_eq!(token.state().credentials.len(), 0);

    let ran = add("disk.img", TOKEN).code(0);
    assert_eq!(ran.stderr.matches("touch the token").count(), 2, "{}", ran.stderr);
    assert!(check("disk.img", TOKEN).code(0).stderr.contains("touch the token"));
    let ran = check("other.img", TOKEN).code(2);
    assert!(
        ran.stderr.contains("was not enrolled") && ran.stderr.contains("recovery passphrase"),
        "{}",
        ran.stderr
    );
    add("other.img", TOKEN).code(0);
    let named = "fido2:blue,device=socket:token.sock";
    check("disk.img", named).code(2);
    add("disk.img", named).code(0);
    for (disk, token) in [("disk.img", TOKEN), ("other.img", TOKEN), ("disk.img", named)] {
        check(disk, token).code(0);
    }
    let state = token.state();
    let [credential] = &state.credentials[..] else { panic!("{} credentials", state.credentials.len()) };
    assert_eq!((credential.rp.as_str(), &credential.user[..]), ("lacuna", &b"lacuna token v1\0"[..]));
    drop(state);

    // Without a token, and with another one.
    drop(token);
    assert!(check("disk.img", TOKEN).code(4).stderr.contains("plug it in"));
    let other = Authenticator::plugged_in(&scene.path("token.sock"), 2, None);
    assert!(check("disk.img", TOKEN).code(2).stderr.contains("the token that was enrolled"));
    add("other.img", TOKEN).code(0);
    let ran = check("disk.img", TOKEN).code(2);
    assert!(ran.stderr.contains("is another token"), "{}", ran.stderr);
    drop(other);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

#[test]
fn the_pin_of_a_token_is_asked_for_and_wrong_ones_are_counted() {
    let Some(scene) = scene() else { return };
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 3, Some("123456"));
    lacuna(&scene, &["key", "add", "disk.img", "--key-file", "key", "--token", TOKEN], "123456\n").code(0);
    assert_eq!(asked(&scene), ["PIN of the token socket:token.sock: "]);
    // Without the PIN the token does not even report that it has a credential.
    assert_eq!(token.state().credentials[0].protection, 3);
    let check = ["check", "disk.img", "--token", TOKEN];
    lacuna(&scene, &check, "123456\n").code(0);
    let ran = lacuna(&scene, &check, "654321\n").code(2);
    assert!(ran.stderr.contains("a wrong PIN; 7 tries are left"), "{}", ran.stderr);
    token.state().retries = 1;
    lacuna(&scene, &check, "654321\n").code(2);
    let ran = lacuna(&scene, &check, "123456\n").code(2);
    assert!(ran.stderr.contains("locked") && ran.stderr.contains("recovery passphrase"), "{}", ran.stderr);
}

#[test]
fn no_credential_is_made_before_all_checks() {
    skip_unless!(is_program_available("script"));
    let Some(scene) = scene() else { return };
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 4, None);
    let credentials = || token.state().credentials.len();
    // The user declines.
    scene.create("hidden.img", &["--size", "64M", "--format", "deniable"]).code(0);
    let mut typist = PtySession::new(&scene, &format!("key add hidden.img --token {TOKEN}"));
    typist.answer("Passphrase for hidden.img: ", "correct horse");
    typist.answer("Another passphrase to keep?", "");
    typist.answer("Go on? [y/N]", "n");
    assert_eq!((typist.end(), credentials()), (1, 0));
    // A disk with all slots used.
    for number in 1..8 {
        fs::write(scene.path("more"), number.to_string()).unwrap();
        scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--new-key-file", "more"]).code(0);
    }
    let ran = scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--token", TOKEN]).code(1);
    assert!(ran.stderr.contains("8 passphrases that work"), "{}", ran.stderr);
    assert_eq!(credentials(), 0);
    // A new disk without a recovery passphrase.
    let create = ["create", "new.img", "--size", "64M", "--token", TOKEN];
    lacuna(&scene, &[&create[..], &CHEAP].concat(), "1\n2\n3\n4\n5\n6\n").code(1);
    assert_eq!(credentials(), 0);
    let twice = ["--token", TOKEN, "--levels", "2", "--format", "deniable"];
    let ran = lacuna(&scene, &[&create[..], &twice, &CHEAP].concat(), "").code(1);
    assert!(ran.stderr.contains("another NAME"), "{}", ran.stderr);
    assert_eq!(credentials(), 0);
    lacuna(&scene, &[&create[..], &CHEAP].concat(), "word\nword\n").code(0);
    assert_eq!(credentials(), 1);
}

#[test]
fn a_credential_left_by_a_failed_enrolment_is_reported() {
    let Some(scene) = scene() else { return };
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 5, None);
    let add = || scene.lacuna(&["-q", "key", "add", "disk.img", "--key-file", "key", "--token", TOKEN]);
    for (fault, code, words) in [
        // No touch, and a token that hides its credential until it has a PIN.
        (Fault::Code(0x2f), 20, "no touch"),
        (Fault::Code(0x2e), 20, "fido2-token -S"),
        (Fault::NoSecret, 20, "without hmac-secret"),
    ] {
        token.state().credentials.clear();
        token.state().fault = Some(fault);
        let ran = add().code(code);
        assert!(ran.stderr.contains(words), "{fault:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("keeps the credential that was made"), "{fault:?}: {}", ran.stderr);
        // The second time the credential already exists.
        assert!(!add().stderr.contains("keeps the credential"));
    }
    token.state().fault = None;
    assert!(!add().code(0).stderr.contains("keeps the credential"));
}

#[test]
fn a_token_without_the_extension_is_refused_and_nothing_is_made_in_it() {
    let Some(scene) = scene() else { return };
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 6, None);
    token.state().fault = Some(Fault::NoExtension);
    let ran = scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--token", TOKEN]).code(20);
    assert!(ran.stderr.contains("expected: a FIDO2 token with the extension hmac-secret"), "{}", ran.stderr);
    let state = token.state();
    assert_eq!((state.credentials.len(), state.touches), (0, 0));
}

#[test]
fn refusals_of_a_token_name_their_cause() {
    let Some(scene) = scene() else { return };
    let token = Authenticator::plugged_in(&scene.path("token.sock"), 7, None);
    scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--token", TOKEN]).code(0);
    let check = |token: &str| scene.lacuna(&["check", "disk.img", "--token", token]);
    for (code, words) in
        [(0x36, "`fido2-token -S socket:token.sock`"), (0x37, "`fido2-token -C socket:token.sock`")]
    {
        token.state().fault = Some(Fault::Code(code));
        let ran = check(TOKEN).code(20);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    // A file that is not a token is not reported as a lack of permissions.
    let ran = check("fido2:device=key").code(20);
    assert!(ran.stderr.contains("does not answer as a FIDO2 token"), "{}", ran.stderr);
}

#[test]
fn a_missing_library_is_named_with_its_package() {
    let Some(library) = library() else { return };
    skip_unless!(can_mount("/dev/null"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    // In a mount namespace of its own the library is replaced by /dev/null.
    let script = "mount --make-rprivate / && mount --bind /dev/null \"$1\" && exec \"$0\" check disk.img --token fido2";
    let ran: RunOutput = Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_lacuna"), &library])
        .current_dir(scene.path(""))
        .output()
        .unwrap()
        .into();
    let ran = ran.code(20);
    assert!(ran.stderr.contains("install the package libfido2-1"), "{}", ran.stderr);
}
