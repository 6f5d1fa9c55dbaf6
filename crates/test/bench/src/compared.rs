//! The kinds of disks on which two commits can be compared.

use crate::disks::{GCM, XTS_RANDOM};
use crate::subject::{Shape, Subject, Variant, XTS};

/// The disks that can be compared, by name.
pub(crate) const SUBJECTS: [(&str, Subject); 5] = [
    ("gcm", GCM),
    ("xts", XTS),
    ("xts-random", XTS_RANDOM),
    ("deniable", Subject::Levels(Shape::Half)),
    ("oblivious", Subject::Oblivious(Variant::Opportunistic)),
];

/// The kind of this name; otherwise the names that there are.
pub(crate) fn by_name(name: &str) -> Result<(&'static str, Subject), String> {
    let known = || SUBJECTS.map(|(name, _)| name).join(", ");
    SUBJECTS.into_iter().find(|(of, _)| *of == name).ok_or_else(|| format!("there are {}", known()))
}
