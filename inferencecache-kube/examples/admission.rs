//! An API server with the definitions and without webhook configurations, until standard input closes.
//!
//! Prints the folder with `admin.kubeconfig`, with `reader.kubeconfig` of a user that may only look, and with a certificate
//! for a webhook server on loopback in `webhook/`.

use std::io::Read as _;

use inferencecache_kube::api::crds;
use inferencecache_kube::testkit::cluster::{Authority, ControlPlane};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plane = ControlPlane::start()?;
    let client = plane.client().await?;
    for crd in crds()? {
        Api::all(client.clone()).create(&PostParams::default(), &crd).await?;
    }
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "look"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}],
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &role).await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "look"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "look"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
    }))?;
    Api::all(client).create(&PostParams::default(), &binding).await?;
    let (cert, key) = Authority::new("webhook")?.issue("webhook", &["127.0.0.1".to_owned()])?;
    let folder = plane.folder().join("webhook");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("tls.crt"), cert)?;
    std::fs::write(folder.join("tls.key"), key)?;
    println!("{}", plane.folder().display());
    let _ = std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
