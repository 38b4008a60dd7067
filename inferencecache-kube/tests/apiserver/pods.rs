//! Engine Pods on their way through a real API server: whole, dry, generated, sent again, and while nobody answers.

use serde_json::{Value, json};

use super::stage::{Api, configurations, object, stage, until};
use inferencecache_kube::testkit::cluster::free_ports;

const DIGEST: &str = "r/lm@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const BY: &str = "/metadata/annotations/inferencecache.io~1injected-by";

fn backend(namespace: &str, name: &str) -> Value {
    object(
        "CacheBackend",
        namespace,
        name,
        json!({
            "runtime": "VLLM",
            "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": "granite"}},
            "lmCache": {"topology": "PodLocal", "podLocal": {"server": {
                "image": DIGEST, "port": 5555, "l1Capacity": "4Gi", "maxWorkers": 4,
                "resources": {"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "6Gi"}},
            }}},
        }),
    )
}

fn engine(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    metadata["labels"] = json!({"inferencecache.io/cache-domain": "granite"});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "vllm", "image": "r/vllm", "args": ["--model", "m"]}]}})
}

fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

#[tokio::test]
async fn engine_pods_are_wired_when_they_are_created() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("linked").await;
    let backend = api.store(&backend("linked", "granite-cache")).await;
    let uid = &backend["metadata"]["uid"];

    let dry = api.create(&pods("linked"), &engine(&json!({"name": "dry"})), "dryRun=All").await.expect("a dry run");
    assert_eq!(dry.pointer(BY), Some(&json!("linked/granite-cache")));
    assert_eq!(api.get(&format!("{}/dry", pods("linked"))).await.expect_err("nothing is stored").code, 404);

    // As a ReplicaSet creates them: without a name, and two of them.
    for _ in 0..2 {
        let pod = api.create(&pods("linked"), &engine(&json!({"generateName": "engine-"})), "").await.expect("a Pod");
        assert_eq!(pod.pointer(BY), Some(&json!("linked/granite-cache")));
        assert_eq!(&pod["metadata"]["annotations"]["inferencecache.io/injected-by-uid"], uid);
        assert_eq!(pod["spec"]["initContainers"][0]["name"], "lmcache-mp-server");
        assert_eq!(pod["spec"]["containers"][0]["args"][2], "--kv-transfer-config");

        // The same Pod once more, with all that the API server and the linker wrote: it comes out as it went in.
        let mut again = json!({"apiVersion": "v1", "kind": "Pod", "spec": pod["spec"], "metadata": {"name": "again",
            "labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]}});
        again["spec"].as_object_mut().expect("a spec").remove("nodeName");
        let twice = api.create(&pods("linked"), &again, "dryRun=All").await.expect("the Pod again");
        assert_eq!(
            (&twice["spec"], &twice["metadata"]["annotations"]),
            (&pod["spec"], &pod["metadata"]["annotations"])
        );
    }

    let mut other =
        engine(&json!({"name": "other", "annotations": {"inferencecache.io/injected-by": "forged", "team": "a"}}));
    other["metadata"]["labels"] = json!({"app": "web"});
    let other = api.create(&pods("linked"), &other, "").await.expect("a Pod of somebody else");
    assert_eq!(other["metadata"]["annotations"], json!({"team": "a"}));
    assert_eq!(other["spec"]["initContainers"], Value::Null);

    // The kubelet's and a debugger's ways to change a Pod later do not ask.
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "r/debug"}]}});
    let name = format!("{}/other/ephemeralcontainers", pods("linked"));
    api.merge(&name, &debugger).await.expect("an ephemeral container");
}

/// field:49
#[tokio::test]
async fn pods_are_created_while_nobody_answers() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("unanswered").await;
    let [closed] = free_ports().expect("a port");
    let here = json!([{"key": "broken", "operator": "In", "values": ["unanswered"]}]);
    for mut configuration in configurations(&format!("https://127.0.0.1:{closed}"), &stage.authority.pem(), &here) {
        let name = format!("{}-unanswered", configuration["metadata"]["name"].as_str().expect("a name"));
        configuration["metadata"]["name"] = json!(name);
        api.apply_configuration(&configuration).await;
    }
    let broken = json!({"metadata": {"labels": {"broken": "unanswered"}}});
    api.merge("/api/v1/namespaces/unanswered", &broken).await.expect("a label");
    let tenant = object("CacheTenant", "unanswered", "t", json!({"tenantID": "t"}));
    until("admission is out", async || {
        api.create(&super::stage::collection(&tenant), &tenant, "dryRun=All").await.err()
    })
    .await;
    let pod = api.create(&pods("unanswered"), &engine(&json!({"name": "e"})), "").await.expect("a Pod");
    assert_eq!(pod.pointer(BY), None);
}
