//! Section 3: HCTR2-256 on blocks of 4096 bytes, ours beside the `hctr2-rs` crate and our XTS; one thread, no
//! disk.

use crate::grid::Samples;
use crate::requirement::{Bound, Requirement};
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::{BLOCK_SIZE, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PEER: &str = "hctr2-rs";

/// What came out: speeds in GB/s.
pub(crate) struct Hctr2(Vec<(&'static str, Samples)>);

/// Measures all of them in turns.
pub(crate) fn measure(work: &Workspace) -> Result<Hctr2> {
    let window = work.scale.cipher_window;
    let mut all: Vec<(&'static str, Samples)> = Vec::new();
    for repeat in 0..work.scale.repeats {
        work.goes_on(&format!("hctr2: repeat {} of {}", repeat + 1, work.scale.repeats))?;
        let mut speeds = lacuna_crypto::cipher_speeds(window.as_millis() as u64);
        speeds.push((PEER, peer(window)));
        for (name, speed) in speeds {
            if repeat == 0 {
                all.push((name, Samples::default()));
            }
            all.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, samples)| samples.push(speed));
        }
    }
    Ok(Hctr2(all))
}

/// The speed of the other implementation.
fn peer(window: Duration) -> f64 {
    let cipher = hctr2_rs::Hctr2_256::new(&[7; 32]);
    let src = vec![0x5a; BLOCK_SIZE];
    let mut dst = vec![0; BLOCK_SIZE];
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < window {
        for _ in 0..16 {
            let tweak = u128::from(count).to_le_bytes();
            cipher.encrypt(&src, &tweak, black_box(&mut dst)).expect("a block is long enough");
            count += 1;
        }
    }
    count as f64 * BLOCK_SIZE as f64 / start.elapsed().as_secs_f64() / 1e9
}

impl Hctr2 {
    /// The median speed of ours over another's.
    pub(crate) fn ratio(&self, to: &str) -> Option<f64> {
        let median = |name: &str| self.0.iter().find(|(n, _)| *n == name).map(|(_, s)| s.median());
        Some(median("hctr2")? / median(to)?)
    }

    pub(crate) fn table(&self) -> Table {
        let mut table =
            Table::new("Ciphers on blocks of 4096 bytes, one thread", ["cipher", "GB/s", "spread"]);
        for (name, samples) in &self.0 {
            table.row(*name, [format!("{:.2}", samples.median()), format!("{:.0}%", samples.spread())]);
        }
        table
    }

    /// The promises about HCTR2.
    pub(crate) fn requirements(&self) -> Vec<Requirement> {
        vec![
            Requirement::new("HCTR2-256 to hctr2-rs", Bound::AtLeast(8.0), "").case("", self.ratio(PEER)),
            Requirement::new("HCTR2-256 to our XTS", Bound::AtLeast(0.35), "").case("", self.ratio("xts")),
        ]
    }
}
