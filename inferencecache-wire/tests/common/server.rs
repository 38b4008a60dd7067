//! A whole server on free ports in this process, and the short words that tests talk to it with.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::resolve::Resolvers;
use inferencecache_core::{Index, IndexApi, IndexOptions, PolicyStore, Router, T2Client};
use inferencecache_wire::http::access::Access;
use inferencecache_wire::metrics::Metrics;
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use inferencecache_wire::policy;
use inferencecache_wire::readiness::Readiness;
use inferencecache_wire::server::{Addresses, ServeError, Server, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

/// More than anything here takes, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What comes of `work`, which must end.
pub(crate) async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("no {what} in time"))
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    in_time(what, waiting).await;
}

/// What a test may want otherwise.
pub(crate) struct Setup {
    pub(crate) router: Router<dyn IndexApi>,
    pub(crate) policies: Arc<PolicyStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: Access,
    pub(crate) options: ServerOptions,
    pub(crate) second_tier: Option<Arc<dyn T2Client>>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<inferencecache_wire::server::GrpcTls>,
}

impl Setup {
    /// The embedded index, no policy, no access control, no lame duck.
    pub(crate) fn new() -> Self {
        Self::with(IndexOptions::default())
    }

    pub(crate) fn with(index: IndexOptions) -> Self {
        let (policies, metrics) = (Arc::new(PolicyStore::default()), Arc::new(Metrics::default()));
        let index = IndexOptions { resolvers: Resolvers::all(&policies), sink: metrics.clone(), ..index };
        Self::over(Arc::new(Index::new(index)), policies, metrics)
    }

    /// Another index.
    pub(crate) fn over(index: Arc<dyn IndexApi>, policies: Arc<PolicyStore>, metrics: Arc<Metrics>) -> Self {
        let router = Router::new(index, policies.clone());
        let options = ServerOptions { lame_duck: Duration::ZERO, ..ServerOptions::default() };
        Self {
            router,
            policies,
            metrics,
            access: Access::Open,
            options,
            second_tier: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    pub(crate) async fn start(self) -> Running {
        self.start_at("127.0.0.1:0".parse().expect("an address")).await
    }

    /// With gRPC at a fixed address.
    pub(crate) async fn start_at(self, grpc: SocketAddr) -> Running {
        #[cfg(feature = "tls")]
        let tls = self.tls;
        let Self { router, policies, metrics, access, options, second_tier, .. } = self;
        let index = router.index.clone();
        let server = Server::new(router, policies.clone(), access).metrics(metrics.clone()).options(options);
        let server = server.second_tier(second_tier);
        #[cfg(feature = "tls")]
        let server = server.tls(tls);
        let readiness = server.readiness();
        let free = || "127.0.0.1:0".to_owned();
        let addresses = Addresses { grpc: grpc.to_string(), http: free(), bridge: free() };
        let server = server.bind(&addresses).await.expect("free ports");
        let [grpc, http, bridge] = server.addresses().expect("bound");
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async {
            let _ = ended.await;
        }));
        until("readiness", || readiness.is_ready()).await;
        Running { grpc, http, bridge, index, policies, metrics, readiness, end, serving }
    }
}

/// A server that is serving.
pub(crate) struct Running {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) bridge: SocketAddr,
    pub(crate) index: Arc<dyn IndexApi>,
    pub(crate) policies: Arc<PolicyStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).expect("an address");
        endpoint.connect().await.expect("the server accepts")
    }

    pub(crate) async fn client(&self) -> Client {
        Client(InferenceCacheClient::new(self.channel().await))
    }

    /// Pushes a policy, in its published form.
    pub(crate) fn policy(&self, body: &str) {
        self.policies.replace(policy::decode(body.as_bytes()).expect("a valid policy").set);
    }

    /// The value of one line of `/metrics`, 0 when it is not there.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Asks the server to end; the handle resolves when it has.
    pub(crate) fn end(self) -> JoinHandle<Result<(), ServeError>> {
        let _ = self.end.send(());
        self.serving
    }
}

/// A gRPC client in few words.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) InferenceCacheClient<Channel>);

impl Client {
    pub(crate) async fn lookup(&mut self, request: pb::LookupRouteRequest) -> pb::LookupRouteResponse {
        self.0.lookup_route(request).await.expect("status OK").into_inner()
    }

    /// The reason code, and the replicas in order.
    pub(crate) async fn outcome(&mut self, request: pb::LookupRouteRequest) -> (String, Vec<String>) {
        let response = self.lookup(request).await;
        (response.reason_code, response.replica_scores.into_iter().map(|score| score.replica_id).collect())
    }

    pub(crate) async fn report(&mut self, updates: Vec<pb::CacheStateUpdate>) -> pb::Ack {
        self.0.report_cache_state(tokio_stream::iter(updates)).await.expect("status OK").into_inner()
    }

    pub(crate) async fn publish(&mut self, event: pb::CacheEvent) -> pb::Ack {
        self.0.publish_event(event).await.expect("status OK").into_inner()
    }

    pub(crate) async fn state(&mut self, tenant: &str, model: &str) -> pb::GetCacheStateResponse {
        let request = pb::GetCacheStateRequest { tenant_id: tenant.to_owned(), model_id: model.to_owned() };
        self.0.get_cache_state(request).await.expect("status OK").into_inner()
    }

    /// Waits until (t, m) holds something.
    pub(crate) async fn holds(&mut self) {
        in_time("entry", async { while self.total().await == 0 {} }).await;
    }

    pub(crate) async fn total(&mut self) -> i64 {
        self.state("t", "m").await.summary.expect("always present").total_prefixes
    }
}

/// A question of (t, m, vllm) that carries nothing yet.
pub(crate) fn ask() -> pb::LookupRouteRequest {
    pb::LookupRouteRequest {
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        ..Default::default()
    }
}

pub(crate) fn ask_key(key: &str) -> pb::LookupRouteRequest {
    pb::LookupRouteRequest { prefix_hash: key.as_bytes().to_vec(), ..ask() }
}

pub(crate) fn ask_chain(blocks: &[&str], counts: &[i32]) -> pb::LookupRouteRequest {
    pb::LookupRouteRequest {
        block_hashes: blocks.iter().map(|block| block.as_bytes().to_vec()).collect(),
        block_token_counts: counts.to_vec(),
        ..ask()
    }
}

/// A report of `replica` in (t, m, vllm).
pub(crate) fn report(replica: &str, prefixes: Vec<pb::PrefixEntry>) -> pb::CacheStateUpdate {
    pb::CacheStateUpdate {
        replica_id: replica.to_owned(),
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        prefixes,
        ..Default::default()
    }
}

pub(crate) fn key(key: &str, token_count: i32) -> pb::PrefixEntry {
    pb::PrefixEntry { prefix_hash: key.as_bytes().to_vec(), token_count, ..Default::default() }
}

pub(crate) fn chain(blocks: &[&str], per_block: i32) -> pb::PrefixEntry {
    pb::PrefixEntry {
        block_hashes: blocks.iter().map(|block| block.as_bytes().to_vec()).collect(),
        block_token_counts: vec![per_block; blocks.len()],
        ..Default::default()
    }
}

pub(crate) fn warm(hit_rate: f32) -> pb::ReplicaStats {
    pb::ReplicaStats { hit_rate, ..Default::default() }
}

pub(crate) fn event(kind: pb::cache_event::Type, replica: &str) -> pb::CacheEvent {
    pb::CacheEvent {
        r#type: kind.into(),
        replica_id: replica.to_owned(),
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        ..Default::default()
    }
}

/// One HTTP/1.1 exchange on a connection of its own.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }
}

pub(crate) async fn http(to: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut stream = TcpStream::connect(to).await.expect("the server accepts");
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    stream.write_all(body).await.expect("the body is taken");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).expect("a textual head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Reply { status, head, body: answer[end + 4..].to_vec() }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Reply {
    http(to, "GET", path, &[], b"").await
}
