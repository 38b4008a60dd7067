//! What the self-test needs of a second tier.

use std::fmt;

use super::target::{PAYLOAD_BYTES, ProbeTarget};

/// A store behind the engines' own memory, as the self-test needs it.
///
/// *Callers may assume* that a call ends within a few seconds, and call from a thread that may block; at most once per
/// probe, and never twice at a time for one backend. *Implementers must* bound every wait, leave nothing behind for good,
/// and keep secrets out of error texts, which are published.
///
/// ```
/// use inferencecache_core::probe::{PAYLOAD_BYTES, ProbeTarget, T2Client, T2Error};
///
/// /// A store in memory: what is put is what is got.
/// #[derive(Debug)]
/// struct Heap;
///
/// impl T2Client for Heap {
///     fn round_trip(&self, _target: &ProbeTarget<'_>, payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
///         let kept = Box::new(*payload);
///         if *kept == *payload { Ok(()) } else { Err(T2Error::Get("other bytes than were put".to_owned())) }
///     }
/// }
/// ```
pub trait T2Client: Send + Sync + fmt::Debug + 'static {
    /// Puts `payload` where nothing else is, gets it, and compares.
    ///
    /// # Errors
    /// The half that failed, and why.
    fn round_trip(&self, target: &ProbeTarget<'_>, payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error>;
}

/// Why a round trip failed. The text is published with the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum T2Error {
    /// It could not be put.
    Put(String),
    /// It could not be got, or was not the same.
    Get(String),
    /// Anything else; the text stands for itself.
    Other(String),
}

impl fmt::Display for T2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put(why) => write!(f, "put failed: {why}"),
            Self::Get(why) => write!(f, "get failed: {why}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for T2Error {}
