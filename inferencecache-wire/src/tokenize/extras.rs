//! What a template of Hugging Face counts on and plain Jinja, or this implementation of it, does not have.

use std::borrow::Cow;

use inferencecache_core::time::Micros;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::value::StringInput;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::tojson::tojson;

/// Adds everything that does not depend on one rendering.
pub(super) fn add_to(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_function("raise_exception", raise_exception);
    env.add_test("iterable", is_iterable);
}

/// `strftime_now(format)`: local time at `now`, in the form that C's `strftime` would write.
pub(super) fn strftime(now: Micros, format: &str) -> Result<String, Error> {
    let invalid =
        |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, "strftime_now failed").with_source(error);
    let now = Timestamp::from_microsecond(now).map_err(invalid)?.to_zoned_datetime(TimeZone::system());
    jiff::fmt::strtime::format(format, &now).map_err(invalid)
}

/// Hands a template's own complaint on.
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// In Python none cannot be iterated over; here it can, as if it were empty.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The methods of Python's strings, lists and dictionaries.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // Without arguments these are about blanks, of which Python knows more.
    if let Some(text) = value.as_str()
        && args.iter().all(Value::is_none)
    {
        match name {
            "strip" => return Ok(text.trim_matches(is_blank).into()),
            "lstrip" => return Ok(text.trim_start_matches(is_blank).into()),
            "rstrip" => return Ok(text.trim_end_matches(is_blank).into()),
            "split" => return Ok(text.split(is_blank).filter(|word| !word.is_empty()).collect()),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn trim(text: StringInput<'_>, chars: Option<Cow<'_, str>>) -> Value {
    let text = text.as_str();
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).into(),
        None => text.trim_matches(is_blank).into(),
    }
}

fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are those of Python and of Jinja for Python.
    #[test]
    fn blanks_are_those_of_python() {
        let mut env = Environment::new();
        add_to(&mut env);
        let text = "\u{1f}\u{a0} a\u{1c}b \u{85}\u{1e}";
        for (expression, want) in [
            ("t | trim", "a\u{1c}b"),
            ("t.strip()", "a\u{1c}b"),
            ("t.lstrip() | length", "6"),
            ("t.rstrip(none) | length", "6"),
            ("t.split() | join('-')", "a-b"),
            ("'xax' | trim('x')", "a"),
            ("'xax'.strip('x')", "a"),
            ("'a  b'.split(' ') | length", "3"),
            ("none is iterable", "False"),
            ("[] is iterable", "True"),
        ] {
            let got = env.render_str(&format!("{{{{ {expression} }}}}"), minijinja::context! { t => text });
            assert_eq!(got.unwrap(), want, "{expression}");
        }
    }
}
