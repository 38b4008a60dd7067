//! The published flags, and what they mean once validated.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, logging};
use inferencecache_kube::adapters::Options;
use inferencecache_wire::tls::ServerFiles;

const EXAMPLES: &str = "\
Example, beside an API server that is told to call it:
  inferencecache-controller --kubeconfig=admin.kubeconfig --webhook-bind-address=127.0.0.1:9443 --webhook-cert-dir=certs";

/// Where the certificate is mounted in a default installation.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// Where subscribers find the policy server in a default installation.
const POLICY_SERVER: &str = "inference-cache-server.inference-cache-system.svc.cluster.local:9090";

/// Every flag of the controller.
pub(crate) fn flags() -> Flags {
    Flags::new("inferencecache-controller", "Admits the custom resources of InferenceCache.")
        .group("Admission")
        .text("webhook-bind-address", ":9443", "HTTPS for the API server.")
        .text("webhook-cert-dir", CERTIFICATES, "Folder with tls.crt and tls.key; read again when they change.")
        .text(
            "kvevent-subscriber-image",
            "",
            "Image of the container that reports an engine's KV events. Empty: no engine gets one.",
        )
        .text("policy-server-grpc-address", POLICY_SERVER, "host:port that these containers report to.")
        .group("Process")
        .text("metrics-bind-address", ":8080", "/metrics. 0: none.")
        .text("health-probe-bind-address", ":8081", "/healthz and /readyz. 0: none.")
        .text("kubeconfig", "", "Empty: KUBECONFIG, the Pod's own account, or ~/.kube/config.")
        .switch(
            "leader-elect",
            false,
            "Taken for the sake of manifests: every replica admits, and nothing else runs yet.",
        )
        .group("Log")
        .text("zap-log-level", "info", "debug, info, warn or error.")
        .text("zap-encoder", "json", "json or console.")
        .epilogue(EXAMPLES)
}

/// A command line that makes sense.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) webhook: SocketAddr,
    pub(crate) certificate: ServerFiles,
    pub(crate) adapters: Options,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) health: Option<SocketAddr>,
    pub(crate) kubeconfig: Option<PathBuf>,
}

impl Config {
    /// Validates, and starts logging once it is known how.
    ///
    /// # Errors
    /// The first thing that makes no sense, with exit code 2.
    pub(crate) fn from_values(values: &Values) -> Result<Self, Exit> {
        let level = logging::parse_level(values.text("zap-log-level")).map_err(|why| usage("zap-log-level", &why))?;
        let format = match values.text("zap-encoder") {
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
            kubeconfig,
        };
        logging::init(format, level);
        Ok(config)
    }
}

fn usage(flag: &str, why: &str) -> Exit {
    Exit::usage(format!("invalid --{flag}: {why}"))
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
