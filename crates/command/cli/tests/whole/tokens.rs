//! Keyrings and a TPM 2.0 in software as tokens: enrolment, use, refusals with remedies, and
//! traces.

use crate::harness::{CHEAP, RunOutput, Scene, is_program_available, skip_unless, skipped, wait_until};
use crate::keys::{answering, asked};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

/// A TPM in software, in a directory of the scene.
pub(crate) struct SoftTpm<'a> {
    scene: &'a Scene,
    process: Child,
}

impl SoftTpm<'_> {
    /// Returns `None`, with a message, if this machine has none.
    pub(crate) fn start(scene: &Scene) -> Option<SoftTpm<'_>> {
        if !["swtpm", "tpm2_pcrextend"].into_iter().all(is_program_available) {
            return None;
        }
        let library = |name: &str| {
            let found =
                Command::new("sh").arg("-c").arg(format!("ls /usr/lib/*/{name} /usr/lib*/{name}")).output();
            found.is_ok_and(|found| !found.stdout.is_empty())
        };
        if !["libtss2-esys.so.0", "libtss2-tctildr.so.0", "libtss2-tcti-swtpm.so.0"].into_iter().all(library)
        {
            skipped("this machine has no libtss2");
            return None;
        }
        fs::create_dir_all(scene.path("tpm")).unwrap();
        Some(SoftTpm { scene, process: Self::run(scene) })
    }

    fn run(scene: &Scene) -> Child {
        let _ = fs::remove_file(scene.path("tpm.sock"));
        let mut command = Command::new("swtpm");
        command.args(["socket", "--tpm2", "--tpmstate", "dir=tpm", "--server", "type=unixio,path=tpm.sock"]);
        command.args(["--ctrl", "type=unixio,path=tpm.sock.ctrl", "--flags", "startup-clear"]);
        let process =
            command.current_dir(scene.path("")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the socket of the TPM", || scene.path("tpm.sock").exists());
        process
    }

    /// Restarts the TPM, as a power cycle does: PCRs are reset.
    fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::run(self.scene);
    }

    /// The argument of `--token` for it, with options.
    pub(crate) fn token(options: &str) -> String {
        format!("tpm2:{options}tcti=swtpm:path=tpm.sock")
    }

    pub(crate) fn tool(&self, name: &str, args: &[&str]) -> String {
        let out = Command::new(name)
            .args(args)
            .env("TPM2TOOLS_TCTI", "swtpm:path=tpm.sock")
            .current_dir(self.scene.path(""))
            .output()
            .unwrap();
        RunOutput::from(out).code(0).stdout
    }

    /// Extends a PCR, as booting other software does.
    pub(crate) fn measure(&self, pcr: u8) {
        self.tool("tpm2_pcrextend", &[&format!("{pcr}:sha256={}", "5a".repeat(32))]);
    }

    /// All handles that can be listed in it.
    fn contents(&self) -> Vec<String> {
        let kinds = ["handles-persistent", "handles-nv-index", "handles-transient", "handles-loaded-session"];
        kinds.map(|kind| self.tool("tpm2_getcap", &[kind])).to_vec()
    }
}

impl Drop for SoftTpm<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn key(scene: &Scene, words: &[&str]) -> RunOutput {
    scene.lacuna(&[&["key", words[0], "disk.img"], &words[1..]].concat())
}

fn check(scene: &Scene, token: &str) -> RunOutput {
    scene.lacuna(&["check", "disk.img", "--token", token])
}

#[test]
fn a_key_of_the_session_is_a_passphrase() {
    skip_unless!(is_program_available("keyctl"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("second"), "second\n").unwrap();
    key(&scene, &["add", "--key-file", "key", "--new-key-file", "second"]).code(0);
    let in_session = |lines: &str| -> RunOutput {
        let script = format!("keyctl padd user lacuna:home @s <second >/dev/null || exit 99; {lines}");
        let mut command = Command::new("keyctl");
        command.args(["session", "-", "sh", "-c", &script, env!("CARGO_BIN_EXE_lacuna")]);
        command.env("XDG_RUNTIME_DIR", scene.path("")).current_dir(scene.path(""));
        command.output().unwrap().into()
    };
    let ran = in_session("\"$0\" check disk.img --token keyring:home");
    if ran.code == 99 {
        skipped("keyrings are not permitted here");
        return;
    }
    ran.code(0);
    // The key has the same bytes as the key file.
    assert!(
        in_session("\"$0\" check disk.img --token keyring:other")
            .code(4)
            .stderr
            .contains("keyctl padd user lacuna:other")
    );
    let ran = in_session(
        "keyctl padd user lacuna:home @s <key >/dev/null; \"$0\" key remove disk.img --token keyring:home --remove-key-file second",
    );
    assert!(ran.code(1).stderr.contains("recovery passphrase"));
    let ran = in_session(
        "echo no | keyctl padd user lacuna:home @s >/dev/null; \"$0\" check disk.img --token keyring:home",
    )
    .code(2);
    assert!(ran.stderr.contains("is no passphrase of this disk"), "{}", ran.stderr);
}

#[test]
fn a_key_of_the_user_is_found_and_read_where_the_session_does_not_link_its_keyring() {
    skip_unless!(is_program_available("keyctl"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    let name = format!("lacuna-test-{}", std::process::id());
    let script = format!(
        "id=$(keyctl padd user lacuna:{name} @u <key) || exit 99; \"$0\" check disk.img --token keyring:{name}; code=$?; \
         keyctl unlink $id @u; exit $code"
    );
    // A new session, which links no keyring.
    let mut command = Command::new("keyctl");
    command.args(["session", "-", "sh", "-c", &script, env!("CARGO_BIN_EXE_lacuna")]);
    command.env("XDG_RUNTIME_DIR", scene.path("")).current_dir(scene.path(""));
    let ran: RunOutput = command.output().unwrap().into();
    if ran.code == 99 {
        skipped("keyrings are not permitted here");
        return;
    }
    ran.code(0);
}

#[test]
fn a_tpm_opens_the_disk_until_a_pcr_changes_and_says_what_to_do_then() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let Some(mut tpm) = SoftTpm::start(&scene) else { return };
    let (plain, other) = (SoftTpm::token("pcrs=7+11,"), SoftTpm::token("other,pcrs=7+11,"));
    let before = tpm.contents();
    let ran = key(&scene, &["add", "--token", &plain, "--key-file", "key"]).code(0);
    assert!(ran.stderr.contains("has measured nothing"), "{}", ran.stderr);
    assert_eq!(tpm.contents(), before, "something was left in the TPM");
    check(&scene, &plain).code(0);
    // The order of PCRs does not matter; the name and the set of PCRs do.
    check(&scene, &SoftTpm::token("pcrs=11+7,")).code(0);
    check(&scene, &other).code(2);
    check(&scene, &SoftTpm::token("")).code(2);
    scene
        .lacuna(&["key", "add", "disk.img", "--token", &other, "--token", &plain, "--key-file", "key"])
        .code(1);
    key(&scene, &["add", "--token", &plain, "--key-file", "key", "--new-token", &other]).code(0);
    check(&scene, &other).code(0);

    tpm.measure(11);
    let ran = check(&scene, &plain).code(2);
    for words in
        ["one of the PCRs 7, 11 changed", "recovery passphrase", "lacuna key add disk.img --token tpm2:"]
    {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    // The token cannot derive the enrolled secret any more.
    let ran = key(&scene, &["remove", "--key-file", "key", "--remove-token", &plain]).code(2);
    for words in ["one of the PCRs 7, 11 changed", "`lacuna key refresh` with every passphrase"] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    tpm.restart();
    check(&scene, &plain).code(0);
    // The changed state gives another secret, which is enrolled in addition to the old one.
    tpm.measure(11);
    key(&scene, &["add", "--token", &plain, "--key-file", "key"]).code(0);
    check(&scene, &plain).code(0);
    let ran = key(&scene, &["add", "--token", &plain, "--key-file", "key"]).code(1);
    assert!(ran.stderr.contains("which is enrolled already"), "{}", ran.stderr);
    key(&scene, &["remove", "--remove-token", &plain, "--key-file", "key"]).code(0);
    check(&scene, &plain).code(2);
    drop(tpm);
    let ran = check(&scene, &plain).code(4);
    assert!(ran.stderr.contains("cannot reach the TPM"), "{}", ran.stderr);
}

#[test]
fn a_pin_goes_into_the_secret_of_a_tpm() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let Some(tpm) = SoftTpm::start(&scene) else { return };
    tpm.measure(7);
    let token = SoftTpm::token("pin,");
    let with = |words: &[&str], answers: &str| {
        answering(&scene, answers);
        scene.lacuna(&[words, &["--askpass", "./ask"]].concat())
    };
    let add = ["key", "add", "disk.img", "--key-file", "key", "--token", &token];
    // A typing error must not create a secret that cannot be derived again.
    with(&add, "1234\n1235\n").code(1);
    let ran = with(&add, "1234\n1234\n").code(0);
    assert!(!ran.stderr.contains("has measured nothing"), "{}", ran.stderr);
    let open = ["check", "disk.img", "--token", &token];
    with(&open, "1234\n").code(0);
    assert_eq!(asked(&scene), ["PIN that goes with the TPM: "]);
    let ran = with(&open, "1235\n").code(2);
    assert!(ran.stderr.contains("the PIN is wrong"), "{}", ran.stderr);
    check(&scene, &SoftTpm::token("")).code(2);
    let ran = alone(&scene, &open).code(1);
    assert!(ran.stderr.contains("give --askpass CMD, which is asked for the PIN"), "{}", ran.stderr);
}

/// Runs the program without a terminal that it could open.
fn alone(scene: &Scene, words: &[&str]) -> RunOutput {
    let lacuna = scene.command(words);
    let mut command = Command::new("setsid");
    command.arg("-w").arg(lacuna.get_program()).args(lacuna.get_args()).current_dir(scene.path(""));
    command.env("XDG_RUNTIME_DIR", scene.path("")).stdin(Stdio::null()).output().unwrap().into()
}

#[test]
fn a_tpm_that_refuses_or_binds_to_nothing_says_so() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let Some(tpm) = SoftTpm::start(&scene) else { return };
    [7, 16].into_iter().for_each(|pcr| tpm.measure(pcr));
    let add = |options: &str| key(&scene, &["add", "--key-file", "key", "--token", &SoftTpm::token(options)]);
    let ran = add("pcrs=7+16,").code(0);
    assert!(
        ran.stderr.contains("PCR 16 binds") && !ran.stderr.contains("measured nothing"),
        "{}",
        ran.stderr
    );
    let ran = add("pcrs=16,").code(0);
    assert!(ran.stderr.contains("PCR 16 binds") && ran.stderr.contains("measured nothing"), "{}", ran.stderr);
    tpm.tool("tpm2_changeauth", &["-c", "owner", "secret"]);
    let ran = add("password,").code(2);
    assert!(
        ran.stderr.contains("with a password") && ran.stderr.contains("tpm2_changeauth"),
        "{}",
        ran.stderr
    );
    tpm.tool("tpm2_hierarchycontrol", &["-C", "p", "shEnable", "clear"]);
    let ran = add("disabled,").code(2);
    assert!(ran.stderr.contains("switched off"), "{}", ran.stderr);
}

#[test]
fn a_recovery_passphrase_is_asked_for_or_must_be_there() {
    let scene = Scene::new();
    let Some(_tpm) = SoftTpm::start(&scene) else { return };
    let (token, second) = (SoftTpm::token(""), SoftTpm::token("second,"));
    let create = ["create", "disk.img", "--size", "64M", "--token", &token];
    let ran = alone(&scene, &[&create[..], &CHEAP].concat()).code(1);
    assert!(ran.stderr.contains("--no-recovery") && !scene.path("disk.img").exists(), "{}", ran.stderr);
    // If a given program fails, the error names it and does not suggest to give one.
    let ran = scene.lacuna(&[&create[..], &CHEAP, &["--askpass", "false"]].concat()).code(1);
    assert!(ran.stderr.contains("cannot ask false") && !scene.path("disk.img").exists(), "{}", ran.stderr);
    answering(&scene, "correct horse\ncorrect horse\n");
    scene.lacuna(&[&create[..], &CHEAP, &["--askpass", "./ask"]].concat()).code(0);
    assert!(asked(&scene)[0].starts_with("New recovery passphrase for disk.img"), "{:?}", asked(&scene));
    check(&scene, &token).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);

    // One token opens and another is enrolled: it is unknown whether a recovery passphrase exists.
    let add = ["add", "--token", &token, "--new-token", &second];
    assert!(key(&scene, &add).code(1).stderr.contains("recovery passphrase"));
    check(&scene, &second).code(2);
    key(&scene, &[&add[..], &["--key-file", "key"]].concat()).code(0);
    check(&scene, &second).code(0);
    let refresh = ["refresh", "--token", &token, "--yes", "--keep", "1"];
    assert!(key(&scene, &refresh).code(1).stderr.contains("recovery passphrase"));
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    key(&scene, &[&refresh[..], &["--no-recovery"]].concat()).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(2);
    check(&scene, &token).code(0);
    // The remedy: the token opens, and a passphrase is added.
    key(&scene, &["add", "--token", &token, "--new-key-file", "key"]).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

/// The files of the scene except the disk, with their lengths, and the first and the last changed
/// sector (512 bytes) of the disk.
type TokenTraces = (BTreeMap<String, u64>, (usize, usize));

/// Enrols a token or passphrase on a disk of one or two levels; returns the traces.
fn enrolled(levels: &str, words: &[&str]) -> Option<TokenTraces> {
    let scene = Scene::new();
    let tpm = SoftTpm::start(&scene)?;
    ["deep", "new"].iter().for_each(|name| fs::write(scene.path(name), *name).unwrap());
    let deep = if levels == "2" { &["--key-file", "deep"][..] } else { &[] };
    let shape = ["--format", "deniable", "--size", "64M", "--cover", "0", "--levels", levels];
    scene.create("disk.img", &[&shape[..], deep].concat()).code(0);
    let uuid =
        scene.lacuna(&["info", "disk.img", "--json"]).json()["header"]["uuid"].as_str().unwrap().to_owned();
    let before = fs::read(scene.path("disk.img")).unwrap();
    let keep = ["--key-file", "key", "--yes", "--keep", levels];
    let args = [&["key", "add", "disk.img"], words, &keep, deep].concat();
    let ran = scene.command(&args).env("HOME", scene.path("")).output().map(RunOutput::from).unwrap().code(0);
    assert!(ran.stdout.contains("added the passphrase"), "{}", ran.stdout);
    drop(tpm);
    let after = fs::read(scene.path("disk.img")).unwrap();
    let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    // Each of the eight slots, used or unused, is rewritten and looks random.
    for (number, slot) in after[2048..].chunks(1024).take(8).enumerate() {
        let ones: u32 = slot.iter().map(|byte| byte.count_ones()).sum();
        assert!((3700..4500).contains(&ones), "{ones} of 8192 bits of slot {number} are set");
        let alike =
            slot.iter().zip(&before[2048 + number * 1024..]).filter(|(now, then)| now == then).count();
        assert!(alike < 30, "{alike} of 1024 bytes of slot {number} stayed");
    }
    let mut files = BTreeMap::new();
    let mut left = vec![scene.path("")];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let shown =
                path.strip_prefix(scene.path("")).unwrap().display().to_string().replace(&uuid, "UUID");
            if path.is_dir() {
                left.push(path);
            } else if !shown.starts_with("tpm") {
                files.insert(shown, entry.metadata().unwrap().len());
            }
        }
    }
    Some((files, (changed[0] / 512, changed[changed.len() - 1] / 512)))
}

#[test]
fn a_token_of_a_hidden_level_leaves_the_same_traces_as_a_public_passphrase() {
    let token = SoftTpm::token("");
    let Some(hidden) = enrolled("2", &["--token", &token]) else { return };
    for (levels, words) in [
        ("2", &["--new-key-file", "new"][..]),
        ("1", &["--new-key-file", "new"]),
        ("1", &["--token", &token]),
    ] {
        let other = enrolled(levels, words).unwrap();
        assert!(hidden == other, "{hidden:?}, with {levels} levels and {words:?} {other:?}");
    }
}
