//! The filter `tojson` as Hugging Face's templates know it: `json.dumps` with its options.

use std::collections::BTreeMap;
use std::io;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize as _;
use serde_json::ser::{Formatter, Serializer};

/// Widest indentation of one level.
const MAX_INDENT: usize = 64;
/// Deepest value whose keys are sorted.
const MAX_DEPTH: usize = 128;

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// # Errors
/// When an option makes no sense, or the value has no JSON form.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let option = |positional: Option<Value>, name| match positional {
        Some(value) => Ok(Some(value)),
        None => options.get::<Option<Value>>(name),
    };
    let given = |option: Option<Value>| option.filter(|value| !value.is_none() && !value.is_undefined());
    let ensure_ascii = option(ensure_ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = given(option(indent, "indent")?);
    let separators = given(option(None, "separators")?);
    let sort_keys = option(None, "sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;

    let indent = indent.map(indentation).transpose()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let (item, key) = match separators {
        Some(separators) => pair(&separators)?,
        None => (comma.to_owned(), ": ".to_owned()),
    };
    let style = Style { ensure_ascii, indent, item, key, depth: 0, is_empty: true };
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, style);
    let written =
        if sort_keys { sorted(value, MAX_DEPTH)?.serialize(&mut serializer) } else { value.serialize(&mut serializer) };
    written.map_err(|error| invalid("the value has no JSON form").with_source(error))?;
    String::from_utf8(out).map(Value::from).map_err(|_| invalid("the value has no JSON form"))
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A number of blanks, or the text itself. As in Python, a negative number means line ends without blanks.
fn indentation(value: Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = usize::try_from(i64::try_from(value)?.max(0)).unwrap_or(usize::MAX);
    if width > MAX_INDENT { Err(invalid("indent is too wide")) } else { Ok(" ".repeat(width)) }
}

fn pair(separators: &Value) -> Result<(String, String), Error> {
    let texts: Vec<String> = separators.try_iter()?.filter_map(|part| part.as_str().map(str::to_owned)).collect();
    let [item, key] = <[String; 2]>::try_from(texts).map_err(|_| invalid("separators are two strings"))?;
    Ok((item, key))
}

/// The value with the keys of every map in order.
fn sorted(value: &Value, depth: usize) -> Result<Value, Error> {
    if depth == 0 {
        return Err(invalid("the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Map => {
            let mut pairs = BTreeMap::new();
            for key in value.try_iter()? {
                let item = sorted(&value.get_item(&key)?, depth - 1)?;
                pairs.insert(key, item);
            }
            Ok(Value::from(pairs))
        }
        ValueKind::Seq => value.try_iter()?.map(|item| sorted(&item, depth - 1)).collect(),
        _ => Ok(value.clone()),
    }
}

/// The layout of `json.dumps`.
struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    depth: usize,
    is_empty: bool,
}

impl Style {
    fn new_line<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.new_line(out)
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.new_line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }
}

impl Formatter for Style {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if (' '..='~').contains(&c) {
                out.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expression: &str, want: &str) {
        let mut env = minijinja::Environment::new();
        env.add_filter("tojson", tojson);
        let got = env.render_str(&format!("{{{{ {expression} }}}}"), ());
        assert_eq!(got.unwrap(), want, "{expression}");
    }

    /// Expected texts are those of Python's `json.dumps`.
    #[test]
    fn writes_what_python_writes() {
        check(r#"{"b": [1, true, none], "a": {}} | tojson"#, r#"{"b": [1, true, null], "a": {}}"#);
        check(r#"{"b": 1, "a": {"d": [], "c": 2}} | tojson(sort_keys=True)"#, r#"{"a": {"c": 2, "d": []}, "b": 1}"#);
        check(r#"["é<&'\"\\\n😀"] | tojson"#, r#"["é<&'\"\\\n😀"]"#);
        check(r#""é😀" | tojson(ensure_ascii=True)"#, r#""\u00e9\ud83d\ude00""#);
        check(r#""é" | tojson(true)"#, r#""\u00e9""#);
        check(r#"[1, {"a": []}] | tojson(separators=(",", ":"))"#, r#"[1,{"a":[]}]"#);
        check(
            r#"[1, {"a": [], "b": {}, "c": [2]}] | tojson(indent=2)"#,
            "[\n  1,\n  {\n    \"a\": [],\n    \"b\": {},\n    \"c\": [\n      2\n    ]\n  }\n]",
        );
        check("[[1]] | tojson(indent=0)", "[\n[\n1\n]\n]");
        check(r#"[1] | tojson(indent="\t")"#, "[\n\t1\n]");
        check("[1, 2] | tojson(indent=none)", "[1, 2]");
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        let mut env = minijinja::Environment::new();
        env.add_filter("tojson", tojson);
        for expression in ["1 | tojson(indent=65)", "1 | tojson(separators=[1, 2])", "1 | tojson(colour=1)"] {
            assert!(env.render_str(&format!("{{{{ {expression} }}}}"), ()).is_err(), "{expression}");
        }
    }
}
