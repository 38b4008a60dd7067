//! Command-line flags in every form Go's flag package takes, since that is how they are published.
//!
//! ```text
//! -name value   --name value   -name=value   --name=value   -switch   --switch=false   --
//! ```
//!
//! A [`Flags`] says what exists; [`Flags::parse`] turns words into [`Values`] or a [`Stop`]. Later words win. Switches never
//! take the next word. Words that are no flags are refused: silently ignoring what follows them would lose settings.

mod help;
mod parse;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::{Exit, build};

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Switch,
    Integer,
    Number,
    Duration,
}

#[derive(Debug, Clone)]
struct Flag {
    group: usize,
    name: &'static str,
    kind: Kind,
    default: String,
    help: &'static str,
}

/// The flags of one program.
#[derive(Debug, Clone)]
pub struct Flags {
    program: &'static str,
    summary: &'static str,
    groups: Vec<&'static str>,
    flags: Vec<Flag>,
    epilogue: &'static str,
}

impl Flags {
    /// No flags yet but `--help` and `--version`.
    #[must_use]
    pub fn new(program: &'static str, summary: &'static str) -> Self {
        Self { program, summary, groups: Vec::new(), flags: Vec::new(), epilogue: "" }
    }

    /// Starts a titled group for the flags that follow.
    #[must_use]
    pub fn group(mut self, title: &'static str) -> Self {
        self.groups.push(title);
        self
    }

    /// A text flag.
    #[must_use]
    pub fn text(self, name: &'static str, default: &str, help: &'static str) -> Self {
        self.add(name, Kind::Text, default.to_owned(), help)
    }

    /// A switch: bare means true.
    #[must_use]
    pub fn switch(self, name: &'static str, default: bool, help: &'static str) -> Self {
        self.add(name, Kind::Switch, default.to_string(), help)
    }

    /// A whole number.
    #[must_use]
    pub fn integer(self, name: &'static str, default: i64, help: &'static str) -> Self {
        self.add(name, Kind::Integer, default.to_string(), help)
    }

    /// A number with a fraction.
    #[must_use]
    pub fn number(self, name: &'static str, default: f64, help: &'static str) -> Self {
        self.add(name, Kind::Number, default.to_string(), help)
    }

    /// A duration; `default` in Go's syntax.
    #[must_use]
    pub fn duration(self, name: &'static str, default: &str, help: &'static str) -> Self {
        self.add(name, Kind::Duration, default.to_owned(), help)
    }

    /// What the help ends with, e.g. examples.
    #[must_use]
    pub fn epilogue(mut self, text: &'static str) -> Self {
        self.epilogue = text;
        self
    }

    fn add(mut self, name: &'static str, kind: Kind, default: String, help: &'static str) -> Self {
        let group = self.groups.len();
        self.flags.push(Flag { group, name, kind, default, help });
        self
    }

    fn find(&self, name: &str) -> Option<&Flag> {
        self.flags.iter().find(|flag| flag.name == name)
    }
}

/// Why there is nothing to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Asked for: text for stdout, exit code 0.
    Asked(String),
    /// A word that cannot be understood, and the usage to print below it; exit code 2.
    Refused {
        /// What is wrong and what to do next.
        exit: Exit,
        /// One line a flag.
        usage: String,
    },
}

impl Stop {
    /// Prints to where it belongs and gives the exit code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Asked(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Self::Refused { exit, usage } => {
                let code = exit.report();
                eprint!("\n{usage}");
                code
            }
        }
    }
}

/// The words of a command line, understood; defaults filled in.
///
/// Each getter answers the kind's zero for a flag that does not exist, which a debug build refuses: it is a slip of the
/// programmer, never of the user.
#[derive(Debug, Clone)]
pub struct Values {
    values: BTreeMap<&'static str, Value>,
    given: Vec<&'static str>,
}

#[derive(Debug, Clone)]
enum Value {
    Text(String),
    Switch(bool),
    Integer(i64),
    Number(f64),
    Duration(Duration),
}

impl Values {
    /// A text flag.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        let value = self.values.get(name);
        debug_assert!(matches!(value, Some(Value::Text(_))), "--{name} is no text flag");
        if let Some(Value::Text(text)) = value { text } else { "" }
    }

    /// A switch.
    #[must_use]
    pub fn switch(&self, name: &str) -> bool {
        let value = self.values.get(name);
        debug_assert!(matches!(value, Some(Value::Switch(_))), "--{name} is no switch");
        matches!(value, Some(Value::Switch(true)))
    }

    /// A whole number.
    #[must_use]
    pub fn integer(&self, name: &str) -> i64 {
        let value = self.values.get(name);
        debug_assert!(matches!(value, Some(Value::Integer(_))), "--{name} is no whole number");
        if let Some(Value::Integer(number)) = value { *number } else { 0 }
    }

    /// A number.
    #[must_use]
    pub fn number(&self, name: &str) -> f64 {
        let value = self.values.get(name);
        debug_assert!(matches!(value, Some(Value::Number(_))), "--{name} is no number");
        if let Some(Value::Number(number)) = value { *number } else { 0.0 }
    }

    /// A duration.
    #[must_use]
    pub fn duration(&self, name: &str) -> Duration {
        let value = self.values.get(name);
        debug_assert!(matches!(value, Some(Value::Duration(_))), "--{name} is no duration");
        if let Some(Value::Duration(duration)) = value { *duration } else { Duration::ZERO }
    }

    /// Whether the command line names the flag.
    #[must_use]
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains(&name)
    }
}

fn version_line(program: &str) -> String {
    format!("{program} {} ({})\n", build::VERSION, build::COMMIT)
}
