//! Every name that objects, Pods and manifests share with this crate, spelled once.

/// API group of the custom resources.
pub const GROUP: &str = "inferencecache.io";
/// The only served and stored version.
pub const VERSION: &str = "v1alpha1";

/// Label that binds engine Pods and a CacheBackend: the one key a selector may hold.
pub const CACHE_DOMAIN: &str = "inferencecache.io/cache-domain";

/// Annotation of a CacheBackend: `false` waives the wait for the first KV event.
pub const REQUIRE_KV_EVENTS: &str = "inferencecache.io/require-kv-events";
/// Annotation of a CacheBackend: `true` waives the functional probe.
pub const SKIP_FUNCTIONAL_PROBE: &str = "inferencecache.io/skip-functional-probe";
/// Annotation of a CacheBackend: how new engine Pods are checked for LMCache's native kernels.
pub const KERNEL_CHECK: &str = "inferencecache.io/lmcache-kernel-check";
/// What [`KERNEL_CHECK`] may say; empty means `auto`.
pub const KERNEL_CHECK_MODES: [&str; 4] = ["auto", "report-only", "strict", "off"];
/// Annotation of a CacheBackend: KV capacity of one engine, a positive quantity; anything else counts as absent.
pub const ENGINE_CACHE_SIZE: &str = "inferencecache.io/engine-cache-size-bytes";

/// Annotation of a Pod that wants to be left alone.
pub const SKIP_INJECT: &str = "inferencecache.io/skip-inject";
/// Annotation of a wired Pod: `NAMESPACE/NAME` of its backend.
pub const INJECTED_BY: &str = "inferencecache.io/injected-by";
/// Annotation of a wired Pod: the uid of its backend.
pub const INJECTED_BY_UID: &str = "inferencecache.io/injected-by-uid";
/// Annotation of a wired Pod: the generation of its backend at that time.
pub const INJECTED_GENERATION: &str = "inferencecache.io/injected-generation";
/// Annotation of a Pod that was left alone on its own wish.
pub const INJECT_SKIPPED: &str = "inferencecache.io/inject-skipped";
/// Value of [`INJECT_SKIPPED`].
pub const SKIPPED_BY_ANNOTATION: &str = "skip-inject-annotation";
/// Annotation by which a kubelet shows a Pod that it runs from a file.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Port on which engines publish KV events.
pub const KV_EVENT_PORT: i32 = 5557;
/// Port of the health and control listener of an LMCache server beside its engine.
pub const MP_HTTP_PORT: i32 = 8080;
/// Port of a managed Redis.
pub const REDIS_PORT: i32 = 6379;

/// Container beside an engine: reports its KV events.
pub const SUBSCRIBER_CONTAINER: &str = "kvevent-subscriber";
/// Container with an LMCache server, beside an engine and on a node.
pub const MP_SERVER_CONTAINER: &str = "lmcache-mp-server";
/// Init container that waits for the LMCache server of the node.
pub const NODE_GATE_CONTAINER: &str = "lmcache-node-local-gate";
/// Init container that checks the engine's native code.
pub const KERNEL_CHECK_CONTAINER: &str = "lmcache-kernel-check";

/// Variable by which [`MP_SERVER_CONTAINER`] says that it is ours.
pub const MP_SERVER_MARK: &str = "INFERENCECACHE_MP_SERVER";
/// Variable by which [`NODE_GATE_CONTAINER`] says that it is ours.
pub const NODE_GATE_MARK: &str = "INFERENCECACHE_NODE_LOCAL_GATE";
/// Variable of an engine: whether it serves on without its cache.
pub const FAIL_OPEN: &str = "INFERENCECACHE_FAIL_OPEN";
/// Variable with the address of the node, on engine, gate and server.
pub const NODE_IP: &str = "INFERENCECACHE_NODE_IP";

/// Label: what an object is.
pub const APP_NAME: &str = "app.kubernetes.io/name";
/// Value of [`APP_NAME`] on what runs a managed store.
pub const CACHE_BACKEND: &str = "cachebackend";
/// Label: which one of several an object belongs to.
pub const APP_INSTANCE: &str = "app.kubernetes.io/instance";
/// Label of what runs a managed store: `spec.type` of its backend.
pub const BACKEND_TYPE: &str = "inferencecache.io/backend-type";
/// Label: who looks after an object.
pub const APP_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`APP_MANAGED_BY`].
pub const CONTROLLER: &str = "inference-cache-controller";
/// Label of Pods whose LMCache server has metrics to scrape.
pub const MP_METRICS: &str = "inferencecache.io/lmcache-mp-metrics";
/// Label of a node's LMCache server.
pub const NODE_SERVER: &str = "inferencecache.io/lmcache-node-server";
/// Label of a node's LMCache server: uid of its backend.
pub const BACKEND_UID: &str = "inferencecache.io/cache-backend-uid";
/// Annotation of a node's LMCache server: `NAMESPACE/NAME` of its backend.
pub const NODE_OWNER: &str = "inferencecache.io/node-local-owner";
/// Annotation of a node's LMCache server: uid of its backend.
pub const NODE_OWNER_UID: &str = "inferencecache.io/node-local-owner-uid";
/// Annotation of a node's LMCache server: generation of its backend when it was rendered.
pub const NODE_GENERATION: &str = "inferencecache.io/node-local-generation";
/// Annotation of a node's LMCache server: the node.
pub const NODE_TARGET: &str = "inferencecache.io/node-local-target-node";
/// Annotation of a node's LMCache server: name of its shared memory.
pub const NODE_SHM_NAME: &str = "inferencecache.io/node-local-shm-name";
/// Annotation of a node's LMCache server: since when its node has had no engine, RFC 3339.
pub const NODE_IDLE_SINCE: &str = "inferencecache.io/node-local-idle-since";
