//! Who may use the bridge, as a real API server sees it: tokens from its TokenRequest API, reviews by its TokenReview API.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use inferencecache_kube::testkit::cluster::{ControlPlane, free_ports};
use inferencecache_wire::http::access::{Denied, Guard as _};
use inferencecache_wire::http::auth::{Audiences, BearerGuard};
use inferencecache_wire::http::review::{ApiServer, HttpTokenReviewer};
use inferencecache_wire::metrics::AuthPath;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, DeleteParams};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::accounts::{CONTROLLER, SERVER, SYSTEM, apply, config_of, install, token};
use crate::stage::stage;

const READ: &str = "inferencecache.io/controller";
const WRITE: &str = "inferencecache.io/policy";

/// The server's guard, asking at `url` with that token of its own.
async fn guard(plane: &ControlPlane, url: &str, own: &str) -> (BearerGuard, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, own).expect("written");
    let ca_file = plane.folder().join("ca.crt");
    let api = ApiServer { url: url.to_owned(), ca_file, token_file };
    let reviewer = HttpTokenReviewer::new(api).await.expect("a reviewer");
    let audiences = Audiences { controller: READ.to_owned(), policy: WRITE.to_owned() };
    let account = format!("system:serviceaccount:{SYSTEM}:{CONTROLLER}");
    (BearerGuard::new(Arc::new(reviewer), account, audiences), folder)
}

/// What the guard says to a token on `/snapshot`, `/policy` and `/probe`.
async fn asked(guard: &BearerGuard, token: &str) -> [Result<(), Denied>; 3] {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {token}")).expect("a header"));
    let mut answers = [Ok(()); 3];
    for (answer, path) in answers.iter_mut().zip([AuthPath::Snapshot, AuthPath::Policy, AuthPath::Probe]) {
        *answer = guard.admit(path, &headers, None).await;
    }
    answers
}

const UNKNOWN: Result<(), Denied> = Err(Denied::Unauthorized);
const SOMEBODY_ELSE: Result<(), Denied> = Err(Denied::Forbidden);
const NOBODY_ASKED: Result<(), Denied> = Err(Denied::Unavailable);

async fn set() -> Option<(&'static ControlPlane, Client)> {
    let plane = stage()?;
    let client = plane.client().await.expect("a client");
    install(&client).await;
    Some((plane, client))
}

/// server:120 server:121 server:125 server:126
#[tokio::test]
async fn a_token_opens_what_it_is_meant_for_and_no_more() {
    let Some((plane, client)) = set().await else { return };
    let other =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other", "namespace": SYSTEM}});
    apply(&client, &[other]).await;
    let own = token(&client, SYSTEM, SERVER, &[]).await;
    let (guard, _folder) = guard(plane, plane.url(), &own).await;
    for (what, account, audiences, answers) in [
        ("for reading", CONTROLLER, &[READ][..], [Ok(()), UNKNOWN, Ok(())]),
        ("for writing", CONTROLLER, &[WRITE][..], [UNKNOWN, Ok(()), UNKNOWN]),
        ("for the API server", CONTROLLER, &[][..], [UNKNOWN; 3]),
        ("for somebody else's server", CONTROLLER, &["vault"][..], [UNKNOWN; 3]),
        ("of another account", "other", &[READ][..], [SOMEBODY_ELSE, UNKNOWN, SOMEBODY_ELSE]),
    ] {
        let token = token(&client, SYSTEM, account, audiences).await;
        assert_eq!(asked(&guard, &token).await, answers, "a token {what}");
    }
    assert_eq!(asked(&guard, "not-a-token").await, [UNKNOWN; 3]);
}

/// A token with other times, signed by the API server's own key.
fn with_times(plane: &ControlPlane, token: &str, move_by: i64) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let claims = URL_SAFE_NO_PAD.decode(parts[1]).expect("base64");
    let mut claims: Value = serde_json::from_slice(&claims).expect("claims");
    for name in ["exp", "iat", "nbf"] {
        claims[name] = json!(claims[name].as_i64().expect("a time") + move_by);
    }
    let signed = format!("{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()));
    let key = std::fs::read_to_string(plane.folder().join("sa.key")).expect("the key");
    let der = KeyPair::from_pem(&key).expect("a key").sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(fixed(&der)))
}

/// A signature as tokens have it: both numbers with 32 bytes each, from a sequence of two integers.
fn fixed(der: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 2;
    for _ in 0..2 {
        let length = usize::from(der[at + 1]);
        let number = &der[at + 2..at + 2 + length];
        let number = &number[number.len().saturating_sub(32)..];
        out.extend(std::iter::repeat_n(0, 32 - number.len()));
        out.extend_from_slice(number);
        at += 2 + length;
    }
    out
}

#[tokio::test]
async fn a_token_that_has_expired_or_whose_account_is_gone_opens_nothing() {
    let Some((plane, client)) = set().await else { return };
    let own = token(&client, SYSTEM, SERVER, &[]).await;
    let (guard, _folder) = guard(plane, plane.url(), &own).await;
    let good = token(&client, SYSTEM, CONTROLLER, &[READ]).await;
    assert_eq!(asked(&guard, &with_times(plane, &good, 0)).await[0], Ok(()), "signed as the API server does");
    assert_eq!(asked(&guard, &with_times(plane, &good, -7200)).await, [UNKNOWN; 3], "an hour too late");
    assert_eq!(asked(&guard, &with_times(plane, &good, 7200)).await, [UNKNOWN; 3], "not valid yet");

    let brief =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "brief", "namespace": SYSTEM}});
    apply(&client, &[brief]).await;
    let left = token(&client, SYSTEM, "brief", &[READ]).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client, SYSTEM);
    accounts.delete("brief", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(asked(&guard, &left).await, [UNKNOWN; 3], "its account is gone");
}

#[tokio::test]
async fn a_review_that_cannot_be_had_is_nobodys_fault() {
    let Some((plane, client)) = set().await else { return };
    let good = token(&client, SYSTEM, CONTROLLER, &[READ]).await;
    let [nobody] = free_ports().expect("a port");
    let own = token(&client, SYSTEM, SERVER, &[]).await;
    let (down, _folder) = guard(plane, &format!("https://127.0.0.1:{nobody}"), &own).await;
    assert_eq!(asked(&down, &good).await[0], NOBODY_ASKED, "the API server is down");
    let powerless =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "powerless", "namespace": SYSTEM}});
    apply(&client, &[powerless]).await;
    let without_rights = token(&client, SYSTEM, "powerless", &[]).await;
    let (powerless, _folder) = guard(plane, plane.url(), &without_rights).await;
    assert_eq!(asked(&powerless, &good).await[0], NOBODY_ASKED, "the server has lost its rights");
    let (unknown, _folder) = guard(plane, plane.url(), "stale").await;
    assert_eq!(asked(&unknown, &good).await[0], NOBODY_ASKED, "the server's own token is stale");
}

/// server:126a
#[tokio::test]
async fn a_token_for_the_bridge_is_nothing_to_the_api_server() {
    let Some((plane, client)) = set().await else { return };
    for (audiences, code) in [(&[READ][..], Some(401)), (&[WRITE][..], Some(401)), (&[][..], None)] {
        let token = token(&client, SYSTEM, CONTROLLER, audiences).await;
        let shown = Client::try_from(config_of(plane, &token).await).expect("a client");
        let refused = match shown.apiserver_version().await {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => Some(status.code),
            Err(why) => panic!("{why}"),
        };
        assert_eq!(refused, code, "{audiences:?}");
    }
}
