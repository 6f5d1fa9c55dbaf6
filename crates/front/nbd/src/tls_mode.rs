//! The settings for TLS: whether clients encrypt, and whether they show a certificate. The same in
//! builds without TLS.

/// The name of a certificate authority's file in the directory of certificates. If the file exists,
/// every client must show a certificate that this authority signed.
pub const CLIENT_AUTHORITY: &str = "ca-cert.pem";

/// Whether clients may or must encrypt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is not offered.
    #[default]
    Off,
    /// A client may ask for TLS.
    Allow,
    /// Only TLS is served.
    Require,
}
