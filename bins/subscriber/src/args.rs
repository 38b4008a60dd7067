//! The published flags, and what they mean once validated.

use std::collections::HashMap;
use std::time::Duration;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, duration, logging};
use inferencecache_core::RESERVED_TENANT;
use inferencecache_core::route::MAX_ID_BYTES;
use inferencecache_wire::subscriber::config::{Config, Identity, MAX_RANKS, RemovalPolicy, Rules, UnknownParent};
use inferencecache_wire::subscriber::endpoint::{Side, side};
use inferencecache_wire::subscriber::stats::reading::CacheTier;
use inferencecache_wire::subscriber::stats::{DEFAULT_INTERVAL, StatsConfig, fetch};
use inferencecache_wire::tls::ClientFiles;

const EXAMPLES: &str = "\
Examples:
  kvevent-subscriber --replica-id=vllm-0 --model-id=llama --tenant-id=team-a --topic= --server=127.0.0.1:9090
        beside an engine that publishes without a topic on tcp://*:5557
  kvevent-subscriber --replica-id=sglang-0 --model-id=llama --hash-scheme=sglang --engine-endpoint=tcp://*:5557
        beside an engine whose own endpoint names a host, so that it dials out: we listen

Engines publish under an empty topic unless told otherwise, and this program listens for kv-events unless told otherwise:
one of the two must be set. Token ids and prompt text never leave this process.";

/// Default of `--engine-metrics-url`.
const METRICS_URL: &str = "http://127.0.0.1:8000/metrics";

/// Every flag of the subscriber.
pub(crate) fn flags() -> Flags {
    Flags::new("kvevent-subscriber", "Turns one engine's KV-cache events into reports to the InferenceCache server.")
        .group("Who reports")
        .text("replica-id", "", "The engine replica. Required.")
        .text("model-id", "", "The model, as gateways name it. Required.")
        .text("tenant-id", "", "The tenant whose CachePolicy applies.")
        .text("hash-scheme", "vllm", "Engine family: vllm or sglang. Gateways must ask under the same one.")
        .group("Engine")
        .text(
            "engine-endpoint",
            "tcp://127.0.0.1:5557",
            "ZMQ endpoint of the engine's publisher. A host of *, 0.0.0.0 or [::] is listened on: the engine dials us.",
        )
        .text("topic", "kv-events", "Prefix of the topics to take. Empty: all.")
        .text(
            "replay-endpoint",
            "",
            "ZMQ endpoint of the engine's replay socket, where missed batches are asked for. Always dialled. Empty: none.",
        )
        .integer(
            "engine-dp-size",
            1,
            "Data-parallel ranks of the engine here, each at its own port: those of the endpoints plus the rank.",
        )
        .integer("engine-dp-start-rank", 0, "The first of these ranks, where an engine spans several nodes.")
        .duration("reconnect-backoff", "1s", "First wait after a failed connection to the engine; doubles up to 5s.")
        .integer("zmq-rcvhwm", 100_000, "Messages that the ZMQ library queues. 0: no limit.")
        .group("Server")
        .text("server", "127.0.0.1:9090", "host:port of the policy server.")
        .duration("rpc-timeout", "5s", "Limit of one call.")
        .text(
            "tls-ca-file",
            "",
            "PEM file with the authorities that the server's certificate must come from. Empty: plaintext.",
        )
        .text("tls-server-name", "", "Name that the server's certificate must carry. Empty: the host of --server.")
        .text("tls-cert-file", "", "PEM file with a certificate of our own, for a server that asks for one.")
        .text("tls-key-file", "", "PEM file with its private key.")
        .group("Reports")
        .text("window", "100ms", "How long reports are gathered. 0 or less: 100ms.")
        .duration("refresh-min-interval", "10s", "An acknowledged report is not repeated within that time.")
        .duration(
            "reannounce-interval",
            "5m",
            "How often blocks that are held beyond doubt are reported again; keep it below half the TTL of the policy. 0: never.",
        )
        .duration(
            "max-belief-age",
            "24h",
            "A block that the engine has not spoken of for so long is no longer reported again. In device memory only while its \
             capacity is not known from the engine's metrics. 0: for ever.",
        )
        .switch("startup-clear", true, "Tell the server to forget what an earlier process reported for this replica.")
        .group("Events")
        .integer("max-tracked-blocks", 500_000, "Most engine blocks kept in memory, about 96 bytes each.")
        .text("unknown-parent", "drop", "A block that continues an unknown one: drop it, or take it for a root.")
        .text("removal-policy", "refcount", "A removal takes one copy of a block (refcount) or all of them (first).")
        .switch(
            "ignore-block-removed",
            false,
            "A second tier that announces nothing stands behind the engine: a removal is a move to it.",
        )
        .text("index-group", "auto", "The KV-cache group to index, whatever its kind. auto: by kind.")
        .switch("index-salted", false, "Index blocks that a salt or an image sets apart. Leaks what tenants share.")
        .text(
            "lora-adapter-names",
            "",
            "Adapter names by the engine's number: id=name,... They win over names in events.",
        )
        .switch("lora-name-from-events", true, "Use the adapter names that events carry.")
        .group("Engine statistics")
        .text("engine-metrics-url", METRICS_URL, "The engine's Prometheus page, over plain HTTP. Empty: none is read.")
        .text("stats-interval", "10s", "How often it is read. 0 or less: 10s.")
        .integer("engine-cache-size-bytes", 0, "Capacity of the KV cache. 0: bytes in use are reported as 0.")
        .number("max-concurrency-ceiling", 256.0, "Requests at which the engine counts as fully loaded.")
        .text("cache-tier", "auto", "Which usage figure to read: auto, kv, gpu or cpu.")
        .text("engine-model-name", "", "Read only series with this model_name. Empty: all.")
        .group("Process")
        .text("health-bind-address", "", "host:port of /healthz, /readyz and /metrics. Empty: none.")
        .text("log-level", "info", "debug, info, warn or error.")
        .epilogue(EXAMPLES)
}

/// A command line that makes sense.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    pub(crate) config: Config,
    pub(crate) tls: Option<ClientFiles>,
}

impl Args {
    /// Validates, and starts logging once it is known how.
    ///
    /// # Errors
    /// The first thing that makes no sense, with exit code 2.
    pub(crate) fn from_values(values: &Values) -> Result<Self, Exit> {
        let level = logging::parse_level(values.text("log-level")).map_err(|why| usage("log-level", &why))?;
        logging::init(logging::Format::Json, level);
        let identity = identity(values)?;
        let rules = rules(values)?;
        let config = Config {
            identity,
            rules,
            engine_endpoint: endpoint(values)?,
            replay_endpoint: replay_endpoint(values)?,
            engine_dp_size: ranks(values, "engine-dp-size", 1)?,
            engine_dp_start_rank: ranks(values, "engine-dp-start-rank", 0)?,
            topic: values.text("topic").to_owned(),
            server: values.text("server").to_owned(),
            window: zero_or_less(values, "window")?.unwrap_or_default(),
            rpc_timeout: positive(values, "rpc-timeout")?,
            reconnect_backoff: positive(values, "reconnect-backoff")?,
            zmq_rcvhwm: i32::try_from(values.integer("zmq-rcvhwm"))
                .ok()
                .filter(|&hwm| hwm >= 0)
                .ok_or_else(|| usage("zmq-rcvhwm", "use a number from 0 to 2147483647"))?,
            startup_clear: values.switch("startup-clear"),
            refresh_min_interval: values.duration("refresh-min-interval"),
            reannounce_interval: zero_or(values, "reannounce-interval")?,
            max_belief_age: zero_or(values, "max-belief-age")?,
            stats: stats(values)?,
            health_bind_address: health_bind_address(values)?,
            ..Config::default()
        };
        if config.ranks().is_none() {
            return Err(usage("engine-dp-size", "the port of the last rank would be above 65535"));
        }
        let tls = tls(values)?;
        Ok(Self { config, tls })
    }
}

fn usage(flag: &str, why: &str) -> Exit {
    Exit::usage(format!("invalid --{flag}: {why}"))
}

/// The engine's endpoint. Whether anybody is there does not matter; whether anybody could be does.
fn endpoint(values: &Values) -> Result<String, Exit> {
    let endpoint = values.text("engine-endpoint");
    if is_endpoint(endpoint) {
        Ok(endpoint.to_owned())
    } else {
        Err(usage("engine-endpoint", "use tcp://HOST:PORT, ipc://PATH or, to listen, tcp://*:PORT"))
    }
}

/// Where to ask for what was missed. Engines always listen there, so this must be somebody to dial.
fn replay_endpoint(values: &Values) -> Result<Option<String>, Exit> {
    match values.text("replay-endpoint") {
        "" => Ok(None),
        endpoint if is_endpoint(endpoint) && side(endpoint) == Side::Connect && !endpoint.ends_with(":*") => {
            Ok(Some(endpoint.to_owned()))
        }
        _ => Err(usage("replay-endpoint", "use tcp://HOST:PORT or ipc://PATH with the host of the engine")),
    }
}

fn is_endpoint(endpoint: &str) -> bool {
    match endpoint.strip_prefix("tcp://") {
        Some(address) => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
            !host.is_empty() && (port == "*" || port.parse::<u16>().is_ok_and(|port| port > 0))
        }
        None => ["ipc://", "inproc://"]
            .iter()
            .any(|scheme| endpoint.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty())),
    }
}

/// A number of ranks, or of one, from `least` to as many as there can be.
fn ranks(values: &Values, flag: &str, least: u16) -> Result<u16, Exit> {
    let ranks = u16::try_from(values.integer(flag)).ok();
    let usable = |&ranks: &u16| ranks >= least && (flag != "engine-dp-size" || ranks <= MAX_RANKS);
    ranks.filter(usable).ok_or_else(|| {
        usage(flag, &format!("use a number from {least} to {}", if least > 0 { MAX_RANKS } else { u16::MAX }))
    })
}

fn identity(values: &Values) -> Result<Identity, Exit> {
    let text = |flag| values.text(flag).to_owned();
    for flag in ["replica-id", "model-id"] {
        if values.text(flag).is_empty() {
            return Err(Exit::usage(format!("missing --{flag}")));
        }
    }
    if values.text("hash-scheme").is_empty() {
        return Err(usage("hash-scheme", "it cannot be empty; use vllm or sglang"));
    }
    if values.text("tenant-id") == RESERVED_TENANT {
        return Err(usage("tenant-id", "this name is reserved, and the server would drop every report of it"));
    }
    for flag in ["replica-id", "model-id", "tenant-id", "hash-scheme"] {
        if values.text(flag).len() > MAX_ID_BYTES {
            return Err(usage(flag, "it is longer than 512 bytes, and the server would drop every report of it"));
        }
    }
    Ok(Identity {
        replica_id: text("replica-id"),
        model_id: text("model-id"),
        tenant_id: text("tenant-id"),
        hash_scheme: text("hash-scheme"),
    })
}

fn rules(values: &Values) -> Result<Rules, Exit> {
    let blocks = usize::try_from(values.integer("max-tracked-blocks")).ok().filter(|&blocks| blocks > 0);
    Ok(Rules {
        max_tracked_blocks: blocks.ok_or_else(|| usage("max-tracked-blocks", "use a positive number"))?,
        unknown_parent: match values.text("unknown-parent") {
            "drop" => UnknownParent::Drop,
            "root" => UnknownParent::Root,
            _ => return Err(usage("unknown-parent", "use drop or root")),
        },
        removal_policy: match values.text("removal-policy") {
            "refcount" => RemovalPolicy::Refcount,
            "first" => RemovalPolicy::First,
            _ => return Err(usage("removal-policy", "use refcount or first")),
        },
        lora_adapter_names: adapter_names(values.text("lora-adapter-names"))
            .map_err(|why| usage("lora-adapter-names", &why))?,
        lora_name_from_events: values.switch("lora-name-from-events"),
        index_salted: values.switch("index-salted"),
        index_group: match values.text("index-group") {
            "auto" => None,
            group => {
                Some(group.parse::<u32>().map_err(|_| usage("index-group", "use auto or a group's number"))?.into())
            }
        },
        ignore_block_removed: values.switch("ignore-block-removed"),
    })
}

/// `id=name,id=name`: blanks around each part are dropped, names may contain `=`.
fn adapter_names(text: &str) -> Result<HashMap<i64, String>, String> {
    let mut names = HashMap::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (id, name) = item.split_once('=').ok_or_else(|| format!("{item:?} is not id=name"))?;
        let (id, name) = (id.trim(), name.trim());
        let number: i64 = id.parse().map_err(|_| format!("{id:?} is not a whole number"))?;
        if name.is_empty() {
            return Err(format!("id {number} has no name"));
        }
        if names.insert(number, name.to_owned()).is_some() {
            return Err(format!("id {number} is named twice"));
        }
    }
    Ok(names)
}

/// Where the load is read; `None` when nowhere.
fn stats(values: &Values) -> Result<Option<StatsConfig>, Exit> {
    let tier = match values.text("cache-tier") {
        "auto" => CacheTier::Auto,
        "kv" => CacheTier::Kv,
        "gpu" => CacheTier::Gpu,
        "cpu" => CacheTier::Cpu,
        _ => return Err(usage("cache-tier", "use auto, kv, gpu or cpu")),
    };
    let interval = zero_or_less(values, "stats-interval")?.unwrap_or(DEFAULT_INTERVAL);
    let url = values.text("engine-metrics-url");
    if url.is_empty() {
        return Ok(None);
    }
    fetch::Target::new(url).map_err(|why| usage("engine-metrics-url", &why.to_string()))?;
    Ok(Some(StatsConfig {
        url: url.to_owned(),
        interval,
        capacity_bytes: values.integer("engine-cache-size-bytes"),
        ceiling: values.number("max-concurrency-ceiling"),
        tier,
        model: values.text("engine-model-name").to_owned(),
    }))
}

/// Where probes and metrics are served. That the port is free is another matter.
fn health_bind_address(values: &Values) -> Result<Option<String>, Exit> {
    let address = values.text("health-bind-address");
    if address.is_empty() {
        return Ok(None);
    }
    match address.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(Some(address.to_owned())),
        _ => Err(usage("health-bind-address", "use host:port, or :port for all addresses")),
    }
}

/// Nothing of TLS, or at least the authorities to believe.
fn tls(values: &Values) -> Result<Option<ClientFiles>, Exit> {
    let [ca, name, cert, key] =
        ["tls-ca-file", "tls-server-name", "tls-cert-file", "tls-key-file"].map(|flag| values.text(flag));
    let identity = match (cert, key) {
        ("", "") => None,
        ("", _) | (_, "") => {
            return Err(Exit::usage("--tls-cert-file and --tls-key-file belong together; set both, or neither"));
        }
        (cert, key) => Some((cert.into(), key.into())),
    };
    match (ca, name, &identity) {
        ("", "", None) => Ok(None),
        ("", ..) => {
            Err(Exit::usage("TLS needs --tls-ca-file, the authorities that the server's certificate comes from"))
        }
        (ca, name, _) => {
            let server_name = (!name.is_empty()).then(|| name.to_owned());
            Ok(Some(ClientFiles { ca: ca.into(), identity, server_name }))
        }
    }
}

fn positive(values: &Values, flag: &str) -> Result<Duration, Exit> {
    let duration = values.duration(flag);
    if duration >= Duration::from_millis(1) { Ok(duration) } else { Err(usage(flag, "use at least 1ms")) }
}

/// A duration of which 0 turns something off.
fn zero_or(values: &Values, flag: &str) -> Result<Duration, Exit> {
    let duration = values.duration(flag);
    if duration.is_zero() || duration >= Duration::from_secs(1) {
        Ok(duration)
    } else {
        Err(usage(flag, "use at least 1s, or 0 to turn it off"))
    }
}

/// A duration for which 0 and everything below mean the default: `None`.
fn zero_or_less(values: &Values, flag: &str) -> Result<Option<Duration>, Exit> {
    let text = values.text(flag);
    let (negative, size) = match text.strip_prefix('-') {
        Some(size) => (true, size),
        None => (false, text),
    };
    let parsed = duration::parse(size).map_err(|why| usage(flag, &why))?;
    Ok(Some(parsed).filter(|duration| !negative && !duration.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, u8> {
        let words = words.iter().map(std::ffi::OsString::from);
        let values = flags().parse(words).map_err(|stop| match stop {
            bins_common::flags::Stop::Refused { exit, .. } => exit.code,
            bins_common::flags::Stop::Asked(_) => 0,
        })?;
        Args::from_values(&values).map_err(|exit| exit.code)
    }

    fn with(words: &[&str]) -> Result<Args, u8> {
        let mut all = vec!["--replica-id=r", "-model-id", "m"];
        all.extend(words);
        parse(&all)
    }

    // subscriber:99
    #[test]
    fn adapter_names_are_trimmed_and_checked() {
        let args = with(&["--lora-adapter-names", " 1=sql-lora, 2 = chat-lora ,"]).unwrap();
        let expected = [(1, "sql-lora".to_owned()), (2, "chat-lora".to_owned())];
        assert_eq!(args.config.rules.lora_adapter_names, HashMap::from(expected));
        let args = with(&["--lora-adapter-names=-5=a=b"]).unwrap();
        assert_eq!(args.config.rules.lora_adapter_names, HashMap::from([(-5, "a=b".to_owned())]));
        for bad in ["sql-lora", "x=sql-lora", "1=", "1=a,1=b"] {
            assert_eq!(with(&["--lora-adapter-names", bad]).unwrap_err(), 2, "{bad}");
        }
    }

    // subscriber:100
    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(parse(&["--model-id=m"]).unwrap_err(), 2);
        assert_eq!(parse(&["--replica-id=r"]).unwrap_err(), 2);
        for bad in [
            "--hash-scheme=",
            "--cache-tier=xpu",
            "--cache-tier=AUTO",
            "--no-such-flag",
            "--tenant-id=inferencecache.io/probe",
            "--unknown-parent=x",
            "--removal-policy=x",
            "--index-group=x",
            "--index-group=-1",
            "--health-bind-address=foo",
            "--health-bind-address=127.0.0.1:http",
            "--engine-metrics-url=https://127.0.0.1:8000/metrics",
            "--engine-metrics-url=127.0.0.1:8000",
            "--reannounce-interval=10ms",
            "--max-belief-age=-1h",
            "--max-tracked-blocks=0",
            "--rpc-timeout=0",
            "--window=soon",
            "--zmq-rcvhwm=-1",
            "--log-level=loud",
        ] {
            assert_eq!(with(&[bad]).unwrap_err(), 2, "{bad}");
        }
        assert_eq!(parse(&["--help"]).unwrap_err(), 0);
    }

    // subscriber:101
    #[test]
    fn zero_and_negative_intervals_mean_the_defaults() {
        for zero in ["0", "-5s", "-0"] {
            let args = with(&["--window", zero, "--stats-interval", zero]).unwrap();
            let interval = args.config.stats.map(|stats| stats.interval);
            assert_eq!((args.config.window, interval), (Duration::ZERO, Some(Duration::from_secs(10))), "{zero}");
        }
    }

    #[test]
    fn the_defaults_are_the_library_s_and_ask_for_nothing_that_is_missing() {
        let args = with(&[]).unwrap();
        let published = Config { stats: Some(StatsConfig::default()), ..Config::default() };
        let (have, want) = (format!("{:?}", args.config), format!("{published:?}"));
        let identity = format!("{:?}", args.config.identity);
        assert_eq!(have.replace(&identity, ""), want.replace(&format!("{:?}", Identity::default()), ""));
        assert!(args.tls.is_none());
    }

    #[test]
    fn ranks_have_endpoints_of_their_own() {
        let args = with(&[
            "--engine-endpoint=tcp://[::1]:5557",
            "--replay-endpoint=tcp://[::1]:5600",
            "--engine-dp-size=2",
            "--engine-dp-start-rank=8",
        ]);
        let ranks = args.unwrap().config.ranks().unwrap();
        let ranks: Vec<_> = ranks.iter().map(|r| (r.rank, r.publisher.as_str(), r.replay.as_deref())).collect();
        assert_eq!(
            ranks,
            [(8, "tcp://[::1]:5565", Some("tcp://[::1]:5608")), (9, "tcp://[::1]:5566", Some("tcp://[::1]:5609"))]
        );
        for bad in [
            "--engine-dp-size=0",
            "--engine-dp-size=257",
            "--engine-dp-start-rank=-1",
            "--engine-dp-start-rank=60000",
            "--replay-endpoint=tcp://*:5558",
            "--replay-endpoint=tcp://[::]:5558",
            "--replay-endpoint=tcp://h:*",
            "--replay-endpoint=h:5558",
        ] {
            assert_eq!(with(&[bad]).unwrap_err(), 2, "{bad}");
        }
    }

    #[test]
    fn statistics_are_as_asked_for_or_off() {
        let args = with(&[
            "--engine-metrics-url=http://127.0.0.1:1/m",
            "--stats-interval=5s",
            "--engine-cache-size-bytes=7",
            "--max-concurrency-ceiling=8",
            "--cache-tier=gpu",
            "--engine-model-name=m",
            "--reannounce-interval=0",
            "--max-belief-age=1h",
        ]);
        let config = args.unwrap().config;
        let expected = StatsConfig {
            url: "http://127.0.0.1:1/m".to_owned(),
            interval: Duration::from_secs(5),
            capacity_bytes: 7,
            ceiling: 8.0,
            tier: CacheTier::Gpu,
            model: "m".to_owned(),
        };
        assert_eq!(config.stats, Some(expected));
        assert_eq!((config.reannounce_interval, config.max_belief_age), (Duration::ZERO, Duration::from_secs(3600)));
        assert_eq!(with(&["--engine-metrics-url="]).unwrap().config.stats, None);
    }

    #[test]
    fn tls_needs_authorities_and_whole_pairs() {
        let tls = |flags: &[&str]| with(flags).map(|args| args.tls);
        let files = |identity: Option<(&str, &str)>, name: Option<&str>| ClientFiles {
            ca: "/ca".into(),
            identity: identity.map(|(cert, key)| (cert.into(), key.into())),
            server_name: name.map(str::to_owned),
        };
        assert_eq!(tls(&["--tls-ca-file=/ca"]).unwrap(), Some(files(None, None)));
        assert_eq!(tls(&["--tls-ca-file=/ca", "--tls-server-name=n"]).unwrap(), Some(files(None, Some("n"))));
        let pair = ["--tls-ca-file=/ca", "--tls-cert-file=/c", "--tls-key-file=/k"];
        assert_eq!(tls(&pair).unwrap(), Some(files(Some(("/c", "/k")), None)));
        for half in [&pair[1..], &pair[..2], &[pair[0], pair[2]], &["--tls-server-name=n"]] {
            assert_eq!(tls(half).unwrap_err(), 2, "{half:?}");
        }
    }
}
