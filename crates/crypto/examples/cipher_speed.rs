//! Prints the speed of each cipher at 4096-byte blocks on one thread, with the `hctr2-rs` crate beside ours.
//!
//! `cargo run --release -p lacuna-crypto --example cipher_speed [-- --json]`

use lacuna_crypto::cipher_speeds;
use std::time::{Duration, Instant};

const MILLIS: u64 = 500;
const BLOCK: usize = 4096;
const REPEATS: usize = 5;

fn main() {
    let json = std::env::args().any(|a| a == "--json");
    let mut runs: Vec<Vec<(&'static str, f64)>> = Vec::new();
    for _ in 0..REPEATS {
        let mut run = cipher_speeds(MILLIS / REPEATS as u64);
        run.push(("hctr2-rs", peer(Duration::from_millis(MILLIS / REPEATS as u64))));
        runs.push(run);
    }
    let medians: Vec<(&str, f64)> = (0..runs[0].len())
        .map(|i| {
            let mut rates: Vec<f64> = runs.iter().map(|run| run[i].1).collect();
            rates.sort_by(f64::total_cmp);
            (runs[0][i].0, rates[REPEATS / 2])
        })
        .collect();
    let of = |name: &str| medians.iter().find(|(n, _)| *n == name).map_or(f64::NAN, |(_, rate)| *rate);
    let to_peer = of("hctr2") / of("hctr2-rs");
    let to_xts = of("hctr2") / of("xts");
    if json {
        let rates: Vec<String> = medians.iter().map(|(name, rate)| format!("\"{name}\":{rate:.3}")).collect();
        println!(
            "{{\"block\":{BLOCK},\"gb_per_s\":{{{}}},\"hctr2_to_hctr2_rs\":{to_peer:.2},\"hctr2_to_xts\":{to_xts:.3}}}",
            rates.join(",")
        );
    } else {
        medians.iter().for_each(|(name, rate)| println!("{name:>10} {rate:8.2} GB/s"));
        println!("hctr2 is {to_peer:.1} times hctr2-rs and {to_xts:.2} of xts");
    }
}

/// The speed of `hctr2-rs` in GB/s.
fn peer(window: Duration) -> f64 {
    let cipher = hctr2_rs::Hctr2_256::new(&[7; 32]);
    let src = vec![0x5a; BLOCK];
    let mut dst = vec![0; BLOCK];
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < window {
        for _ in 0..16 {
            let tweak = u128::from(count).to_le_bytes();
            cipher.encrypt(&src, &tweak, &mut dst).expect("a block is long enough");
            count += 1;
        }
    }
    count as f64 * BLOCK as f64 / start.elapsed().as_secs_f64() / 1e9
}
