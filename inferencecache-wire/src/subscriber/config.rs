//! What a subscriber is told: who it speaks for, where the engine and the server are, and how events are read.

use std::collections::HashMap;
use std::time::Duration;

use super::endpoint::of_rank;
use super::stats::StatsConfig;

/// What to make of a store that continues a block nobody has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownParent {
    /// It is not indexed, nor what continues it.
    #[default]
    Drop,
    /// It is taken for the start of a prompt. Prompts that begin with a suffix of another then match falsely.
    Root,
}

/// What one removal of a block with several copies means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemovalPolicy {
    /// One copy went.
    #[default]
    Refcount,
    /// All copies in that medium went.
    First,
}

/// How events become reports.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Most engine blocks that are remembered. Default 500000, at most about 48 MiB.
    pub max_tracked_blocks: usize,
    /// Default [`UnknownParent::Drop`].
    pub unknown_parent: UnknownParent,
    /// Default [`RemovalPolicy::Refcount`].
    pub removal_policy: RemovalPolicy,
    /// Names of adapters by the engine's number; they win over names in events. Default none.
    pub lora_adapter_names: HashMap<i64, String>,
    /// Whether an adapter's name in an event is used. Default `true`.
    pub lora_name_from_events: bool,
    /// Whether blocks that tokens do not identify are indexed all the same. Default `false`.
    pub index_salted: bool,
    /// The one KV-cache group that is indexed, whatever its kind; `None` decides by kind. Default `None`.
    pub index_group: Option<i64>,
    /// A second tier that announces nothing stands behind the engine: a removal from device memory is a move to it.
    /// Default `false`.
    pub ignore_block_removed: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            max_tracked_blocks: 500_000,
            unknown_parent: UnknownParent::default(),
            removal_policy: RemovalPolicy::default(),
            lora_adapter_names: HashMap::new(),
            lora_name_from_events: true,
            index_salted: false,
            index_group: None,
            ignore_block_removed: false,
        }
    }
}

/// Who the reports are about. It stands in every report and event.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// The engine replica.
    pub replica_id: String,
    /// Its model, as the index knows it.
    pub model_id: String,
    /// Its tenant; may be empty.
    pub tenant_id: String,
    /// Engine family, `vllm` or `sglang`; an opaque label.
    pub hash_scheme: String,
}

/// Everything a subscriber is told. [`Default`] gives the documented defaults; only the identity has none.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whom it speaks for.
    pub identity: Identity,
    /// How events become reports.
    pub rules: Rules,
    /// ZMQ endpoint of the engine. A host of `*`, `0.0.0.0` or `[::]` is listened on, any other is dialled. Default
    /// `tcp://127.0.0.1:5557`.
    pub engine_endpoint: String,
    /// ZMQ endpoint where the engine answers for batches that were missed; always dialled. Default none.
    pub replay_endpoint: Option<String>,
    /// Data-parallel ranks of the engine that run here, each at its own endpoint: see [`of_rank`]. Default 1, at most
    /// [`MAX_RANKS`].
    pub engine_dp_size: u16,
    /// The first of them. Default 0.
    pub engine_dp_start_rank: u16,
    /// How often a silent engine is asked for a sign of life, and how long it may take. Default 10 s and 30 s.
    pub engine_heartbeat: (Duration, Duration),
    /// Prefix of the topics that are taken; empty takes all. Default `kv-events`.
    pub topic: String,
    /// `host:port` of the policy server. Default `127.0.0.1:9090`.
    pub server: String,
    /// How long reports are gathered. Default 100 ms; 0 means the default.
    pub window: Duration,
    /// Limit of one call to the server. Default 5 s.
    pub rpc_timeout: Duration,
    /// First wait after a failed connection to the engine; it doubles up to 5 s. Default 1 s.
    pub reconnect_backoff: Duration,
    /// Messages that libzmq queues before we read them. Default 100000.
    pub zmq_rcvhwm: i32,
    /// Whether a stream that starts at 0 begins with a clear of what an earlier process reported. Default `true`.
    pub startup_clear: bool,
    /// A pair that was reported and acknowledged is not reported again in the same tier for so long. Default 10 s.
    pub refresh_min_interval: Duration,
    /// How often everything that is held beyond doubt is reported again, so that it outlives its TTL at the server. Default
    /// 5 min; 0 turns it off.
    pub reannounce_interval: Duration,
    /// How long a block is believed to be held after the engine last spoke of it. Applies to device memory only while its
    /// capacity is not known, and always to other tiers. Default 24 h; 0 is for ever.
    pub max_belief_age: Duration,
    /// Where the load of the engine is read. Default nowhere.
    pub stats: Option<StatsConfig>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served: `host:port`, or `:port` for all addresses. Default nowhere.
    pub health_bind_address: Option<String>,
}

/// Most ranks that one process listens to.
pub const MAX_RANKS: u16 = 256;

/// Where one rank is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEndpoints {
    /// The rank.
    pub rank: u16,
    /// Its publisher.
    pub publisher: String,
    /// Where it answers for batches that were missed.
    pub replay: Option<String>,
}

impl Config {
    /// Where each rank is. `None` when there are none, or too many, or a port would be too large.
    #[must_use]
    pub fn ranks(&self) -> Option<Vec<RankEndpoints>> {
        let end = self.engine_dp_start_rank.checked_add(self.engine_dp_size)?;
        let rank = |rank| {
            let replay = match &self.replay_endpoint {
                Some(endpoint) => Some(of_rank(endpoint, rank)?),
                None => None,
            };
            Some(RankEndpoints { rank, publisher: of_rank(&self.engine_endpoint, rank)?, replay })
        };
        let usable = (1..=MAX_RANKS).contains(&self.engine_dp_size);
        usable.then(|| (self.engine_dp_start_rank..end).map(rank).collect()).flatten()
    }
}

/// Default of [`Config::window`].
pub const DEFAULT_WINDOW: Duration = Duration::from_millis(100);

impl Default for Config {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            rules: Rules::default(),
            engine_endpoint: "tcp://127.0.0.1:5557".to_owned(),
            replay_endpoint: None,
            engine_dp_size: 1,
            engine_dp_start_rank: 0,
            engine_heartbeat: (Duration::from_secs(10), Duration::from_secs(30)),
            topic: "kv-events".to_owned(),
            server: "127.0.0.1:9090".to_owned(),
            window: DEFAULT_WINDOW,
            rpc_timeout: Duration::from_secs(5),
            reconnect_backoff: Duration::from_secs(1),
            zmq_rcvhwm: 100_000,
            startup_clear: true,
            refresh_min_interval: Duration::from_secs(10),
            reannounce_interval: Duration::from_secs(300),
            max_belief_age: Duration::from_secs(24 * 3600),
            stats: None,
            health_bind_address: None,
        }
    }
}
