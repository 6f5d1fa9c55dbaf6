//! What it costs to try one passphrase, as the options say.

use crate::args::CostArgs;
use crate::console::Console;
use crate::size::{Size, human};
use crate::working;
use lacuna_core::{Error, Kind, Result};
use lacuna_crypto::{Argon2Cost, measure_cost};
use std::time::Duration;

/// How long trying one passphrase should take here.
const TARGET: Duration = Duration::from_secs(1);

/// The cost that the options ask for. Checked, and not yet measured.
pub enum Wanted {
    /// As given.
    Fixed(Argon2Cost),
    /// Measured, with at most so many KiB of memory.
    Measured(u32),
}

impl Wanted {
    /// Reads the options; `None` if they say nothing.
    pub fn from_args(args: &CostArgs) -> Result<Option<Wanted>> {
        let Some(Size(memory)) = args.kdf_memory else { return Ok(None) };
        let refused = || {
            Error::new(Kind::Usage, "cannot use this --kdf-memory")
                .found(human(memory))
                .expected(format!("128K to {}G", Argon2Cost::MAX_MEMORY_KIB >> 20))
        };
        let kib = u32::try_from(memory >> 10).map_err(|_| refused())?;
        if !(128..=Argon2Cost::MAX_MEMORY_KIB).contains(&kib) {
            return Err(refused());
        }
        let Some(passes) = args.kdf_passes else { return Ok(Some(Wanted::Measured(kib))) };
        let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(4)) as u32;
        // The numbers come from a person, not from a header.
        let cost = Argon2Cost::new(kib, passes, lanes).map_err(|e| e.with_kind(Kind::Usage))?;
        Ok(Some(Wanted::Fixed(cost)))
    }

    /// What a new disk gets if the options say nothing.
    pub fn usual() -> Wanted {
        Wanted::Measured(Argon2Cost::DEFAULT_MEMORY_KIB)
    }

    /// The cost itself; this may take some seconds.
    pub fn settle(&self, console: Console) -> Argon2Cost {
        let (cost, chosen) = match self {
            Wanted::Fixed(cost) => (*cost, true),
            Wanted::Measured(kib) => {
                let measure = |_: &_| measure_cost(*kib, TARGET);
                let cost =
                    working::show(console, "measuring what a guess at the passphrase can cost here", measure);
                (cost, *kib < Argon2Cost::FLOOR_KIB)
            }
        };
        console.detail(&format!("trying a passphrase costs {}", words(&cost)));
        if cost.memory_kib < Argon2Cost::FLOOR_KIB && !chosen {
            console.note(&format!(
                "guessing the passphrase is cheaper than it should be: this machine has too little memory for {}",
                human(u64::from(Argon2Cost::FLOOR_KIB) << 10)
            ));
        }
        cost
    }
}

/// A cost for people.
pub fn words(cost: &Argon2Cost) -> String {
    let memory = human(u64::from(cost.memory_kib) << 10);
    let counted = |n: u32, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let (passes, lanes) = (counted(cost.passes, "pass", "passes"), counted(cost.lanes, "lane", "lanes"));
    format!("Argon2id with {memory}, {passes}, {lanes}")
}
