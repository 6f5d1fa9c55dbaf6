//! Shows that the secret of a TPM leaves no copy in the memory of a running process once it is
//! dropped, although libtss2 frees its answer buffers without zeroing them.

use lacuna_contracts::{Kind, Result, SecretVec};
use lacuna_tokens::{TokenSpec, TokenUser};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A software TPM.
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

/// A user that cannot type a PIN.
struct UserWithoutPin;

impl TokenUser for UserWithoutPin {
    fn ask_pin(&self, prompt: &str) -> Result<SecretVec> {
        panic!("asked for {prompt}")
    }

    fn show_action(&self, _: &str) {}

    fn report_stored(&self, _: &str) {}
}

fn skipped(why: &str) {
    // Written directly, so that the test runner does not capture it.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// A search of the memory of this process. It allocates all of its memory in advance: a later
/// allocation could reuse and overwrite memory that libtss2 has just freed.
struct MemorySearch {
    memory: File,
    /// The text of `/proc/self/maps`.
    maps: Vec<u8>,
    chunk: Vec<u8>,
    found: Vec<u64>,
}

impl MemorySearch {
    const CHUNK: usize = 1 << 20;

    fn new() -> MemorySearch {
        let memory = File::open("/proc/self/mem").unwrap();
        MemorySearch {
            memory,
            maps: vec![0; 1 << 20],
            chunk: vec![0; Self::CHUNK + 64],
            found: Vec::with_capacity(1000),
        }
    }

    /// The addresses in writable memory of the inverse of `inverted`. Because the pattern is
    /// inverted, the search does not find itself.
    fn places(&mut self, inverted: &[u8]) -> &[u64] {
        self.found.clear();
        let (mut file, mut len) = (File::open("/proc/self/maps").unwrap(), 0);
        while let Ok(more @ 1..) = file.read(&mut self.maps[len..]) {
            len += more;
        }
        for line in std::str::from_utf8(&self.maps[..len]).unwrap().lines() {
            let (range, rest) = line.split_once(' ').unwrap();
            if !rest.starts_with("rw") {
                continue;
            }
            let (from, to) = range.split_once('-').unwrap();
            let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
            for at in (from..to).step_by(Self::CHUNK) {
                let want = (Self::CHUNK + inverted.len()).min((to - at) as usize);
                // A guard page, or a mapping that was removed meanwhile.
                let Ok(len) = self.memory.read_at(&mut self.chunk[..want], at) else { continue };
                let same =
                    |window: &[u8]| window.iter().zip(inverted).all(|(byte, inverse)| *byte == !*inverse);
                let hits = self.chunk[..len].windows(inverted.len()).enumerate();
                self.found
                    .extend(hits.filter(|(_, window)| same(window)).map(|(offset, _)| at + offset as u64));
            }
        }
        // The chunk holds copies of the found bytes.
        self.chunk.fill(0);
        &self.found
    }
}

#[test]
fn a_secret_of_a_tpm_is_gone_when_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_tpm) = SoftTpm::start(dir.path()) else { return skipped("this machine has no swtpm") };
    let socket = dir.path().join("tpm.sock");
    let token: TokenSpec = format!("tpm2:tcti=swtpm:path={}", socket.display()).parse().unwrap();
    let mut search = MemorySearch::new();
    let secret = match token.secret(&[7; 16], &UserWithoutPin, false) {
        Err(e) if e.kind() == Kind::Other && e.to_string().contains("install") => {
            return skipped("this machine has no libtss2");
        }
        secret => secret.unwrap(),
    };
    // One half at a time, because the start of freed memory is soon overwritten.
    let mut inverted = [0; 32];
    secret.expose().iter().zip(&mut inverted).for_each(|(byte, inverse)| *inverse = !*byte);
    for half in inverted.chunks(16) {
        // The only copy is the secret itself.
        assert_eq!(search.places(half).len(), 1, "{:x?}", search.found);
    }
    drop(secret);
    for half in inverted.chunks(16) {
        assert!(search.places(half).is_empty(), "{:x?}", search.found);
    }
}
