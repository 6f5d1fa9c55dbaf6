//! Measures the speed of the ciphers on this machine, to help users choose one.

use crate::{GcmKey, Hctr2Key, XtsKey, derive};
use lacuna_contracts::{BLOCK_SIZE, Result, Secret};
use std::time::{Duration, Instant};

/// Windows per cipher; the result is their median.
const WINDOWS: u32 = 5;

/// The name and speed in GB/s of each cipher, encrypting blocks of 4096 bytes on one thread for
/// `millis` milliseconds each: `xts`, `gcm` and `hctr2`.
///
/// Errors: those of setting up a key.
pub fn cipher_speeds(millis: u64) -> Result<Vec<(&'static str, f64)>> {
    let root = Secret::copy_from(&[1; 32]);
    let src = vec![0x5a; BLOCK_SIZE];
    let mut dst = vec![0; BLOCK_SIZE];
    let budget = Duration::from_millis(millis);
    let mut speeds = Vec::new();
    let key = XtsKey::new(&derive(&root, "speed xts", b""))?;
    let mut session = key.session();
    speeds.push(("xts", gigabytes(budget, |n| session.encrypt(&tweak(n), &src, &mut dst))));
    let key = GcmKey::new(&derive(&root, "speed gcm", b""))?;
    let seal = |n: u64| {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&n.to_le_bytes());
        std::hint::black_box(key.seal(&nonce, &tweak(n), &src, &mut dst));
    };
    speeds.push(("gcm", gigabytes(budget, seal)));
    let key = Hctr2Key::new(&derive(&root, "speed hctr2", b""))?;
    speeds.push(("hctr2", gigabytes(budget, |n| key.encrypt(&tweak(n), &src, &mut dst))));
    Ok(speeds)
}

fn tweak(n: u64) -> [u8; 16] {
    u128::from(n).to_le_bytes()
}

/// The median speed of `run`, which handles one block, over windows that share `budget`.
fn gigabytes(budget: Duration, mut run: impl FnMut(u64)) -> f64 {
    let window = budget / WINDOWS;
    let mut number = 0;
    let mut rates: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let (start, first) = (Instant::now(), number);
            loop {
                for _ in 0..64 {
                    run(number);
                    number += 1;
                }
                let spent = start.elapsed();
                if spent >= window {
                    return (number - first) as f64 * BLOCK_SIZE as f64 / spent.as_secs_f64() / 1e9;
                }
            }
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_cipher_is_measured() {
        let speeds = super::cipher_speeds(1).unwrap();
        assert_eq!(speeds.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["xts", "gcm", "hctr2"]);
        assert!(speeds.iter().all(|(_, rate)| *rate > 0.0));
    }
}
