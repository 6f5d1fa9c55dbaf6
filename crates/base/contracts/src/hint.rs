//! Advice of an error. It names settings and actions by type: the library renders its own names,
//! and the command renders its options and verbs.

use std::borrow::Cow;
use std::fmt;

/// A setting of the library's API, by its name there, such as `read_only`. The command has an
/// option for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting(pub &'static str);

/// An operation of the library's API, by its name there, such as `header::restore`. The command has
/// a verb for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action(pub &'static str);

/// A setting or an action: a front end may render it under a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// A setting.
    Setting(Setting),
    /// An action.
    Action(Action),
}

/// Renders a term.
pub type TermRenderer = fn(Term) -> Cow<'static, str>;

impl Term {
    /// Renders the library's name in backquotes.
    pub fn quoted(self) -> Cow<'static, str> {
        let (Term::Setting(Setting(name)) | Term::Action(Action(name))) = self;
        format!("`{name}`").into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HintPart {
    Text(Cow<'static, str>),
    Term(Term),
}

/// Advice on an error, in one sentence.
///
/// ```
/// use lacuna_contracts::{Action, Hint, Setting};
/// let hint = Hint::from("open it without ").setting(Setting("read_only"));
/// assert_eq!(hint.to_string(), "open it without `read_only`");
/// assert_eq!(hint.render_with(|_| "--read-only".into()), "open it without --read-only");
/// let hint = Hint::from("see ").action(Action("status"));
/// assert_eq!(hint.to_string(), "see `status`");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint(Vec<HintPart>);

impl Hint {
    /// Appends the name of a setting.
    pub fn setting(mut self, setting: Setting) -> Hint {
        self.0.push(HintPart::Term(Term::Setting(setting)));
        self
    }

    /// Appends the name of an action.
    pub fn action(mut self, action: Action) -> Hint {
        self.0.push(HintPart::Term(Term::Action(action)));
        self
    }

    /// Appends text.
    pub fn text(mut self, text: impl Into<Cow<'static, str>>) -> Hint {
        self.0.push(HintPart::Text(text.into()));
        self
    }

    /// Renders the sentence; `name` renders the terms.
    pub fn render_with(&self, name: impl Fn(Term) -> Cow<'static, str>) -> String {
        let word = |part: &HintPart| match part {
            HintPart::Text(text) => text.clone(),
            HintPart::Term(term) => name(*term),
        };
        self.0.iter().map(word).collect()
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render_with(Term::quoted))
    }
}

impl From<&'static str> for Hint {
    fn from(text: &'static str) -> Hint {
        Hint::default().text(text)
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Hint {
        Hint::default().text(text)
    }
}

impl From<Action> for Hint {
    fn from(action: Action) -> Hint {
        Hint::default().action(action)
    }
}
