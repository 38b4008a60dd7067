//! What a simulated cache tells, and how it is told to stop for a moment.
//!
//! ```text
//! GET  /truth      what the caches hold, and the last number of each rank
//! GET  /metrics    as vLLM words it
//! POST /pause      no prompt any more; once answered, nothing is under way and /truth stands still
//! POST /resume
//! POST /sleep      the caches are dropped without a word, and no prompt comes before /wake
//! POST /wake
//! ```

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use inferencecache_wire::testkit::churn::Churn;
use inferencecache_wire::testkit::event::Medium;
use inferencecache_wire::testkit::fake_engine::FakeEngine;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The engine, and whether it may run.
pub(crate) struct Simulation {
    pub(crate) churn: Churn,
    /// One publisher for each rank.
    pub(crate) engines: Vec<FakeEngine>,
    pub(crate) paused: bool,
    pub(crate) asleep: bool,
}

/// Held while a prompt runs and is published, so that whoever asks sees whole prompts.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Simulation>>);

impl Shared {
    pub(crate) fn new(simulation: Simulation) -> Self {
        Self(Arc::new(Mutex::new(simulation)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Simulation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens; the address is that of the listener.
///
/// # Errors
///
/// What the system says.
pub(crate) async fn listen(address: &str, shared: Shared) -> io::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let order = |change: fn(&mut Simulation)| {
        post(move |State(shared): State<Shared>| async move {
            change(&mut shared.lock());
            "ok\n"
        })
    };
    let router = Router::new()
        .route("/truth", get(|State(shared): State<Shared>| async move { truth(&shared.lock()).to_string() }))
        .route("/metrics", get(|State(shared): State<Shared>| async move { metrics(&shared.lock()) }))
        .route("/pause", order(|simulation| simulation.paused = true))
        .route("/resume", order(|simulation| simulation.paused = false))
        .route(
            "/sleep",
            order(|simulation| {
                simulation.asleep = true;
                simulation.churn.sleep();
            }),
        )
        .route("/wake", order(|simulation| simulation.asleep = false))
        .with_state(shared);
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(address)
}

/// `held` has a row for each block: adapter, digest, tokens of its prefix, tier.
fn truth(simulation: &Simulation) -> Value {
    let churn = &simulation.churn;
    let held = churn.held().into_iter().map(|held| {
        let (digest, tokens) = churn.universe().digest(held.node);
        let adapter = held.adapter.checked_sub(1).and_then(|index| churn.options().adapters.get(index));
        let tier = if held.medium == Medium::Gpu { "T1" } else { "T2" };
        json!([adapter.map_or("", String::as_str), format!("{digest:016x}"), tokens, tier])
    });
    let last: Vec<Option<u64>> =
        simulation.engines.iter().map(|engine| engine.next_sequence().checked_sub(1)).collect();
    json!({
        "paused": simulation.paused,
        "asleep": simulation.asleep,
        "last_sequence": last,
        "held": held.collect::<Vec<_>>(),
    })
}

fn metrics(simulation: &Simulation) -> String {
    let churn = &simulation.churn;
    let (queried, hit) = churn.queries();
    let mut page = String::new();
    let mut family = |name: &str, kind: &str, labels: &str, value: f64| {
        let _ =
            writeln!(page, "# TYPE vllm:{name} {kind}\nvllm:{name}{{engine=\"0\",model_name=\"m\"{labels}}} {value:?}");
    };
    family("num_requests_running", "gauge", "", f64::from(u8::from(!simulation.paused && !simulation.asleep)));
    family("num_requests_waiting", "gauge", "", 0.0);
    family("kv_cache_usage_perc", "gauge", "", churn.usage());
    #[expect(clippy::cast_precision_loss, reason = "as far as a test runs, and that is how engines write them")]
    let [queried, hit] = [queried, hit].map(|count| count as f64);
    family("prefix_cache_queries_total", "counter", "", queried);
    family("prefix_cache_hits_total", "counter", "", hit);
    family("prompt_tokens_total", "counter", "", queried);
    page.push_str("# TYPE vllm:engine_sleep_state gauge\n# TYPE vllm:cache_config_info gauge\n");
    let options = churn.options();
    for rank in 0..options.ranks {
        for (state, is) in
            [("weights_offloaded", false), ("awake", !simulation.asleep), ("discard_all", simulation.asleep)]
        {
            let is = u8::from(is);
            let _ = writeln!(
                page,
                "vllm:engine_sleep_state{{engine=\"{rank}\",model_name=\"m\",sleep_state=\"{state}\"}} {is}.0"
            );
        }
        let (size, blocks) = (options.block_size, options.capacity);
        let _ = writeln!(
            page,
            "vllm:cache_config_info{{block_size=\"{size}\",enable_prefix_caching=\"True\",engine=\"{rank}\",num_gpu_blocks=\"{blocks}\"}} 1.0"
        );
    }
    page
}
