//! Manifests: the definitions as the files that are published, and YAML into JSON.

use serde_json::Value;

use crate::api::crd_json;

const HEADER: &str = "# Generated from inferencecache-kube/src/api by `make crds`; do not edit.\n";

/// A manifest that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("not a manifest: {0}")]
pub struct ManifestError(String);

/// Name and content of each published definition, by name.
///
/// # Errors
/// A definition cannot be written as YAML.
pub fn crd_files() -> Result<Vec<(String, String)>, ManifestError> {
    let mut files = Vec::new();
    for crd in crd_json() {
        let text = |pointer| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{}_{}.yaml", text("/spec/group"), text("/spec/names/plural"));
        let yaml = serde_saphyr::to_string(&crd).map_err(|e| ManifestError(e.to_string()))?;
        files.push((name, format!("{HEADER}{yaml}")));
    }
    Ok(files)
}

/// The documents of a YAML text; empty ones are left out.
///
/// # Errors
/// The text is not YAML.
pub fn read(yaml: &str) -> Result<Vec<Value>, ManifestError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|e| ManifestError(e.to_string()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}
