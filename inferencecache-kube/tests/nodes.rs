//! The control plane with controllers and nodes does what tests will take for granted.
//!
//! Building its parts takes minutes, so this is for `make soak`, and for who changes them:
//! `cargo test -p inferencecache-kube --all-features --test nodes -- --ignored`.

use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

use inferencecache_kube::testkit::cluster::ControlPlane;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(180);

/// What kubectl says on stdout; fails with what it says on stderr.
fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> String {
    let said = plane.kubectl().args(arguments).output().expect("kubectl");
    assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).expect("UTF-8")
}

fn apply(plane: &ControlPlane, object: &Value) {
    let file = plane.folder().join("object.json");
    std::fs::write(&file, object.to_string()).expect("a file");
    kubectl(plane, &["apply", "-f", &file.display().to_string()]);
}

fn pods(plane: &ControlPlane) -> Vec<Value> {
    let list = kubectl(plane, &["get", "pods", "--selector=app=web", "--output=json"]);
    serde_json::from_str::<Value>(&list).expect("JSON")["items"].as_array().cloned().unwrap_or_default()
}

/// Repeats a look until it shows something.
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[test]
#[ignore = "builds a controller manager, a scheduler and kwok: make soak"]
fn a_deployment_runs_on_loopback_with_tokens_that_work_and_goes_with_its_pods() {
    let Some(plane) = ControlPlane::shared_with_nodes() else { return };
    let allocatable = json!({"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"});
    for name in ["gpu-a", "gpu-b"] {
        apply(
            plane,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": "gpu"}},
                "status": {"allocatable": allocatable, "capacity": allocatable}}),
        );
    }
    let container = json!({"name": "web", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "4"}}});
    apply(
        plane,
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "nodeSelector": {"pool": "gpu"}, "containers": [container]}}}}),
    );
    let ready = until("two Pods are ready", || {
        let pods = pods(plane);
        (pods.len() == 2 && pods.iter().all(is_ready)).then_some(pods)
    });
    // Each takes all the GPUs of a node, so the scheduler has given each its own.
    assert_ne!(ready[0]["spec"]["nodeName"], ready[1]["spec"]["nodeName"]);
    for pod in &ready {
        let address: IpAddr = pod["status"]["podIP"].as_str().expect("an address").parse().expect("an address");
        assert!(address.to_string().starts_with("127.1."), "{address}");
        TcpListener::bind((address, 0)).expect("a process can listen on it");
        let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        let token = |volume: &Value| volume["projected"]["sources"][0]["serviceAccountToken"].is_object();
        assert!(volumes.iter().any(token), "{volumes:?}");
    }
    let token = kubectl(plane, &["create", "token", "default"]);
    let who = kubectl(plane, &["auth", "whoami", "--output=json", &format!("--token={}", token.trim())]);
    assert!(who.contains("system:serviceaccount:default:default"), "{who}");

    kubectl(plane, &["delete", "deployment", "web", "--wait=false"]);
    until("they are gone", || pods(plane).is_empty().then_some(()));
}
