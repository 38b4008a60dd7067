//! The suites pass on what ships, and each double is caught by the rule that is meant for it.

use inferencecache_kube::adapters::{AdapterError, ExternalRedis, ManagedRedis, StorageProvider};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::{
    BrokenRuntime, BrokenStorage, Rule, RuntimeFault, RuntimeFixture, RuntimeSuite, StorageFault, StorageFixture,
    storage_provider,
};
use serde_json::json;

use crate::fixtures::{adapter, edited, hicache, sglang, shipped, vllm, worked};
use crate::reference::Reference;
use crate::subscriber::parse;

#[test]
fn vllm_conforms() {
    check(&vllm());
}

#[test]
fn sglang_conforms() {
    check(&sglang());
}

#[test]
fn hicache_conforms() {
    check(&hicache());
}

fn check(fixtures: &[RuntimeFixture]) {
    let registries = shipped();
    let subject = adapter(&registries, &fixtures[0].backend);
    RuntimeSuite::new(subject, fixtures).shipped().with_sidecar_parser(&parse).run().assert_conforms();
}

#[test]
fn the_reference_adapter_conforms() {
    let report = RuntimeSuite::new(&Reference, &crate::reference::fixtures()).with_router().run();
    report.assert_conforms();
}

#[test]
fn every_fault_of_a_runtime_adapter_is_caught_by_its_rule() {
    let registries = shipped();
    let fixtures = vllm();
    let subject = adapter(&registries, &fixtures[0].backend);
    for (fault, rule) in RuntimeFault::ALL {
        let broken = BrokenRuntime::new(subject, fault);
        let report = RuntimeSuite::new(&broken, &fixtures).shipped().with_sidecar_parser(&parse).run();
        assert!(report.broken().contains(&rule), "{fault:?} is not caught by {rule:?}: {report}");
    }
    let claims = RuntimeSuite::new(subject, &fixtures).run();
    assert!(claims.broken().contains(&Rule::A20), "an adapter that claims shipped samples goes unnoticed");
}

fn managed() -> Vec<StorageFixture> {
    let base =
        edited(&worked("p1").backend, "/spec/remoteStorage", json!({"provider": "Redis", "ownership": "Managed"}));
    let redis = |settings| edited(&base, "/spec/remoteStorage/redis", settings);
    let password = json!({"name": "the-secret", "key": "pass"});
    let user = json!({"name": "the-secret", "key": "user"});
    vec![
        StorageFixture::new("defaults", base.clone()),
        StorageFixture::new("password", redis(json!({"authentication": {"password": password}})))
            .unsupported("a user", redis(json!({"authentication": {"password": password, "username": user}}))),
    ]
}

fn external() -> Vec<StorageFixture> {
    let storage = json!({"provider": "Redis", "ownership": "External", "endpoint": "h:1", "redis": {}});
    vec![StorageFixture::new("external", edited(&worked("p1").backend, "/spec/remoteStorage", storage))]
}

#[test]
fn redis_conforms() {
    storage_provider(&ManagedRedis, &managed()).assert_conforms();
    storage_provider(&ExternalRedis, &external()).assert_conforms();
}

#[test]
fn every_fault_of_a_provider_is_caught_by_its_rule() {
    for (fault, rule) in StorageFault::ALL {
        let (subject, fixtures): (&dyn StorageProvider, _) = match fault {
            StorageFault::RendersExternal => (&ExternalRedis, external()),
            _ => (&ManagedRedis, managed()),
        };
        let report = storage_provider(&BrokenStorage::new(subject, fault), &fixtures);
        assert!(report.broken().contains(&rule), "{fault:?} is not caught by {rule:?}: {report}");
    }
}

/// What a third party relies on: the traits are object-safe and can be shared.
#[test]
fn the_contract_is_object_safe_and_shared() {
    fn shared<T: Send + Sync + ?Sized>() {}
    shared::<dyn inferencecache_kube::adapters::RuntimeAdapter>();
    shared::<dyn inferencecache_kube::adapters::MpRuntimeAdapter>();
    shared::<dyn StorageProvider>();
    shared::<inferencecache_kube::adapters::RuntimeRegistry>();
    shared::<AdapterError>();
    shared::<CacheBackend>();
}

/// The example is a third party: it sees the public API alone, and judges itself. Cargo builds it with the tests, unless only
/// this file was asked for.
#[test]
fn the_example_adapter_conforms() {
    let here = std::env::current_exe().expect("a path");
    let example = here.ancestors().nth(2).expect("a target folder").join("examples/adapter");
    let Ok(output) = std::process::Command::new(&example).output() else {
        eprintln!("skipped: {} is not built", example.display());
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("conformance: conforms\n"), "{output:?}");
}
