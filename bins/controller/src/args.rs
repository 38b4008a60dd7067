//! The published flags, and what they mean once validated.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, duration, logging};
use inferencecache_kube::adapters::Options;
use inferencecache_kube::controller::bridge::{Endpoint, Tokens};
use inferencecache_wire::tls::ServerFiles;

const EXAMPLES: &str = "\
Example, beside an API server and a cache server without authentication:
  inferencecache-controller --kubeconfig=admin.kubeconfig --webhook-bind-address=127.0.0.1:9443 --webhook-cert-dir=certs \\
    --server-snapshot-url=http://127.0.0.1:8081/snapshot --server-policy-url=http://127.0.0.1:8081/policy \\
    --server-probe-url=http://127.0.0.1:8081/probe --health-probe-bind-address=:8082";

/// Where the certificate is mounted in a default installation.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Where subscribers find the policy server in a default installation.
const POLICY_SERVER: &str = "inference-cache-server.inference-cache-system.svc.cluster.local:9090";

/// Authorities of the cluster, as every Pod has them.
const CLUSTER_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
/// Pace of readings and pushes, where none is given.
const INTERVAL: Duration = Duration::from_secs(30);

/// Every flag of the controller.
pub(crate) fn flags() -> Flags {
    let summary = "Keeps caches, policies and the custom resources of InferenceCache in step, and admits them.";
    let flags = Flags::new("inferencecache-controller", summary)
        .group("Admission")
        .text("webhook-bind-address", ":9443", "HTTPS for the API server.")
        .text("webhook-cert-dir", CERTIFICATES, "Folder with tls.crt and tls.key; read again when they change.")
        .text(
            "kvevent-subscriber-image",
            "",
            "Image of the container that reports an engine's KV events. Empty: no engine gets one.",
        )
        .text("policy-server-grpc-address", POLICY_SERVER, "host:port that these containers report to.");
    process(server(flags))
        .group("Log")
        .text("zap-log-level", "info", "debug, info, warn or error.")
        .text("zap-encoder", "json", "json or console.")
        .switch("zap-devel", false, "Console lines at debug level, unless the two above say otherwise.")
        .text("zap-stacktrace-level", "", "Taken for the sake of manifests: there are no stack traces.")
        .text("zap-time-encoding", "", "Taken for the sake of manifests: times are RFC 3339.")
        .epilogue(EXAMPLES)
}

fn server(flags: Flags) -> Flags {
    let controller_token = "/var/run/secrets/inferencecache.io/controller-token/token";
    let policy_token = "/var/run/secrets/inferencecache.io/policy-token/token";
    flags
        .group("Cache server")
        .text("server-snapshot-url", "http://inference-cache-server:8081/snapshot", "Where the index is read.")
        .text("server-policy-url", "http://inference-cache-server:8081/policy", "Where policies and budgets are sent.")
        .text(
            "server-probe-url",
            "http://inference-cache-server:8081/probe",
            "Where functional probes are asked for. Empty: there are none, and readiness does not wait for any.",
        )
        .text("cacheindex-refresh-interval", "30s", "Time between two readings of the index. 0 or less: 30s.")
        .text(
            "cachepolicy-push-interval",
            "30s",
            "Time after which policies are sent again without a change. 0 or less: 30s.",
        )
        .text(
            "controller-token-file",
            controller_token,
            "Bearer token for snapshots and probes; read for each. Missing: none is sent.",
        )
        .text(
            "policy-token-file",
            policy_token,
            "Bearer token for policies; read for each push. Missing: none is sent.",
        )
        .text("server-ca-file", CLUSTER_CA, "PEM authorities of the server's certificate, for https addresses.")
}

fn process(flags: Flags) -> Flags {
    flags
        .group("Process")
        .text("metrics-bind-address", ":8080", "/metrics. 0: none.")
        .switch("metrics-secure", false, "/metrics over HTTPS, with the certificate of admission.")
        .switch("enable-http2", false, "Taken for the sake of manifests: metrics are served over HTTP/1.1.")
        .text("health-probe-bind-address", ":8081", "/healthz and /readyz. 0: none.")
        .text("kubeconfig", "", "Empty: KUBECONFIG, the Pod's own account, or ~/.kube/config.")
        .switch(
            "leader-elect",
            false,
            "Work only while holding the Lease inference-cache-controller-leader-lock. Admission works on every replica.",
        )
        .text("leader-election-namespace", "", "Namespace of that Lease. Empty: the Pod's own.")
}

/// A command line that makes sense.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) webhook: SocketAddr,
    pub(crate) certificate: ServerFiles,
    pub(crate) adapters: Options,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) health: Option<SocketAddr>,
    pub(crate) metrics_secure: bool,
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) snapshot: Endpoint,
    pub(crate) policy: Endpoint,
    pub(crate) probe: Option<Endpoint>,
    pub(crate) server_ca: PathBuf,
    pub(crate) tokens: Tokens,
    pub(crate) refresh: Duration,
    pub(crate) push: Duration,
    pub(crate) leader_elect: bool,
    /// Empty: the Pod's own.
    pub(crate) lease_namespace: String,
}

impl Config {
    /// Validates, and starts logging once it is known how.
    ///
    /// # Errors
    /// The first thing that makes no sense, with exit code 2.
    pub(crate) fn from_values(values: &Values) -> Result<Self, Exit> {
        let devel = values.switch("zap-devel");
        let unless_given =
            |flag, devel_value| if devel && !values.is_given(flag) { devel_value } else { values.text(flag) };
        let level = logging::parse_level(unless_given("zap-log-level", "debug"));
        let level = level.map_err(|why| usage("zap-log-level", &why))?;
        let format = match unless_given("zap-encoder", "console") {
            "json" => logging::Format::Json,
            "console" => logging::Format::Text,
            _ => return Err(usage("zap-encoder", "use json or console")),
        };
        let folder = PathBuf::from(values.text("webhook-cert-dir"));
        let mut adapters = Options::with_subscriber(values.text("kvevent-subscriber-image"));
        adapters.policy_server_grpc_address = values.text("policy-server-grpc-address").to_owned();
        let webhook = listener(values, "webhook-bind-address")?;
        let kubeconfig = Some(values.text("kubeconfig")).filter(|path| !path.is_empty()).map(PathBuf::from);
        let config = Self {
            webhook: webhook.ok_or_else(|| usage("webhook-bind-address", "admission cannot be turned off"))?,
            certificate: ServerFiles { cert: folder.join("tls.crt"), key: folder.join("tls.key"), client_ca: None },
            adapters,
            metrics: listener(values, "metrics-bind-address")?,
            health: listener(values, "health-probe-bind-address")?,
            metrics_secure: values.switch("metrics-secure"),
            kubeconfig,
            snapshot: endpoint(values, "server-snapshot-url")?,
            policy: endpoint(values, "server-policy-url")?,
            probe: match values.text("server-probe-url") {
                "" => None,
                _ => Some(endpoint(values, "server-probe-url")?),
            },
            server_ca: PathBuf::from(values.text("server-ca-file")),
            tokens: Tokens {
                controller: PathBuf::from(values.text("controller-token-file")),
                policy: PathBuf::from(values.text("policy-token-file")),
            },
            refresh: interval(values, "cacheindex-refresh-interval")?,
            push: interval(values, "cachepolicy-push-interval")?,
            leader_elect: values.switch("leader-elect"),
            lease_namespace: values.text("leader-election-namespace").to_owned(),
        };
        logging::init(format, level);
        Ok(config)
    }
}

fn usage(flag: &str, why: &str) -> Exit {
    Exit::usage(format!("invalid --{flag}: {why}"))
}

fn endpoint(values: &Values, flag: &str) -> Result<Endpoint, Exit> {
    Endpoint::parse(values.text(flag)).map_err(|why| usage(flag, &why.to_string()))
}

/// A pace; nothing and less than nothing is the usual one.
fn interval(values: &Values, flag: &str) -> Result<Duration, Exit> {
    let text = values.text(flag);
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let pace = duration::parse(text).map_err(|why| usage(flag, &why))?;
    Ok(if negative || pace.is_zero() { INTERVAL } else { pace })
}

/// `host:port`, `:port` for all addresses, `0` for nowhere.
fn listener(values: &Values, flag: &str) -> Result<Option<SocketAddr>, Exit> {
    let text = values.text(flag);
    if text == "0" {
        return Ok(None);
    }
    let wrong = || usage(flag, "use IP:port, or :port for all addresses");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => host.parse().map_err(|_| wrong())?,
    };
    Ok(Some(SocketAddr::new(host, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Config, u8> {
        let values = flags().parse(words.iter().map(std::ffi::OsString::from)).map_err(|_| 2)?;
        Config::from_values(&values).map_err(|exit| exit.code)
    }

    #[test]
    fn the_defaults_are_those_of_the_shipped_manifests() {
        let config = parse(&["--leader-elect"]).expect("the defaults");
        assert_eq!(config.webhook.port(), 9443);
        assert_eq!(config.metrics.map(|address| address.port()), Some(8080));
        assert_eq!(config.health.map(|address| address.port()), Some(8081));
        assert_eq!(config.certificate.cert, PathBuf::from("/tmp/k8s-webhook-server/serving-certs/tls.crt"));
        assert_eq!(config.adapters.subscriber_image, "");
        assert_eq!(config.snapshot.as_str(), "http://inference-cache-server:8081/snapshot");
        assert_eq!(config.policy.as_str(), "http://inference-cache-server:8081/policy");
        assert_eq!(config.probe.as_ref().map(Endpoint::as_str), Some("http://inference-cache-server:8081/probe"));
        assert_eq!((config.refresh, config.push, config.leader_elect), (INTERVAL, INTERVAL, true));
        assert_eq!(config.tokens, Tokens::default());
    }

    /// controller:158
    #[test]
    fn the_server_has_addresses_and_paces() {
        let words = ["--server-probe-url=", "--cacheindex-refresh-interval", "1s", "--cachepolicy-push-interval=-5s"];
        let config = parse(&words).expect("valid");
        assert_eq!(config.probe, None);
        assert_eq!((config.refresh, config.push), (Duration::from_secs(1), INTERVAL));
        assert_eq!(parse(&["--cacheindex-refresh-interval=0"]).expect("valid").refresh, INTERVAL);
        for bad in ["--server-policy-url=", "--server-snapshot-url=server:8081", "--cachepolicy-push-interval=5"] {
            assert_eq!(parse(&[bad]).expect_err(bad), 2, "{bad}");
        }
    }

    #[test]
    fn flags_of_published_manifests_are_taken() {
        let words =
            ["--zap-devel", "--zap-stacktrace-level=error", "--zap-time-encoding=iso8601", "--enable-http2=false"];
        assert!(parse(&words).is_ok_and(|config| !config.metrics_secure));
    }

    #[test]
    fn addresses_may_be_left_out_or_wrong() {
        let config = parse(&["--metrics-bind-address=0", "--health-probe-bind-address", "127.0.0.1:0"]).expect("valid");
        assert_eq!(config.metrics, None);
        assert_eq!(config.health, Some(SocketAddr::from(([127, 0, 0, 1], 0))));
        for bad in
            ["--webhook-bind-address=0", "--metrics-bind-address=8080", "--zap-encoder=xml", "--zap-log-level=loud"]
        {
            assert_eq!(parse(&[bad]).expect_err(bad), 2, "{bad}");
        }
    }
}
