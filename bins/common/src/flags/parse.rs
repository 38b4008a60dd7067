//! From words to values.

use std::ffi::OsString;

use super::{Flag, Flags, Kind, Stop, Value, Values, version_line};
use crate::{Exit, duration};

impl Flags {
    /// Understands `words`, the command line without the program's own name.
    ///
    /// # Errors
    /// [`Stop`]: help or version were asked for, or a word cannot be understood.
    pub fn parse(&self, words: impl IntoIterator<Item = OsString>) -> Result<Values, Stop> {
        let mut values = Values { values: std::collections::BTreeMap::new(), given: Vec::new() };
        for flag in &self.flags {
            let value = flag.read(&flag.default).map_err(|why| self.refuse(why))?;
            values.values.insert(flag.name, value);
        }
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let word = self.utf8(word)?;
            if word == "--" {
                return match words.next() {
                    None => Ok(values),
                    Some(extra) => Err(self.stray(&self.utf8(extra)?)),
                };
            }
            let Some(body) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|body| !body.is_empty())
            else {
                return Err(self.stray(&word));
            };
            if body.starts_with(['-', '=']) {
                return Err(self.refuse(format!("bad flag syntax {word:?}; write --name=value")));
            }
            let (name, inline) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
            let Some(flag) = self.find(name) else {
                self.ask(name, inline)?;
                continue;
            };
            let text = match (inline, flag.kind) {
                (Some(text), _) => text.to_owned(),
                (None, Kind::Switch) => "true".to_owned(),
                (None, _) => match words.next() {
                    Some(next) => self.utf8(next)?,
                    None => return Err(self.refuse(format!("--{name} needs a value; write --{name}=VALUE"))),
                },
            };
            let value = flag.read(&text).map_err(|why| self.refuse(why))?;
            values.values.insert(flag.name, value);
            values.given.push(flag.name);
        }
        Ok(values)
    }

    fn utf8(&self, word: OsString) -> Result<String, Stop> {
        word.into_string().map_err(|word| self.refuse(format!("{} is not UTF-8", word.display())))
    }

    fn refuse(&self, message: String) -> Stop {
        Stop::Refused { exit: Exit::usage(message), usage: self.usage() }
    }

    fn stray(&self, word: &str) -> Stop {
        self.refuse(format!(
            "unexpected argument {word:?}; every setting is a flag, and a switch takes its value as --name=false"
        ))
    }

    /// A name that is no flag of this program: what every program has, or a slip.
    fn ask(&self, name: &str, inline: Option<&str>) -> Result<(), Stop> {
        let text = match name {
            "h" | "help" => self.help(),
            "version" => version_line(self.program),
            _ => return Err(self.unknown(name)),
        };
        let asked = switch(inline.unwrap_or("true")).map_err(|what| self.refuse(wrong(inline, name, &what)))?;
        if asked { Err(Stop::Asked(text)) } else { Ok(()) }
    }

    fn unknown(&self, name: &str) -> Stop {
        let near = self.flags.iter().map(|flag| (distance(flag.name, name), flag.name)).min();
        self.refuse(match near {
            Some((distance, near)) if distance <= 3 => format!("unknown flag --{name}; did you mean --{near}?"),
            _ => format!("unknown flag --{name}; see --help for all of them"),
        })
    }
}

impl Flag {
    fn read(&self, text: &str) -> Result<Value, String> {
        let name = self.name;
        let wrong = |what: String| wrong(Some(text), name, &what);
        match self.kind {
            Kind::Text => Ok(Value::Text(text.to_owned())),
            Kind::Switch => switch(text).map(Value::Switch).map_err(wrong),
            Kind::Integer => {
                text.parse().map(Value::Integer).map_err(|why| wrong(format!("{why}; write a whole number")))
            }
            Kind::Number => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Value::Number(number)),
                _ => Err(wrong("write a number".to_owned())),
            },
            Kind::Duration => duration::parse(text).map(Value::Duration).map_err(wrong),
        }
    }
}

fn wrong(text: Option<&str>, name: &str, what: &str) -> String {
    format!("invalid value {:?} for --{name}: {what}", text.unwrap_or_default())
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// Edits between two short names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, Stop, Values};
    use std::time::Duration;

    fn flags() -> Flags {
        Flags::new("demo", "Shows flags.")
            .group("All")
            .text("addr", ":9090", "where")
            .switch("loud", false, "more words")
            .integer("count", 16, "how many")
            .number("share", 0.5, "which part")
            .duration("wait", "3s", "how long")
    }

    fn parse(words: &[&str]) -> Result<Values, Stop> {
        flags().parse(words.iter().map(Into::into))
    }

    fn refused(words: &[&str]) -> String {
        match parse(words) {
            Err(Stop::Refused { exit, usage }) => {
                assert_eq!(exit.code, 2);
                assert!(usage.contains("--addr"), "{usage}");
                exit.message
            }
            other => panic!("{words:?} gave {other:?}"),
        }
    }

    #[test]
    fn defaults_hold_without_words() {
        let values = parse(&[]).expect("defaults");
        assert_eq!(values.text("addr"), ":9090");
        assert!(!values.switch("loud"));
        assert_eq!(values.integer("count"), 16);
        assert!((values.number("share") - 0.5).abs() < f64::EPSILON);
        assert_eq!(values.duration("wait"), Duration::from_secs(3));
        assert!(!values.is_given("addr"));
    }

    #[test]
    fn every_form_is_read_and_the_last_wins() {
        for words in [
            &["-addr", "x", "-count", "-1", "-loud"][..],
            &["--addr", "x", "--count", "-1", "--loud"],
            &["-addr=x", "-count=-1", "-loud=T"],
            &["--addr=y", "--addr=x", "--count=-1", "--loud=true", "--"],
        ] {
            let values = parse(words).expect("understood");
            assert_eq!(
                (values.text("addr"), values.integer("count"), values.switch("loud")),
                ("x", -1, true),
                "{words:?}"
            );
            assert!(values.is_given("count"));
        }
        assert_eq!(parse(&["--addr=a=b"]).expect("understood").text("addr"), "a=b");
        assert_eq!(parse(&["--addr="]).expect("understood").text("addr"), "");
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_a_next_step() {
        assert!(refused(&["--adr=1"]).contains("did you mean --addr?"));
        assert!(refused(&["--completely-different"]).contains("--help"));
        assert!(refused(&["--count"]).contains("--count=VALUE"));
        assert!(refused(&["--count=1.5"]).contains("--count"));
        assert!(refused(&["--count=99999999999999999999"]).contains("whole number"));
        assert!(refused(&["--wait=5"]).contains("unit"));
        assert!(refused(&["--share=NaN"]).contains("--share"));
        assert!(refused(&["--loud=maybe"]).contains("true or false"));
        assert!(refused(&["--loud", "false"]).contains("--name=false"));
        for words in [&["---addr=x"][..], &["--=x"], &["-"], &["stray"], &["--", "stray"]] {
            refused(words);
        }
    }

    #[test]
    fn help_and_version_are_asked_for() {
        for word in ["-h", "--help", "-help"] {
            let Err(Stop::Asked(help)) = parse(&[word]) else { panic!("{word}") };
            for part in ["demo", "Shows flags.", "All", "--wait", "3s", "how long"] {
                assert!(help.contains(part), "{part} is missing in {help}");
            }
        }
        let values = parse(&["--help=false", "--version=f", "--addr=x"]).expect("not asked for");
        assert_eq!(values.text("addr"), "x");
        assert!(matches!(parse(&["--help=true"]), Err(Stop::Asked(_))));
        for word in ["--version", "-version=true"] {
            assert_eq!(parse(&[word]).err(), Some(Stop::Asked("demo dev (unknown)\n".to_owned())));
        }
        let values = parse(&["--help=false", "-h=0", "--version=F", "--count=3"]).expect("not asked for");
        assert_eq!(values.integer("count"), 3);
        assert!(refused(&["--help=maybe"]).contains("true or false"));
    }
}
