//! What can go wrong with a child.

use crate::adapters::AdapterError;
use crate::controller::text::cut;

/// Why a child is not as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The API server refused, or was not there.
    #[error("cannot {action} {kind} {name:?}")]
    Api {
        /// What was tried: `read`, `create`, `update`, `delete`.
        action: &'static str,
        /// Kind of the child.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What came back.
        #[source]
        source: kube::Error,
    },
    /// The name is taken by an object that somebody else controls. It is left alone.
    #[error("{kind} {name:?} exists and is controlled by {owner}")]
    Foreign {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Kind and name of its controller.
        owner: String,
    },
    /// The name is taken by an object that nobody controls and that cannot be taken over, because it is not what would be
    /// created. It is left alone.
    #[error("{kind} {name:?} exists, has no controller and cannot be adopted: {problem}")]
    Occupied {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What keeps it from being adopted.
        problem: &'static str,
    },
    /// It was written as ours and did not come back as ours.
    #[error("{kind} {name:?} lost its controller reference as it was written")]
    Lost {
        /// Kind of the child.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A Service cannot have the name of this object.
    #[error(
        "{name:?} cannot name a Service: at most 63 letters, digits and dashes, no dots; \
         create the CacheBackend under another name"
    )]
    ServiceName {
        /// Name of the CacheBackend.
        name: String,
    },
    /// The Pods of the namespace could not be listed, so servers were neither made nor removed.
    #[error("the Pods of the namespace are not known")]
    PodsUnknown,
    /// The object asks for what cannot be rendered.
    #[error(transparent)]
    Render(#[from] AdapterError),
}

/// Longest text of an API server that is passed on, in bytes.
const QUOTE: usize = 400;

impl ChildError {
    pub(super) fn api(action: &'static str, kind: &'static str, name: &str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { action, kind, name: name.to_owned(), source }
    }

    /// The failure for a condition or an Event: the same words for the same cause, so without addresses, ports and times.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self::Api { source: kube::Error::Api(status), .. } = self else {
            return match self {
                Self::Api { .. } => format!("{self}: the API server did not answer"),
                other => other.to_string(),
            };
        };
        let reason = if status.reason.is_empty() { status.code.to_string() } else { status.reason.clone() };
        // What the API server says about the object is worth reading and repeats; what it says about its own troubles, such
        // as a hook that cannot be reached, holds addresses.
        if !matches!(status.code, 400 | 403 | 404 | 422) {
            return format!("{self}: {reason}");
        }
        format!("{self}: {reason}: {}", cut(&status.message, QUOTE))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> ChildError {
        let status = json!({"status": "Failure", "code": code, "reason": reason, "message": message});
        let status: Status = serde_json::from_value(status).expect("a status");
        ChildError::api("update", "Deployment", "cache")(kube::Error::Api(Box::new(status)))
    }

    /// A text that is new every time would be a write every time.
    #[test]
    fn the_same_cause_has_the_same_words() {
        let hook = |port: u16| format!("failed calling webhook: dial tcp 10.0.0.7:{port}->10.0.0.1:443: refused");
        let texts = [49152, 49153].map(|port| refused(500, "InternalError", &hook(port)).summary());
        assert_eq!(texts[0], texts[1]);
        assert!(texts[0].contains("InternalError") && texts[0].contains("cannot update Deployment \"cache\""));
        let gone = |port: u16| {
            let why = std::io::Error::other(format!("127.0.0.1:{port} hung up"));
            ChildError::api("read", "Service", "cache")(kube::Error::Service(why.into())).summary()
        };
        assert_eq!(gone(49152), gone(49153));
    }

    #[test]
    fn what_is_said_of_the_object_is_quoted() {
        let denied = refused(403, "Forbidden", &format!("not today{}", "\u{e9}".repeat(QUOTE))).summary();
        assert!(denied.contains("Forbidden: not today") && denied.len() < 2 * QUOTE, "{denied}");
    }
}
