//! Recordings of real engines: what was published, and beside it what the engine reused at each prompt.
//!
//! One JSON object a line, in the order in which things happened; `examples/captures/README.md` describes the rows.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::kvevents::msgpack::{Reader, Token};

/// One message as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Topic part.
    pub topic: Vec<u8>,
    /// Number of the batch.
    pub sequence: u64,
    /// The encoded batch.
    pub payload: Vec<u8>,
}

/// A prompt, and what the engine reused for it, given all frames before it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Prompt {
    /// Model name of the request; that of an adapter where one was asked for.
    pub model: String,
    /// Tokens of the prompt.
    pub token_ids: Vec<u32>,
    /// How many of them came out of the engine's prefix cache.
    pub cached_tokens: u32,
}

/// One row that matters for a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// The engine published.
    Frame(Frame),
    /// A prompt arrived.
    Prompt(Prompt),
    /// The prefix cache was cleared by hand; the engine says so only with its next batch.
    Reset,
}

/// A recording.
#[derive(Debug, Clone)]
pub struct Capture {
    /// Rows in order.
    pub rows: Vec<Row>,
}

/// Why a recording cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("line {line} is no row of a capture: {what}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

#[derive(Deserialize)]
struct Raw {
    frame: Option<[String; 3]>,
    request: Option<Prompt>,
    #[serde(default)]
    reset: bool,
}

impl Capture {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`CaptureError`].
    pub fn load(path: &Path) -> Result<Self, CaptureError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| CaptureError::File { path: path.to_owned(), source })?;
        Self::parse(&text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Line`].
    pub fn parse(text: &str) -> Result<Self, CaptureError> {
        let mut rows = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| CaptureError::Line { line: index + 1, what };
            let raw: Raw = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            if let Some(parts) = raw.frame {
                rows.push(Row::Frame(frame(&parts).ok_or_else(|| wrong("parts are not hex".to_owned()))?));
            } else if let Some(prompt) = raw.request {
                rows.push(Row::Prompt(prompt));
            } else if raw.reset {
                rows.push(Row::Reset);
            }
        }
        Ok(Self { rows })
    }

    /// The frames alone.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.rows.iter().filter_map(|row| match row {
            Row::Frame(frame) => Some(frame),
            _ => None,
        })
    }

    /// Shifts the time of every batch by one constant, so that the last one is `now` (Unix seconds). Only the eight bytes
    /// of each time change; a batch whose time is no float of eight bytes stays as it is.
    pub fn shift_to(&mut self, now: f64) {
        let Some(last) = self.frames().filter_map(|frame| time_of(&frame.payload)).map(|(_, time)| time).last() else {
            return;
        };
        for row in &mut self.rows {
            if let Row::Frame(frame) = row
                && let Some((at, time)) = time_of(&frame.payload)
            {
                frame.payload[at..at + 8].copy_from_slice(&(time + (now - last)).to_be_bytes());
            }
        }
    }
}

/// Where the time of a batch stands in its payload, and what it is.
fn time_of(payload: &[u8]) -> Option<(usize, f64)> {
    let mut reader = Reader::new(payload);
    match reader.read().ok()? {
        Token::Array(_) => {}
        Token::Map(pairs) => {
            for pair in 0.. {
                if pair == pairs {
                    return None;
                }
                if let Token::Str(b"ts") = Reader::new(reader.value().ok()?).read().ok()? {
                    break;
                }
                reader.skip().ok()?;
            }
        }
        _ => return None,
    }
    let at = payload.len() - reader.rest().len();
    let bytes = payload.get(at..)?.strip_prefix(&[0xcb])?.first_chunk::<8>()?;
    Some((at + 1, f64::from_be_bytes(*bytes)))
}

fn frame([topic, sequence, payload]: &[String; 3]) -> Option<Frame> {
    let sequence = <[u8; 8]>::try_from(unhex(sequence)?).ok()?;
    Some(Frame { topic: unhex(topic)?, sequence: u64::from_be_bytes(sequence), payload: unhex(payload)? })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        {"t_ms":0,"frame":["6b76","0000000000000000","93cb404000000000000090c0"]}
        {"t_ms":1,"request":{"model":"m","token_ids":[1,2],"cached_tokens":0}}
        {"t_ms":2,"metrics":"x 1"}
        {"t_ms":3,"reset":true}
        {"t_ms":4,"frame":["","0000000000000001","82a6657665 6e747390a27473cb4050000000000000"]}
        {"replay_from":0,"frames":[]}
    "#;

    #[test]
    fn only_the_times_change_and_all_by_the_same() {
        let mut capture = Capture::parse(&TEXT.replace("65 6e", "656e")).unwrap();
        assert_eq!(capture.rows.len(), 4);
        let before = capture.clone();
        capture.shift_to(1000.0);
        let times: Vec<f64> = capture.frames().filter_map(|frame| time_of(&frame.payload)).map(|(_, t)| t).collect();
        assert_eq!(times, [968.0, 1000.0]);
        for (a, b) in before.frames().zip(capture.frames()) {
            let (at, _) = time_of(&a.payload).unwrap();
            assert_eq!((&a.payload[..at], &a.payload[at + 8..]), (&b.payload[..at], &b.payload[at + 8..]));
            assert_eq!((&a.topic, a.sequence), (&b.topic, b.sequence));
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Capture::parse("{\"reset\":true}\n{\"frame\":[\"0\",\"\",\"\"]}").unwrap_err();
        assert!(matches!(error, CaptureError::Line { line: 2, .. }), "{error}");
    }
}
