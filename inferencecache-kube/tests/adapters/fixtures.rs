//! Objects and Pods that the tests share: the worked ones, and edits of them.

use std::path::Path;

use inferencecache_kube::adapters::{
    AdapterError, Binding, Options, Protocol, Registries, RuntimeAdapter, RuntimeId, binding_for, builtin,
};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::RuntimeFixture;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Value, json};

/// The image that installations with a subscriber use here.
pub(crate) const SUBSCRIBER: &str =
    "registry.internal/kvevent-subscriber@sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

/// A worked pair.
pub(crate) struct Worked {
    pub(crate) backend: CacheBackend,
    pub(crate) before: Pod,
    pub(crate) after: Pod,
}

/// The worked pair of that name, `p1` to `p7`.
pub(crate) fn worked(name: &str) -> Worked {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/worked/{name}.yaml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let documents: Vec<Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).expect(name)).collect();
    let [backend, before, after] = documents.try_into().expect("three documents");
    Worked { backend: object(backend), before: parse(before), after: parse(after) }
}

fn parse(value: Value) -> Pod {
    serde_json::from_value(value).expect("a Pod")
}

/// A CacheBackend from JSON.
pub(crate) fn object(value: Value) -> CacheBackend {
    serde_json::from_value(value).expect("a CacheBackend")
}

/// The object with one part of its JSON replaced; `null` removes it.
pub(crate) fn edited(backend: &CacheBackend, pointer: &str, value: Value) -> CacheBackend {
    let mut json = serde_json::to_value(backend).expect("an object");
    set(&mut json, pointer, value);
    object(json)
}

/// The Pod with one part of its JSON replaced.
pub(crate) fn edited_pod(pod: &Pod, pointer: &str, value: Value) -> Pod {
    let mut json = serde_json::to_value(pod).expect("a Pod");
    set(&mut json, pointer, value);
    parse(json)
}

fn set(json: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let mut at = json;
    for part in parent.split('/').skip(1) {
        at = match part.parse::<usize>() {
            Ok(index) => at.get_mut(index).unwrap_or_else(|| panic!("{pointer}")),
            Err(_) => &mut at[part],
        };
    }
    match (value, key.parse::<usize>()) {
        (Value::Null, Err(_)) => drop(at.as_object_mut().expect(pointer).remove(key)),
        (value, Ok(index)) => at[index] = value,
        (value, Err(_)) => at[key] = value,
    }
}

/// The Pod with these arguments after the engine's own.
pub(crate) fn with_args(pod: &Pod, args: &[&str]) -> Pod {
    let mut pod = pod.clone();
    engine(&mut pod).args.get_or_insert_default().extend(args.iter().map(|arg| (*arg).to_owned()));
    pod
}

/// The first container.
pub(crate) fn engine(pod: &mut Pod) -> &mut Container {
    pod.spec.as_mut().and_then(|spec| spec.containers.first_mut()).expect("an engine")
}

/// What ships, with a subscriber.
pub(crate) fn shipped() -> Registries {
    builtin(&Options::with_subscriber(SUBSCRIBER))
}

/// What ships, without one.
pub(crate) fn silent() -> Registries {
    builtin(&Options::default())
}

/// The binding of an object, its endpoint resolved as the linker does.
pub(crate) fn binding(backend: &CacheBackend) -> Option<Binding> {
    let storage = backend.spec.remote_storage.as_ref()?;
    let status = backend.status.as_ref().and_then(|status| status.remote_storage.as_ref()?.endpoint.clone());
    let endpoint = storage.endpoint().map(str::to_owned).or(status).unwrap_or_default();
    binding_for(Some(storage), Protocol::resp(), &endpoint)
}

/// The engine wiring of a worked pair's Pod, by the adapter that the object selects.
pub(crate) fn inject(registries: &Registries, backend: &CacheBackend, pod: &Pod) -> Result<PodSpec, AdapterError> {
    let spec = pod.spec.clone().unwrap_or_default();
    adapter(registries, backend).inject_engine(&spec, binding(backend).as_ref(), backend)
}

/// The adapter that the object selects.
pub(crate) fn adapter<'a>(registries: &'a Registries, backend: &CacheBackend) -> &'a dyn RuntimeAdapter {
    registries.runtime.select(&RuntimeId::of(Some(backend)), Some(backend)).expect("an adapter").adapter()
}

/// The value after a flag in two-element form.
pub(crate) fn value_of<'a>(container: &'a Container, flag: &str) -> Option<&'a str> {
    let args = container.args.as_ref()?;
    let at = args.iter().position(|arg| arg == flag)?;
    args.get(at + 1).map(String::as_str)
}

/// A marked init container by name.
pub(crate) fn init<'a>(spec: &'a PodSpec, name: &str) -> &'a Container {
    spec.init_containers.iter().flatten().find(|container| container.name == name).expect(name)
}

fn edit(fixture: RuntimeFixture, name: &str, backend: CacheBackend) -> RuntimeFixture {
    let binding = binding(&backend);
    fixture.edit(name, backend, binding)
}

/// Fixtures of vLLM with LMCache.
pub(crate) fn vllm() -> Vec<RuntimeFixture> {
    let (p1, p2, p4) = (worked("p1"), worked("p2"), worked("p4"));
    let server = "/spec/lmCache/podLocal/server";
    let mut first = RuntimeFixture::new("p1", p1.backend.clone(), None, p1.before.clone()).worked(after(&p1));
    for (name, pointer, value) in [
        ("workers", format!("{server}/maxWorkers"), json!(70)),
        ("image", format!("{server}/image"), json!("another/image@sha256:1")),
        ("port", format!("{server}/port"), json!(6500)),
        ("capacity", format!("{server}/l1Capacity"), json!("1536Mi")),
        ("chunk", "/spec/lmCache/chunkSizeTokens".to_owned(), json!(128)),
        ("fail closed", "/spec/integration/failOpen".to_owned(), json!(false)),
        (
            "storage",
            "/spec/remoteStorage".to_owned(),
            json!({"provider": "Redis", "ownership": "External", "endpoint": "h:1"}),
        ),
        ("topology", "/spec/lmCache".to_owned(), serde_json::to_value(&p4.backend.spec.lm_cache).expect("a block")),
    ] {
        first = edit(first, name, edited(&p1.backend, &pointer, value));
    }
    for (name, pointer) in [
        ("no LMCache", "/spec/lmCache".to_owned()),
        ("no topology", "/spec/lmCache/topology".to_owned()),
        ("no block", "/spec/lmCache/podLocal".to_owned()),
        ("no server", server.to_owned()),
    ] {
        first = first.refuse_object(name, edited(&p1.backend, &pointer, Value::Null));
    }
    for flags in VLLM_REFUSED {
        first = first.refuse_pod(&flags.join(" "), with_args(&p1.before, flags));
    }
    let second = RuntimeFixture::new("p2", p2.backend.clone(), binding(&p2.backend), p2.before);
    let fourth = RuntimeFixture::new("p4", p4.backend.clone(), None, p4.before.clone()).worked(after(&p4));
    let fourth = edit(fourth, "topology", edited(&p4.backend, "/spec/lmCache", json!(p1.backend.spec.lm_cache)));
    let fourth =
        edit(fourth, "workers", edited(&p4.backend, "/spec/lmCache/nodeLocal/server/maxCPUWorkers", json!(70)));
    vec![first, second, fourth]
}

/// What vLLM's arguments may not say.
pub(crate) const VLLM_REFUSED: &[&[&str]] = &[
    &["--pipeline-parallel-size=2"],
    &["-pp", "2"],
    &["-dp", "2"],
    &["--data-parallel-size=0"],
    &["--data-parallel-rank=0"],
    &["--data-parallel-start-rank", "1"],
    &["--data-parallel-size-local=1"],
    &["--data-parallel-address=h"],
    &["--data-parallel-rpc-port", "1"],
    &["-tp", "2", "--tensor-parallel-size", "2"],
    &["-tp", "0"],
    &["-tp", "-1"],
    &["-tp", "two"],
    &["-tp"],
    &["--tensor-parallel-size="],
    &["--kv-transfer-config", "{}", "--kv-transfer-config={}"],
    &["--kv-transfer-config"],
    &["--kv-transfer-config", "--x"],
    &["--disable-hybrid-kv-cache-manager", "false"],
    &["--disable-hybrid-kv-cache-manager", "TRUE"],
    &["--disable-hybrid-kv-cache-manager=true"],
    &["--disable-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager"],
];

/// Fixtures of SGLang with LMCache.
pub(crate) fn sglang() -> Vec<RuntimeFixture> {
    let (p3, p5) = (worked("p3"), worked("p5"));
    let mut own = p3.before.clone();
    if let Some(spec) = &mut own.spec {
        spec.volumes = None;
        spec.containers[0].volume_mounts = None;
    }
    let plain = edited(&p3.backend, "/spec/remoteStorage", Value::Null);
    let mut first = RuntimeFixture::new("own memory", plain.clone(), None, own);
    first = edit(first, "workers", edited(&plain, "/spec/lmCache/podLocal/server/maxWorkers", json!(70)));
    first = edit(first, "topology", edited(&plain, "/spec/lmCache", json!(p5.backend.spec.lm_cache)));
    for value in [&["--page-size", "128"][..], &["--page-size"], &["--page-size", "--x"]] {
        first = first.refuse_pod(&value.join(" "), with_args(&p3.before, value));
    }
    for size in ["96", "0", "large", "-64", "64.0"] {
        first = first.refuse_pod(size, edited_pod(&p3.before, "/spec/containers/0/args/3", json!(size)));
    }
    let third =
        RuntimeFixture::new("p3", p3.backend.clone(), binding(&p3.backend), p3.before.clone()).worked(after(&p3));
    let fifth = RuntimeFixture::new("p5", p5.backend.clone(), None, p5.before.clone()).worked(after(&p5));
    let fifth = edit(fifth, "topology", edited(&p5.backend, "/spec/lmCache", json!(p3.backend.spec.lm_cache)));
    vec![first, third, fifth]
}

/// Fixtures of SGLang's HiCache.
pub(crate) fn hicache() -> Vec<RuntimeFixture> {
    let p6 = worked("p6");
    let plain = edited_pod(&p6.before, "/spec/containers/0/args", json!(["--model-path", "m"]));
    let by_ratio = RuntimeFixture::new("p6", p6.backend.clone(), None, p6.before.clone()).worked(after(&p6));
    let full = json!({"sizeGB": 64, "writePolicy": "write_back", "ioBackend": "direct", "memoryLayout": "page_head"});
    let by_size = RuntimeFixture::new("size", edited(&p6.backend, "/spec/hiCache", full), None, plain.clone());
    let bare = edited(&p6.backend, "/spec/hiCache", json!({"ratio": "1.5"}));
    let fixture = RuntimeFixture::new("ratio", bare.clone(), None, plain);
    // Flags carry no mark, so an edit of the settings is a contradiction; others leave the flags as they are.
    let fixture = edit(fixture, "model", edited(&bare, "/spec/observation/modelID", json!("m")));
    let fixture = fixture.refuse_object("no block", edited(&p6.backend, "/spec/hiCache", Value::Null));
    vec![by_ratio, by_size, fixture]
}

/// The Pod after, its programs written out.
pub(crate) fn after(pair: &Worked) -> PodSpec {
    let spec = pair.after.spec.clone().expect("a spec");
    let text = serde_json::to_string(&spec).expect("a spec");
    let quoted = |program: &str| serde_json::to_string(program).expect("a text");
    let text = text
        .replace("\"<gate>\"", &quoted(inferencecache_kube::adapters::lmcache::gate::PROGRAM))
        .replace("\"<kernel-check>\"", &quoted(inferencecache_kube::adapters::kernel::PROGRAM))
        .replace("\"<write-config>\"", &quoted(inferencecache_kube::adapters::lmcache::pod_local::CONFIG_WRITER));
    serde_json::from_str(&text).expect("a spec")
}
