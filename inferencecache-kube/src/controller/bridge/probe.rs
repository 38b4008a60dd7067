//! The functional probe, as the reconciler asks for it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::error::{BridgeError, after_colon};
use super::http::Endpoint;
use super::metrics::Channel;
use super::steady::steady;
use super::{Bridge, MAX_QUOTED};
use crate::controller::backend::probing::{Answer, ProbeBackend, Report, Request, StageError};
use crate::controller::text;

/// The model that a probe writes under.
const MODEL: &str = "functional-self-test";

/// Probes through the bridge.
#[derive(Clone, Debug)]
pub struct Probe {
    bridge: Bridge,
    at: Endpoint,
}

impl Probe {
    /// Asks at that address.
    #[must_use]
    pub fn new(bridge: Bridge, at: Endpoint) -> Self {
        Self { bridge, at }
    }

    async fn ask(&self, request: &Request) -> Result<Report, BridgeError> {
        let question = Question {
            backend: &request.backend,
            model: MODEL,
            hash_scheme: &request.hash_scheme,
            backend_type: request.backend_type.as_deref(),
        };
        let body = serde_json::to_vec(&question).map_err(|why| BridgeError::Unreadable(why.to_string()))?;
        let answer = self.bridge.probe(&self.at, Bytes::from(body)).await?;
        let answer: Said = serde_json::from_slice(&answer).map_err(|why| BridgeError::Unreadable(why.to_string()))?;
        let answered = answer.backend.unwrap_or_default();
        if answered != request.backend {
            let answered = text::cut(&answered, MAX_QUOTED);
            return Err(BridgeError::Echo { asked: request.backend.clone(), answered });
        }
        let errors = answer.errors.unwrap_or_default().into_iter();
        Ok(Report {
            ingest: answer.ingest.unwrap_or_default(),
            routing: answer.routing.unwrap_or_default(),
            t2: answer.t2.unwrap_or_default(),
            errors: errors
                .map(|error| StageError {
                    stage: error.stage.unwrap_or_default(),
                    message: error.message.unwrap_or_default(),
                })
                .collect(),
        })
    }
}

impl ProbeBackend for Probe {
    fn probe(&self, request: Request) -> Answer<'_> {
        Box::pin(async move {
            let report = self.bridge.metrics.counted(Channel::Probe, self.ask(&request)).await.map_err(|why| {
                tracing::warn!(backend = request.backend, error = %why, "probe call failed");
                lasting(&why)
            })?;
            self.bridge.metrics.probed(&request.backend, [&report.ingest, &report.routing, &report.t2]);
            Ok(report)
        })
    }

    fn forget(&self, backend: &str) {
        self.bridge.metrics.forget(backend);
    }
}

/// An error as a condition may carry it: the same each time for the same cause.
fn lasting(why: &BridgeError) -> String {
    match why {
        BridgeError::Refused { status, said } => format!("the server answers {status}{}", after_colon(&steady(said))),
        BridgeError::Unreachable(why) => steady(why),
        other => other.to_string(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    backend: &'a str,
    model: &'static str,
    hash_scheme: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_type: Option<&'a str>,
}

/// Read leniently: what is missing is empty.
#[derive(Default, Deserialize)]
struct Said {
    backend: Option<String>,
    ingest: Option<String>,
    routing: Option<String>,
    t2: Option<String>,
    errors: Option<Vec<SaidError>>,
}

#[derive(Default, Deserialize)]
struct SaidError {
    stage: Option<String>,
    message: Option<String>,
}
