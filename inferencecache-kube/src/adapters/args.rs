//! Reading and editing an engine's argument vector.
//!
//! Flags are compared as whole tokens: `--x=true` is not `--x`, and `--x_y` is not `--x-y`. A value is the text after `=`
//! or the next element; an element taken as a value is not looked at again.

use super::error::AdapterError;

/// Appends `flag` unless that very token is there.
pub fn upsert_flag(args: &mut Vec<String>, flag: &str) {
    if !args.iter().any(|arg| arg == flag) {
        args.push(flag.to_owned());
    }
}

/// Gives the first occurrence of `flag` the value, as two elements in its place; appends both when there is none.
pub fn upsert_pair(args: &mut Vec<String>, flag: &str, value: &str) {
    let Some(at) = args.iter().position(|arg| is(arg, flag)) else {
        args.extend([flag.to_owned(), value.to_owned()]);
        return;
    };
    let taken = if args[at] == flag { (at + 2).min(args.len()) } else { at + 1 };
    args.splice(at..taken, [flag.to_owned(), value.to_owned()]);
}

/// Whether `arg` is `--x` or `--x=…`.
fn is(arg: &str, flag: &str) -> bool {
    arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Whether `--x` or `--x=…` is given.
pub fn present(args: &[String], flag: &str) -> bool {
    args.iter().any(|arg| is(arg, flag))
}

/// The part of an argument that names a flag: up to `=`, when it starts with a dash.
pub fn token(arg: &str) -> Option<&str> {
    arg.starts_with('-').then(|| arg.split_once('=').map_or(arg, |(flag, _)| flag))
}

/// Every value of `flag`, in order.
///
/// # Errors
/// When an occurrence has no value: it is the last element, the next one starts with `--`, or nothing follows `=`.
pub fn values<'a>(args: &'a [String], flag: &str) -> Result<Vec<&'a str>, AdapterError> {
    scan(args, &[flag], "--")
}

/// The one value given under any of `flags`, none when none is.
///
/// # Errors
/// Like [`values`], but any following dash leaves an occurrence without a value; and when there are two values.
pub fn sole_value<'a>(args: &'a [String], flags: &[&str]) -> Result<Option<&'a str>, AdapterError> {
    let found = scan(args, flags, "-")?;
    match found.as_slice() {
        [] => Ok(None),
        [value] => Ok(Some(value)),
        _ => Err(AdapterError::flag(flags.join(" or "), format!("given {} times; give it once", found.len()))),
    }
}

fn scan<'a>(args: &'a [String], flags: &[&str], dash: &str) -> Result<Vec<&'a str>, AdapterError> {
    let mut found = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let Some(flag) = flags.iter().find(|flag| is(arg, flag)) else { continue };
        let value = match arg.split_once('=') {
            Some((_, value)) => Some(value).filter(|value| !value.is_empty()),
            None => rest.next().map(String::as_str).filter(|next| !next.starts_with(dash)),
        };
        found.push(value.ok_or_else(|| AdapterError::flag(*flag, "has no value"))?);
    }
    Ok(found)
}

/// A decimal 32-bit number; a sign and leading zeros are fine, spaces and fractions are not.
pub fn integer(flag: &str, value: &str) -> Result<i32, AdapterError> {
    value.parse().map_err(|_| AdapterError::flag(flag, format!("{value:?} is not a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// adapters:D55
    #[test]
    fn a_pair_is_put_in_place() {
        for (before, after) in [
            ("--x", "--x 2"),
            ("a --x=1 b", "a --x 2 b"),
            ("", "--x 2"),
            ("--x 1 --x 3", "--x 2 --x 3"),
            ("--xy 1", "--xy 1 --x 2"),
        ] {
            let mut args = list(before);
            upsert_pair(&mut args, "--x", "2");
            assert_eq!(args, list(after), "{before}");
        }
    }

    #[test]
    fn a_flag_is_a_whole_token() {
        let mut args = list("--x=true");
        upsert_flag(&mut args, "--x");
        upsert_flag(&mut args, "--x");
        assert_eq!(args, list("--x=true --x"));
        assert!(present(&args, "--x") && !present(&args, "--"));
        assert_eq!((token("--x=1"), token("x=1"), token("-t")), (Some("--x"), None, Some("-t")));
    }

    #[test]
    fn values_are_collected_and_consumed() {
        assert_eq!(values(&list("--x 1 --x=2 --x -3"), "--x").unwrap(), ["1", "2", "-3"]);
        assert_eq!(
            values(&list("--y --x 1"), "--y").map_err(|e| e.to_string()),
            Err("engine flag --y: has no value".into())
        );
        for bad in ["--x", "--x --y", "--x="] {
            assert!(values(&list(bad), "--x").is_err(), "{bad}");
        }
        assert_eq!(sole_value(&list("-t 2"), &["--two", "-t"]), Ok(Some("2")));
        assert_eq!(sole_value(&list("2"), &["--two", "-t"]), Ok(None));
        for bad in ["-t 2 --two=2", "-t -2", "--two"] {
            assert!(sole_value(&list(bad), &["--two", "-t"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn whole_numbers() {
        for (text, number) in [("2", 2), ("+2", 2), ("02", 2), ("-2", -2)] {
            assert_eq!(integer("--x", text), Ok(number));
        }
        for bad in ["", " 2", "2.0", "2147483648", "two"] {
            assert!(integer("--x", bad).is_err(), "{bad:?}");
        }
    }
}
