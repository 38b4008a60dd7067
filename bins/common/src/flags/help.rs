//! From flags to the text that teaches them.

use std::fmt::Write as _;

use super::{Flags, Kind};

const WIDTH: usize = 100;
const INDENT: &str = "        ";

impl Flags {
    /// The whole help: summary, every flag with its default and meaning, epilogue.
    #[must_use]
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage: {} [flags]\n", self.summary, self.program);
        for group in 0..=self.groups.len() {
            let mut members = self.flags.iter().filter(|flag| flag.group == group).peekable();
            if members.peek().is_some() {
                let title = group.checked_sub(1).and_then(|i| self.groups.get(i)).copied().unwrap_or("Flags");
                let _ = writeln!(text, "\n{title}:");
            }
            for flag in members {
                let _ = writeln!(text, "  {}", signature(flag.name, flag.kind, &flag.default));
                for line in wrapped(flag.help) {
                    let _ = writeln!(text, "{INDENT}{line}");
                }
            }
        }
        text.push_str("\nOther:\n  --help, -h\n  --version\n");
        text.push_str("\nBoth -flag and --flag work, and so do --flag=value and --flag value; a switch takes --flag or --flag=false.\n");
        if !self.epilogue.is_empty() {
            let _ = writeln!(text, "\n{}", self.epilogue);
        }
        text
    }

    /// One line a flag, for below a refusal.
    #[must_use]
    pub fn usage(&self) -> String {
        let mut text = format!("Usage: {} [flags]   (--help explains each)\n", self.program);
        for flag in &self.flags {
            let _ = writeln!(text, "  {}", signature(flag.name, flag.kind, &flag.default));
        }
        text
    }
}

fn signature(name: &str, kind: Kind, default: &str) -> String {
    let takes = match kind {
        Kind::Text => "=TEXT",
        Kind::Switch => "",
        Kind::Integer | Kind::Number => "=NUMBER",
        Kind::Duration => "=DURATION",
    };
    match (kind, default) {
        (Kind::Text, "") | (Kind::Switch, "false") => format!("--{name}{takes}"),
        _ => format!("--{name}{takes}  (default {default})"),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut().filter(|line| line.len() + word.len() < WIDTH - INDENT.len()) {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
