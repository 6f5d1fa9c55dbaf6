//! The section on ciphers on blocks of 4096 bytes: our ciphers, GCM with hedged nonces beside
//! AES-256-GCM-SIV, and HCTR2-256 beside the `hctr2-rs` crate; one thread, no disk.

use crate::measuring::samples::Samples;
use crate::measuring::section_results::{SectionResults, StableFigure};
use crate::pages::page::RunInfo;
use crate::pages::requirement::{Bound, Requirement};
use crate::pages::table::Table;
use crate::workspace::Workspace;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use lacuna_contracts::{BLOCK_SIZE, Result, Secret};
use lacuna_crypto::{GcmKey, HEDGED, HedgedNonce};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PEER: &str = "hctr2-rs";
/// GCM as in `sealed`, without drawing the random value, which every cipher with a nonce needs.
const HEDGED_GCM: &str = "gcm, hedged nonces";
/// A cipher that needs no hedged nonces.
const GCM_SIV: &str = "AES-256-GCM-SIV of aws-lc";

/// Speeds in GB/s.
struct CipherSpeeds(Vec<(&'static str, Samples)>);

/// Factor for more rounds with shorter windows than in other sections, so that a disturbance
/// affects only a few of them.
const ROUNDS_FACTOR: u32 = 4;

/// Measures all ciphers in turns.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn SectionResults>> {
    let window = work.scale.cipher_window;
    let mut all: Vec<(&'static str, Samples)> = Vec::new();
    let window = window / ROUNDS_FACTOR;
    for round in 0..work.scale.rounds * ROUNDS_FACTOR {
        work.report_progress(&format!(
            "ciphers: round {} of {}",
            round + 1,
            work.scale.rounds * ROUNDS_FACTOR
        ))?;
        let mut speeds = lacuna_crypto::cipher_speeds(window.as_millis() as u64)?;
        speeds.push((PEER, peer_hctr2(window)));
        speeds.push((HEDGED_GCM, hedged_gcm(window)?));
        speeds.push((GCM_SIV, gcm_siv(window)));
        for (name, speed) in speeds {
            if round == 0 {
                all.push((name, Samples::default()));
            }
            all.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, samples)| samples.push(speed));
        }
    }
    Ok(Box::new(CipherSpeeds(all)))
}

/// The speed of HCTR2 in `hctr2-rs`.
fn peer_hctr2(window: Duration) -> f64 {
    let cipher = hctr2_rs::Hctr2_256::new(&[7; 32]);
    let src = vec![0x5a; BLOCK_SIZE];
    let mut dst = vec![0; BLOCK_SIZE];
    gigabytes(window, |nth| {
        cipher.encrypt(&src, &nth.to_le_bytes(), black_box(&mut dst)).expect("a block is long enough");
    })
}

/// The speed of GCM with nonces that also depend on the block. Errors: those of setting up a key.
fn hedged_gcm(window: Duration) -> Result<f64> {
    let (key, master) = (GcmKey::new(&Secret::copy_from(&[7; 32]))?, Secret::copy_from(&[8; 32]));
    let hedge = HedgedNonce::derive(&master, "benchmark of hedged nonces", b"");
    let src = vec![0x5a; BLOCK_SIZE];
    let mut dst = vec![0; BLOCK_SIZE];
    Ok(gigabytes(window, |nth| {
        let random: [u8; HEDGED] = nth.to_le_bytes();
        let nonce = hedge.nonce(&random, &random, &src);
        black_box(key.seal(&nonce, &random, &src, &mut dst));
    }))
}

/// The speed of AES-256-GCM-SIV, which encrypts in place.
fn gcm_siv(window: Duration) -> f64 {
    let key = UnboundKey::new(&AES_256_GCM_SIV, &[7; 32]).expect("a key has 32 bytes");
    let key = LessSafeKey::new(key);
    let mut buf = vec![0x5a; BLOCK_SIZE];
    gigabytes(window, |nth| {
        let random = nth.to_le_bytes();
        let nonce = Nonce::assume_unique_for_key(*random.first_chunk().expect("12 of 16 bytes"));
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(random), &mut buf);
        let _tag = black_box(tag.expect("a block is short enough"));
    })
}

/// The speed of `encrypt`, which encrypts a block with the given number, in GB/s.
fn gigabytes(window: Duration, mut encrypt: impl FnMut(u128)) -> f64 {
    let (start, mut count) = (Instant::now(), 0u128);
    while start.elapsed() < window {
        for _ in 0..16 {
            encrypt(count);
            count += 1;
        }
    }
    count as f64 * BLOCK_SIZE as f64 / start.elapsed().as_secs_f64() / 1e9
}

impl CipherSpeeds {
    /// The ratio of the speeds of two ciphers. Takes the upper quartiles, because other work on the
    /// machine only reduces a speed.
    fn ratio(&self, one: &str, to: &str) -> Option<f64> {
        let speed = |name: &str| self.0.iter().find(|(n, _)| *n == name).map(|(_, s)| s.upper_quartile());
        Some(speed(one)? / speed(to)?)
    }

    fn table(&self) -> Table {
        let mut table =
            Table::new("Ciphers on blocks of 4096 bytes, one thread", ["cipher", "GB/s", "upper quartile"]);
        for (name, samples) in &self.0 {
            table.row(
                *name,
                [
                    format!("{:.2}{}", samples.median(), samples.mark()),
                    format!("{:.2}", samples.upper_quartile()),
                ],
            );
        }
        table
    }
}

impl SectionResults for CipherSpeeds {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn stable(&self) -> Vec<StableFigure> {
        let ratio = |name: &str| {
            Some(StableFigure { name: format!("{name}: speed to xts"), value: self.ratio(name, "xts")? })
        };
        ["gcm", "hctr2", HEDGED_GCM].into_iter().filter_map(ratio).collect()
    }

    fn body(&self, _run: &RunInfo) -> String {
        let method = "### Method for ciphers\n\n\
One thread encrypts blocks of 4096 bytes in memory, one after another.\n";
        format!("{}\n{method}", self.table().markdown())
    }

    /// The requirements on HCTR2, and on hedged nonces relative to GCM-SIV.
    fn requirements(&self) -> Vec<Requirement> {
        vec![
            Requirement::new("HCTR2-256 to hctr2-rs", Bound::AtLeast(8.0), "")
                .case("", self.ratio("hctr2", PEER)),
            Requirement::new("HCTR2-256 to our XTS", Bound::AtLeast(0.35), "")
                .case("", self.ratio("hctr2", "xts")),
            Requirement::new("GCM with hedged nonces to AES-256-GCM-SIV", Bound::AtLeast(1.05), "")
                .case("", self.ratio(HEDGED_GCM, GCM_SIV)),
        ]
    }
}
