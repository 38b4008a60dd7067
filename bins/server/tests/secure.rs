//! The binary with TLS and with access control: what is refused in which order, and what the log says.

mod common;

#[path = "../../../inferencecache-wire/tests/common/certs.rs"]
mod certs;

use std::path::Path;

use certs::{Authority, Mount};
use common::*;
use inferencecache_wire::grpc::client::{ClientOptions, HintClient};
use inferencecache_wire::http::review::SERVICE_ACCOUNT_DIR;
use inferencecache_wire::pb;
use inferencecache_wire::tls::{ALPN_H2, ClientFiles, ClientTls};
use serde_json::Value;

const OPEN: &str = "--insecure-disable-auth";
const ACCOUNT: &str = "--allowed-controller-sa=system:serviceaccount:ns:name";

/// A flag with a path in it.
fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn pair(mount: &Mount) -> [String; 2] {
    [flag("tls-cert-file", &mount.cert()), flag("tls-key-file", &mount.key())]
}

/// The only event that a process logged at ERROR before it ended with 1.
fn fatal(flags: &[&str]) -> Value {
    let (code, text) = refused(flags);
    assert_eq!(code, 1, "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let errors: Vec<_> = lines.into_iter().filter(|line| line["level"] == "ERROR").collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].clone()
}

/// server:155
#[test]
fn half_a_pair_is_refused_before_anything_else_is_tried() {
    for access in [OPEN, ACCOUNT] {
        assert_refused(&[access, "--tls-cert-file=/nowhere"], 2, "--tls-key-file");
        assert_refused(&[access, "--tls-key-file=/nowhere"], 2, "--tls-cert-file");
        assert_refused(&[access, "--mtls-client-ca-file=/nowhere"], 2, "--mtls-client-ca-file needs --tls-cert-file");
        let half = [access, "--mtls-client-ca-file=/nowhere", "--tls-key-file=/nowhere"];
        assert_refused(&half, 2, "--tls-cert-file");
    }
}

/// server:156
#[test]
fn a_pair_that_cannot_be_used_is_named() {
    let authority = Authority::new("ours");
    let mount = Mount::new(&authority, &authority.issue("localhost"));
    let event = fatal(&[OPEN, "--tls-cert-file=/nowhere/a", "--tls-key-file=/nowhere/b"]);
    assert_eq!(event["msg"], "grpc_tls_load");
    assert!(event["err"].as_str().is_some_and(|err| err.contains("cannot read /nowhere/a: No such file")), "{event}");

    mount.put("tls.key", &authority.issue("localhost").key);
    let [cert, key] = pair(&mount);
    let event = fatal(&[OPEN, &cert, &key]);
    assert_eq!(event["msg"], "grpc_tls_load");
    assert!(event["err"].as_str().is_some_and(|err| err.contains("do not belong together")), "{event}");

    mount.replace(&authority.issue("localhost"));
    let event = fatal(&[OPEN, &cert, &key, "--mtls-client-ca-file=/nowhere/ca"]);
    assert!(event["err"].as_str().is_some_and(|err| err.contains("/nowhere/ca")), "{event}");
}

/// A clock that is wrong must not keep a server from starting, so this one starts, and says what its clients will say.
#[test]
fn a_certificate_that_has_expired_is_told_at_the_start() {
    let authority = Authority::new("ours");
    let mount = Mount::new(&authority, &authority.issue_until("127.0.0.1", 2020));
    let [cert, key] = pair(&mount);
    let server = Running::start(&[&cert, &key]);
    let expired = server.said("grpc_tls_expired");
    assert_eq!((&expired["level"], &expired["not_after"]), (&"WARN".into(), &1_577_836_800.into()));
}

#[test]
fn access_control_needs_a_cluster() {
    let event = fatal(&[ACCOUNT]);
    assert_eq!(event["msg"], "in_cluster_config");
    assert!(event["err"].as_str().is_some_and(|err| err.contains("KUBERNETES_SERVICE_HOST")), "{event}");
    if Path::new(SERVICE_ACCOUNT_DIR).exists() {
        return; // this machine is a pod, and the rest would find an account
    }
    let environment = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let output = command(&[ACCOUNT]).envs(environment).output().expect("the binary starts");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("in_cluster_config") && text.contains(&format!("cannot read {SERVICE_ACCOUNT_DIR}/token")));
}

/// server:157 server:159
#[test]
fn it_serves_over_tls_and_says_when_the_files_change() {
    let authority = Authority::new("ours");
    let first = authority.issue("127.0.0.1");
    let mount = Mount::new(&authority, &first);
    let [cert, key] = pair(&mount);
    let server = Running::start(&[&cert, &key, &flag("mtls-client-ca-file", &mount.ca())]);
    assert_eq!(server.said("startup")["grpc_tls"], true);
    let gateway = Mount::new(&authority, &authority.issue("gateway"));
    let runtime = runtime();
    let ask = || {
        runtime.block_on(async {
            let files =
                ClientFiles { ca: mount.ca(), identity: Some((gateway.cert(), gateway.key())), server_name: None };
            let tls = ClientTls::load(files, &[ALPN_H2], |_| {}).await.expect("good files");
            let options = ClientOptions { call_timeout: PATIENCE, tls: Some(tls), ..ClientOptions::default() };
            let client = HintClient::new(&server.grpc, &options).expect("an address");
            client.lookup(pb::LookupRouteRequest::default()).await.degraded
        })
    };
    assert_eq!(ask(), None);
    let metrics = server.get("/metrics").expect("served");
    assert!(metrics.contains("\ninferencecache_server_grpc_tls_enabled 1\n"));

    mount.put("tls.crt", "corrupt");
    assert_eq!(ask(), None, "the old pair serves");
    let refused = server.said("grpc_tls_reload");
    assert_eq!((&refused["level"], refused["cert_file"].as_str()), (&"ERROR".into(), mount.cert().to_str()));
    assert!(refused["err"].as_str().is_some_and(|err| err.contains("holds no PEM certificate")), "{refused}");

    let next = authority.issue("127.0.0.1");
    mount.replace(&next);
    assert_eq!(ask(), None);
    let replaced = server.said("grpc_tls_reloaded");
    assert_eq!((&replaced["level"], replaced["serial"].as_str()), (&"INFO".into(), Some(next.serial.as_str())));
    mount.replace(&authority.issue_until("127.0.0.1", 2020));
    assert_eq!(ask(), None, "the last good one serves");
    server.until("expired", || {
        let lines = server.lines.lock().expect("unpoisoned");
        lines.iter().any(|line| message(line) == "grpc_tls_reload" && line.contains("it expired at 1577836800"))
    });
    server.signal("-TERM");
    let (status, said) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert_eq!(said.last().map(String::as_str), Some("graceful_shutdown_done"));
}
