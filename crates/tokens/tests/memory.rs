//! What the secret of a TPM leaves in the memory of a process that goes on: nothing, once it is dropped. libtss2 keeps answers in buffers of
//! its own, which it frees as they are.

use lacuna_core::{Kind, Result, SecretVec};
use lacuna_tokens::{Person, TokenSpec};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A TPM in software.
struct SoftTpm(Child);

impl SoftTpm {
    fn start(dir: &Path) -> Option<SoftTpm> {
        let mut command = Command::new("swtpm");
        command.args(["socket", "--tpm2", "--tpmstate", "dir=.", "--server", "type=unixio,path=tpm.sock"]);
        command.args(["--ctrl", "type=unixio,path=tpm.sock.ctrl", "--flags", "startup-clear"]);
        let process = command.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let tpm = SoftTpm(process);
        for _ in 0..1000 {
            if dir.join("tpm.sock").exists() {
                return Some(tpm);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the TPM has no socket");
    }
}

impl Drop for SoftTpm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nobody who could type a PIN.
struct Nobody;

impl Person for Nobody {
    fn pin(&self, prompt: &str) -> Result<SecretVec> {
        panic!("asked for {prompt}")
    }

    fn act(&self, _: &str) {}

    fn keeps(&self, _: &str) {}
}

fn skipped(why: &str) {
    // Past the capture of the test runner.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// The places in the writable memory of this process where bytes stand of which `inverted` is the inverse: so this search finds
/// nothing of itself.
fn places(inverted: &[u8]) -> Vec<String> {
    const CHUNK: usize = 1 << 20;
    let memory = File::open("/proc/self/mem").unwrap();
    let mut found = Vec::new();
    let mut bytes = vec![0; CHUNK + inverted.len()];
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words[1].starts_with("rw") {
            continue;
        }
        let (from, to) = words[0].split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        for at in (from..to).step_by(CHUNK) {
            let want = bytes.len().min((to - at) as usize);
            // A guard page or one that went meanwhile.
            let Ok(len) = memory.read_at(&mut bytes[..want], at) else { continue };
            let same = |window: &[u8]| window.iter().zip(inverted).all(|(byte, inverse)| *byte == !*inverse);
            let hits = bytes[..len].windows(inverted.len()).enumerate().filter(|(_, window)| same(window));
            found.extend(hits.map(|(offset, _)| {
                format!("{:x} in {}", at + offset as u64, words.get(5).unwrap_or(&"no file"))
            }));
        }
    }
    found
}

#[test]
fn a_secret_of_a_tpm_is_gone_when_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_tpm) = SoftTpm::start(dir.path()) else { return skipped("this machine has no swtpm") };
    let socket = dir.path().join("tpm.sock");
    let token: TokenSpec = format!("tpm2:tcti=swtpm:path={}", socket.display()).parse().unwrap();
    let secret = match token.secret(&[7; 16], &Nobody, false) {
        Err(e) if e.kind() == Kind::Other && e.to_string().contains("install") => {
            return skipped("this machine has no libtss2");
        }
        secret => secret.unwrap(),
    };
    let inverted: Vec<u8> = secret.expose().iter().map(|byte| !byte).collect();
    assert!(!places(&inverted[..16]).is_empty(), "the search does not find what is there");
    drop(secret);
    for half in inverted.chunks(16) {
        let left = places(half);
        assert!(left.is_empty(), "left at {left:?}");
    }
}
