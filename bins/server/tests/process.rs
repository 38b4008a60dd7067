//! The binary as a process: exit codes, what it says, and how it ends.

mod common;

use std::net::TcpListener;
use std::process::Output;

use common::*;
use inferencecache_wire::grpc::client::{ClientOptions, HintClient, channel};
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;

/// server:148-152
#[test]
fn access_must_be_decided() {
    let account = "--allowed-controller-sa=system:serviceaccount:ns:name";
    assert_refused(&[], 2, "missing --allowed-controller-sa");
    assert_refused(&["--log-format=text"], 2, "missing --allowed-controller-sa");
    assert_refused(&[account, "--insecure-disable-auth"], 2, "mutually exclusive");
    let padded = "--allowed-controller-sa has leading/trailing whitespace";
    assert_refused(&["--allowed-controller-sa=system:serviceaccount:ns:name "], 2, padded);
    assert_refused(&["--allowed-controller-sa= "], 2, padded);
    for blank in ["", "\t\t", " "] {
        let audience = format!("--controller-audience={blank}");
        assert_refused(&[account, &audience], 2, "--controller-audience cannot be empty");
        let audience = format!("--policy-audience={blank}");
        assert_refused(&[account, &audience], 2, "--policy-audience cannot be empty");
    }
    assert_refused(&[account, "--policy-audience=inferencecache.io/policy "], 2, "leading/trailing whitespace");
    assert_refused(&[account, "--controller-audience", " x"], 2, "leading/trailing whitespace");
}

/// server:154 server:154a
#[test]
fn values_that_make_no_sense_are_refused() {
    let open = "--insecure-disable-auth";
    assert_refused(&[open, "--log-format", "yaml"], 2, "json or text");
    assert_refused(&[open, "--log-level", "trace"], 2, "debug, info, warn or error");
    for size in ["0", "-1", "4294967296"] {
        assert_refused(&[open, &format!("--engine-block-size={size}")], 2, "--engine-block-size");
    }
    assert_refused(&[open, "--engine-block-size=many"], 2, "--engine-block-size");
    assert_refused(&[open, "--grpc-bind-adress=:1"], 2, "did you mean --grpc-bind-address?");
    assert_refused(&[open, "--lame-duck=3"], 2, "--lame-duck");
    for flag in ["--grpc-bind-address", "--http-bind-address", "--snapshot-bind-address"] {
        for address in ["", "x", "9090", ":http", ":65536", "::1:9090"] {
            assert_refused(
                &[open, flag, address],
                2,
                &format!("{flag}: cannot listen on {address:?}: write host:port"),
            );
        }
    }
    assert_refused(&[open, "--index-sweep-interval=0"], 2, "--index-sweep-interval");
    assert_refused(&[open, "--index-max-entries=-1"], 2, "--index-max-entries");
    assert_refused(&[open, "--grpc-max-message-bytes=0"], 2, "--grpc-max-message-bytes");
    for endpoint in ["garbage", "redis:http", "rediss://cache", "unix:///run/redis.sock"] {
        assert_refused(&[open, &format!("--probe-t2-endpoint={endpoint}")], 2, "--probe-t2-endpoint");
    }
    let (code, text) = refused(&[open, "--probe-t2-endpoint=redis://:hunter2@cache"]);
    assert!(code == 2 && text.contains("belongs into a file") && !text.contains("hunter2"), "{text}");
    assert_refused(&[open, "--probe-t2-password-file=/secret"], 2, "needs --probe-t2-endpoint");
    assert_refused(&[open, "stray"], 2, "unexpected argument");
}

#[test]
fn help_names_every_flag() {
    let Output { status, stdout, .. } = command(&["--help"]).output().expect("the binary starts");
    let help = String::from_utf8(stdout).expect("UTF-8");
    assert_eq!(status.code(), Some(0));
    for flag in [
        "grpc-bind-address",
        "http-bind-address",
        "snapshot-bind-address",
        "allowed-controller-sa",
        "insecure-disable-auth",
        "controller-audience",
        "policy-audience",
        "tls-cert-file",
        "tls-key-file",
        "mtls-client-ca-file",
        "tokenizer-models-dir",
        "engine-block-size",
        "probe-t2-endpoint",
        "probe-t2-password-file",
        "index-snapshot-file",
        "index-snapshot-interval",
        "log-format",
        "log-level",
        "lame-duck",
    ] {
        assert!(help.contains(&format!("--{flag}")), "{flag} is missing");
    }
}

/// server:153 server:158 server:161 server:163
#[test]
fn it_serves_until_it_is_told_to_end() {
    for signal in ["-TERM", "-INT"] {
        let server = Running::start(&["--controller-audience=", "--policy-audience="]);
        let metrics = server.get("/metrics").expect("served");
        assert!(metrics.contains("\ninferencecache_server_up 1\n"));
        assert!(metrics.contains("\ninferencecache_server_grpc_tls_enabled 0\n"));
        assert!(metrics.contains("\ninferencecache_build_info{commit=\"unknown\",version=\"dev\"} 1\n"));
        let startup = server.lines.lock().expect("unpoisoned").iter().find(|line| message(line) == "startup").cloned();
        let startup: serde_json::Value = serde_json::from_str(&startup.expect("logged")).expect("JSON");
        assert_eq!((&startup["level"], &startup["grpc_tls"]), (&"INFO".into(), &false.into()));
        assert_eq!((&startup["version"], &startup["commit"]), (&"dev".into(), &"unknown".into()));
        for listener in ["grpc_addr", "http_addr", "snapshot_addr"] {
            assert_eq!(startup[listener], "127.0.0.1:0", "as configured");
        }
        let listening = server.said("listening");
        assert_eq!(
            (&listening["grpc_addr"], &listening["http_addr"]),
            (&server.grpc.clone().into(), &server.http.clone().into())
        );
        server.signal(signal);
        let (status, said) = server.ended();
        assert_eq!(status.code(), Some(0));
        assert_eq!(
            said,
            ["controller_auth_disabled", "startup", "listening", "graceful_shutdown_started", "graceful_shutdown_done"]
        );
    }
}

/// server:162
#[test]
fn an_open_report_does_not_hold_it_back() {
    let server = Running::start(&[]);
    let runtime = runtime();
    let _guard = runtime.enter();
    let mut client = InferenceCacheClient::new(channel(&server.grpc, &ClientOptions::default()).expect("an address"));
    let call = runtime.spawn(async move { client.report_cache_state(tokio_stream::pending()).await.map(|_| ()) });
    // The call is open once another one on the same server was answered after it.
    let hints = HintClient::new(&server.grpc, &ClientOptions { call_timeout: PATIENCE, ..Default::default() });
    runtime.block_on(async { hints.expect("an address").lookup(pb::LookupRouteRequest::default()).await });
    let start = std::time::Instant::now();
    server.signal("-TERM");
    let (status, _) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "the published limit");
    assert!(runtime.block_on(call).expect("joined").is_err());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let server = Running::start(&["--lame-duck=10m"]);
    server.signal("-TERM");
    server.until("not ready", || server.get("/readyz").is_some_and(|answer| answer.contains(" 503 ")));
    server.signal("-TERM");
    let (status, said) = server.ended();
    assert_eq!(status.code(), Some(1));
    assert_eq!(said[2..], ["listening", "graceful_shutdown_started", "graceful_shutdown_interrupted"]);
}

/// server:160
#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("bound").to_string();
    for flag in ["grpc-bind-address", "http-bind-address", "snapshot-bind-address"] {
        let mut flags = vec!["--insecure-disable-auth".to_owned()];
        for other in ["grpc-bind-address", "http-bind-address", "snapshot-bind-address"] {
            flags.push(format!("--{other}={}", if other == flag { &taken } else { "127.0.0.1:0" }));
        }
        let (code, text) = refused(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, 1);
        let errors: Vec<_> = text.lines().filter(|line| message(line) == "serve_error").collect();
        assert_eq!(errors.len(), 1, "once: {text}");
        assert!(errors[0].contains(&taken) && errors[0].contains("\"level\":\"ERROR\""), "{text}");
    }
}

/// server:154
#[test]
fn log_options_are_forgiving() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = format!("--grpc-bind-address={}", taken.local_addr().expect("bound"));
    let (code, text) = refused(&["--insecure-disable-auth", "--log-format= Text ", "--log-level=WARNING", &taken]);
    assert_eq!(code, 1);
    let lines: Vec<_> = text.lines().filter(|line| !line.contains("open_files_limited")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("time=") && lines[0].contains(" level=WARN msg=controller_auth_disabled reason="));
    assert!(lines[1].contains(" level=ERROR msg=serve_error err=\""));
}

#[cfg(not(feature = "tokenizer"))]
#[test]
fn a_tokenizer_directory_is_not_silently_ignored() {
    let server = Running::start(&["--tokenizer-models-dir=/models"]);
    let warning = server.said("tokenizer_models_dir_ignored");
    assert_eq!((&warning["level"], &warning["tokenizer_models_dir"]), (&"WARN".into(), &"/models".into()));
    assert!(warning["reason"].is_string() && warning["effect"].is_string());
}

/// server:130 server:144
#[test]
fn a_probe_asks_the_store_that_is_named() {
    // Bound and not listening: whoever connects is refused for as long as it lives.
    let nobody = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    nobody.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let nobody = nobody.local_addr().ok().and_then(|address| address.as_socket()).expect("bound").to_string();
    for (store, results) in [
        (vec![], r#""t2":"skipped"}"#.to_owned()),
        (
            vec![format!("--probe-t2-endpoint={nobody}")],
            r#""t2":"failed","errors":[{"stage":"t2","message":"put failed: connection refused"}]}"#.to_owned(),
        ),
    ] {
        let server = Running::start(&store.iter().map(String::as_str).collect::<Vec<_>>());
        let body = r#"{"backend":"cb-1","model":"m","hashScheme":"vllm"}"#;
        let answer = ask(&server.bridge, "POST", "/probe", body).expect("the bridge is open");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(&format!(r#"{{"backend":"cb-1","ingest":"ok","routing":"ok",{results}"#)), "{answer}");
    }
}

#[cfg(feature = "tokenizer")]
#[test]
fn a_tokenizer_directory_that_cannot_be_read_is_no_reason_not_to_start() {
    let server = Running::start(&["--tokenizer-models-dir=/no/such/models"]);
    let warning = server.said("tokenizer_models_dir_unreadable");
    assert_eq!((&warning["level"], &warning["tokenizer_models_dir"]), (&"WARN".into(), &"/no/such/models".into()));
    assert!(server.get("/metrics").is_some_and(|text| text.contains("\ninferencecache_tokenizer_models 0\n")));
}

/// fingerprint:43 fingerprint:46. The encoder of one model has no token for `b`, at which its library panics.
#[cfg(feature = "tokenizer")]
#[test]
fn prompts_are_tokenised_with_the_models_of_a_directory() {
    let root = tempfile::tempdir().expect("a directory");
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(path, text).expect("written");
    };
    write("org/good/v.tiktoken", "YQ== 7\n");
    write("org/good/chat_template.jinja", "{{ messages[0].content }}");
    write("broken/tokenizer.json", "{}");
    let server = Running::start(&["--tokenizer-models-dir", root.path().to_str().expect("UTF-8")]);
    let summary = server.said("tokenizer_models_loaded");
    assert_eq!((&summary["found"], &summary["loaded"], &summary["failed"]), (&2.into(), &1.into(), &1.into()));
    assert_eq!(server.said("tokenizer_model_loaded")["model"], "org/good");
    let failed = server.said("tokenizer_model_failed");
    assert_eq!((&failed["level"], &failed["model"]), (&"WARN".into(), &"broken".into()));
    runtime().block_on(async {
        let options = ClientOptions { call_timeout: PATIENCE, ..ClientOptions::default() };
        let client = HintClient::new(&server.grpc, &options).expect("an address");
        for (prompt, echo) in [("aaa", vec![7; 3]), ("secret", vec![]), ("aa", vec![7; 2])] {
            let request = pb::LookupRouteRequest {
                model_id: "org/good".to_owned(),
                prompt_text: prompt.to_owned(),
                ..Default::default()
            };
            let hint = client.lookup(request).await;
            assert_eq!((hint.response.reason_code.as_str(), hint.degraded), ("NO_HINT", None));
            assert_eq!(hint.response.token_ids, echo, "{prompt}");
        }
    });
    let text = server.get("/metrics").expect("an answer");
    for line in [
        "inferencecache_tokenizer_models 1",
        "inferencecache_lookup_input_refused_total{cause=\"encode_error\"} 1",
        "inferencecache_lookup_input_refused_total{cause=\"sub_block\"} 2",
        "inferencecache_tokenize_slots_in_use 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} is not in {text}");
    }
    // A panic is said like anything else, and without its message, which may quote a prompt.
    let panicked = server.said("panic");
    assert_eq!(panicked["level"], "ERROR");
    assert!(panicked["location"].as_str().is_some_and(|location| location.contains("tiktoken")), "{panicked}");
    server.signal("-TERM");
    let (status, _) = server.ended();
    assert!(status.success());
}

/// server:161. A vocabulary that takes seconds to load does not hold up the end.
#[cfg(feature = "tokenizer")]
#[test]
fn a_signal_ends_it_while_it_starts() {
    use std::fmt::Write as _;
    use std::io::{BufRead as _, BufReader};
    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("large")).expect("created");
    let mut vocabulary = String::new();
    for rank in 0..1_000_000_usize {
        let digits = [18, 12, 6, 0].map(|bits| char::from(BASE64[(rank >> bits) & 63])); // three bytes, others each time
        let _ = writeln!(vocabulary, "{} {rank}", String::from_iter(digits));
    }
    std::fs::write(root.path().join("large/v.tiktoken"), vocabulary).expect("written");
    let flags = ["--insecure-disable-auth", "--tokenizer-models-dir", root.path().to_str().expect("UTF-8")];
    let mut child = command(&flags).spawn().expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().map(|line| message(&line)).as_deref(), Some("controller_auth_disabled"));
    let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let said: Vec<_> = lines.map(|line| message(&line)).collect();
    assert_eq!(said, ["graceful_shutdown_started", "graceful_shutdown_done"]);
    assert_eq!(child.wait().expect("a child of ours").code(), Some(0));
}

/// server:83. Every way a lookup can end, on an index that holds something, with prompts and keys that must not be seen.
#[test]
fn lookups_are_never_logged() {
    let server = Running::start(&["--log-level=debug"]);
    let policy = concat!(
        r#"{"version":7,"policies":[{"namespace":"strict","minimumMatchedTokens":1,"strategy":{"requireChain":true}},"#,
        r#"{"namespace":"late","minimumMatchedTokens":1,"lookupTimeoutMs":1}]}"#
    );
    assert!(ask(&server.bridge, "POST", "/policy", policy).is_some_and(|answer| answer.contains(" 204 ")));
    let stats = Some(pb::ReplicaStats { hit_rate: 0.9, ..Default::default() });
    let update = |tenant: &str, key: &str, stats| pb::CacheStateUpdate {
        replica_id: format!("{tenant}-replica"),
        tenant_id: tenant.to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        prefixes: vec![pb::PrefixEntry {
            prefix_hash: key.as_bytes().to_vec(),
            token_count: 128,
            ..Default::default()
        }],
        stats,
        ..Default::default()
    };
    let lookup = |tenant: &str| pb::LookupRouteRequest {
        tenant_id: tenant.to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        ..Default::default()
    };
    let with_key = |key: &str| pb::LookupRouteRequest { prefix_hash: key.as_bytes().to_vec(), ..lookup("t") };
    let runtime = runtime();
    runtime.block_on(async {
        let channel = channel(&server.grpc, &ClientOptions { call_timeout: PATIENCE, ..Default::default() });
        let mut client = InferenceCacheClient::new(channel.expect("an address"));
        let updates = [update("t", "secret-key", None), update("warm", "other", stats)];
        client.report_cache_state(tokio_stream::iter(updates)).await.expect("an Ack");
        let text = pb::LookupRouteRequest { prompt_text: "a secret".to_owned(), ..lookup("t") };
        for (request, reason) in [
            (with_key("secret-key"), "PREFIX_MATCH"),
            (with_key("secret-novel"), "AFFINITY_HINT"),
            (pb::LookupRouteRequest { prefix_hash: b"secret".to_vec(), ..lookup("warm") }, "TENANT_HOT"),
            (text, "NO_HINT"),
            (pb::LookupRouteRequest { tenant_id: "secret".to_owned(), ..with_key("secret") }, "UNKNOWN_TENANT"),
            (pb::LookupRouteRequest { model_id: "secret".to_owned(), ..with_key("secret") }, "UNKNOWN_MODEL"),
            (pb::LookupRouteRequest { hash_scheme: "secret".to_owned(), ..with_key("x") }, "UNKNOWN_HASH_SCHEME"),
            (lookup("strict"), "POLICY_REQUIRES_CHAIN"),
            (pb::LookupRouteRequest { prefix_hash: vec![b's'; 65], ..lookup("t") }, "NO_HINT"),
            (pb::LookupRouteRequest { token_ids: (0..40).collect(), ..lookup("t") }, "AFFINITY_HINT"),
        ] {
            let response = client.lookup_route(request).await.expect("status OK").into_inner();
            assert_eq!(response.reason_code, reason);
        }
        let mut expired = tonic::Request::new(with_key("secret-key"));
        expired.metadata_mut().insert("grpc-timeout", "1n".parse().expect("ASCII"));
        let response = client.lookup_route(expired).await.expect("status OK").into_inner();
        assert_eq!(response.reason_code, "TIMEOUT");
        let mut odd = tonic::Request::new(with_key("secret-key"));
        odd.metadata_mut().insert("grpc-timeout", "soon".parse().expect("ASCII"));
        assert_eq!(client.lookup_route(odd).await.expect_err("refused").code(), tonic::Code::Internal);
        let large = pb::LookupRouteRequest { token_ids: vec![u32::MAX; 1_000_000], ..lookup("t") };
        assert_eq!(client.lookup_route(large).await.expect_err("refused").code(), tonic::Code::ResourceExhausted);
    });
    server.signal("-TERM");
    let (_, said) = server.ended();
    assert_eq!(
        said,
        [
            "controller_auth_disabled",
            "startup",
            "listening",
            "policy_changed",
            "graceful_shutdown_started",
            "graceful_shutdown_done"
        ]
    );
}
