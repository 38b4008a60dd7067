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

/// Port on which engines publish KV events.
pub const KV_EVENT_PORT: i32 = 5557;
/// Port of the health and control listener of an LMCache server beside its engine.
pub const MP_HTTP_PORT: i32 = 8080;
/// Port of a managed Redis.
pub const REDIS_PORT: i32 = 6379;
