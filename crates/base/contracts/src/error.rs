//! The error type of all crates. Its text has a fixed order (failure, finding, expectation,
//! advice); programs use its kind and its source.

use crate::{ErrorText, Hint, Term};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The result of all fallible functions of the workspace.
pub type Result<T> = std::result::Result<T, Error>;

/// Class of an error, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The request is invalid.
    Usage,
    /// Wrong passphrase.
    Passphrase,
    /// The system refused permission.
    Permission,
    /// Not enough memory, or over the memory limit; or no file descriptors left.
    Memory,
    /// The location does not exist, or does not hold a disk or vault of lacuna.
    NotFound,
    /// In use by another process.
    Busy,
    /// Data does not verify.
    Corrupt,
    /// Older than the expected state.
    RolledBack,
    /// The medium takes no more bytes: it is full, or a quota or the maximum length of a file is
    /// reached.
    NoSpace,
    /// The medium reported an error.
    Io,
    /// Writes are refused because of an earlier medium error (fail-stop).
    FailStop,
    /// The disk is read-only.
    ReadOnly,
    /// The item exists already.
    Exists,
    /// The item changed since it was last seen.
    Changed,
    /// Another client has taken over the disk.
    Fenced,
    /// No answer within the timeout.
    TimedOut,
    /// Some deleted data can still be recovered.
    PurgeIncomplete,
    /// No public write came to cover a hidden write within the timeout.
    NoCover,
    /// Any other error.
    Other,
}

impl Kind {
    /// The nearest system error number, for replies through FUSE; NBD has fewer numbers, and maps
    /// kinds itself. [`Error::io`] maps the same numbers to kinds; keep both in step.
    pub fn errno(self) -> i32 {
        match self {
            Kind::Usage => libc::EINVAL,
            Kind::Passphrase | Kind::Permission => libc::EPERM,
            Kind::Memory => libc::ENOMEM,
            Kind::NotFound => libc::ENOENT,
            Kind::Busy | Kind::Changed => libc::EBUSY,
            Kind::Exists => libc::EEXIST,
            Kind::Fenced => libc::ESHUTDOWN,
            Kind::TimedOut | Kind::NoCover => libc::ETIMEDOUT,
            Kind::NoSpace => libc::ENOSPC,
            Kind::ReadOnly => libc::EROFS,
            Kind::Corrupt
            | Kind::RolledBack
            | Kind::Io
            | Kind::FailStop
            | Kind::PurgeIncomplete
            | Kind::Other => libc::EIO,
        }
    }

    /// Whether a call that returned this kind has changed nothing: the medium has no space for
    /// these bytes, or the system refused the call, or lacked memory or descriptors. Only the
    /// request fails. This does not hold for a sync: see [`Error::of_sync`]. A read that failed for
    /// another reason changed nothing either: [`Error::changed_nothing`].
    pub fn is_refusal(self) -> bool {
        matches!(self, Kind::NoSpace | Kind::Permission | Kind::Memory)
    }
}

/// An error: failure, finding, expectation and advice.
///
/// `{}` and `{:?}` print the same sentence, so that a `main` that returns [`Result`] prints it too.
/// `{:#?}` prints the fields.
///
/// ```
/// use lacuna_contracts::{Error, Kind};
/// let e = Error::new(Kind::NotFound, "cannot open d.img").found("no such file");
/// assert_eq!(format!("{e:?}"), "cannot open d.img; found: no such file");
/// assert!(format!("{e:#?}").contains("NotFound"));
/// ```
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    what: String,
    found: Option<String>,
    expected: Option<String>,
    hint: Option<Hint>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    confidential: bool,
    of_read: bool,
}

impl Error {
    /// An error of `kind` with the failure, such as `"cannot open disk.img"`.
    pub fn new(kind: Kind, what: impl Into<String>) -> Self {
        let (found, expected, hint, source) = (None, None, None, None);
        Error { kind, what: what.into(), found, expected, hint, source, confidential: false, of_read: false }
    }

    /// An error of the system or the medium, with a kind by its number: a full medium and a refused
    /// permission have kinds of their own. [`Error::errno`] maps back.
    pub fn io(what: impl Into<String>, err: &std::io::Error) -> Self {
        let kind = match err.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Kind::NoSpace,
            Some(libc::EACCES | libc::EPERM) => Kind::Permission,
            Some(libc::ENOENT) => Kind::NotFound,
            Some(libc::EBUSY | libc::EWOULDBLOCK) => Kind::Busy,
            Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => Kind::Memory,
            Some(libc::EROFS) => Kind::ReadOnly,
            _ => Kind::Io,
        };
        let source = match err.raw_os_error() {
            Some(number) => std::io::Error::from_raw_os_error(number),
            None => std::io::Error::new(err.kind(), err.to_string()),
        };
        Error::new(kind, what).found(err.to_string()).caused_by(source)
    }

    /// Keeps the error of another library or of the system as the [`std::error::Error::source`].
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets the finding.
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    /// Sets the expectation.
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Sets the advice.
    pub fn hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the failure with the attempted operation: `context: what`.
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.what = format!("{context}: {}", self.what);
        self
    }

    /// Removes the finding and the expectation, which must not reach a log. The failure and the
    /// advice stay.
    #[must_use]
    pub fn without_details(mut self) -> Self {
        (self.found, self.expected) = (None, None);
        self
    }

    /// The failure and the finding, printable ([`printable`](crate::printable)), without the
    /// advice: for lists of errors that show the advice once.
    pub fn summary(&self) -> String {
        self.text(Term::quoted).finding()
    }

    /// The advice, if there is one.
    pub fn get_hint(&self) -> Option<&Hint> {
        self.hint.as_ref()
    }

    /// The text in its parts; `name` renders settings and actions, for example as options and verbs
    /// of the command.
    pub fn text(&self, name: impl Fn(Term) -> Cow<'static, str>) -> ErrorText {
        ErrorText {
            message: self.what.clone(),
            found: self.found.clone(),
            expected: self.expected.clone(),
            advice: self.hint.as_ref().map(|advice| advice.render_with(name)),
        }
    }

    /// An error of `kind` with a text that another process sent.
    pub fn of_text(kind: Kind, text: ErrorText) -> Self {
        let ErrorText { message, found, expected, advice } = text;
        Error { found, expected, hint: advice.map(Hint::from), ..Error::new(kind, message) }
    }

    /// Renders the whole error on one line, for logs and JSON; `name` renders settings and actions.
    pub fn render_with(&self, name: impl Fn(Term) -> Cow<'static, str>) -> String {
        self.text(name).line()
    }

    /// Marks the error as private: no log may keep it, because its text or even its kind may reveal
    /// hidden levels (deniability contract).
    pub fn confidential(mut self) -> Self {
        self.confidential = true;
        self
    }

    /// Whether the error is private: shown to the user, and never logged.
    pub fn is_confidential(&self) -> bool {
        self.confidential
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number for replies: the system's number if the system refused the call
    /// ([`Kind::is_refusal`]), otherwise the number of the kind.
    pub fn errno(&self) -> i32 {
        let source = self.source.as_deref().and_then(|source| source.downcast_ref::<std::io::Error>());
        let number = source.and_then(std::io::Error::raw_os_error).filter(|_| self.kind.is_refusal());
        number.unwrap_or_else(|| self.kind.errno())
    }

    /// Whether the same call may succeed later although nothing was changed for it: something has
    /// the item in use now, or the network does not answer.
    pub fn may_pass(&self) -> bool {
        let source = self.source.as_deref().and_then(|source| source.downcast_ref::<std::io::Error>());
        let of_network = source.and_then(std::io::Error::raw_os_error).is_some_and(is_of_network);
        matches!(self.kind, Kind::Busy | Kind::TimedOut) || (self.kind == Kind::Io && of_network)
    }

    /// Marks the error as that of a read, for the engine that called: the call changed nothing,
    /// whatever the medium reported. Does not apply to [`Kind::Fenced`] and [`Kind::FailStop`],
    /// which are permanent.
    #[must_use]
    pub fn of_read(mut self) -> Self {
        self.of_read = !matches!(self.kind, Kind::Fenced | Kind::FailStop);
        self
    }

    /// Whether the failed call was a read ([`Error::of_read`]).
    pub fn is_of_read(&self) -> bool {
        self.of_read
    }

    /// Whether the failed call changed nothing: it was refused ([`Kind::is_refusal`]), or it was a
    /// read ([`Error::of_read`]). Then only the request fails. An engine that has changed a part of
    /// the medium by then calls [`Error::of_sync`].
    pub fn changed_nothing(&self) -> bool {
        self.of_read || self.kind.is_refusal()
    }

    /// Marks the error as that of a sync, or of a call that was left incomplete. A refusal becomes
    /// [`Kind::Io`]: the extent of the lost data is unknown, so no caller may continue as after a
    /// call that changed nothing.
    #[must_use]
    pub fn of_sync(mut self) -> Self {
        self.of_read = false;
        if self.kind.is_refusal() { self.with_kind(Kind::Io) } else { self }
    }

    /// Replaces the kind.
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }
}

/// Whether the system reports with this number that a network, or a machine in it, is out of reach.
/// ENOTCONN and ECONNABORTED are not among these numbers: a FUSE mount whose server died returns
/// them for ever.
fn is_of_network(number: i32) -> bool {
    matches!(
        number,
        libc::ENETDOWN
            | libc::ENETUNREACH
            | libc::ENETRESET
            | libc::ECONNRESET
            | libc::ECONNREFUSED
            | libc::ETIMEDOUT
            | libc::EHOSTDOWN
            | libc::EHOSTUNREACH
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Term::quoted).line())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("text", &self.text(Term::quoted))
            .field("source", &self.source)
            .field("private", &self.confidential)
            .field("of_read", &self.of_read)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_deref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;

    #[test]
    fn an_error_renders_in_the_fixed_order() {
        let e = Error::new(Kind::Usage, "cannot create a.img")
            .hint(Hint::from("give ").setting(Setting("size")).text(" a multiple of 4096"))
            .found("size 5")
            .expected("a multiple of 4096");
        assert_eq!(
            e.to_string(),
            "cannot create a.img; found: size 5; expected: a multiple of 4096; give `size` a multiple of 4096"
        );
        assert!(e.render_with(|_| "--size".into()).ends_with("; give --size a multiple of 4096"));
        assert_eq!(e.summary(), "cannot create a.img; found: size 5");
        let text = e.text(|_| "--size".into());
        assert_eq!(
            text.lines(),
            "cannot create a.img: size 5\n  expected: a multiple of 4096\n  hint: give --size a multiple of 4096"
        );
        let crossed = Error::of_text(e.kind(), text.clone());
        assert_eq!((crossed.kind(), crossed.text(Term::quoted)), (Kind::Usage, text));
    }

    #[test]
    fn a_main_that_returns_an_error_prints_a_sentence() {
        let e = Error::new(Kind::Busy, "cannot close").found("a client").confidential();
        assert_eq!(format!("{e:?}"), e.to_string());
        let fields = format!("{e:#?}");
        assert!(fields.contains("Busy") && fields.contains("private: true"), "{fields}");
    }

    #[test]
    fn system_errors_keep_their_meaning() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let source = std::error::Error::source(&Error::io("write", &full)).map(ToString::to_string);
        assert_eq!(source, Some(full.to_string()));
        assert_eq!(Error::io("write", &full).kind(), Kind::NoSpace);
        assert_eq!(Kind::Corrupt.errno(), libc::EIO);
    }

    #[test]
    fn a_use_and_an_outage_may_pass() {
        let of_number =
            |number| Error::io("call", &std::io::Error::from_raw_os_error(number)).context("disk");
        for number in [libc::EBUSY, libc::EAGAIN, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ECONNREFUSED] {
            assert!(of_number(number).may_pass(), "{number}");
        }
        for number in [libc::EIO, libc::ENOSPC, libc::ENOENT, libc::EACCES, libc::EROFS, libc::ENOTCONN] {
            assert!(!of_number(number).may_pass(), "{number}");
        }
        for kind in [Kind::Changed, Kind::Fenced, Kind::Corrupt, Kind::NoCover, Kind::Other] {
            assert!(!Error::new(kind, "call").may_pass(), "{kind:?}");
        }
        assert!(Error::new(Kind::TimedOut, "no monitor answers").may_pass());
    }

    #[test]
    fn a_refusal_keeps_its_errno_and_a_failed_sync_is_no_refusal() {
        for number in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EPERM, libc::ENOMEM, libc::EMFILE] {
            let error = Error::io("write", &std::io::Error::from_raw_os_error(number)).context("a vault");
            assert!(error.kind().is_refusal(), "{error}");
            assert_eq!(error.errno(), number);
            assert_eq!((error.clone().of_sync().kind(), error.of_sync().errno()), (Kind::Io, libc::EIO));
        }
        for number in [libc::EIO, libc::EROFS, libc::EINTR] {
            let error = Error::io("write", &std::io::Error::from_raw_os_error(number));
            assert!(!error.kind().is_refusal(), "{error}");
        }
        assert_eq!(Error::new(Kind::NoSpace, "full").errno(), libc::ENOSPC);
    }

    #[test]
    fn a_read_that_fails_changes_nothing_and_keeps_its_number() {
        for number in [libc::EIO, libc::EROFS, libc::ENOMEM] {
            let error = Error::io("call", &std::io::Error::from_raw_os_error(number));
            assert_eq!(error.changed_nothing(), error.kind().is_refusal(), "{error}");
            let read = error.clone().of_read().context("a disk").found("a bad sector");
            assert!(read.changed_nothing(), "{read}");
            assert_eq!((read.kind(), read.errno()), (error.kind(), number));
            assert!(read.is_of_read() && !error.is_of_read());
            let half_done = read.of_sync();
            assert!(!half_done.changed_nothing() && !half_done.is_of_read());
        }
        for kind in [Kind::Fenced, Kind::FailStop] {
            assert!(!Error::new(kind, "it has stopped").of_read().changed_nothing(), "{kind:?}");
        }
    }
}
