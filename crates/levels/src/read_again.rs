//! Reading once more what a medium would not give.

use lacuna_core::{Kind, Result};

/// How often something is read before it is given up.
const TRIES: u32 = 3;

/// Reads more than once what the medium fails to give, for errors may pass; what does not verify stays so.
pub fn again(mut read: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 1..TRIES {
        match read() {
            Err(e) if e.kind() != Kind::Corrupt => {}
            done => return done,
        }
    }
    read()
}
