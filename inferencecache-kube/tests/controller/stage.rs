//! The control plane with the definitions, and words for what is on it.

use std::fmt::Debug;
use std::sync::OnceLock;

use inferencecache_kube::api::{CacheBackend, crd_json};
use inferencecache_kube::testkit::cluster::ControlPlane;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[path = "../common/patience.rs"]
mod patience;
pub(crate) use patience::until;

/// The control plane of this process, with the definitions; `None` where there are no tools for it.
pub(crate) fn stage() -> Option<&'static ControlPlane> {
    static STAGE: OnceLock<Option<&'static ControlPlane>> = OnceLock::new();
    *STAGE.get_or_init(|| {
        let plane = ControlPlane::shared()?;
        std::thread::scope(|scope| {
            let define = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async { define(&plane.client().await.expect("a client")).await });
            };
            scope.spawn(define).join().expect("the definitions");
        });
        Some(plane)
    })
}

pub(crate) async fn define(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crd_json() {
        let crd: CustomResourceDefinition = serde_json::from_value(crd).expect("a definition");
        let name = crd.metadata.name.clone().expect("a name");
        api.create(&PostParams::default(), &crd).await.expect("a definition");
        until(&format!("{name} is established"), async || {
            let status = api.get(&name).await.ok()?.status?;
            let established = status.conditions?.iter().any(|c| c.type_ == "Established" && c.status == "True");
            established.then_some(())
        })
        .await;
    }
}

/// A namespace of one test, and what is in it.
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Place {
    /// A new one of that name.
    pub(crate) async fn new(plane: &ControlPlane, name: &str) -> Self {
        let client = plane.client().await.expect("a client");
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
        Self { client, namespace: name.to_owned() }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Stores an object. An API server takes no status with it; [`Self::status`] comes after.
    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{object}: {why}"));
        self.api().create(&PostParams::default(), &object).await.unwrap_or_else(|why| panic!("{object:?}: {why}"))
    }

    pub(crate) async fn get<K>(&self, name: &str) -> Option<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        self.api().get_opt(name).await.expect("an answer")
    }

    /// Merges into an object.
    pub(crate) async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let answer = self.api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        answer.unwrap_or_else(|why| panic!("{name}: {patch}: {why}"))
    }

    /// Merges into the status of an object.
    pub(crate) async fn status<K>(&self, name: &str, status: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let patch = Patch::Merge(json!({"status": status}));
        let answer = self.api().patch_status(name, &PatchParams::default(), &patch).await;
        answer.unwrap_or_else(|why| panic!("{name}: {status}: {why}"))
    }

    /// Deletes an object at once, as a kubelet does in the end.
    pub(crate) async fn remove<K>(&self, name: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::default().grace_period(0)).await.expect("a deletion");
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.api::<Pod>().list(&ListParams::default()).await.expect("Pods").items
    }

    /// A CacheBackend of that name and spec.
    pub(crate) async fn backend(&self, name: &str, spec: Value) -> CacheBackend {
        self.create(json!({
            "apiVersion": "inferencecache.io/v1alpha1",
            "kind": "CacheBackend",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }))
        .await
    }
}
