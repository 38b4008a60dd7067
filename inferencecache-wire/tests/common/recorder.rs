//! A gRPC server that records what is reported to it, in order of arrival, and can be slow, unwilling or gone.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_server::{InferenceCache, InferenceCacheServer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// One thing that arrived.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rpc {
    /// One message of a report.
    Update(pb::CacheStateUpdate),
    /// An event.
    Event(pb::CacheEvent),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) rpcs: Vec<Rpc>,
    /// Events being handled, and the most there ever were.
    pub(crate) in_flight: Vec<Vec<u8>>,
    pub(crate) most_in_flight: usize,
    /// Two events of one hash were handled at once.
    pub(crate) overlapped: bool,
}

/// How the server behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mood {
    pub(crate) accepts: bool,
    /// How long an event takes.
    pub(crate) delay: Duration,
    /// Nothing is answered.
    pub(crate) hangs: bool,
}

impl Default for Mood {
    fn default() -> Self {
        Self { accepts: true, delay: Duration::ZERO, hangs: false }
    }
}

#[derive(Debug, Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    mood: watch::Receiver<Mood>,
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self) -> Result<Response<pb::Ack>, Status> {
        let mut mood = self.mood.clone();
        mood.wait_for(|mood| !mood.hangs).await.map_err(|_| Status::unavailable("gone"))?;
        let accepted = mood.borrow().accepts;
        let reason_code = if accepted { String::new() } else { "NO".to_owned() };
        Ok(Response::new(pb::Ack { accepted, reason_code }))
    }
}

type Never<T> = tokio_stream::Empty<Result<T, Status>>;

#[tonic::async_trait]
impl InferenceCache for Service {
    async fn report_cache_state(
        &self,
        request: Request<Streaming<pb::CacheStateUpdate>>,
    ) -> Result<Response<pb::Ack>, Status> {
        let mut updates = request.into_inner();
        while let Some(update) = updates.message().await? {
            self.state().rpcs.push(Rpc::Update(update));
        }
        self.answer().await
    }

    async fn publish_event(&self, request: Request<pb::CacheEvent>) -> Result<Response<pb::Ack>, Status> {
        let event = request.into_inner();
        let hash = event.prefix_hash.clone();
        {
            let mut state = self.state();
            state.overlapped |= state.in_flight.contains(&hash);
            state.in_flight.push(hash.clone());
            state.most_in_flight = state.most_in_flight.max(state.in_flight.len());
            state.rpcs.push(Rpc::Event(event));
        }
        let delay = self.mood.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let answer = self.answer().await;
        self.state().in_flight.retain(|other| *other != hash);
        answer
    }

    async fn render_template(
        &self,
        _: Request<pb::RenderTemplateRequest>,
    ) -> Result<Response<pb::RenderTemplateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_route(
        &self,
        _: Request<pb::LookupRouteRequest>,
    ) -> Result<Response<pb::LookupRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<pb::LookupPdRouteRequest>,
    ) -> Result<Response<pb::LookupPdRouteResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_cache_state(
        &self,
        _: Request<pb::GetCacheStateRequest>,
    ) -> Result<Response<pb::GetCacheStateResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type StreamCacheEventsStream = Never<pb::CacheEvent>;

    async fn stream_cache_events(
        &self,
        _: Request<pb::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Err(Status::unimplemented(""))
    }

    type StreamMetricsStream = Never<pb::Metric>;

    async fn stream_metrics(
        &self,
        _: Request<pb::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    pub(crate) mood: watch::Sender<Mood>,
    runtime: Option<Runtime>,
}

impl Recorder {
    /// Listens on a free port.
    pub(crate) async fn start() -> Self {
        Self::on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Listens on a given port, with nothing recorded.
    pub(crate) async fn on(address: SocketAddr) -> Self {
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(Mutex::new(State::default()));
        let (mood, watch) = watch::channel(Mood::default());
        let service = Service { state: Arc::clone(&state), mood: watch };
        // A runtime of its own: when it goes, so do the connections, as with a process.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let listener = listener.into_std().expect("a listener");
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            let server = tonic::transport::Server::builder().add_service(InferenceCacheServer::new(service));
            let _ = server.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Self { address, state, mood, runtime: Some(runtime) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn rpcs(&self) -> Vec<Rpc> {
        self.state().rpcs.clone()
    }

    /// Everything in short form: `report@T [digest/tokens(/adapter)/tier, …]`, `evict@T digest(/adapter)`, `clear@T`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.rpcs().iter().map(line).collect()
    }

    /// Waits until `ready` holds for what was recorded.
    pub(crate) async fn wait(&self, what: &str, ready: impl Fn(&[Rpc]) -> bool) {
        eventually(what, || ready(&self.state().rpcs)).await;
    }

    /// Ends at once; connections break.
    pub(crate) fn kill(self) -> SocketAddr {
        self.address
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until `ready` holds, for at most 20 s.
pub(crate) async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn line(rpc: &Rpc) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let adapter = |name: &str| if name.is_empty() { String::new() } else { format!("/{name}") };
    match rpc {
        Rpc::Update(update) => {
            let entries: Vec<String> = update
                .prefixes
                .iter()
                .map(|p| format!("{}/{}{}/T{}", hex(&p.prefix_hash), p.token_count, adapter(&p.adapter_id), p.tier))
                .collect();
            format!("report@{} [{}]", update.timestamp_us, entries.join(", "))
        }
        Rpc::Event(event) if event.r#type() == pb::cache_event::Type::AllCleared => {
            format!("clear@{}", event.timestamp_us)
        }
        Rpc::Event(event) => {
            format!("evict@{} {}{}", event.timestamp_us, hex(&event.prefix_hash), adapter(&event.adapter_id))
        }
    }
}
