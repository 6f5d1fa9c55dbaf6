//! Replaces `tls.rs` in builds without TLS: certificates cannot be loaded.

use crate::clients::ClientGuard;
use crate::exports::Exports;
use crate::negotiate::{ClientFlags, ExportSession};
use crate::stream::{Socket, TimedSocket};
use lacuna_contracts::{Error, Kind, Result};
use std::path::Path;

/// Certificates; this type has no values.
pub(crate) enum Certificates {}

impl Certificates {
    pub(crate) fn secure(
        &self,
        _: &ClientGuard,
        _: &mut TimedSocket<'_>,
        _: &Exports,
        _: ClientFlags,
    ) -> Result<Option<(Socket, ExportSession)>> {
        match *self {}
    }
}

/// Fails always. Errors: [`Kind::Usage`].
pub(crate) fn load(_: &Path) -> Result<Certificates> {
    Err(Error::new(Kind::Usage, "cannot serve TLS")
        .found("a build without TLS")
        .hint("serve without certificates, or use a build with the feature `tls`"))
}
