//! HCTR2-256 on blocks of 4096 bytes, ours beside the `hctr2-rs` crate and our XTS; one thread, no
//! disk.

use crate::measured::{Measured, Stable};
use crate::page::Run;
use crate::requirement::{Bound, Requirement};
use crate::samples::Samples;
use crate::table::Table;
use crate::workspace::Workspace;
use lacuna_core::{BLOCK_SIZE, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PEER: &str = "hctr2-rs";

/// What came out: speeds in GB/s.
struct Hctr2(Vec<(&'static str, Samples)>);

/// More rounds of shorter windows than other sections have: what slows a machine for a moment then slows few of them.
const SHORTER: u32 = 4;

/// Measures all of them in turns.
pub(crate) fn measure(work: &Workspace) -> Result<Box<dyn Measured>> {
    let window = work.scale.cipher_window;
    let mut all: Vec<(&'static str, Samples)> = Vec::new();
    let window = window / SHORTER;
    for round in 0..work.scale.rounds * SHORTER {
        work.goes_on(&format!("hctr2: round {} of {}", round + 1, work.scale.rounds * SHORTER))?;
        let mut speeds = lacuna_crypto::cipher_speeds(window.as_millis() as u64)?;
        speeds.push((PEER, peer(window)));
        for (name, speed) in speeds {
            if round == 0 {
                all.push((name, Samples::default()));
            }
            all.iter_mut().filter(|(n, _)| *n == name).for_each(|(_, samples)| samples.push(speed));
        }
    }
    Ok(Box::new(Hctr2(all)))
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
    /// The speed of one to another's. The upper quartile, for other work on the machine only takes from a speed.
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

impl Measured for Hctr2 {
    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn stable(&self) -> Vec<Stable> {
        let ratio = |name: &str| {
            Some(Stable { name: format!("{name}: speed to xts"), value: self.ratio(name, "xts")? })
        };
        ["gcm", "hctr2"].into_iter().filter_map(ratio).collect()
    }

    fn body(&self, _run: &Run) -> String {
        let method =
            "### Method for ciphers\n\nOne thread, one block of 4096 bytes after another, in memory.\n";
        format!("{}\n{method}", self.table().markdown())
    }

    /// The promises about HCTR2.
    fn requirements(&self) -> Vec<Requirement> {
        vec![
            Requirement::new("HCTR2-256 to hctr2-rs", Bound::AtLeast(8.0), "")
                .case("", self.ratio("hctr2", PEER)),
            Requirement::new("HCTR2-256 to our XTS", Bound::AtLeast(0.35), "")
                .case("", self.ratio("hctr2", "xts")),
        ]
    }
}
