//! The gRPC port over TLS: a whole server, real sockets, and files that change under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::certs::{Authority, Mount};
use crate::recorder::eventually;
use crate::server::*;
use inferencecache_wire::grpc::client::{Cause, ClientOptions, HintClient, channel};
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use inferencecache_wire::server::{GrpcTls, TlsLimits};
use inferencecache_wire::subscriber::config::{Config, Identity};
use inferencecache_wire::subscriber::{Drained, Subscriber};
use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine};
use inferencecache_wire::testkit::script::Script;
use inferencecache_wire::tls::{ALPN_H2, ClientFiles, ClientTls, Leaf, ServerFiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const HOST: &str = "127.0.0.1";
const RELOADS: &str = "inferencecache_server_grpc_tls_reloads_total";

fn reloads(result: &str) -> String {
    format!("{RELOADS}{{result=\"{result}\"}}")
}

fn handshakes(result: &str) -> String {
    format!("inferencecache_server_grpc_tls_handshakes_total{{result=\"{result}\"}}")
}

/// A server over TLS, and where its files are.
struct Secure {
    authority: Authority,
    mount: Mount,
    server: Running,
}

impl Secure {
    async fn new() -> Self {
        Self::with(false, TlsLimits::default()).await
    }

    async fn with(mutual: bool, limits: TlsLimits) -> Self {
        Self::valid_until(mutual, limits, 2099).await
    }

    /// With a certificate that is valid until the beginning of a year.
    async fn valid_until(mutual: bool, limits: TlsLimits, year: i32) -> Self {
        let authority = Authority::new("ours");
        let mount = Mount::new(&authority, &authority.issue_until(HOST, year));
        let client_ca = mutual.then(|| mount.path("client-ca.crt"));
        mount.put("client-ca.crt", &authority.pem);
        let mut setup = Setup::new();
        setup.options.drain_timeout = Duration::from_secs(600);
        let files = ServerFiles { cert: mount.cert(), key: mount.key(), client_ca };
        let tls = GrpcTls::load(files, setup.metrics.clone(), limits).await.expect("good files");
        let server = Setup { tls: Some(tls), ..setup }.start().await;
        Self { authority, mount, server }
    }

    async fn tls(&self, identity: Option<&Mount>, server_name: Option<&str>) -> ClientTls {
        let files = ClientFiles {
            ca: self.mount.ca(),
            identity: identity.map(|mount| (mount.cert(), mount.key())),
            server_name: server_name.map(str::to_owned),
        };
        ClientTls::load(files, &[ALPN_H2], |_| {}).await.expect("good files")
    }

    fn channel(&self, tls: ClientTls) -> Channel {
        channel(&self.server.grpc.to_string(), &patient(Some(tls))).expect("an address")
    }

    fn hints(&self, tls: Option<ClientTls>) -> HintClient {
        HintClient::new(&self.server.grpc.to_string(), &patient(tls)).expect("an address")
    }

    /// The serial that a new connection is shown.
    async fn serial(&self, tls: &ClientTls) -> String {
        let stream = TcpStream::connect(self.server.grpc).await.expect("accepted");
        let stream = tls.connect(HOST, stream).await.expect("shaken");
        Leaf::of(&stream.get_ref().1.peer_certificates().expect("shown")[0]).expect("readable").serial
    }

    async fn until(&self, series: &str, value: f64) {
        until(series, || self.server.metric(series) == value).await;
    }
}

fn patient(tls: Option<ClientTls>) -> ClientOptions {
    ClientOptions { call_timeout: Duration::from_secs(10), tls, ..ClientOptions::default() }
}

fn unreachable(cause: Option<Cause>) -> String {
    match cause {
        Some(Cause::Unreachable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_verifying_client_is_served_and_a_plaintext_one_is_not() {
    // server:157
    let secure = Secure::new().await;
    let channel = secure.channel(secure.tls(None, None).await);
    let health = HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.expect("answered");
    assert_eq!(health.into_inner().status, 1, "SERVING");
    let mut client = Client(InferenceCacheClient::new(channel));
    client.report(vec![report("r1", vec![key("p", 128)])]).await;
    assert_eq!(client.outcome(ask_key("p")).await.0, "PREFIX_MATCH");
    assert_eq!(secure.server.metric("inferencecache_server_grpc_tls_enabled"), 1.0);
    assert_eq!(secure.server.metric("inferencecache_server_grpc_tls_not_after_timestamp_seconds"), 4_070_908_800.0);
    assert_eq!(secure.server.metric(&handshakes("ok")), 1.0);

    let plaintext = secure.hints(None).lookup(ask_key("p")).await;
    assert!(matches!(plaintext.degraded, Some(Cause::Unreachable(_))), "{:?}", plaintext.degraded);
    secure.until(&handshakes("failed"), 1.0).await;
    drop(TcpStream::connect(secure.server.grpc).await.expect("accepted"));
    secure.until(&handshakes("gone"), 1.0).await;
}

#[tokio::test]
async fn without_tls_the_gauge_is_zero_and_there_is_no_certificate() {
    // server:158
    let server = Setup::new().start().await;
    let text = server.metrics.render();
    assert!(text.contains("\ninferencecache_server_grpc_tls_enabled 0\n"), "{text}");
    assert!(!text.contains("not_after") && !text.contains("handshakes"), "{text}");
}

#[tokio::test]
async fn a_client_is_told_why_it_does_not_get_through() {
    let secure = Secure::new().await;
    let hint = secure.hints(Some(secure.tls(None, Some("cache.test")).await)).lookup(ask_key("p")).await;
    assert_eq!(hint.response.reason_code, "NO_HINT");
    let why = unreachable(hint.degraded);
    assert!(why.contains("handshake with cache.test failed") && why.contains("not valid for name"), "{why}");

    let stranger = Authority::new("stranger");
    let files =
        ClientFiles { ca: Mount::new(&stranger, &stranger.issue(HOST)).ca(), identity: None, server_name: None };
    assert!(ClientTls::load(files, &[], |_| {}).await.is_err(), "that directory is gone");

    let old = Secure::valid_until(false, TlsLimits::default(), 2020).await;
    let why = unreachable(old.hints(Some(old.tls(None, None).await)).lookup(ask_key("p")).await.degraded);
    assert!(why.contains("expired"), "{why}");

    // A URL says whether it is TLS, and must say the truth.
    let address = secure.server.grpc.to_string();
    let (with, without) = (patient(Some(secure.tls(None, None).await)), patient(None));
    for (url, options) in [("http", &with), ("https", &without)] {
        channel(&format!("{url}://{address}"), options).expect_err(url);
    }
    for url in [format!("https://{address}"), format!("HTTPS://{address}/"), address] {
        let hint = HintClient::new(&url, &with).expect("an address").lookup(ask_key("p")).await;
        assert_eq!(hint.degraded, None, "{url}");
    }
}

/// Calls without pause on one connection each, and on a new connection for each call, while the files change for the better
/// and for the worse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_lost_while_certificates_change() {
    // server:159 field:51
    for mutual in [false, true] {
        rotate(Arc::new(Secure::with(mutual, TlsLimits::default()).await), mutual).await;
    }
}

async fn rotate(secure: Arc<Secure>, mutual: bool) {
    let gateway = Mount::new(&secure.authority, &secure.authority.issue("gateway"));
    let tls = secure.tls(mutual.then_some(&gateway), None).await;
    let (end, calls) = (Arc::new(AtomicBool::new(false)), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
    let mut callers = Vec::new();
    for keeps_connection in [true, true, false, false] {
        let (secure, tls, end, calls) = (secure.clone(), tls.clone(), end.clone(), calls.clone());
        callers.push(tokio::spawn(async move {
            let mut client = secure.hints(Some(tls.clone()));
            while !end.load(Ordering::SeqCst) {
                if !keeps_connection {
                    client = secure.hints(Some(tls.clone()));
                }
                let hint = client.lookup(ask_key("p")).await;
                assert_eq!(hint.degraded, None);
                calls[usize::from(keeps_connection)].fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    // Of what is counted next, one call of each caller may have begun before.
    let progress = async || {
        let enough = calls.each_ref().map(|calls| calls.load(Ordering::SeqCst) + 5);
        let more = async {
            while calls.iter().zip(enough).any(|(calls, enough)| calls.load(Ordering::SeqCst) < enough)
                && !callers.iter().any(|caller| caller.is_finished())
            {
                tokio::task::yield_now().await;
            }
        };
        in_time("progress", more).await;
    };
    let mut refused = 0;
    for round in 0..5 {
        let next = secure.authority.issue_until(HOST, 2050 + round);
        // First the certificate, then a while later its key; then in halves the other way round.
        let halves = [("tls.crt", &next.cert), ("tls.key", &next.key)];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for half in order {
            secure.mount.put(halves[half].0, halves[half].1);
            progress().await;
        }
        refused += 1; // the half of it
        assert_eq!(secure.serial(&tls).await, next.serial);
        // What clients would refuse, and the pair of somebody else's key.
        for bad in [
            secure.authority.issue_until(HOST, 2020),
            secure.authority.issue_between(HOST, 2090, 2099),
            secure.authority.issue("other.test"),
        ] {
            let before = secure.server.metric(&reloads("error"));
            secure.mount.replace(&bad);
            progress().await;
            assert_eq!(secure.serial(&tls).await, next.serial);
            assert!(secure.server.metric(&reloads("error")) > before);
        }
        secure.mount.replace(&next);
        progress().await;
    }
    assert_eq!(secure.server.metric(&reloads("ok")), 5.0);
    assert!(secure.server.metric(&reloads("error")) >= f64::from(refused + 15), "each bad state at least once");
    if mutual {
        // The bundle is replaced by one with another authority beside ours: whoever was welcome still is.
        let both = format!("{}{}", Authority::new("more").pem, secure.authority.pem);
        secure.mount.put("client-ca.crt", &both);
        progress().await;
        assert_eq!(secure.server.metric(&reloads("ok")), 6.0);
    }
    secure.mount.put("tls.crt", "corrupt");
    progress().await;
    end.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no call was lost");
    }
    assert_eq!(secure.server.metric(&handshakes("failed")), 0.0);
    assert_eq!(secure.server.metric("inferencecache_server_grpc_tls_not_after_timestamp_seconds"), 2_650_838_400.0);
}

#[tokio::test]
async fn a_bad_replacement_is_noticed_without_a_connection() {
    let secure = Secure::new().await;
    secure.mount.put("tls.key", "corrupt");
    tokio::time::pause();
    // On a clock that jumps: nothing is waited for.
    let noticed = tokio::time::timeout(Duration::from_secs(11), async {
        while secure.server.metric(&reloads("error")) == 0.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    noticed.await.expect("noticed within the published interval");
}

#[tokio::test]
async fn mutual_tls_guards_every_service_on_the_port() {
    let secure = Secure::with(true, TlsLimits::default()).await;
    let gateway = Mount::new(&secure.authority, &secure.authority.issue("gateway"));
    let strange = Authority::new("stranger");
    let strange = Mount::new(&strange, &strange.issue("gateway"));
    for (identity, welcome) in [(Some(&gateway), true), (None, false), (Some(&strange), false)] {
        let tls = secure.tls(identity, None).await;
        let health = HealthClient::new(secure.channel(tls.clone())).check(HealthCheckRequest::default()).await;
        let hint = secure.hints(Some(tls)).lookup(ask_key("p")).await;
        assert_eq!((health.is_ok(), hint.degraded.is_none()), (welcome, welcome), "{health:?} {:?}", hint.degraded);
    }
    // Replacing the bundle decides about new connections; open ones go on.
    let client = secure.hints(Some(secure.tls(Some(&gateway), None).await));
    assert_eq!(client.lookup(ask_key("p")).await.degraded, None);
    secure.mount.put("client-ca.crt", &Authority::new("others").pem);
    let late = secure.hints(Some(secure.tls(Some(&gateway), None).await)).lookup(ask_key("p")).await;
    assert!(late.degraded.is_some());
    assert_eq!(client.lookup(ask_key("p")).await.degraded, None);
}

#[tokio::test]
async fn peers_that_do_not_get_on_with_it_hold_up_nobody_and_not_for_long() {
    // First with more time than the test has, then with less.
    for (limit, for_long) in [(Duration::from_secs(600), true), (Duration::from_millis(100), false)] {
        let mut limits = TlsLimits::default();
        limits.handshake_timeout = limit;
        let secure = Secure::with(false, limits).await;
        let mut stalled = Vec::new();
        for n in 0..50 {
            let mut stream = TcpStream::connect(secure.server.grpc).await.expect("accepted");
            if n % 2 == 0 {
                stream.write_all(&[22, 3, 1, 2, 0, 1]).await.expect("sent"); // the beginning of a handshake
            }
            stalled.push(stream);
        }
        if for_long {
            let client = secure.hints(Some(secure.tls(None, None).await));
            let hint = in_time("answer while they stall", client.lookup(ask_key("p"))).await;
            assert_eq!(hint.degraded, None);
            assert_eq!(secure.server.metric(&handshakes("timeout")), 0.0);
        } else {
            for mut stream in stalled {
                let _ = in_time("end", stream.read_to_end(&mut Vec::new())).await; // hung up on
            }
            secure.until(&handshakes("timeout"), 50.0).await;
        }
    }
}

#[tokio::test]
async fn handshakes_at_a_time_are_bounded() {
    let mut limits = TlsLimits::default();
    limits.max_handshakes = 2;
    let secure = Secure::with(false, limits).await;
    let connect = async || TcpStream::connect(secure.server.grpc).await.expect("accepted");
    let stalled = [connect().await, connect().await, connect().await];
    secure.until(&handshakes("refused"), 1.0).await;
    drop(stalled);
    secure.until(&handshakes("gone"), 2.0).await;
    let hint = secure.hints(Some(secure.tls(None, None).await)).lookup(ask_key("p")).await;
    assert_eq!(hint.degraded, None);
}

#[tokio::test]
async fn a_stalled_handshake_does_not_keep_the_server_from_ending() {
    // Whoever would have to be waited for would be waited for longer than the test has.
    let mut limits = TlsLimits::default();
    limits.handshake_timeout = Duration::from_secs(600);
    let secure = Secure::with(false, limits).await;
    let stalled = TcpStream::connect(secure.server.grpc).await.expect("accepted");
    let client = secure.hints(Some(secure.tls(None, None).await));
    assert_eq!(client.lookup(ask_key("p")).await.degraded, None);
    in_time("end", secure.server.end()).await.expect("joined").expect("ended well");
    drop(stalled);
}

#[tokio::test]
async fn a_subscriber_reports_over_mutual_tls_and_follows_its_files() {
    let secure = Secure::with(true, TlsLimits::default()).await;
    // A certificate that the server does not take, until it is replaced.
    let own = Mount::new(&secure.authority, &Authority::new("stranger").issue("subscriber"));
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let config = Config {
        identity: Identity {
            replica_id: "r1".to_owned(),
            model_id: "m".to_owned(),
            tenant_id: "t".to_owned(),
            hash_scheme: "vllm".to_owned(),
        },
        engine_endpoint: engine.endpoint().to_owned(),
        server: secure.server.grpc.to_string(),
        window: Duration::from_millis(10),
        ..Config::default()
    };
    let tls = secure.tls(Some(&own), None).await;
    let subscriber = Subscriber::builder(config).tls(Some(tls)).build().expect("a usable configuration");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let subscribing = tokio::spawn(subscriber.run(async {
        let _ = stopped.await;
    }));
    eventually("a subscription", || engine.wait_for_subscriber(b"kv-events", Duration::ZERO)).await;
    let script = Script { block_size: 2, num_blocks: 3, ..Script::default() };
    engine.publish(b"kv-events", &script.check().expect("a good script").stored()).expect("published");
    let failed = handshakes("failed");
    eventually("a refused certificate", || secure.server.metric(&failed) > 0.0).await;
    assert_eq!(secure.server.index.storage_entries().0, 0);
    own.replace(&secure.authority.issue("subscriber"));
    eventually("three blocks", || secure.server.index.storage_entries().0 == 3).await;
    drop(stop);
    assert_eq!(subscribing.await.expect("joined"), Drained::Completely);
}
