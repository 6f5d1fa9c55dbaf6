//! What to do about an error, in words that name settings and actions by type: a program reads the
//! library's names of them, and a command puts its options and its verbs there.

use std::borrow::Cow;
use std::fmt;

/// Something that a program sets when it uses the library, by the library's name of it, such as
/// `read_only`. A command has an option for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setting(pub &'static str);

/// Something that a program does with the library, by the library's name of it, such as
/// `header::restore`. A command has a verb for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action(pub &'static str);

/// Something for which a front end may have a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// A setting.
    Setting(Setting),
    /// An action.
    Action(Action),
}

/// Gives names to terms.
pub type Naming = fn(Term) -> Cow<'static, str>;

impl Term {
    /// As the library shows it: its name in quotes.
    pub fn quoted(self) -> Cow<'static, str> {
        let (Term::Setting(Setting(name)) | Term::Action(Action(name))) = self;
        format!("`{name}`").into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Cow<'static, str>),
    Term(Term),
}

/// A sentence that says what to do.
///
/// ```
/// use lacuna_contracts::{Action, Advice, Setting};
/// let advice = Advice::from("open it without ").setting(Setting("read_only"));
/// assert_eq!(advice.to_string(), "open it without `read_only`");
/// assert_eq!(advice.named(|_| "--read-only".into()), "open it without --read-only");
/// let advice = Advice::from("see ").action(Action("status"));
/// assert_eq!(advice.to_string(), "see `status`");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice(Vec<Part>);

impl Advice {
    /// Goes on with the name of a setting.
    pub fn setting(mut self, setting: Setting) -> Advice {
        self.0.push(Part::Term(Term::Setting(setting)));
        self
    }

    /// Goes on with the name of an action.
    pub fn action(mut self, action: Action) -> Advice {
        self.0.push(Part::Term(Term::Action(action)));
        self
    }

    /// Goes on with these words.
    pub fn text(mut self, text: impl Into<Cow<'static, str>>) -> Advice {
        self.0.push(Part::Text(text.into()));
        self
    }

    /// The sentence, with the names that `name` gives to terms.
    pub fn named(&self, name: impl Fn(Term) -> Cow<'static, str>) -> String {
        let word = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Term(term) => name(*term),
        };
        self.0.iter().map(word).collect()
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named(Term::quoted))
    }
}

impl From<&'static str> for Advice {
    fn from(text: &'static str) -> Advice {
        Advice::default().text(text)
    }
}

impl From<String> for Advice {
    fn from(text: String) -> Advice {
        Advice::default().text(text)
    }
}

impl From<Action> for Advice {
    fn from(action: Action) -> Advice {
        Advice::default().action(action)
    }
}
