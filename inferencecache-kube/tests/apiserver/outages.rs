//! A listener that is down, slow or wrongly certified holds up what it must judge, and nothing else.

use std::net::TcpListener;

use serde_json::{Value, json};

use super::stage::{Api, collection, configurations, object, stage, until, url};
use inferencecache_kube::testkit::cluster::{Authority, free_ports};

#[tokio::test]
async fn an_outage_of_admission_blocks_only_what_must_be_judged() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a listener that never accepts");
    let silent = format!("https://{}", silent.local_addr().expect("an address"));
    let [closed] = free_ports().expect("a port");
    let stranger = Authority::new("stranger").expect("an authority");
    for (how, base, ca) in [
        ("down", format!("https://127.0.0.1:{closed}"), stage.authority.pem()),
        ("slow", silent, stage.authority.pem()),
        ("uncertified", stage.webhook.clone(), stranger.pem()),
    ] {
        outage(&api, how, &base, &ca).await;
    }
}

async fn outage(api: &Api, how: &str, base: &str, ca: &str) {
    let namespace = format!("outage-{how}");
    api.namespace(&namespace).await;
    let backend =
        object("CacheBackend", &namespace, "b", json!({"runtime": "VLLM", "integration": {"mode": "EventsOnly"}}));
    let policy = object("CachePolicy", &namespace, "p", json!({}));
    let tenant = object("CacheTenant", &namespace, "t", json!({"tenantID": "t"}));
    for stored in [&backend, &policy, &tenant] {
        api.store(stored).await;
    }
    let finalizer = json!({"metadata": {"finalizers": ["example.com/held"]}});
    api.merge(&url(&backend), &finalizer).await.expect("a finalizer");

    let here = json!([{"key": "broken", "operator": "In", "values": [how]}]);
    for mut configuration in configurations(base, ca, &here) {
        let name = format!("{}-{how}", configuration["metadata"]["name"].as_str().expect("a name"));
        configuration["metadata"]["name"] = json!(name);
        for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
            webhook["timeoutSeconds"] = json!(1);
        }
        api.apply_configuration(&configuration).await;
    }
    let broken = json!({"metadata": {"labels": {"broken": how}}});
    api.merge(&format!("/api/v1/namespaces/{namespace}"), &broken).await.expect("a label");
    let other = object("CacheTenant", &namespace, "u", json!({"tenantID": "u"}));
    let refused =
        until("admission is out", async || api.create(&collection(&other), &other, "dryRun=All").await.err()).await;
    assert_eq!(refused.code, 500, "{how}: {}", refused.message);
    assert!(refused.message.contains("failed calling webhook"), "{how}: {}", refused.message);

    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let passes = |what: &str, answer: super::stage::Answer| {
        assert!(answer.is_ok(), "{how}, {what}: {:?}", answer.map_err(|why| why.message));
    };
    passes("a label on a policy", api.merge(&url(&policy), &label).await);
    passes("a label on a tenant", api.merge(&url(&tenant), &label).await);
    let status = json!({"status": {"observedGeneration": 1}});
    for stored in [&backend, &tenant] {
        passes("a status", api.merge(&format!("{}/status", url(stored)), &status).await);
    }
    let template = object("PromptTemplate", &namespace, "x", json!({"body": "b"}));
    passes("a kind without admission", api.create(&collection(&template), &template, "").await);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": namespace}});
    passes("a ConfigMap", api.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), &map, "").await);
    for stored in [&backend, &policy, &tenant] {
        passes("a deletion", api.delete(&url(stored), &Value::Null).await);
    }
    passes("the last finalizer", api.merge(&url(&backend), &json!({"metadata": {"finalizers": null}})).await);
    assert_eq!(api.get(&url(&backend)).await.expect_err("gone").code, 404);
}
