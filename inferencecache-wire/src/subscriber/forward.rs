//! Calls to the policy server.
//!
//! The channel dials when the first call needs it; an unreachable server is an error of a call, never of the process. Dead
//! peers are found by pings, also while nothing is said: a call limit alone does not replace a dead connection.

use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::fingerprint::wire_bytes;
use inferencecache_core::time::Micros;
use prost::Message as _;
use thiserror::Error;
use tokio::sync::watch;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::Authority;
use tonic::transport::{Channel, Endpoint};

use super::blockmap::{AdapterId, Adapters, Report, Tier};
use super::config::Identity;
use super::dispatch::Call;
use super::link::{Connector, LinkState};
use super::stats::derive::Load;
use super::window::MAX_ENTRIES;
use crate::chain::said;
use crate::pb;

/// Largest update, in bytes on the wire. Servers refuse messages above 4 MiB.
pub const MAX_UPDATE_BYTES: usize = 1 << 20;

/// Pings on the connection, and how long an answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// The address of the server cannot be used: it is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("server address {address:?} is not host:port")]
pub struct BadAddress {
    address: String,
}

/// Why a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// An error of the transport or of the server.
    #[error("{code:?}: {message}")]
    Status {
        /// gRPC code.
        code: tonic::Code,
        /// The server's or the transport's words.
        message: String,
    },
    /// The server understood and did not accept.
    #[error("not accepted: {reason}")]
    Refused {
        /// The server's reason code.
        reason: String,
    },
}

/// A client for the two calls that a subscriber makes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    inner: pb::inference_cache_client::InferenceCacheClient<Channel>,
    identity: Arc<Identity>,
    timeout: Duration,
    link: watch::Receiver<LinkState>,
}

impl Client {
    /// Prepares a client for `host:port`; nothing is dialled yet. Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`BadAddress`].
    pub fn new(server: &str, identity: Identity, timeout: Duration) -> Result<Self, BadAddress> {
        Self::over(server, identity, timeout, Connector::new())
    }

    /// The same over a connector of the caller's own making, and where its connections can be watched.
    ///
    /// # Errors
    ///
    /// [`BadAddress`].
    pub fn over(
        server: &str,
        identity: Identity,
        timeout: Duration,
        (connector, link): (Connector, watch::Receiver<LinkState>),
    ) -> Result<Self, BadAddress> {
        let bad = || BadAddress { address: server.to_owned() };
        let uri: Uri = format!("http://{server}").parse().map_err(|_| bad())?;
        let usable =
            |authority: &Authority| !authority.host().is_empty() && authority.port_u16().is_some_and(|p| p > 0);
        uri.authority().filter(|&authority| usable(authority) && authority.as_str() == server).ok_or_else(bad)?;
        // TLS is the connector's; for the channel every connection is plain, and only what requests say tells them apart.
        let origin = format!("{}://{server}", connector.scheme()).parse().map_err(|_| bad())?;
        let endpoint = Endpoint::from(uri)
            .origin(origin)
            .http2_keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector_lazy(connector);
        let inner = pb::inference_cache_client::InferenceCacheClient::new(channel);
        Ok(Self { inner, identity: Arc::new(identity), timeout, link })
    }

    /// The state of our connections.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<LinkState> {
        self.link.clone()
    }

    /// Makes a call from what it says; the names of adapters are looked up at once.
    pub fn call(&self, call: &Call, adapters: &Adapters) -> impl Future<Output = Result<(), CallError>> + Send + use<> {
        let request = match call {
            Call::Report { at, entries } => Request::Report {
                at: *at,
                entries: Arc::clone(entries),
                names: entries.iter().map(|entry| Arc::clone(adapters.name(entry.adapter))).collect(),
            },
            Call::Evict { at, digest, adapter } => Request::Event(self.event(
                pb::cache_event::Type::PrefixEvicted,
                *at,
                Some((*digest, *adapter)),
                adapters,
            )),
            Call::Clear { at } => Request::Event(self.event(pb::cache_event::Type::AllCleared, *at, None, adapters)),
        };
        let mut client = self.clone();
        async move {
            let limit = client.timeout;
            tokio::time::timeout(limit, client.send(request)).await.unwrap_or(Err(CallError::Timeout))
        }
    }

    /// Tells the load of the replica.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn load(&self, load: Load, at: Micros) -> Result<(), CallError> {
        let identity = &self.identity;
        let stats = pb::ReplicaStats {
            replica_id: identity.replica_id.clone(),
            cache_memory_bytes: load.memory_bytes,
            hit_rate: load.hit_rate,
            pressure: load.pressure,
            client_version: String::new(),
            t2_hit_tokens: load.second_tier_hits,
            t2_query_tokens: load.second_tier_queries,
        };
        let update = pb::CacheStateUpdate { stats: Some(stats), ..head(identity, at) };
        let mut inner = self.inner.clone();
        let call = async { answer(inner.report_cache_state(tokio_stream::once(update)).await) };
        tokio::time::timeout(self.timeout, call).await.unwrap_or(Err(CallError::Timeout))
    }

    async fn send(&mut self, request: Request) -> Result<(), CallError> {
        let ack = match request {
            Request::Report { at, entries, names } => {
                let updates = split(&self.identity, at, &entries, &names);
                self.inner.report_cache_state(tokio_stream::iter(updates)).await
            }
            Request::Event(event) => self.inner.publish_event(event).await,
        };
        answer(ack)
    }

    fn event(
        &self,
        kind: pb::cache_event::Type,
        at: i64,
        pair: Option<(u64, AdapterId)>,
        adapters: &Adapters,
    ) -> pb::CacheEvent {
        let identity = &self.identity;
        pb::CacheEvent {
            r#type: kind.into(),
            replica_id: identity.replica_id.clone(),
            model_id: identity.model_id.clone(),
            tenant_id: identity.tenant_id.clone(),
            prefix_hash: pair.map(|(digest, _)| wire_bytes(digest).to_vec()).unwrap_or_default(),
            timestamp_us: at,
            adapter_id: pair.map(|(_, adapter)| adapters.name(adapter).to_string()).unwrap_or_default(),
        }
    }
}

/// What an answer means.
fn answer(ack: Result<tonic::Response<pb::Ack>, tonic::Status>) -> Result<(), CallError> {
    match ack.map(tonic::Response::into_inner) {
        Ok(pb::Ack { accepted: true, .. }) => Ok(()),
        Ok(pb::Ack { reason_code, .. }) => Err(CallError::Refused { reason: reason_code }),
        Err(status) => {
            Err(CallError::Status { code: status.code(), message: said(&status).chars().take(200).collect() })
        }
    }
}

/// An update without content.
fn head(identity: &Identity, at: Micros) -> pb::CacheStateUpdate {
    pb::CacheStateUpdate {
        replica_id: identity.replica_id.clone(),
        model_id: identity.model_id.clone(),
        tenant_id: identity.tenant_id.clone(),
        hash_scheme: identity.hash_scheme.clone(),
        timestamp_us: at,
        ..pb::CacheStateUpdate::default()
    }
}

/// What a call carries, with names instead of numbers.
enum Request {
    Report { at: i64, entries: Arc<Vec<Report>>, names: Vec<Arc<str>> },
    Event(pb::CacheEvent),
}

/// The updates of one report: each within the limits of entries and bytes.
fn split(identity: &Identity, at: i64, entries: &[Report], names: &[Arc<str>]) -> Vec<pb::CacheStateUpdate> {
    let head = head(identity, at);
    let empty = head.encoded_len();
    let mut updates = Vec::new();
    let (mut update, mut bytes) = (head.clone(), empty);
    for (entry, name) in entries.iter().zip(names) {
        let entry = pb::PrefixEntry {
            prefix_hash: wire_bytes(entry.digest).to_vec(),
            token_count: i32::try_from(entry.tokens).unwrap_or(i32::MAX),
            tier: match entry.tier {
                Tier::T1 => pb::CacheTier::T1,
                Tier::T2 => pb::CacheTier::T2,
                Tier::Remote => pb::CacheTier::T3,
            }
            .into(),
            adapter_id: name.to_string(),
            ..pb::PrefixEntry::default()
        };
        // A tag and a length of at most two bytes precede each entry.
        let length = entry.encoded_len() + 3;
        if update.prefixes.len() >= MAX_ENTRIES || bytes + length > MAX_UPDATE_BYTES {
            updates.push(std::mem::replace(&mut update, head.clone()));
            bytes = empty;
        }
        bytes += length;
        update.prefixes.push(entry);
    }
    if !update.prefixes.is_empty() {
        updates.push(update);
    }
    updates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_a_host_and_a_port() {
        let client = |server| Client::new(server, Identity::default(), Duration::from_secs(1));
        for good in ["127.0.0.1:9090", "[::1]:9090", "inference-cache-server.inference-cache-system.svc:9090"] {
            assert!(client(good).is_ok(), "{good}");
        }
        for bad in
            ["", "host", ":9090", "host:", "host:0", "host:99999", "a b:1", "http://host:1", "host:1/path", "u@h:1?"]
        {
            assert!(client(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn updates_stay_within_their_limits_and_lose_nothing() {
        for (count, name, updates) in
            [(0, "", 0), (1, "", 1), (4096, "", 1), (10_000, "", 3), (10_000, &*"x".repeat(256), 3)]
        {
            let entries: Vec<Report> = (0..count)
                .map(|digest| Report { digest, tokens: u32::MAX, adapter: AdapterId::BASE, tier: Tier::T1 })
                .collect();
            let names = vec![Arc::from(name); entries.len()];
            let identity = Identity { replica_id: "r".repeat(100), ..Identity::default() };
            let split = split(&identity, 7, &entries, &names);
            assert_eq!(split.len(), updates, "{count}");
            let digests = split.iter().flat_map(|update| &update.prefixes).map(|entry| entry.prefix_hash.clone());
            assert!(digests.eq((0..count).map(|digest| digest.to_be_bytes().to_vec())));
            for update in split {
                assert!(update.prefixes.len() <= MAX_ENTRIES && update.encoded_len() <= MAX_UPDATE_BYTES);
                assert_eq!((update.timestamp_us, update.prefixes[0].token_count), (7, i32::MAX));
            }
        }
    }
}
