//! The cost of trying one passphrase, from the options.

use crate::args::CostArgs;
use crate::args::size::Size;
use lacuna_storage::{Argon2Cost, Cost, Error, Kind, Result, human_size};

/// The cost that the options ask for; `None` if they ask for none.
pub(crate) fn from_args(args: &CostArgs) -> Result<Option<Cost>> {
    let Some(Size(memory)) = args.kdf_memory else { return Ok(None) };
    let refused = || {
        Error::new(Kind::Usage, "cannot use this --kdf-memory")
            .found(human_size(memory))
            .expected(format!("128K to {}G", Argon2Cost::MAX_MEMORY_KIB >> 20))
    };
    let kib = u32::try_from(memory >> 10).map_err(|_| refused())?;
    if !(128..=Argon2Cost::MAX_MEMORY_KIB).contains(&kib) {
        return Err(refused());
    }
    match args.kdf_passes {
        None => Ok(Some(Cost::Measured(kib))),
        // The numbers come from the command line, not from a header.
        Some(passes) => Cost::fixed(kib, passes).map(Some).map_err(|e| e.with_kind(Kind::Usage)),
    }
}

/// The cost as text for the user.
pub(crate) fn to_text(cost: &Argon2Cost) -> String {
    let memory = human_size(u64::from(cost.memory_kib) << 10);
    let counted = |n: u32, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    let (passes, lanes) = (counted(cost.passes, "pass", "passes"), counted(cost.lanes, "lane", "lanes"));
    format!("Argon2id with {memory}, {passes}, {lanes}")
}
