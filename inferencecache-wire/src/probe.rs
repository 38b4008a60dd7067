//! The bodies of `POST /probe`: which backend to test, and what came of it.
//!
//! 1. A request has four members, spelled exactly, each a string and given once; `null` is the same as absent.
//! 2. Everything after the value is refused but blanks, and all of it counts towards [`MAX_BODY`].
//! 3. A response names each stage. A consumer takes no other word than `ok` for passed, or `skipped` for not run.
//!
//! Not here: HTTP, authentication, and the test itself.

use inferencecache_core::probe::{ProbeFault, ProbeOutcome, ProbeStage, ProbeTarget, StageResult};
use serde::de::{IgnoredAny, MapAccess};
use serde::{Deserialize, Serialize};

use crate::strict::{Members, Object, shorten, text};

/// Largest body in bytes.
pub const MAX_BODY: usize = 4096;

/// What to test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeRequest {
    /// Name of the backend, unique in the cluster; normally `namespace/name`.
    pub backend: String,
    /// Model to pretend.
    pub model: String,
    /// Engine compatibility tag.
    pub hash_scheme: String,
    /// Kind of the backend; empty is the default kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backend_type: String,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeResponse {
    /// The backend of the request.
    pub backend: String,
    /// Writing into the index.
    pub ingest: Stage,
    /// Finding it again.
    pub routing: Stage,
    /// The second tier.
    pub t2: Stage,
    /// Why stages failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<StageError>,
}

/// What came of a stage, as it is read and written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It passed.
    Ok,
    /// It did not.
    Failed,
    /// It was not run.
    Skipped,
    /// A word that this version does not know, or none. Not written by this version; to be taken for not passed.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Why a stage failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageError {
    /// `ingest`, `routing` or `t2`.
    pub stage: String,
    /// Why, for people.
    pub message: String,
}

/// Why a request was refused. The text is the answer to the sender.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No value, or no probe request: syntax, an unknown or repeated key, a wrong type, or more than [`MAX_BODY`] bytes.
    #[error("decode probe request: {0}")]
    Malformed(String),
    /// Something follows the value, or blanks follow that take the body past [`MAX_BODY`].
    #[error("probe request body has trailing content; send one object of at most {MAX_BODY} bytes")]
    Trailing,
    /// A member that must have a value has none.
    #[error("probe request missing required field: {0}")]
    Missing(&'static str),
}

/// Reads a body. Of one that is too large the first [`MAX_BODY`] bytes and one more are enough.
///
/// # Errors
/// [`ProbeError`], in the order of its variants.
///
/// ```
/// let body = br#"{"backend":"blue/cache","model":"m","hashScheme":"vllm"}"#;
/// assert_eq!(inferencecache_wire::probe::decode(body).unwrap().backend, "blue/cache");
///
/// let error = inferencecache_wire::probe::decode(br#"{"backend":"blue/cache","model":"m"}"#).unwrap_err();
/// assert_eq!(error.to_string(), "probe request missing required field: hashScheme");
/// ```
pub fn decode(body: &[u8]) -> Result<ProbeRequest, ProbeError> {
    let within = body.get(..MAX_BODY).unwrap_or(body);
    let cut = within.len() < body.len();
    if cut && serde_json::from_slice::<IgnoredAny>(within).is_err_and(|error| error.is_eof()) {
        return Err(ProbeError::Malformed(format!("the value is larger than {MAX_BODY} bytes")));
    }
    let mut reader = serde_json::Deserializer::from_slice(within);
    let object: Object<ProbeRequest> = Object::deserialize(&mut reader)
        .map_err(|error: serde_json::Error| ProbeError::Malformed(shorten(error.to_string())))?;
    if cut || reader.end().is_err() {
        return Err(ProbeError::Trailing);
    }
    let request = object.value;
    match request.missing() {
        Some(name) => Err(ProbeError::Missing(name)),
        None => Ok(request),
    }
}

// === impl ProbeRequest ===

impl ProbeRequest {
    /// The same for the prober.
    #[must_use]
    pub fn target(&self) -> ProbeTarget<'_> {
        ProbeTarget {
            backend: &self.backend,
            model: &self.model,
            scheme: &self.hash_scheme,
            backend_type: &self.backend_type,
        }
    }

    fn missing(&self) -> Option<&'static str> {
        let required = [("backend", &self.backend), ("model", &self.model), ("hashScheme", &self.hash_scheme)];
        required.into_iter().find(|(_, value)| value.is_empty()).map(|(name, _)| name)
    }
}

impl Members for ProbeRequest {
    type Notes = ();

    fn member<'de, A>(&mut self, key: &str, map: &mut A, (): &mut ()) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>,
    {
        match key {
            "backend" => self.backend = text(map)?,
            "model" => self.model = text(map)?,
            "hashScheme" => self.hash_scheme = text(map)?,
            "backendType" => self.backend_type = text(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

// === impl ProbeResponse ===

impl ProbeResponse {
    /// The answer to a request for `backend`.
    #[must_use]
    pub fn new(backend: String, outcome: ProbeOutcome) -> Self {
        let ProbeOutcome { ingest, routing, t2, errors, panicked: _ } = outcome;
        let errors = errors.into_iter().map(StageError::from).collect();
        Self { backend, ingest: ingest.into(), routing: routing.into(), t2: t2.into(), errors }
    }
}

impl From<StageResult> for Stage {
    fn from(result: StageResult) -> Self {
        match result {
            StageResult::Ok => Self::Ok,
            StageResult::Failed => Self::Failed,
            StageResult::Skipped => Self::Skipped,
        }
    }
}

impl From<ProbeFault> for StageError {
    fn from(fault: ProbeFault) -> Self {
        Self { stage: ProbeStage::as_str(fault.stage).to_owned(), message: fault.message }
    }
}
