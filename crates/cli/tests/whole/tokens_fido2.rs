//! FIDO2 tokens, through the real libfido2 to a token in software: enrolled, used, and refused with what to do.

use crate::authenticator::Authenticator;
use crate::keys::{answering, asked};
use crate::scene::{Ran, Scene, can_mount, skipped};
use std::process::Command;

const TOKEN: &str = "fido2:device=socket:token.sock";

/// Says so if libfido2 is not here.
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

fn lacuna(scene: &Scene, words: &[&str], answers: &str) -> Ran {
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
    // Nothing is made in a token that is only asked.
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

    // Another token, and none.
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
    // Without the PIN the token does not even say that it has a credential.
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
fn a_missing_library_is_named_with_its_package() {
    let Some(library) = library() else { return };
    if !can_mount("/dev/null") {
        return;
    }
    let scene = Scene::with_disk(&["--size", "64M"]);
    // In a mount namespace of its own the library is empty.
    let script = "mount --make-rprivate / && mount --bind /dev/null \"$1\" && exec \"$0\" check disk.img --token fido2";
    let ran: Ran = Command::new("unshare")
        .args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_lacuna"), &library])
        .current_dir(scene.path(""))
        .output()
        .unwrap()
        .into();
    let ran = ran.code(20);
    assert!(ran.stderr.contains("install the package libfido2-1"), "{}", ran.stderr);
}
