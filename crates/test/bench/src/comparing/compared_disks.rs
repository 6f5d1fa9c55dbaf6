//! The kinds of disks for comparisons of two commits.

use crate::nbd::disks::{GCM, XTS_RANDOM};
use crate::serving::subject::{DeniableShape, ObliviousVariant, Subject, XTS};

/// The disks for comparisons, by name.
pub(crate) const SUBJECTS: [(&str, Subject); 5] = [
    ("gcm", GCM),
    ("xts", XTS),
    ("xts-random", XTS_RANDOM),
    ("deniable", Subject::Levels(DeniableShape::Half)),
    ("oblivious", Subject::Oblivious(ObliviousVariant::Opportunistic)),
];

/// The kind with this name. Errors: a message with the known names.
pub(crate) fn by_name(name: &str) -> Result<(&'static str, Subject), String> {
    let known = || SUBJECTS.map(|(name, _)| name).join(", ");
    SUBJECTS.into_iter().find(|(of, _)| *of == name).ok_or_else(|| format!("there are {}", known()))
}
