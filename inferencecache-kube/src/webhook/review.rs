//! What the API server asks, and what it is answered. The objects stay raw JSON.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::field::FieldError;
use crate::api::names::GROUP;

/// A question.
#[derive(Debug, Deserialize)]
pub struct Review {
    /// Version of the question; the answer is of the same.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// The request. A review without one is no question.
    pub request: Request,
}

/// What is asked about.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Comes back with the answer.
    pub uid: String,
    /// CREATE, UPDATE, DELETE, CONNECT.
    #[serde(default)]
    pub operation: String,
    /// Namespace of the object.
    #[serde(default)]
    pub namespace: String,
    /// Name of the object; empty while it is generated.
    #[serde(default)]
    pub name: String,
    /// The object as it would be.
    #[serde(default)]
    pub object: Value,
    /// The object as it was.
    #[serde(default)]
    pub old_object: Value,
}

impl Request {
    /// The object's own name, else the request's.
    #[must_use]
    pub fn object_name(&self) -> &str {
        let own = self.object.pointer("/metadata/name").and_then(Value::as_str);
        own.filter(|name| !name.is_empty()).unwrap_or(&self.name)
    }

    /// The object's own namespace, else the request's.
    #[must_use]
    pub fn object_namespace(&self) -> &str {
        let own = self.object.pointer("/metadata/namespace").and_then(Value::as_str);
        own.filter(|namespace| !namespace.is_empty()).unwrap_or(&self.namespace)
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// Let it pass.
    Allowed,
    /// Let it pass with these operations of a JSON patch; none of them is let pass plainly.
    Patched(Vec<Value>),
    /// Let it pass with these operations, if any, and a word to people: a warning, and an audit annotation.
    Noted(Vec<Value>, String),
    /// Refused for what it says; 422.
    Invalid {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// Every violation.
        errors: Vec<FieldError>,
    },
    /// Refused without a verdict on the object; 403.
    Denied(String),
    /// The object is not what its kind says; 400.
    Malformed(String),
    /// Our own fault; 500.
    Failed(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<[String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_annotations: Option<Value>,
}

impl Response<'_> {
    fn patch(&mut self, operations: &[Value]) {
        if !operations.is_empty() {
            self.patch_type = Some("JSONPatch");
            self.patch = Some(BASE64_STANDARD.encode(Value::from(operations).to_string()));
        }
    }
}

impl Answer {
    /// Violations, or none.
    #[must_use]
    pub fn verdict(kind: &'static str, name: &str, errors: Vec<FieldError>) -> Self {
        if errors.is_empty() { Self::Allowed } else { Self::Invalid { kind, name: name.to_owned(), errors } }
    }

    /// The status code inside the answer.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Allowed | Self::Patched(_) | Self::Noted(..) => 200,
            Self::Malformed(_) => 400,
            Self::Denied(_) => 403,
            Self::Invalid { .. } => 422,
            Self::Failed(_) => 500,
        }
    }

    /// The whole answer.
    #[must_use]
    pub fn render(&self, api_version: &str, uid: &str) -> Value {
        let mut response = Response {
            uid,
            allowed: self.code() == 200,
            status: None,
            patch_type: None,
            patch: None,
            warnings: None,
            audit_annotations: None,
        };
        let refusal = |reason: Option<&str>, message: &str| {
            let mut status = json!({"status": "Failure", "code": self.code(), "message": message});
            if let (Some(status), Some(reason)) = (status.as_object_mut(), reason) {
                status.insert("reason".to_owned(), json!(reason));
            }
            status
        };
        response.status = Some(match self {
            Self::Allowed => json!({"code": 200}),
            Self::Patched(operations) => {
                response.patch(operations);
                json!({"code": 200})
            }
            Self::Noted(operations, note) => {
                response.patch(operations);
                let note = cut(note);
                response.warnings = Some([note.to_owned()]);
                response.audit_annotations = Some(json!({"note": note}));
                json!({"code": 200, "message": note})
            }
            Self::Denied(why) => refusal(Some("Forbidden"), why),
            Self::Malformed(why) => refusal(Some("BadRequest"), why),
            Self::Failed(why) => refusal(Some("InternalError"), why),
            Self::Invalid { kind, name, errors } => {
                let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let list = if let [one] = list.as_slice() { one.clone() } else { format!("[{}]", list.join(", ")) };
                let mut status = refusal(Some("Invalid"), &format!("{kind}.{GROUP} {name:?} is invalid: {list}"));
                let causes: Vec<Value> = errors
                    .iter()
                    .map(|e| json!({"reason": e.violation.reason(), "message": e.message(), "field": e.path}))
                    .collect();
                if let Some(status) = status.as_object_mut() {
                    let details = json!({"group": GROUP, "kind": kind, "name": name, "causes": causes});
                    status.insert("details".to_owned(), details);
                }
                status
            }
        });
        json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
    }
}

/// Longest warning. API servers cut longer ones themselves.
const MOST_NOTE: usize = 256;

fn cut(note: &str) -> &str {
    note.get(..note.floor_char_boundary(MOST_NOTE)).unwrap_or(note)
}
