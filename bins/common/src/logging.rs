//! One line an event on stderr.
//!
//! ```text
//! json  {"time":"2026-01-02T03:04:05.678901Z","level":"INFO","msg":"startup","version":"dev"}
//! text  time=2026-01-02T03:04:05.678901Z level=INFO msg=startup version=dev
//! ```
//!
//! Only events of this project's own targets are written: the transport libraries log every frame at debug level, and the
//! lookup path must stay silent at every level.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Targets whose events are written, by prefix.
const OWN_TARGETS: [&str; 3] = ["inferencecache", "kvevent", "bins_common"];

/// Layout of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// One JSON object.
    #[default]
    Json,
    /// `key=value` pairs.
    Text,
}

impl Format {
    /// `json` or `text` in any case, trimmed; empty is JSON.
    ///
    /// # Errors
    /// A sentence that names the choices.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(format!("unknown log format {name:?}; use json or text")),
        }
    }
}

/// Parses `debug`, `info`, `warn`, `warning` or `error` in any case, trimmed; empty is info.
///
/// # Errors
/// A sentence that names the choices.
pub fn parse_level(name: &str) -> Result<LevelFilter, String> {
    match name.trim().to_ascii_lowercase().as_str() {
        "debug" => Ok(LevelFilter::DEBUG),
        "" | "info" => Ok(LevelFilter::INFO),
        "warn" | "warning" => Ok(LevelFilter::WARN),
        "error" => Ok(LevelFilter::ERROR),
        _ => Err(format!("unknown log level {name:?}; use debug, info, warn or error")),
    }
}

/// Writes events from now on to stderr, and panics as the event `panic`. The first caller wins; later calls change nothing.
pub fn init(format: Format, level: LevelFilter) {
    let lines = tracing_subscriber::registry().with(filter(level)).with(Lines::new(format, io::stderr()));
    if lines.try_init().is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            // Where, but not what: the message may quote the text it failed on.
            let location = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(location, "panic");
        }));
    }
}

/// Lets events of this project's targets pass from `level` on, and nothing else.
fn filter(level: LevelFilter) -> Targets {
    Targets::new().with_targets(OWN_TARGETS.map(|target| (target, level)))
}

/// Writes each event as one line, in one write.
#[derive(Debug)]
struct Lines<W> {
    format: Format,
    out: Mutex<W>,
}

impl<W: Write> Lines<W> {
    fn new(format: Format, out: W) -> Self {
        Self { format, out: Mutex::new(out) }
    }
}

impl<S: Subscriber, W: Write + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut attributes = Attributes::default();
        event.record(&mut attributes);
        let now = OffsetDateTime::now_utc();
        let time = now.replace_nanosecond(now.microsecond() * 1000).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let line = attributes.line(self.format, time, event.metadata().level().as_str());
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(line.as_bytes());
    }
}

/// What an event carries, in the order in which it was given.
#[derive(Default)]
struct Attributes {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Attributes {
    fn line(self, format: Format, time: String, level: &str) -> String {
        let head = [("time", Value::from(time)), ("level", level.into()), ("msg", self.message.into())];
        let pairs = head.into_iter().chain(self.fields);
        let mut line = match format {
            Format::Json => json(pairs),
            Format::Text => text(pairs),
        };
        line.push('\n');
        line
    }

    fn put(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Attributes {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.put(field, value.into());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.put(field, format!("{value:?}").into());
        }
    }
}

fn json(pairs: impl Iterator<Item = (&'static str, Value)>) -> String {
    let mut line = String::from("{");
    for (i, (key, value)) in pairs.enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(line, "{comma}{}:{value}", Value::from(key));
    }
    line.push('}');
    line
}

fn text(pairs: impl Iterator<Item = (&'static str, Value)>) -> String {
    let mut line = String::new();
    for (i, (key, value)) in pairs.enumerate() {
        let space = if i == 0 { "" } else { " " };
        let value = match value {
            Value::String(plain) if is_plain(&plain) => plain,
            other => other.to_string(), // quoted and escaped as JSON
        };
        let _ = write!(line, "{space}{key}={value}");
    }
    line
}

/// Whether a value needs no quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.chars().all(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("unpoisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(format: Format, level: LevelFilter, work: impl FnOnce()) -> String {
        let out = Shared::default();
        let subscriber = tracing_subscriber::registry().with(filter(level)).with(Lines::new(format, out.clone()));
        tracing::subscriber::with_default(subscriber, work);
        String::from_utf8(out.0.lock().expect("unpoisoned").clone()).expect("UTF-8")
    }

    #[test]
    fn json_lines_have_the_published_keys_in_order() {
        let line = written(Format::Json, LevelFilter::INFO, || {
            tracing::warn!(err = %"a \"b\"\n", grpc_tls = false, ports = 3, share = 0.5, "startup");
        });
        let start = line.find(",\"level\"").expect("a level");
        assert!(line.starts_with("{\"time\":\"2"), "{line}");
        assert_eq!(
            &line[start..],
            ",\"level\":\"WARN\",\"msg\":\"startup\",\"err\":\"a \\\"b\\\"\\n\",\"grpc_tls\":false,\"ports\":3,\"share\":0.5}\n"
        );
    }

    #[test]
    fn text_lines_quote_what_needs_it() {
        let line = written(Format::Text, LevelFilter::INFO, || {
            tracing::info!(plain = "a", spaced = "a b", empty = "", n = 1_u64, "graceful shutdown");
        });
        assert!(
            line.ends_with(" level=INFO msg=\"graceful shutdown\" plain=a spaced=\"a b\" empty=\"\" n=1\n"),
            "{line}"
        );
    }

    #[test]
    fn only_own_targets_and_levels_pass() {
        let lines = written(Format::Json, LevelFilter::DEBUG, || {
            tracing::debug!("kept");
            tracing::error!(target: "h2::codec", "foreign");
            tracing::trace!("too fine");
        });
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert_eq!(written(Format::Json, LevelFilter::ERROR, || tracing::warn!("too fine")), "");
    }

    #[test]
    fn names_are_forgiving_about_case_and_blanks() {
        assert_eq!(Format::parse(" Text "), Ok(Format::Text));
        assert_eq!(Format::parse(""), Ok(Format::Json));
        assert!(Format::parse("yaml").is_err_and(|why| why.contains("json or text")));
        assert_eq!(parse_level("WARNING"), Ok(LevelFilter::WARN));
        assert_eq!(parse_level(" "), Ok(LevelFilter::INFO));
        assert!(parse_level("trace").is_err_and(|why| why.contains("debug, info, warn or error")));
    }
}
