//! What an adapter can object to. Every text names the field, flag, object or value at fault: operators read them.

use super::value::SupportedPair;

/// Why something was not selected, wired or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// No registered runtime adapter takes this object.
    #[error("no adapter for runtime {runtime:?} with type {cache_type:?}; known: {}", list(supported))]
    NoAdapter {
        /// The runtime id, or `<nil>` without an object.
        runtime: String,
        /// The effective cache type, or `<nil>` without an object.
        cache_type: String,
        /// What the registered adapters say they support.
        supported: Vec<SupportedPair>,
    },
    /// No registered storage provider takes this storage.
    #[error("no provider for storage {provider:?} with ownership {ownership:?}")]
    NoProvider {
        /// `remoteStorage.provider`, or `<nil>` without storage.
        provider: String,
        /// `remoteStorage.ownership`, or `<nil>` without storage.
        ownership: String,
    },
    /// A binding that the adapter cannot honour.
    #[error("binding: {0}")]
    Binding(String),
    /// `host:port` that is none.
    #[error("endpoint {endpoint:?} {problem}")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A field of the CacheBackend that is missing or that cannot be used.
    #[error("{path} {problem}")]
    Backend {
        /// From the root of the object, as in a manifest.
        path: String,
        /// What was given, and what is allowed.
        problem: String,
    },
    /// A flag of the engine that the wiring cannot live with, or that nobody can classify.
    #[error("engine flag {flag}: {problem}")]
    Flag {
        /// With its dashes.
        flag: String,
        /// What was found, and what is allowed.
        problem: String,
    },
    /// Something on the Pod that stands in the way, or is not there.
    #[error("pod {object}: {problem}")]
    Pod {
        /// Kind and name, such as `volume "lmcache-mp-shm"`.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl AdapterError {
    /// A field of the CacheBackend is missing or cannot be used.
    pub fn backend(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Backend { path: path.into(), problem: problem.into() }
    }

    /// A flag of the engine is in the way.
    pub fn flag(flag: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Flag { flag: flag.into(), problem: problem.into() }
    }

    /// Something on the Pod is in the way.
    pub fn pod(object: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Pod { object: object.into(), problem: problem.into() }
    }
}

fn list(pairs: &[SupportedPair]) -> String {
    let mut names: Vec<String> = pairs.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    if names.is_empty() { "(none)".to_owned() } else { names.join(", ") }
}
