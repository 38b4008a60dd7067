//! KV-cache events as vLLM and SGLang publish them.
//!
//! ```text
//! payload   [ts, events, rank…]  or  {ts, events, …}        one batch; bytes behind it are ignored
//! event     [tag, field…]        or  {type: tag, field…}    each event chooses its own shape
//! ```
//!
//! 1. A batch whose structure does not hold is refused as a whole, before any of its events is seen.
//! 2. Within a batch every event stands alone: a malformed one never costs its neighbours.
//! 3. Nothing is allocated by an announced length. Tokens go into one reusable buffer of at most [`MAX_TOKENS`]; hashes,
//!    names and keys stay in the frame until they are used.
//! 4. A field that decides about *what* is stored (hashes, tokens, parent, adapter number) must be right, or the event is
//!    malformed. An optional field of an unexpected type counts as absent.
//!
//! Here nothing is remembered from one batch to the next, and nothing is decided about what a block means.

mod event;
mod layout;
pub mod msgpack;

pub use event::{
    BlockHash, BlockRemoved, BlockStored, Counts, EngineEvent, ExtraKeys, Hashes, Locality, MAX_HASH_BYTES,
};
pub use layout::MAX_TOKENS;

use inferencecache_core::time::Micros;
use thiserror::Error;

use self::msgpack::{Reader, Token, Truncated};

/// Why a whole batch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The frame ends too early, or is no MessagePack.
    #[error("truncated or invalid MessagePack")]
    Truncated,
    /// Neither an array of at least two elements nor a map with `ts` and `events`.
    #[error("no batch envelope")]
    Envelope,
    /// The time is no number.
    #[error("batch time is not a number")]
    Timestamp,
    /// The events are no list.
    #[error("events are not a list")]
    Events,
}

impl From<Truncated> for BatchError {
    fn from(_: Truncated) -> Self {
        Self::Truncated
    }
}

/// Why one event was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("malformed event")]
pub struct Malformed;

/// What a batch says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchHead {
    /// When the engine made it, in microseconds since the Unix epoch; 0 when it does not say.
    pub timestamp: Micros,
    /// Data-parallel rank of the publisher.
    pub rank: Option<i64>,
}

/// Receives one batch.
pub trait BatchSink {
    /// Called once, before any event, when the structure of the batch holds.
    fn batch(&mut self, head: BatchHead);
    /// Asked once, after [`batch`](Self::batch): whether to call [`event`](Self::event). Otherwise this was all of the batch.
    /// Default `true`.
    fn wanted(&self) -> bool {
        true
    }
    /// Called for each event in order.
    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>);
}

/// Turns payloads into events. Implement it for an engine whose batches are shaped differently.
///
/// *Callers may assume* that an error means that the sink was not called. *Implementers must* neither block nor panic,
/// whatever the bytes, and must bound memory by the length of the payload. Called on the receive task, once per message.
pub trait EngineDecoder: Send + 'static {
    /// Decodes one payload into `sink`.
    ///
    /// # Errors
    ///
    /// [`BatchError`] when the batch is refused as a whole.
    fn decode(&mut self, payload: &[u8], sink: &mut dyn BatchSink) -> Result<(), BatchError>;
}

impl<D: EngineDecoder + ?Sized> EngineDecoder for Box<D> {
    fn decode(&mut self, payload: &[u8], sink: &mut dyn BatchSink) -> Result<(), BatchError> {
        (**self).decode(payload, sink)
    }
}

/// The decoder for every released vLLM and SGLang.
///
/// ```
/// use inferencecache_wire::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};
///
/// #[derive(Default)]
/// struct Count(usize);
///
/// impl BatchSink for Count {
///     fn batch(&mut self, head: BatchHead) {
///         assert_eq!(head.timestamp, 7_000_000);
///     }
///     fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
///         if let Ok(EngineEvent::Stored(stored)) = event {
///             assert_eq!(stored.tokens, [1, 2]);
///             self.0 += 1;
///         }
///     }
/// }
///
/// let payload = b"\x92\x07\x91\x96\xabBlockStored\x91\x0a\xc0\x92\x01\x02\x02\xc0";
/// let mut count = Count::default();
/// MsgpackDecoder::default().decode(payload, &mut count).unwrap();
/// assert_eq!(count.0, 1);
/// ```
#[derive(Debug, Default)]
pub struct MsgpackDecoder {
    tokens: Vec<u32>,
}

impl EngineDecoder for MsgpackDecoder {
    fn decode(&mut self, payload: &[u8], sink: &mut dyn BatchSink) -> Result<(), BatchError> {
        let (head, events) = envelope(payload)?;
        sink.batch(head);
        if !sink.wanted() {
            return Ok(());
        }
        let mut reader = Reader::new(events);
        let Token::Array(count) = reader.read()? else { return Err(BatchError::Events) };
        for _ in 0..count {
            // The envelope was walked to its end, so the reader cannot run out here.
            let Ok(event) = layout::decode(&mut reader, &mut self.tokens) else { break };
            sink.event(event);
        }
        self.tokens.clear();
        self.tokens.shrink_to(layout::TOKENS_KEPT);
        Ok(())
    }
}

/// Walks the whole first object of the payload and returns its head and its encoded events.
fn envelope(payload: &[u8]) -> Result<(BatchHead, &[u8]), BatchError> {
    let mut reader = Reader::new(payload);
    let (mut ts, mut events, mut rank) = (None, None, None);
    match reader.read()? {
        Token::Array(count) => {
            for position in 0..count {
                let value = reader.value()?;
                match position {
                    0 => ts = Some(value),
                    1 => events = Some(value),
                    2 => rank = Some(value),
                    _ => {}
                }
            }
        }
        Token::Map(count) => {
            for _ in 0..count {
                let key = reader.value()?;
                let value = reader.value()?;
                match Reader::new(key).read()? {
                    Token::Str(b"ts") => ts = Some(value),
                    Token::Str(b"events") => events = Some(value),
                    Token::Str(b"data_parallel_rank" | b"attn_dp_rank") => rank = Some(value),
                    _ => {}
                }
            }
        }
        _ => return Err(BatchError::Envelope),
    }
    let (Some(ts), Some(events)) = (ts, events) else { return Err(BatchError::Envelope) };
    let Token::Array(_) = Reader::new(events).read()? else { return Err(BatchError::Events) };
    let rank = rank.and_then(|value| Reader::new(value).read().ok()?.signed());
    Ok((BatchHead { timestamp: timestamp(Reader::new(ts).read()?)?, rank }, events))
}

/// Seconds to microseconds. What is no instant after 1970 is 0, which the server reads as "now".
fn timestamp(seconds: Token<'_>) -> Result<Micros, BatchError> {
    match seconds {
        Token::Unsigned(seconds) => {
            Ok(i64::try_from(seconds).ok().and_then(|s| s.checked_mul(1_000_000)).unwrap_or(Micros::MAX))
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a float cast truncates and saturates, which is what is asked"
        )]
        Token::Float(seconds) if seconds.is_finite() && seconds > 0.0 => Ok((seconds * 1e6) as Micros),
        Token::Nil | Token::Negative(_) | Token::Float(_) => Ok(0),
        _ => Err(BatchError::Timestamp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_any_number_type_become_microseconds() {
        for (seconds, expected) in [
            (Token::Float(1_000.5), 1_000_500_000),
            (Token::Float(1_000.000_000_9), 1_000_000_000),
            (Token::Float(0.0), 0),
            (Token::Float(-1.0), 0),
            (Token::Float(f64::NAN), 0),
            (Token::Float(f64::INFINITY), 0),
            (Token::Float(1e300), Micros::MAX),
            (Token::Unsigned(7), 7_000_000),
            (Token::Unsigned(u64::MAX), Micros::MAX),
            (Token::Negative(-7), 0),
            (Token::Nil, 0),
        ] {
            assert_eq!(timestamp(seconds), Ok(expected), "{seconds:?}");
        }
        assert_eq!(timestamp(Token::Bool(true)), Err(BatchError::Timestamp));
        assert_eq!(timestamp(Token::Str(b"7")), Err(BatchError::Timestamp));
    }

    #[test]
    fn envelopes_that_are_none_are_refused_with_their_reason() {
        for (payload, error) in [
            (&b""[..], BatchError::Truncated),
            (b"\x07", BatchError::Envelope),
            (b"\x91\x07", BatchError::Envelope),
            (b"\x81\xa2ts\x07", BatchError::Envelope),
            (b"\x92\x07\xc0", BatchError::Events),
            (b"\x92\xa17\x90", BatchError::Timestamp),
            (b"\x93\x07\x90", BatchError::Truncated),
            (b"\x92\x07\x92\x90", BatchError::Truncated),
        ] {
            assert_eq!(envelope(payload).unwrap_err(), error, "{payload:x?}");
        }
    }

    #[test]
    fn the_rank_is_read_in_both_envelopes() {
        for (payload, rank) in [
            (&b"\x92\x07\x90"[..], None),
            (b"\x93\x07\x90\x03", Some(3)),
            (b"\x94\x07\x90\xc0\x09", None),
            (b"\x83\xa2ts\x07\xa6events\x90\xb2data_parallel_rank\x02", Some(2)),
            (b"\x83\xacattn_dp_rank\x01\xa6events\x90\xa2ts\x07", Some(1)),
        ] {
            assert_eq!(envelope(payload).unwrap().0, BatchHead { timestamp: 7_000_000, rank }, "{payload:x?}");
        }
    }
}
