//! The subscriber beside an engine.

use std::path::Path;

use inferencecache_kube::adapters::{Options, builtin};
use inferencecache_kube::api::CacheBackend;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::fixtures::{SUBSCRIBER, Worked, adapter, edited, edited_pod, shipped, silent, with_args, worked};

/// What the subscriber's own command line would say: every argument is one of its flags, with a value.
pub(crate) fn parse(args: &[String]) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bins/subscriber/src/args.rs");
    let source = std::fs::read_to_string(source).map_err(|error| error.to_string())?;
    for arg in args {
        let known = arg.strip_prefix("--").and_then(|rest| rest.split_once('=')).is_some_and(|(flag, value)| {
            let declared =
                source.contains(&format!("(\"{flag}\",")) || source.contains(&format!("\n            \"{flag}\","));
            declared && !value.is_empty()
        });
        if !known {
            return Err(format!("{arg} is no flag of the subscriber"));
        }
    }
    Ok(())
}

#[test]
fn the_parser_knows_flags_from_others() {
    let list = |arg: &str| [arg.to_owned()];
    assert_eq!(parse(&list("--replica-id=a")), Ok(()));
    for bad in ["--no-such=1", "--replica-id", "replica-id=a", "--replica-id="] {
        assert!(parse(&list(bad)).is_err(), "{bad}");
    }
}

fn sidecar(backend: &CacheBackend, pod: &Pod) -> Option<Container> {
    adapter(&shipped(), backend).observation_sidecar(backend, pod).expect("rendered")
}

fn args(backend: &CacheBackend, pod: &Pod) -> Vec<String> {
    sidecar(backend, pod).and_then(|container| container.args).unwrap_or_default()
}

/// adapters:D50
#[test]
fn the_policy_server_is_the_installations_or_the_usual_one() {
    let Worked { backend, before, .. } = worked("p2");
    let usual = "--server=inference-cache-server.inference-cache-system.svc.cluster.local:9090";
    for (address, expected) in [("", usual), (" ", usual), ("policy:1", "--server=policy:1")] {
        let mut options = Options::with_subscriber(SUBSCRIBER);
        options.policy_server_grpc_address = address.to_owned();
        let container = adapter(&builtin(&options), &backend).observation_sidecar(&backend, &before).expect("rendered");
        assert_eq!(container.and_then(|container| container.args).expect("arguments")[1], expected);
    }
}

/// adapters:D50a
#[test]
fn the_size_of_the_cache_is_passed_where_it_is_known() {
    let Worked { backend, before, .. } = worked("p2");
    let before = edited_pod(&before, "/spec/containers/0/args", json!([]));
    let annotated = |text: &str| {
        edited(&backend, "/metadata/annotations", json!({"inferencecache.io/engine-cache-size-bytes": text}))
    };
    let plain = args(&backend, &before);
    assert!(plain.iter().all(|arg| !arg.starts_with("--engine-cache-size-bytes")));
    let known = args(&annotated("24Gi"), &before);
    assert_eq!(known.split_last(), Some((&"--engine-cache-size-bytes=25769803776".to_owned(), plain.as_slice())));
    for text in ["lots", "0", "-1Gi", ""] {
        assert_eq!(args(&annotated(text), &before), plain, "{text}");
    }
    for (flags, expected) in [
        (&["--kv-cache-memory-bytes", "1000"][..], Some("1000")),
        (&["--kv-cache-memory-bytes=1000", "-tp", "2"], Some("2000")),
        (&["--kv-cache-memory-bytes=20G"], None),
        (&["--kv-cache-memory-bytes"], None),
        (&["--kv-cache-memory-bytes=1000", "-tp", "x"], None),
    ] {
        let given = args(&backend, &with_args(&before, flags));
        let value = given.iter().find_map(|arg| arg.strip_prefix("--engine-cache-size-bytes="));
        assert_eq!(value, expected, "{flags:?}");
    }
    let both = args(&annotated("1Gi"), &with_args(&before, &["--kv-cache-memory-bytes=1000"]));
    assert_eq!(both.last().map(String::as_str), Some("--engine-cache-size-bytes=1073741824"));
}

/// adapters:D51
#[test]
fn removals_are_moves_where_a_second_tier_stands_behind() {
    let (offload, events) = (worked("p2"), worked("p7"));
    let moves = |pair: &Worked| args(&pair.backend, &pair.before).contains(&"--ignore-block-removed=true".to_owned());
    assert!(moves(&offload) && !moves(&events));
}

#[test]
fn there_is_none_without_an_image_or_a_model() {
    let Worked { backend, before, .. } = worked("p2");
    assert_eq!(adapter(&silent(), &backend).observation_sidecar(&backend, &before), Ok(None));
    for model in [Value::Null, json!(""), json!("  ")] {
        assert_eq!(sidecar(&edited(&backend, "/spec/observation/modelID", model), &before), None);
    }
    assert!(adapter(&shipped(), &backend).observation_sidecar(&backend, &Pod::default()).is_err());
}

/// field:52
#[test]
fn pods_that_are_meant_to_end_get_it_in_the_native_form() {
    let Worked { backend, before, .. } = worked("p2");
    for (policy, native) in [("Never", Some("Always")), ("OnFailure", Some("Always")), ("Always", None)] {
        let container = sidecar(&backend, &edited_pod(&before, "/spec/restartPolicy", json!(policy)));
        assert_eq!(container.expect("a sidecar").restart_policy.as_deref(), native, "{policy}");
    }
    assert_eq!(sidecar(&backend, &before).expect("a sidecar").restart_policy, None);
}
