//! What is asked of clients: whether they encrypt, and whether they show a certificate. The same in
//! builds without TLS.

/// The file in a directory of certificates that makes every client show one that this authority
/// signed.
pub const CLIENT_AUTHORITY: &str = "ca-cert.pem";

/// Whether clients may or must encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is not offered.
    #[default]
    Off,
    /// A client may ask for TLS.
    Allow,
    /// Nothing but TLS is served.
    Require,
}
