//! What the shipped adapters make of a Pod, judged by a real API server.

use std::collections::BTreeSet;
use std::sync::Mutex;

use inferencecache_kube::testkit::adapters::{Rule, RuntimeFixture, RuntimeSuite};
use inferencecache_kube::testkit::cluster::ControlPlane;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::fixtures::{adapter, edited_pod, hicache, sglang, shipped, vllm, worked};

/// Asks for a creation that is not stored.
struct Judge {
    runtime: Runtime,
    client: kube::Client,
    namespaces: Mutex<BTreeSet<String>>,
}

impl Judge {
    /// None where there is no API server to be had.
    fn new() -> Option<Self> {
        let plane = ControlPlane::shared()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(plane.client()).expect("a client");
        Some(Self { runtime, client, namespaces: Mutex::default() })
    }

    fn judge(&self, pod: &Pod) -> Result<(), String> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        self.runtime.block_on(async {
            if self.namespaces.lock().expect("unpoisoned").insert(namespace.clone()) {
                let named = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
                match Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &named).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.code == 409 => {}
                    Err(why) => panic!("{namespace}: {why}"),
                }
            }
            let params = PostParams { dry_run: true, ..PostParams::default() };
            let created = Api::<Pod>::namespaced(self.client.clone(), &namespace).create(&params, pod).await;
            created.map(drop).map_err(|why| why.to_string())
        })
    }
}

/// Rule A19 of the suite, beyond the checks that need no API server: plain and busy Pods of every fixture.
#[test]
fn an_api_server_admits_what_the_shipped_adapters_make() {
    let Some(judge) = Judge::new() else { return };
    let registries = shipped();
    let asked = Mutex::new(0);
    let dry_run = |pod: &Pod| {
        *asked.lock().expect("unpoisoned") += 1;
        judge.judge(pod)
    };
    for fixtures in [vllm(), sglang(), hicache()] {
        let subject = adapter(&registries, &fixtures[0].backend);
        RuntimeSuite::new(subject, &fixtures).shipped().with_api_server(&dry_run).run().assert_conforms();
    }
    let (pods, asked) = (2 * (vllm().len() + sglang().len() + hicache().len()), *asked.lock().expect("unpoisoned"));
    assert_eq!(asked, pods);
    for pair in ["p1", "p2", "p3", "p4", "p5", "p6", "p7"] {
        let mut pod = worked(pair).after;
        pod.spec = Some(crate::fixtures::after(&worked(pair)));
        judge.judge(&pod).unwrap_or_else(|why| panic!("{pair}: {why}"));
    }
}

/// The judge is heard: what only an API server knows to be wrong breaks rule A19.
#[test]
fn what_an_api_server_refuses_breaks_the_rule() {
    let Some(judge) = Judge::new() else { return };
    let registries = shipped();
    let pair = worked("p1");
    let wrong = edited_pod(&pair.before, "/spec/containers/0/imagePullPolicy", json!("Sometimes"));
    let fixtures = [RuntimeFixture::new("pull policy", pair.backend.clone(), None, wrong)];
    let subject = adapter(&registries, &pair.backend);
    let unjudged = RuntimeSuite::new(subject, &fixtures).shipped().run();
    assert!(!unjudged.broken().contains(&Rule::A19), "{unjudged}");
    let dry_run = |pod: &Pod| judge.judge(pod);
    let report = RuntimeSuite::new(subject, &fixtures).shipped().with_api_server(&dry_run).run();
    assert!(report.broken().contains(&Rule::A19) && report.to_string().contains("imagePullPolicy"), "{report}");
}
