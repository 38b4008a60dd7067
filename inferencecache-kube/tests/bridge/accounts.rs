//! ServiceAccounts of tests, their tokens, and the shipped rights.

use std::path::Path;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Client, Config};
use serde_json::{Value, json};

use inferencecache_kube::testkit::cluster::ControlPlane;

/// Where the default installation lives.
pub(crate) const SYSTEM: &str = "inference-cache-system";
/// The controller's account.
pub(crate) const CONTROLLER: &str = "inference-cache-controller-manager";
/// The server's account.
pub(crate) const SERVER: &str = "inference-cache-server";

/// Applies objects, in their order, again and again.
pub(crate) async fn apply(client: &Client, objects: &[Value]) {
    for object in objects {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&object["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &text(&object["kind"])));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let by = PatchParams::apply("test").force();
        let applied = api.patch(&text(&object["metadata"]["name"]), &by, &Patch::Apply(object)).await;
        applied.unwrap_or_else(|why| panic!("{object}: {why}"));
    }
}

/// The objects of a file in `deploy/rbac`.
pub(crate) fn shipped(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rbac").join(file);
    let text = std::fs::read_to_string(&path).expect("the file");
    serde_saphyr::from_multiple(&text).expect("YAML")
}

/// The namespace of the default installation, with both accounts and their rights.
pub(crate) async fn install(client: &Client) {
    apply(client, &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})]).await;
    for file in ["server.yaml", "controller.yaml"] {
        apply(client, &shipped(file)).await;
    }
}

/// A token of an account, for those audiences; for the API server where there are none.
pub(crate) async fn token(client: &Client, namespace: &str, account: &str, audiences: &[&str]) -> String {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec {
        audiences: Some(audiences.iter().map(|audience| (*audience).to_owned()).collect()),
        expiration_seconds: Some(3600),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = api.create_token_request(account, &PostParams::default(), &request).await.expect("a token");
    answer.status.and_then(|status| status.token).expect("a token in it")
}

/// A configuration that shows that token to the API server.
pub(crate) async fn config_of(plane: &ControlPlane, token: &str) -> Config {
    let file = kube::config::Kubeconfig::read_from(plane.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
    let mut config = config.expect("a configuration");
    config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
    config
}
