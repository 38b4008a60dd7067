//! The `/policy` snapshot: the JSON body in which a controller tells a server all policies and quotas at once.
//!
//! ```text
//! bytes ──decode──> schema::Snapshot ──bands──> core's PolicySet ──> PolicyStore::replace
//!         strict                      what an older version could not say is filled in
//! ```
//!
//! 1. A body is accepted whole or not at all; an error names the field and what is expected of it.
//! 2. Every key is known, spelled exactly, and given once. `null` is the same as absent.
//! 3. Older versions get the values that a tenant without a policy has; version 7 is taken at its word.
//!
//! Not here: HTTP, authentication, and what the values do.

mod bands;
mod decode;
mod schema;

use inferencecache_core::policy::PolicySet;

pub use self::bands::{MINIMUM_VERSION, VERSION};
pub use self::schema::{Policy, Snapshot, Strategy, Tenant};

/// Largest body in bytes. All of it counts, blanks after the value included.
pub const MAX_BODY: usize = 1_048_576;

/// A body that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The version it declared.
    pub version: i64,
    /// What it says.
    pub set: PolicySet,
    /// What its sender may not have meant.
    pub oddities: Oddities,
}

/// Elements that are valid and yet probably mistakes; worth a warning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Policies whose positive score floor is too small for single precision and thus off.
    pub vanishing_floors: u32,
    /// Policies that turn the matched-token floor off without saying so.
    pub silent_floors: u32,
    /// Tenants without a budget, which admits nothing.
    pub missing_budgets: u32,
}

/// Why a body was refused. The text is the answer to the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// More than [`MAX_BODY`] bytes.
    #[error("decode policy snapshot: body is larger than {MAX_BODY} bytes")]
    TooLarge,
    /// Not a policy snapshot: syntax, an unknown or repeated key, a wrong type, or a number out of range.
    #[error("decode policy snapshot: {0}")]
    Malformed(String),
    /// A version that is not understood, or none, which is version 0.
    #[error("unsupported policy snapshot version {0}, expected {MINIMUM_VERSION} to {VERSION}")]
    Version(i64),
}

/// Reads a body.
///
/// # Errors
/// [`PolicyError`] when it is too large, not a policy snapshot, or of a version that is not understood, in this order.
///
/// ```
/// let body = br#"{"version":7,"policies":[{"namespace":"blue","lookupTimeoutMs":25}]}"#;
/// let decoded = inferencecache_wire::policy::decode(body).unwrap();
/// assert_eq!(decoded.set.effective("blue").lookup_timeout_ms, 25);
///
/// let error = inferencecache_wire::policy::decode(br#"{"version":7,"note":"x"}"#).unwrap_err();
/// assert!(error.to_string().starts_with(r#"decode policy snapshot: unknown field "note""#));
/// ```
pub fn decode(body: &[u8]) -> Result<Decoded, PolicyError> {
    if body.len() > MAX_BODY {
        return Err(PolicyError::TooLarge);
    }
    let (snapshot, oddities) = decode::snapshot(body)?;
    if !(MINIMUM_VERSION..=VERSION).contains(&snapshot.version) {
        return Err(PolicyError::Version(snapshot.version));
    }
    Ok(bands::normalise(snapshot, oddities))
}
