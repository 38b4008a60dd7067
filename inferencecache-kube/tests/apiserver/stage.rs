//! The control plane, with definitions, admission and a client; and words for what it answers.

use std::sync::OnceLock;
use std::sync::mpsc::channel;

use inferencecache_kube::adapters::{Options, builtin};
use inferencecache_kube::api::crd_json;
use inferencecache_kube::testkit::cluster::{Authority, ControlPlane};
use inferencecache_kube::testkit::manifests;
use inferencecache_kube::webhook::backend::Rules;
use inferencecache_kube::webhook::siblings::Live;
use inferencecache_kube::webhook::{Admission, Limits, Listener, Metrics, router};
use inferencecache_wire::tls::ServerFiles;
use kube::Client;
use kube::core::Status;
use serde_json::{Value, json};
use std::sync::Arc;

#[path = "../common/patience.rs"]
mod patience;
pub(crate) use patience::until;

pub(crate) struct Stage {
    pub(crate) plane: &'static ControlPlane,
    /// Base address of the admission listener.
    pub(crate) webhook: String,
    /// The authority of its certificate.
    pub(crate) authority: Authority,
}

/// The one of this process; `None` where there are no tools for it.
pub(crate) fn stage() -> Option<&'static Stage> {
    static STAGE: OnceLock<Option<Stage>> = OnceLock::new();
    STAGE.get_or_init(|| ControlPlane::shared().map(set_up)).as_ref()
}

fn set_up(plane: &'static ControlPlane) -> Stage {
    let authority = Authority::new("admission test").expect("an authority");
    let (cert, key) = authority.issue("webhook", &["127.0.0.1".to_owned()]).expect("a certificate");
    let files = ServerFiles {
        cert: plane.folder().join("webhook.crt"),
        key: plane.folder().join("webhook.key"),
        client_ca: None,
    };
    std::fs::write(&files.cert, cert).expect("the certificate");
    std::fs::write(&files.key, key).expect("the key");
    let (tell, told) = channel();
    // It outlives the runtimes of the tests.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let client = plane.client().await.expect("a client");
            let metrics = Metrics::new().expect("metrics");
            let address = "127.0.0.1:0".parse().expect("an address");
            let listener =
                Listener::bind(files, address, metrics.clone(), Limits::default()).await.expect("a listener");
            tell.send(format!("https://{}", listener.address().expect("an address"))).expect("a test");
            let rules = Rules::new(Arc::new(builtin(&Options::default()).runtime));
            let admission = Admission::new(rules, Arc::new(Live::new(client)), metrics);
            listener.serve(router(admission), tokio_util::sync::CancellationToken::new()).await;
        });
    });
    let webhook: String = told.recv().expect("the listener's address");
    let stage = Stage { plane, webhook, authority };
    std::thread::scope(|scope| {
        let ready = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(install(&stage));
        });
        ready.join().expect("definitions and configurations");
    });
    stage
}

/// The definitions, then the shipped configurations with the listener's address in the place of its Service.
async fn install(stage: &Stage) {
    let api = Api::new(stage).await;
    for crd in crd_json() {
        let name = crd["metadata"]["name"].as_str().expect("a name").to_owned();
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd, "").await.expect("a definition");
        until(&format!("{name} is established"), async || {
            let crd = api.get(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")).await.ok()?;
            let established = |c: &Value| c["type"] == "Established" && c["status"] == "True";
            crd["status"]["conditions"].as_array()?.iter().any(established).then_some(())
        })
        .await;
    }
    let reached = json!([{"key": "broken", "operator": "DoesNotExist"}]);
    for configuration in configurations(&stage.webhook, &stage.authority.pem(), &reached) {
        api.apply_configuration(&configuration).await;
    }
    api.namespace("warm-up").await;
    until("admission is asked", async || {
        let tenant = object("CacheTenant", "warm-up", "t", json!({"tenantID": "inferencecache.io/probe"}));
        let refused = api.create(&collection(&tenant), &tenant, "dryRun=All").await.err()?;
        refused.message.contains("admission webhook").then_some(())
    })
    .await;
}

/// The shipped configurations, told to call that address in namespaces that match.
pub(crate) fn configurations(url: &str, ca: &str, namespaces: &Value) -> Vec<Value> {
    let mut configurations = Vec::new();
    for file in
        [include_str!("../../deploy/webhooks/mutating.yaml"), include_str!("../../deploy/webhooks/validating.yaml")]
    {
        for mut configuration in manifests::read(file).expect("a manifest") {
            for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
                let path = webhook["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
                webhook["clientConfig"] = json!({"url": format!("{url}{path}"), "caBundle": base64(ca)});
                webhook["namespaceSelector"] = json!({"matchExpressions": namespaces});
            }
            configurations.push(configuration);
        }
    }
    configurations
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(text)
}

pub(crate) fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "inferencecache.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}

/// URL of the collection that an object belongs to.
pub(crate) fn collection(object: &Value) -> String {
    let plural = match object["kind"].as_str().unwrap_or_default() {
        "CacheBackend" => "cachebackends",
        "CachePolicy" => "cachepolicies",
        "CacheTenant" => "cachetenants",
        "CacheIndex" => "cacheindices",
        "PDTopology" => "pdtopologies",
        "PromptTemplate" => "prompttemplates",
        kind => panic!("no such kind: {kind}"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/apis/inferencecache.io/v1alpha1/namespaces/{namespace}/{plural}"),
        None => format!("/apis/inferencecache.io/v1alpha1/{plural}"),
    }
}

/// URL of an object.
pub(crate) fn url(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().expect("a name"))
}

/// The API server, in JSON.
pub(crate) struct Api {
    client: Client,
}

pub(crate) type Answer = Result<Value, Box<Status>>;

impl Api {
    pub(crate) async fn new(stage: &Stage) -> Self {
        Self { client: stage.plane.client().await.expect("a client") }
    }

    async fn send(&self, method: &str, url: &str, content_type: &str, body: &Value) -> Answer {
        let request = axum::http::Request::builder().method(method).uri(url).header("content-type", content_type);
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        match self.client.request::<Value>(request.body(body).expect("a request")).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(status),
            Err(why) => panic!("{method} {url}: {why}"),
        }
    }

    pub(crate) async fn get(&self, url: &str) -> Answer {
        self.send("GET", url, "application/json", &Value::Null).await
    }

    pub(crate) async fn create(&self, collection: &str, object: &Value, query: &str) -> Answer {
        self.send("POST", &format!("{collection}?{query}"), "application/json", object).await
    }

    /// Stores an object of ours.
    pub(crate) async fn store(&self, object: &Value) -> Value {
        self.create(&collection(object), object, "").await.unwrap_or_else(|why| panic!("{object}: {}", why.message))
    }

    pub(crate) async fn replace(&self, object: &Value) -> Answer {
        self.send("PUT", &url(object), "application/json", object).await
    }

    pub(crate) async fn merge(&self, url: &str, patch: &Value) -> Answer {
        self.send("PATCH", url, "application/merge-patch+json", patch).await
    }

    pub(crate) async fn apply(&self, url: &str, manager: &str, object: &Value) -> Answer {
        let url = format!("{url}?fieldManager={manager}");
        self.send("PATCH", &url, "application/apply-patch+yaml", object).await
    }

    pub(crate) async fn delete(&self, url: &str, options: &Value) -> Answer {
        self.send("DELETE", url, "application/json", options).await
    }

    pub(crate) async fn namespace(&self, name: &str) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        match self.create("/api/v1/namespaces", &namespace, "").await {
            Ok(_) => {}
            Err(status) => assert_eq!(status.code, 409, "{}", status.message),
        }
    }

    pub(crate) async fn apply_configuration(&self, configuration: &Value) {
        let kind = configuration["kind"].as_str().expect("a kind").to_lowercase();
        let name = configuration["metadata"]["name"].as_str().expect("a name");
        let url = format!("/apis/admissionregistration.k8s.io/v1/{kind}s/{name}");
        self.apply(&url, "test", configuration).await.expect("a configuration");
    }
}

/// Every field that a refusal names, with its reason.
pub(crate) fn causes(status: &Status) -> Vec<(String, String)> {
    let causes = status.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
    causes.into_iter().map(|cause| (cause.field, cause.reason)).collect()
}
