//! The Prometheus text format, read line by line.
//!
//! Engines share their page with libraries and plug-ins. One line that makes no sense must not cost the rest, so a line is
//! read, or it is skipped and counted. Nothing is allocated but the values of labels that carry an escape.

use std::borrow::Cow;

/// Longest line that is read, in bytes. Engines stay far below.
pub const MAX_LINE: usize = 64 << 10;

/// One line that says something.
#[derive(Debug, Clone, PartialEq)]
pub enum Line<'a> {
    /// `# TYPE name kind`.
    Kind {
        /// Family, as it is spelled there.
        name: &'a str,
        /// `counter`, `gauge` and the like.
        kind: &'a str,
    },
    /// A series and its value.
    Sample(Sample<'a>),
}

/// One series and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// Name, as it is spelled.
    pub name: &'a str,
    /// Labels in the order of the line.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// Value; may be infinite or not a number.
    pub value: f64,
}

impl Sample<'_> {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| &**value)
    }
}

/// Hands every line that says something to `each`, and returns how many were skipped because they cannot be read.
pub fn read<'a>(page: &'a [u8], mut each: impl FnMut(Line<'a>)) -> u64 {
    let mut skipped = 0;
    for line in page.split(|&byte| byte == b'\n') {
        match parse(line) {
            Ok(Some(line)) => each(line),
            Ok(None) => {}
            Err(Unreadable) => skipped += 1,
        }
    }
    skipped
}

/// A line that cannot be read.
struct Unreadable;

fn parse(line: &[u8]) -> Result<Option<Line<'_>>, Unreadable> {
    if line.len() > MAX_LINE {
        return Err(Unreadable);
    }
    let line = std::str::from_utf8(line).map_err(|_| Unreadable)?.trim_matches([' ', '\t', '\r']);
    if let Some(comment) = line.strip_prefix('#') {
        return Ok(kind(comment));
    }
    if line.is_empty() {
        return Ok(None);
    }
    let (name, rest) = line.split_at(name_length(line, true).ok_or(Unreadable)?);
    let mut labels = Vec::new();
    let mut rest = rest.trim_start_matches([' ', '\t']);
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    } else if rest.len() + name.len() == line.len() {
        // Something that is no part of a name follows it at once.
        return Err(Unreadable);
    }
    let mut words = rest.split_ascii_whitespace();
    let value = words.next().and_then(|word| word.parse::<f64>().ok()).ok_or(Unreadable)?;
    match words.next() {
        None => {}
        // A timestamp, or what OpenMetrics appends as an example.
        Some(word) if word.starts_with('#') || word.parse::<f64>().is_ok() => {}
        Some(_) => return Err(Unreadable),
    }
    Ok(Some(Line::Sample(Sample { name, labels, value })))
}

fn kind(comment: &str) -> Option<Line<'_>> {
    let mut words = comment.split_ascii_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some("TYPE"), Some(name), Some(kind)) => Some(Line::Kind { name, kind }),
        _ => None,
    }
}

/// Length of the name at the start of a text; colons belong to names of metrics alone.
fn name_length(text: &str, colons: bool) -> Option<usize> {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || colons && byte == b':';
    let first = *text.as_bytes().first()?;
    if !part(first) || first.is_ascii_digit() {
        return None;
    }
    Some(text.bytes().position(|byte| !part(byte)).unwrap_or(text.len()))
}

/// Reads labels up to the closing brace and returns what follows it.
fn parse_labels<'a>(mut text: &'a str, labels: &mut Vec<(&'a str, Cow<'a, str>)>) -> Result<&'a str, Unreadable> {
    loop {
        text = text.trim_start_matches([' ', '\t']);
        if let Some(rest) = text.strip_prefix('}') {
            return Ok(rest);
        }
        let (name, rest) = text.split_at(name_length(text, false).ok_or(Unreadable)?);
        let rest = rest.trim_start_matches([' ', '\t']).strip_prefix('=').ok_or(Unreadable)?;
        let rest = rest.trim_start_matches([' ', '\t']).strip_prefix('"').ok_or(Unreadable)?;
        let (value, rest) = parse_value(rest)?;
        labels.push((name, value));
        let rest = rest.trim_start_matches([' ', '\t']);
        text = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None if rest.starts_with('}') => rest,
            None => return Err(Unreadable),
        };
    }
}

/// Reads a label's value up to its closing quote and returns what follows it.
fn parse_value(text: &str) -> Result<(Cow<'_, str>, &str), Unreadable> {
    let stop = text.find(['"', '\\']).ok_or(Unreadable)?;
    if text[stop..].starts_with('"') {
        return Ok((Cow::Borrowed(&text[..stop]), &text[stop + 1..]));
    }
    let mut value = text[..stop].to_owned();
    let mut chars = text[stop..].char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((Cow::Owned(value), &text[stop + at + 1..])),
            '\\' => match chars.next().ok_or(Unreadable)?.1 {
                'n' => value.push('\n'),
                char @ ('"' | '\\') => value.push(char),
                other => value.extend(['\\', other]),
            },
            char => value.push(char),
        }
    }
    Err(Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(page: &str) -> (Vec<String>, u64) {
        let mut seen = Vec::new();
        let skipped = read(page.as_bytes(), |line| {
            seen.push(match line {
                Line::Kind { name, kind } => format!("{name}: {kind}"),
                Line::Sample(Sample { name, labels, value }) => {
                    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    format!("{name}[{}] {value}", labels.join(","))
                }
            });
        });
        (seen, skipped)
    }

    #[test]
    fn every_form_of_a_line_is_read() {
        let page = "# HELP a Some \\n words\n#  TYPE a   counter\n# anything\n\n  \na 1\r\na:b_c{} 2e3\nx { k = \"v\" , l=\"a,}b\", } +Inf 1700000000000\n\
                    y{k=\"\\\"\\\\\\n\\x\"} -1.5 # {t=\"1\"} 2\nz{k=\"ü\"} NaN";
        let (seen, skipped) = samples(page);
        assert_eq!(skipped, 0);
        assert_eq!(
            seen,
            ["a: counter", "a[] 1", "a:b_c[] 2000", "x[k=v,l=a,}b] inf", "y[k=\"\\\n\\x] -1.5", "z[k=ü] NaN"]
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_skipped_one_by_one() {
        let bad = [
            "{A}0",
            "some-metric 1",
            "x{=\"y\"} 1",
            "x{a=\"b\" 1",
            "x NaNN",
            "x",
            "x{a=\"b\"}",
            "x{a=\"b\"",
            "x{a=\"b",
            "x{a=\"\\",
            "x{a-b=\"c\"} 1",
            "x{a=\"b\"c=\"d\"} 1",
            "x 1 later",
            "1x 1",
            "{\"x\"} 1",
        ];
        for line in bad {
            assert_eq!(
                samples(&format!("a 1\n{line}\nb 2\n")),
                (vec!["a[] 1".to_owned(), "b[] 2".to_owned()], 1),
                "{line}"
            );
        }
        let mut page = b"a 1\nx\xff\xfe 2\n".to_vec();
        page.extend(std::iter::repeat_n(b'y', 1 << 20));
        let mut count = 0;
        assert_eq!((read(&page, |_| count += 1), count), (2, 1));
    }
}
