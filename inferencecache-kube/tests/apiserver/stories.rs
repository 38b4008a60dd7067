//! What happens to objects over time: siblings, edits, dry runs, server-side apply, status, deletion.

use serde_json::{Value, json};

use super::stage::{Api, causes, collection, object, stage, url};

const DOMAIN: &str = "spec.engineSelector.matchLabels[inferencecache.io/cache-domain]";
const DIGEST: &str = "r/lm@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn pod(domain: &str) -> Value {
    json!({
        "runtime": "VLLM",
        "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": domain}},
        "lmCache": {"topology": "PodLocal", "podLocal": {"server": {
            "image": DIGEST, "port": 5555, "l1Capacity": "4Gi", "maxWorkers": 4,
            "resources": {"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "6Gi"}},
        }}},
    })
}

/// The one field that a refusal names, with its reason, and its message.
fn only_cause(answer: super::stage::Answer) -> (String, String, String) {
    let status = answer.expect_err("it is refused");
    let causes = causes(&status);
    assert_eq!(causes.len(), 1, "{}", status.message);
    let (field, reason) = causes.into_iter().next().expect("a cause");
    (field, reason, status.message.clone())
}

/// crds:33 webhooks:W65
#[tokio::test]
async fn a_cache_domain_has_one_owner_in_its_namespace() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    for namespace in ["domain-a", "domain-b"] {
        api.namespace(namespace).await;
    }
    let older = object("CacheBackend", "domain-a", "older", pod("granite"));
    api.store(&older).await;
    let second = object("CacheBackend", "domain-a", "second", pod("granite"));
    let (field, reason, message) = only_cause(api.create(&collection(&second), &second, "").await);
    assert_eq!((field.as_str(), reason.as_str()), (DOMAIN, "FieldValueForbidden"));
    for word in ["granite", "older", "domain-a"] {
        assert!(message.contains(word), "{message}");
    }
    api.store(&object("CacheBackend", "domain-b", "second", pod("granite"))).await;
    api.store(&object("CacheBackend", "domain-a", "second", pod("other"))).await;
    // webhooks:W71: an edit may not enter the domain, and may leave for a free one.
    let taken = api.merge(&url(&second), &json!({"spec": pod("granite")})).await;
    assert_eq!(only_cause(taken).0, DOMAIN);
    api.merge(&url(&second), &json!({"spec": pod("free")})).await.expect("a free domain");
}

/// crds:112 webhooks:W07,W75-W78,W81
#[tokio::test]
async fn a_namespace_has_one_policy() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    for namespace in ["policy-a", "policy-b"] {
        api.namespace(namespace).await;
        api.store(&object("CachePolicy", namespace, "first", json!({}))).await;
    }
    let second = object("CachePolicy", "policy-a", "alpha", json!({"evictionTTL": "-1s"}));
    for query in ["", "dryRun=All"] {
        let status = api.create(&collection(&second), &second, query).await.expect_err("a second policy");
        let mut fields: Vec<String> = causes(&status).into_iter().map(|(field, _)| field).collect();
        fields.sort();
        assert_eq!(fields, ["metadata.name", "spec.evictionTTL"]);
        assert!(status.message.contains("policy-a") && status.message.contains("first"), "{}", status.message);
    }
    let first = url(&object("CachePolicy", "policy-a", "first", json!({})));
    api.merge(&first, &json!({"spec": {"evictionTTL": "1ns"}})).await.expect("an edit of the only policy");
}

/// crds:121 webhooks:W84,W85,W88
#[tokio::test]
async fn an_identity_has_one_tenant_in_its_namespace() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    for namespace in ["tenant-a", "tenant-b"] {
        api.namespace(namespace).await;
    }
    api.store(&object("CacheTenant", "tenant-a", "help", json!({"tenantID": "vision"}))).await;
    let other = object("CacheTenant", "tenant-a", "other", json!({"tenantID": "vision"}));
    let (field, reason, message) = only_cause(api.create(&collection(&other), &other, "").await);
    assert_eq!((field.as_str(), reason.as_str()), ("spec.tenantID", "FieldValueInvalid"));
    for word in ["vision", "help", "tenant-a"] {
        assert!(message.contains(word), "{message}");
    }
    api.store(&object("CacheTenant", "tenant-b", "other", json!({"tenantID": "vision"}))).await;
    api.store(&object("CacheTenant", "tenant-a", "other", json!({"tenantID": "Vision"}))).await;
    let entered = api.merge(&url(&other), &json!({"spec": {"tenantID": "vision"}})).await;
    assert_eq!(only_cause(entered).0, "spec.tenantID");
    let reserved = api.merge(&url(&other), &json!({"spec": {"tenantID": "inferencecache.io/probe"}})).await;
    assert!(only_cause(reserved).2.contains("reserved"));
}

/// crds:135 webhooks:W09-W12
#[tokio::test]
async fn what_is_missing_is_filled_in_and_what_is_there_stays() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("defaults").await;
    let policy = json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CachePolicy",
        "metadata": {"name": "p", "namespace": "defaults"}});
    let stored = api.store(&policy).await;
    assert_eq!(
        stored["spec"],
        json!({"eviction": "LRU", "minimumMatchedTokens": 64, "routingFloorScore": "0.1", "affinityRouting": "Enabled"})
    );
    let mut spec = pod("a");
    let stored = api.store(&object("CacheBackend", "defaults", "a", spec.clone())).await;
    assert_eq!(stored["spec"]["type"], "LMCache");
    assert_eq!(stored["spec"]["integration"], json!({"mode": "Offload", "role": "ReadWrite", "failOpen": true}));
    assert_eq!(stored["spec"]["observation"], json!({"firstEventTimeout": "5m0s"}));
    spec["engineSelector"]["matchLabels"]["inferencecache.io/cache-domain"] = json!("b");
    spec["observation"] = json!({"modelID": "m"});
    spec["integration"] = json!({"failOpen": false});
    let stored = api.store(&object("CacheBackend", "defaults", "b", spec.clone())).await;
    assert_eq!(stored["spec"]["observation"], json!({"modelID": "m", "firstEventTimeout": "5m"}));
    assert_eq!(stored["spec"]["integration"]["failOpen"], false);
    spec["engineSelector"]["matchLabels"]["inferencecache.io/cache-domain"] = json!("c");
    spec["observation"] = json!({"firstEventTimeout": "90s", "modelID": null});
    let stored = api.store(&object("CacheBackend", "defaults", "c", spec)).await;
    assert_eq!(stored["spec"]["observation"], json!({"firstEventTimeout": "90s"}), "the author's text; null is absent");
    // An edit of metadata fills nothing in, so it is no edit of the object.
    let edited = api.merge(&url(&stored), &json!({"metadata": {"labels": {"a": "b"}}})).await.expect("a label");
    assert_eq!(edited["metadata"]["generation"], stored["metadata"]["generation"]);
}

/// Two appliers own their fields, and a refused apply changes nothing.
#[tokio::test]
async fn server_side_apply_is_judged_like_any_edit() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("apply").await;
    let mut backend = object("CacheBackend", "apply", "a", pod("a"));
    let stored = api.apply(&url(&backend), "author", &backend).await.expect("an apply");
    assert_eq!(stored["metadata"]["generation"], 1);
    let again = api.apply(&url(&backend), "author", &backend).await.expect("the same again");
    assert_eq!(again["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"], "nothing has changed");
    backend["spec"]["lmCache"]["podLocal"]["server"]["port"] = json!(5557);
    let (field, ..) = only_cause(api.apply(&url(&backend), "author", &backend).await);
    assert_eq!(field, "spec.lmCache.podLocal.server.port");
    let timeout = json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
        "metadata": {"name": "a", "namespace": "apply"}, "spec": {"runtime": "VLLM", "observation": {"modelID": "m"}}});
    let both = api.apply(&url(&backend), "observer", &timeout).await.expect("another applier");
    assert_eq!(both["spec"]["observation"]["modelID"], "m");
    assert_eq!(both["spec"]["lmCache"]["podLocal"]["server"]["port"], 5555);
}

/// webhooks:W08,W67,W68,W70,W71,W74 field:47: objects from before the rules.
#[tokio::test]
async fn old_errors_are_tolerated_new_ones_are_not_and_deletion_always_goes_on() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    // Admission is not asked here while the objects are stored.
    api.namespace("legacy").await;
    let label = |on: bool| json!({"metadata": {"labels": {"broken": if on { json!("stored") } else { Value::Null }}}});
    api.merge("/api/v1/namespaces/legacy", &label(true)).await.expect("a label");
    let mut tag = object("CacheBackend", "legacy", "tag", pod("a"));
    tag["spec"]["lmCache"]["podLocal"]["server"]["image"] = json!("r/lm:1");
    super::stage::until("admission is not asked", async || api.create(&collection(&tag), &tag, "").await.ok()).await;
    let mut selector = object("CacheBackend", "legacy", "selector", pod("b"));
    selector["spec"]["engineSelector"]["matchLabels"] = json!({"app": "x"});
    api.store(&selector).await;
    let twins = ["twin-a", "twin-b"].map(|name| object("CacheBackend", "legacy", name, pod("twin")));
    for twin in &twins {
        api.store(twin).await;
    }
    api.merge("/api/v1/namespaces/legacy", &label(false)).await.expect("a label");
    let probe = object("CacheTenant", "legacy", "t", json!({"tenantID": "inferencecache.io/probe"}));
    super::stage::until("admission is asked", async || {
        api.create(&collection(&probe), &probe, "dryRun=All").await.err()
    })
    .await;

    let touch = json!({"metadata": {"annotations": {"touched": "yes"}}});
    api.merge(&url(&tag), &touch).await.expect("a stored image stays");
    api.merge(&url(&tag), &json!({"spec": {"observation": {"modelID": "m"}}})).await.expect("another field is edited");
    let worse =
        api.merge(&url(&tag), &json!({"spec": {"lmCache": {"podLocal": {"server": {"image": "r/lm:2"}}}}})).await;
    assert_eq!(only_cause(worse).0, "spec.lmCache.podLocal.server.image");
    let touched = api.merge(&url(&selector), &touch).await;
    assert_eq!(
        only_cause(touched),
        (DOMAIN.to_owned(), "FieldValueRequired".to_owned(), message_of(&api, &selector, &touch).await)
    );
    assert_eq!(only_cause(api.merge(&url(&twins[0]), &touch).await).0, DOMAIN, "a shared domain is told at every edit");

    // Nobody is asked about a status.
    let status = json!({"status": {"matchedEnginePods": 0}});
    let written = api.merge(&format!("{}/status", url(&twins[0])), &status).await.expect("a status");
    assert_eq!(written["status"]["matchedEnginePods"], 0, "a zero that was observed is kept");

    for stuck in [&selector, &twins[0]] {
        let ending = api.delete(&url(stuck), &json!({"propagationPolicy": "Foreground"})).await.expect("a deletion");
        assert!(ending["metadata"]["deletionTimestamp"].is_string(), "{ending}");
        let mut freed = api.get(&url(stuck)).await.expect("still there");
        freed["metadata"]["finalizers"] = json!([]);
        let gone = api.replace(&freed).await;
        assert!(gone.is_ok(), "{:?}", gone.map_err(|why| why.message));
        assert_eq!(api.get(&url(stuck)).await.expect_err("gone").code, 404);
    }
    for other in [&tag, &twins[1]] {
        api.delete(&url(other), &Value::Null).await.expect("a deletion");
    }
}

async fn message_of(api: &Api, object: &Value, patch: &Value) -> String {
    api.merge(&url(object), patch).await.expect_err("refused again").message.clone()
}
