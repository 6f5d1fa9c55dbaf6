//! The reading verbs: valid JSON, streams that end early, servers in the background.

use crate::harness::{Scene, Signal, send};
use crate::nbd_client::Client;
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn json_and_text_agree() {
    let scene = Scene::with_disk(&["--size", "64M", "--cipher", "gcm"]);
    let info = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json();
    assert_eq!(info["size"], 64 << 20);
    assert_eq!(info["cipher"], "gcm");
    assert_eq!(info.get("layout"), None, "all disks on local media have the same");
    assert_eq!(info["header"]["format"], "sealed");
    assert_eq!(info["header"]["generation"], 1);
    assert_eq!(info["header"]["uuid"].as_str().unwrap().len(), 36);
    assert_eq!(info["medium"]["size"], fs::metadata(scene.path("disk.img")).unwrap().len());
    assert!(
        info["medium"]["used"].as_u64().unwrap() < 16 << 20,
        "a new disk takes little more than its ring"
    );
    assert_eq!(info["notes"].as_array().unwrap().len(), 0);
    let text = scene.lacuna(&["info", "disk.img"]).code(0).stdout;
    assert!(text.contains(info["header"]["uuid"].as_str().unwrap()) && !text.contains("layout"), "{text}");

    let check = scene.lacuna(&["check", "disk.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!((&check["unwritten"], &check["bad"]), (&16384.into(), &0.into()));
    let bench = scene.lacuna(&["bench", "--json", "--millis", "5", "--kdf-memory", "16M"]).code(0).json();
    assert_eq!(bench["ciphers"].as_array().unwrap().len(), 3);
    assert!(bench["kdf"]["memory_kib"].as_u64().unwrap() <= 16384);
    assert!(scene.lacuna(&["bench", "--millis", "5", "--kdf-memory", "16M"]).code(0).stdout.contains("GB/s"));
}

#[test]
fn a_background_server_is_shown_by_status() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["status", "disk.img"]).code(4);
    let serve =
        ["serve", "disk.img", "--key-file", "key", "--socket", "nbd.sock", "--pid-file", "pid", "--fork"];
    let started = scene.lacuna(&serve).code(0);
    assert!(started.stdout.starts_with("nbd+unix:///?socket="));
    let pid = fs::read_to_string(scene.path("pid")).unwrap().trim().to_owned();
    let mut client = Client::connect(&scene.path("nbd.sock")).unwrap();
    client.write_at(0, &[1; 4096]).unwrap();
    client.flush().unwrap();

    let status = scene.lacuna(&["status", "disk.img", "--json"]).code(0).json();
    let server = &status["servers"][0];
    // A service manager watches the keeper.
    assert_eq!(server["keeper"].to_string(), pid);
    assert_eq!(server["front"], "nbd");
    assert_eq!(server["uri"], started.stdout.trim());
    let items = server["items"].as_array().unwrap();
    assert!(items.iter().any(|item| item["name"] == "journal_batches" && item["value"].as_u64() > Some(0)));
    assert!(scene.lacuna(&["status"]).code(0).stdout.contains("disk.img"));

    // The waiting parent reports failures after the fork.
    scene.create("other.img", &["--size", "64M"]).code(0);
    let taken = ["serve", "other.img", "--key-file", "key", "--socket", "nbd.sock", "--fork"];
    let said = scene.lacuna(&taken).code(5).stderr;
    assert_eq!(said.lines().filter(|line| line.starts_with("lacuna: ")).count(), 1, "{said}");

    send(Signal::TERM, &pid);
    // The pid file is removed when the disk is closed; the lock on the medium is released last.
    scene.wait_until_free("disk.img");
    assert!(!scene.path("pid").exists() && !scene.path("nbd.sock").exists());
    scene.lacuna(&["check", "disk.img", "--read-only", "--key-file", "key"]).code(0);
}

#[test]
fn a_server_listens_on_tcp() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let args =
        ["serve", "disk.img", "--key-file", "key", "--listen", "127.0.0.1:0", "--fork", "--pid-file", "pid"];
    let uri = scene.lacuna(&args).code(0).stdout;
    assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.trim().ends_with(":0"), "{uri}");
    let pid = fs::read_to_string(scene.path("pid")).unwrap();
    send(Signal::TERM, pid);
    scene.wait_until_free("disk.img");
}

#[test]
fn streams_that_end_early_or_are_full_are_no_panic() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
        let out = shell.stdin(Stdio::null()).output().unwrap();
        (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for words in [
        "info disk.img",
        "info disk.img --json",
        "--help",
        "completions bash",
        "check disk.img --key-file key",
    ] {
        let (code, said) = shell(&format!("set -o pipefail; \"$0\" {words} | head -c 0"));
        assert_eq!((code, said.as_str()), (0, ""), "{words}");
        let (code, said) = shell(&format!("\"$0\" {words} >/dev/full 2>/dev/full"));
        assert!(code == 13 || words == "--help", "{words}: {code} {said}");
        let (_, said) = shell(&format!("\"$0\" {words} >/dev/full"));
        assert!(!said.contains("panicked"), "{said}");
    }
    assert_eq!(shell("\"$0\" info missing 2>/dev/full").0, 4);
    assert_eq!(shell("\"$0\" -q info disk.img >&-").1, "");
}

#[test]
fn completions_and_manual_pages() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(scene.lacuna(&["completions", shell]).code(0).stdout.contains("key-file"));
    }
    fs::create_dir(scene.path("man")).unwrap();
    scene.lacuna(&["man", "man"]).code(0);
    assert!(scene.lacuna(&["--help"]).code(0).stdout.contains("Write the manual pages"));
    // The first page of help leaves simulated chips out.
    let whole = fs::read_to_string(scene.path("man/lacuna.1")).unwrap();
    assert!(whole.contains(".SH LOCATIONS\n") && whole.contains("nand:PATH"), "{whole}");
    let mut pages =
        fs::read_dir(scene.path("man")).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    pages.sort();
    // Only the pages of the verbs.
    pages.retain(|page| page.extension().is_some_and(|section| section == "1"));
    assert!(pages.len() > 30, "{pages:?}");
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        assert_sections(page.file_stem().unwrap().to_str().unwrap(), &text);
    }
}

/// Checks that a manual page has exactly the sections that the options of its command require.
fn assert_sections(page: &str, text: &str) {
    let section = |title: &str| {
        let from = text.find(&format!(".SH {title}\n").replace("EXIT STATUS", "\"EXIT STATUS\""))?;
        Some(text[from + 4..].split("\n.SH ").next().unwrap().to_owned())
    };
    // Options are in their own sections, before the derived sections.
    let options = text.split(".SH SIGNALS").next().unwrap().split(".SH \"EXIT STATUS\"").next().unwrap();
    let [signals, codes, environment, files, examples] =
        ["SIGNALS", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"].map(section);
    assert!(text.contains(".TH ") && section("NAME").is_some() && section("DESCRIPTION").is_some(), "{page}");
    let stands_before_others = section("SUBCOMMANDS").is_some() && page != "lacuna";
    assert_eq!(examples.is_none(), stands_before_others, "{page}");
    assert_eq!(codes.is_none(), stands_before_others, "{page}");
    let [codes, environment, files] = [codes, environment, files].map(Option::unwrap_or_default);
    let whole = page == "lacuna";
    let named = |option: &str| options.contains(&format!("\\fB{}\\fR", option.replace('-', "\\-")));
    let takes = |option: &str| whole || named(option);
    for (option, said, of) in [
        ("--key-file", "\\fB10\\fR", &codes),
        ("--anchor", "\\fB11\\fR", &codes),
        ("--purge-period", "\\fB12\\fR", &codes),
        ("--cover-timeout", "\\fB14\\fR", &codes),
        ("--anchor", "XDG_STATE_HOME", &environment),
        ("--ceph-conf", "CEPH_CONF", &environment),
        ("--ceph-conf", "ceph.conf", &files),
        ("--anchor", "anchors", &files),
        ("--tls-dir", "LISTEN_FDS", &environment),
    ] {
        assert!(!takes(option) || of.contains(said), "{page} takes {option} and does not say {said}");
    }
    let handles_signals = ["lacuna-close", "lacuna-status"].contains(&page);
    assert_eq!(signals.is_some(), named("--key-file") || handles_signals, "{page}");
    let about_a_place = text.contains("<\\fILOCATION") || text.contains("MOUNTPOINT");
    assert!(
        !about_a_place || environment.contains("XDG_RUNTIME_DIR") && files.contains("/run/lacuna"),
        "{page}"
    );
}
