//! What an LMCache server is started with, checked again: stored objects may be older than today's admission rules.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::adapters::error::AdapterError;
use crate::api::backend::LmCache;
use crate::api::names::MP_HTTP_PORT;
use crate::api::{Amount, CacheBackend};

/// What both topologies have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Image, trimmed.
    pub image: String,
    /// Port of the data listener.
    pub port: u16,
    /// Tokens in one chunk.
    pub chunk_size: i32,
    /// Host memory for KV blocks.
    pub l1_capacity: Quantity,
    /// Of the server's container, rendered as given.
    pub resources: ResourceRequirements,
}

impl Server {
    /// Shared memory for the capacity and 1Gi of the server's own, written in the capacity's unit family: `5Gi` for `4Gi`,
    /// a plain number of bytes for `5G`.
    #[must_use]
    pub fn shared_memory(&self) -> Quantity {
        let budget = Amount::of(&self.l1_capacity).unwrap_or_default().plus(Amount::GIB);
        Quantity(if self.l1_capacity.0.ends_with('i') { budget.to_string() } else { budget.ceil().to_string() })
    }
}

/// A server beside the engine.
#[derive(Debug, Clone, PartialEq)]
pub struct PodLocal {
    /// Common part.
    pub server: Server,
    /// Most workers.
    pub max_workers: i32,
}

/// A server per node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeLocal {
    /// Common part.
    pub server: Server,
    /// Port of the health and control listener.
    pub http_port: u16,
    /// Most workers that serve GPUs.
    pub max_gpu_workers: i32,
    /// Most workers that serve storage.
    pub max_cpu_workers: i32,
}

/// The PodLocal server of an object.
///
/// # Errors
/// The block is missing, or its first field that makes no sense.
pub fn pod_local(backend: &CacheBackend) -> Result<PodLocal, AdapterError> {
    let lm_cache = lm_cache(backend)?;
    let block = lm_cache.pod_local.as_ref().ok_or_else(|| required("spec.lmCache.podLocal"))?;
    let server = block.server.as_ref().ok_or_else(|| required("spec.lmCache.podLocal.server"))?;
    let raw = RawServer {
        path: "spec.lmCache.podLocal.server",
        image: &server.image,
        port: server.port,
        chunk_size: lm_cache.effective_chunk_size(),
        l1_capacity: &server.l1_capacity,
        resources: &server.resources,
    };
    PodLocal::check(&raw, server.max_workers)
}

/// The NodeLocal server of an object.
///
/// # Errors
/// The block is missing, or its first field that makes no sense.
pub fn node_local(backend: &CacheBackend) -> Result<NodeLocal, AdapterError> {
    let lm_cache = lm_cache(backend)?;
    let block = lm_cache.node_local.as_ref().ok_or_else(|| required("spec.lmCache.nodeLocal"))?;
    let server = block.server.as_ref().ok_or_else(|| required("spec.lmCache.nodeLocal.server"))?;
    let raw = RawServer {
        path: "spec.lmCache.nodeLocal.server",
        image: &server.image,
        port: server.port,
        chunk_size: lm_cache.effective_chunk_size(),
        l1_capacity: &server.l1_capacity,
        resources: &server.resources,
    };
    NodeLocal::check(&raw, server.http_port, server.max_gpu_workers, server.max_cpu_workers)
}

/// The typed LMCache block.
pub(crate) fn lm_cache(backend: &CacheBackend) -> Result<&LmCache, AdapterError> {
    backend.spec.lm_cache.as_ref().ok_or_else(|| required("spec.lmCache"))
}

fn required(path: &str) -> AdapterError {
    AdapterError::backend(path, "is required and missing")
}

/// The numbers as an object carries them.
#[derive(Debug, Clone)]
pub(crate) struct RawServer<'a> {
    /// Where it stands in the object, for messages: `spec.lmCache.podLocal.server`.
    pub path: &'static str,
    /// `image`.
    pub image: &'a str,
    /// `port`.
    pub port: i32,
    /// `chunkSizeTokens`, its default applied.
    pub chunk_size: i32,
    /// `l1Capacity`.
    pub l1_capacity: &'a Quantity,
    /// `resources`.
    pub resources: &'a ResourceRequirements,
}

impl RawServer<'_> {
    /// # Errors
    /// The first field that makes no sense.
    pub(crate) fn check(&self) -> Result<Server, AdapterError> {
        let image = self.image.trim();
        if image.is_empty() {
            return Err(self.fail("image", "is blank"));
        }
        let port = self.port("port", self.port)?;
        if self.chunk_size < 1 {
            return Err(AdapterError::backend(
                "spec.lmCache.chunkSizeTokens",
                format!("is {}; it must be at least 1", self.chunk_size),
            ));
        }
        if !Amount::of(self.l1_capacity).is_ok_and(Amount::is_positive) {
            return Err(self.fail("l1Capacity", &format!("is {:?}; it must be above zero", self.l1_capacity.0)));
        }
        Ok(Server {
            image: image.to_owned(),
            port,
            chunk_size: self.chunk_size,
            l1_capacity: self.l1_capacity.clone(),
            resources: self.resources.clone(),
        })
    }

    /// # Errors
    /// The number is no port.
    pub(crate) fn port(&self, field: &str, number: i32) -> Result<u16, AdapterError> {
        match u16::try_from(number) {
            Ok(port @ 1..) => Ok(port),
            _ => Err(self.fail(field, &format!("is {number}; it must be 1-65535"))),
        }
    }

    /// # Errors
    /// The number is below one.
    pub(crate) fn workers(&self, field: &str, number: i32) -> Result<i32, AdapterError> {
        if number < 1 {
            return Err(self.fail(field, &format!("is {number}; it must be at least 1")));
        }
        Ok(number)
    }

    fn fail(&self, field: &str, problem: &str) -> AdapterError {
        AdapterError::backend(format!("{}.{field}", self.path), problem)
    }
}

impl PodLocal {
    /// # Errors
    /// The first field that makes no sense.
    pub(crate) fn check(raw: &RawServer<'_>, max_workers: i32) -> Result<Self, AdapterError> {
        let server = raw.check()?;
        if i32::from(server.port) == MP_HTTP_PORT {
            return Err(raw.fail("port", &format!("is {MP_HTTP_PORT}, which the server's own health page takes")));
        }
        Ok(Self { server, max_workers: raw.workers("maxWorkers", max_workers)? })
    }
}

impl NodeLocal {
    /// # Errors
    /// The first field that makes no sense.
    pub(crate) fn check(raw: &RawServer<'_>, http_port: i32, max_gpu: i32, max_cpu: i32) -> Result<Self, AdapterError> {
        let server = raw.check()?;
        let http_port = raw.port("httpPort", http_port)?;
        if http_port == server.port {
            return Err(raw.fail("httpPort", &format!("is {http_port}, as is the port; they must differ")));
        }
        Ok(Self {
            server,
            http_port,
            max_gpu_workers: raw.workers("maxGPUWorkers", max_gpu)?,
            max_cpu_workers: raw.workers("maxCPUWorkers", max_cpu)?,
        })
    }
}
