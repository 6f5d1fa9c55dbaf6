//! `bench`: measures the speed of the ciphers and the cost of a passphrase on this machine.

use crate::args::BenchArgs;
use crate::args::cost;
use crate::terminal::console::{self, Console};
use lacuna_storage::Result;
use serde_json::json;

/// `lacuna bench`.
pub(crate) fn run(args: &BenchArgs, console: Console) -> Result<()> {
    let kdf = crate::args::CostArgs { kdf_memory: Some(args.kdf_memory), kdf_passes: None };
    let wanted = cost::from_args(&kdf)?.unwrap_or_default();
    let speeds = lacuna_storage::cipher_speeds(args.millis)?;
    let cost = wanted.resolve(&console);
    if args.json {
        let ciphers: Vec<_> = speeds
            .iter()
            .map(|(name, speed)| json!({ "name": name, "gigabytes_per_second": speed }))
            .collect();
        return console::json(&json!({
            "ciphers": ciphers,
            "kdf": {
                "algorithm": "argon2id",
                "memory_kib": cost.memory_kib,
                "passes": cost.passes,
                "lanes": cost.lanes,
            },
        }));
    }
    console::line("encrypting blocks of 4096 bytes in memory, on one thread:")?;
    for (name, speed) in speeds {
        console::line(&format!("  {name:<8} {speed:>7.2} GB/s"))?;
    }
    console::line("for about one second per passphrase:")?;
    console::line(&format!("  {}", cost::to_text(&cost)))
}
