//! The published flags, and what they mean once validated.

use std::num::NonZeroU32;
use std::time::Duration;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, logging};
use inferencecache_core::IndexOptions;
use inferencecache_wire::http::auth::Audiences;
use inferencecache_wire::second_tier::{EndpointError, RedisEndpoint};
use inferencecache_wire::server::{Addresses, ServerOptions, check_address};
use inferencecache_wire::tls::ServerFiles;

use crate::warm::SnapshotFile;

const EXAMPLES: &str = "\
Examples:
  inferencecache-server --insecure-disable-auth
        on a laptop: every port on every interface, the bridge open to all
  inferencecache-server --insecure-disable-auth --grpc-bind-address=127.0.0.1:9090 \\
        --http-bind-address=127.0.0.1:8080 --snapshot-bind-address=127.0.0.1:8081 --log-format=text
        the same, reachable from this machine alone

Gateways ask LookupRoute on the gRPC port, subscribers beside the engines report to it. State is kept in memory; after a
restart the server answers NO_HINT until engines report again, unless --index-snapshot-file keeps what it knew.";

/// Every flag of the server.
pub(crate) fn flags() -> Flags {
    Flags::new(
        "inferencecache-server",
        "Tells LLM gateways which replica already holds a prompt's prefix in its KV cache.",
    )
    .group("Listeners (host:port; an empty host is all interfaces, port 0 any free port)")
    .text("grpc-bind-address", ":9090", "gRPC: the InferenceCache service, health and reflection.")
    .text("http-bind-address", ":8080", "Public HTTP: /healthz, /readyz, /metrics.")
    .text("snapshot-bind-address", ":8081", "Bridge HTTP for the controller: /snapshot, /policy and /probe.")
    .group("Access to the bridge (exactly one of the first two is needed)")
    .text(
        "allowed-controller-sa",
        "",
        "The only username let through, system:serviceaccount:NAMESPACE:NAME. Checked by TokenReview.",
    )
    .switch("insecure-disable-auth", false, "Serve the bridge to everybody. For development only.")
    .text(
        "controller-audience",
        "inferencecache.io/controller",
        "Audience that tokens for /snapshot and /probe must carry.",
    )
    .text("policy-audience", "inferencecache.io/policy", "Audience that tokens for /policy must carry.")
    .group("TLS on the gRPC port (both files or neither)")
    .text("tls-cert-file", "", "PEM file with the server certificate.")
    .text("tls-key-file", "", "PEM file with its private key.")
    .text(
        "mtls-client-ca-file",
        "",
        "PEM bundle of authorities. Clients must then show a certificate of one of them. Needs both files above.",
    )
    .group("Prompts")
    .text(
        "tokenizer-models-dir",
        "",
        "Directory of vetted models, read once at start, for requests that carry prompt text. Each directory below it with \
             a tokenizer.json or a *.tiktoken file is a model, named by its path, such as Qwen/Qwen2.5-0.5B-Instruct. Empty, \
             or a model that is not there: such requests are answered NO_HINT.",
    )
    .integer(
        "engine-block-size",
        16,
        "Tokens per KV block when the server fingerprints token ids itself. Must equal the engine's block size, or \
             nothing matches.",
    )
    .group("Self-test (/probe)")
    .text(
        "probe-t2-endpoint",
        "",
        "Store behind LMCache backends, host:port or redis://host:port/database, that a probe writes to and reads. Empty: \
             that stage is skipped.",
    )
    .text("probe-t2-password-file", "", "File whose first line is the password of that store.")
    .group("Index")
    .integer("index-max-entries", 1_000_000, "Most (replica, prefix) pairs kept; above it the oldest go. 0: no limit.")
    .integer("index-max-stats", 65_536, "Most replica stats rows kept; above it the stalest go. 0: no limit.")
    .duration("index-ttl", "30m", "How long an entry lives after it was last reported, unless a policy says otherwise.")
    .duration("index-sweep-interval", "1m", "How often entries that have outlived their TTL are removed.")
    .text(
        "index-snapshot-file",
        "",
        "File that the index is kept in over a restart, one for each server. Read at start; a damaged one, or one of another \
             version, is ignored. Empty: a restart forgets everything.",
    )
    .duration("index-snapshot-interval", "1m", "How often that file is written; once more when the server ends.")
    .group("Limits")
    .integer(
        "grpc-max-message-bytes",
        4_194_304,
        "Largest gRPC request; a larger one is refused with RESOURCE_EXHAUSTED.",
    )
    .integer(
        "grpc-max-unfinished-bytes",
        268_435_456,
        "Bytes that incomplete gRPC messages may hold together; a call beyond it is refused. As many again may be held by \
             large answers that are not read.",
    )
    .integer(
        "grpc-max-connections",
        4096,
        "Most gRPC connections at a time; a further one takes the place of the one that has been idle longest.",
    )
    .integer("grpc-max-streams", 1024, "Most calls at a time on one gRPC connection; further ones wait.")
    .integer("grpc-max-calls", 32_768, "Most calls at a time on all gRPC connections; more are refused and counted.")
    .integer("http-max-connections", 256, "Most connections at a time to each HTTP listener.")
    .group("Process")
    .duration(
        "lame-duck",
        "3s",
        "Wait between /readyz turning 503 and the listeners closing, so that traffic can move away. 0: none.",
    )
    .duration("drain-timeout", "4s", "Then the time that calls under way get to finish.")
    .text("log-format", "json", "json or text.")
    .text("log-level", "info", "debug, info, warn or error. Lookups are never logged.")
    .epilogue(EXAMPLES)
}

/// A command line that makes sense.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) addresses: Addresses,
    pub(crate) server: ServerOptions,
    pub(crate) index: IndexOptions,
    /// None: the index does not outlive the process.
    pub(crate) snapshot_file: Option<SnapshotFile>,
    pub(crate) block_size: NonZeroU32,
    pub(crate) auth: Auth,
    pub(crate) tls: Option<ServerFiles>,
    pub(crate) tokenizer_models_dir: String,
    pub(crate) second_tier: Option<SecondTier>,
}

/// Who may use the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    Disabled,
    ServiceAccount(String, Audiences),
}

/// The store that probes ask.
#[derive(Debug, Clone)]
pub(crate) struct SecondTier {
    pub(crate) endpoint: RedisEndpoint,
    /// Empty: without authentication.
    pub(crate) password_file: String,
}

impl Config {
    /// Validates in the published order, and starts logging on the way: what is refused later is logged as configured.
    ///
    /// # Errors
    /// The first thing that makes no sense, with exit code 2.
    pub(crate) fn from_values(values: &Values) -> Result<Self, Exit> {
        let block_size = block_size(values)?;
        let addresses = addresses(values)?;
        let index = index(values)?;
        let snapshot_file = snapshot_file(values)?;
        let server = server(values)?;
        let format = logging::Format::parse(values.text("log-format")).map_err(|why| usage("log-format", &why))?;
        let level = logging::parse_level(values.text("log-level")).map_err(|why| usage("log-level", &why))?;
        logging::init(format, level);
        let auth = auth(values)?;
        let tls = tls(values)?;
        let tokenizer_models_dir = values.text("tokenizer-models-dir").to_owned();
        let second_tier = second_tier(values)?;
        Ok(Self { addresses, server, index, snapshot_file, block_size, auth, tls, tokenizer_models_dir, second_tier })
    }
}

fn usage(flag: &str, why: &str) -> Exit {
    Exit::usage(format!("invalid --{flag}: {why}"))
}

fn second_tier(values: &Values) -> Result<Option<SecondTier>, Exit> {
    let (endpoint, password_file) =
        (values.text("probe-t2-endpoint"), values.text("probe-t2-password-file").to_owned());
    match (endpoint, password_file.is_empty()) {
        ("", true) => Ok(None),
        ("", false) => Err(Exit::usage("--probe-t2-password-file needs --probe-t2-endpoint")),
        _ => {
            let endpoint =
                endpoint.parse().map_err(|why: EndpointError| usage("probe-t2-endpoint", &why.to_string()))?;
            Ok(Some(SecondTier { endpoint, password_file }))
        }
    }
}

fn addresses(values: &Values) -> Result<Addresses, Exit> {
    let address = |flag| {
        let address = values.text(flag);
        check_address(address).map_err(|why| usage(flag, &why.to_string()))?;
        Ok(address.to_owned())
    };
    Ok(Addresses {
        grpc: address("grpc-bind-address")?,
        http: address("http-bind-address")?,
        bridge: address("snapshot-bind-address")?,
    })
}

fn block_size(values: &Values) -> Result<NonZeroU32, Exit> {
    let size = values.integer("engine-block-size");
    // Token counts of blocks are 31-bit on the wire.
    let size = i32::try_from(size).ok().and_then(|size| u32::try_from(size).ok()).and_then(NonZeroU32::new);
    size.ok_or_else(|| usage("engine-block-size", "a block holds at least 1 token; use the engine's own block size"))
}

fn index(values: &Values) -> Result<IndexOptions, Exit> {
    let limit =
        |flag| u64::try_from(values.integer(flag)).map_err(|_| usage(flag, "0 means no limit; below it nothing"));
    let ttl = positive(values, "index-ttl")?;
    Ok(IndexOptions {
        ttl: i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX),
        max_entries: limit("index-max-entries")?,
        max_stats: limit("index-max-stats")?,
        ..IndexOptions::default()
    })
}

fn snapshot_file(values: &Values) -> Result<Option<SnapshotFile>, Exit> {
    let every = positive(values, "index-snapshot-interval")?;
    let path = values.text("index-snapshot-file");
    Ok((!path.is_empty()).then(|| SnapshotFile { path: path.into(), every }))
}

fn server(values: &Values) -> Result<ServerOptions, Exit> {
    let at_least_one = |flag| {
        let number = values.integer(flag);
        u32::try_from(number).ok().filter(|&n| n > 0).ok_or_else(|| usage(flag, "use a number from 1 to 4294967295"))
    };
    Ok(ServerOptions {
        max_message_bytes: at_least_one("grpc-max-message-bytes")? as usize,
        max_unfinished_bytes: at_least_one("grpc-max-unfinished-bytes")? as usize,
        max_grpc_connections: at_least_one("grpc-max-connections")? as usize,
        max_streams: at_least_one("grpc-max-streams")?,
        max_calls: at_least_one("grpc-max-calls")? as usize,
        max_http_connections: at_least_one("http-max-connections")? as usize,
        sweep_interval: positive(values, "index-sweep-interval")?,
        lame_duck: values.duration("lame-duck"),
        drain_timeout: values.duration("drain-timeout"),
        ..ServerOptions::default()
    })
}

fn positive(values: &Values, flag: &str) -> Result<Duration, Exit> {
    let duration = values.duration(flag);
    let shortest = Duration::from_millis(1);
    if duration >= shortest { Ok(duration) } else { Err(usage(flag, "use at least 1ms")) }
}

fn tls(values: &Values) -> Result<Option<ServerFiles>, Exit> {
    let client_ca = values.text("mtls-client-ca-file");
    match (values.text("tls-cert-file"), values.text("tls-key-file")) {
        ("", "") if client_ca.is_empty() => Ok(None),
        ("", "") => Err(Exit::usage("--mtls-client-ca-file needs --tls-cert-file and --tls-key-file")),
        ("", _) | (_, "") => {
            Err(Exit::usage("--tls-cert-file and --tls-key-file belong together; set both, or neither"))
        }
        (cert, key) => Ok(Some(ServerFiles {
            cert: cert.into(),
            key: key.into(),
            client_ca: (!client_ca.is_empty()).then(|| client_ca.into()),
        })),
    }
}

/// The matrix of the access flags; the first line that applies decides.
fn auth(values: &Values) -> Result<Auth, Exit> {
    let account = values.text("allowed-controller-sa");
    let disabled = values.switch("insecure-disable-auth");
    if !account.is_empty() && disabled {
        return Err(Exit::usage(
            "--allowed-controller-sa and --insecure-disable-auth are mutually exclusive; drop one",
        ));
    }
    if disabled {
        return Ok(Auth::Disabled);
    }
    if account.is_empty() {
        return Err(Exit::usage(
            "missing --allowed-controller-sa=system:serviceaccount:NAMESPACE:NAME, the only account that may use the \
             bridge; to serve it to everybody while developing, use --insecure-disable-auth",
        ));
    }
    let padded = |flag: &str| Exit::usage(format!("--{flag} has leading/trailing whitespace; remove it"));
    if account.trim() != account {
        return Err(padded("allowed-controller-sa"));
    }
    for flag in ["controller-audience", "policy-audience"] {
        let audience = values.text(flag);
        if audience.trim().is_empty() {
            return Err(Exit::usage(format!("--{flag} cannot be empty; leave it out for its default")));
        }
        if audience.trim() != audience {
            return Err(padded(flag));
        }
    }
    let audience = |flag| values.text(flag).to_owned();
    let audiences = Audiences { controller: audience("controller-audience"), policy: audience("policy-audience") };
    Ok(Auth::ServiceAccount(account.to_owned(), audiences))
}
