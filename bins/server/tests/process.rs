//! The binary as a process: exit codes, what it says, and how it ends.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::time::{Duration, Instant};

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
    assert_refused(&[open, "--index-sweep-interval=0"], 2, "--index-sweep-interval");
    assert_refused(&[open, "--index-max-entries=-1"], 2, "--index-max-entries");
    assert_refused(&[open, "--grpc-max-message-bytes=0"], 2, "--grpc-max-message-bytes");
    for endpoint in ["redis:http", "rediss://cache", "unix:///run/redis.sock"] {
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
        assert_eq!(startup["grpc_addr"], server.grpc);
        assert_eq!(startup["http_addr"], server.http);
        assert!(startup["snapshot_addr"].is_string());
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
    let start = Instant::now();
    server.signal("-TERM");
    let (status, _) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10));
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
    let flags = ["--insecure-disable-auth", "--log-format= Text ", "--log-level=WARNING", "--grpc-bind-address=x"];
    let (code, text) = refused(&flags);
    assert_eq!(code, 1);
    let lines: Vec<_> = text.lines().collect();
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
    let nobody = format!("127.0.0.1:{}", free_port());
    for (store, results) in [
        (vec![], r#""t2":"skipped"}"#.to_owned()),
        (
            vec![format!("--probe-t2-endpoint={nobody}")],
            r#""t2":"failed","errors":[{"stage":"t2","message":"put failed: connection refused"}]}"#.to_owned(),
        ),
    ] {
        let bridge = format!("127.0.0.1:{}", free_port());
        let mut flags = vec![format!("--snapshot-bind-address={bridge}")];
        flags.extend(store);
        let _server = Running::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let body = r#"{"backend":"cb-1","model":"m","hashScheme":"vllm"}"#;
        let mut stream = TcpStream::connect(&bridge).expect("the bridge is open");
        let length = body.len();
        let head = "POST /probe HTTP/1.1\r\nHost: test\r\nConnection: close";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
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

/// server:83
#[test]
fn lookups_are_never_logged() {
    let server = Running::start(&["--log-level=debug"]);
    let runtime = runtime();
    runtime.block_on(async {
        let options = ClientOptions { call_timeout: PATIENCE, ..ClientOptions::default() };
        let client = HintClient::new(&server.grpc, &options).expect("an address");
        for model in ["m", "", "x"] {
            let request = pb::LookupRouteRequest {
                model_id: model.to_owned(),
                tenant_id: "t".to_owned(),
                hash_scheme: "vllm".to_owned(),
                prompt_text: "a secret".to_owned(),
                ..Default::default()
            };
            let hint = client.lookup(request).await;
            assert_eq!((hint.response.reason_code.as_str(), hint.degraded), ("NO_HINT", None));
        }
    });
    server.signal("-TERM");
    let (_, said) = server.ended();
    assert_eq!(
        said,
        ["controller_auth_disabled", "startup", "listening", "graceful_shutdown_started", "graceful_shutdown_done"]
    );
}
