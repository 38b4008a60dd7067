//! Requests that carry text, over a real connection: with models from a directory, and with a tokenizer that counts.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::doubles::Scripted;
use crate::models::{BOS, Dir, GO, HELLO, WORLD};
use crate::server::*;
use inferencecache_core::fingerprint;
use inferencecache_core::tokenizer::Tokenizer;
use inferencecache_wire::pb;

const SLOTS: &str = "inferencecache_tokenize_slots_in_use";
const ENCODES: &str = "inferencecache_tokenize_seconds_count";

fn text(model: &str, text: &str) -> pb::LookupRouteRequest {
    pb::LookupRouteRequest { model_id: model.to_owned(), prompt_text: text.to_owned(), ..ask() }
}

fn refused(server: &Running, cause: &str) -> f64 {
    server.metric(&format!("inferencecache_lookup_input_refused_total{{cause=\"{cause}\"}}"))
}

async fn with(tokenizer: Arc<dyn Tokenizer>, block_size: u32) -> (Running, Client) {
    let mut setup = Setup::new();
    setup.router.tokenizer = Some(tokenizer);
    setup.router.block_size = NonZeroU32::new(block_size).expect("above 0");
    let server = setup.start().await;
    let client = server.client().await;
    (server, client)
}

#[track_caller]
fn assert_equal(have: f64, want: f64) {
    assert!((have - want).abs() < f64::EPSILON, "{have}, not {want}");
}

/// server:68-70 fingerprint:17 fingerprint:41 fingerprint:45
#[tokio::test(flavor = "multi_thread")]
async fn text_meets_what_the_engine_holds() {
    let models = Arc::new(Dir::new().chat("org/m").toy("base").load());
    let (server, mut client) = with(models, 2).await;
    let prompt = [BOS, HELLO, WORLD, GO];
    let (mut keys, mut block_token_counts) = (Vec::new(), Vec::new());
    fingerprint::chain(&prompt, NonZeroU32::new(2).expect("above 0"), &mut keys, &mut block_token_counts);
    let held = pb::PrefixEntry {
        block_hashes: keys.iter().map(|key| key.to_vec()).collect(),
        block_token_counts,
        ..Default::default()
    };
    client.report(vec![pb::CacheStateUpdate { model_id: "org/m".to_owned(), ..report("r1", vec![held]) }]).await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":0}]}"#);

    let hit = client.lookup(text("org/m", "hello world")).await;
    assert_eq!((hit.reason_code.as_str(), hit.replica_scores[0].matched_tokens), ("PREFIX_MATCH", 4));
    assert_eq!(hit.token_ids, prompt);
    let novel = client.lookup(text("org/m", "world world")).await;
    assert_eq!((novel.reason_code.as_str(), &*novel.token_ids), ("AFFINITY_HINT", &[BOS, WORLD, WORLD, GO][..]));
    assert_equal(server.metric(ENCODES), 2.0);

    // The hint and the echo are as good as the caller's own tokens.
    let again = client.lookup(pb::LookupRouteRequest { token_ids: hit.token_ids, ..text("org/m", "") }).await;
    assert_eq!((again.reason_code.as_str(), again.token_ids.len()), ("PREFIX_MATCH", 0));

    for (model, cause) in [
        ("m", "unknown_model"),
        ("../org/m", "unsafe_model_id"),
        ("", "unsafe_model_id"),
        ("base", "encode_error"), // there is no template
    ] {
        let before = refused(&server, cause);
        let response = client.lookup(text(model, "hello world")).await;
        assert_eq!((response.reason_code.as_str(), response.token_ids.len()), ("NO_HINT", 0), "{model:?}");
        assert_equal(refused(&server, cause), before + 1.0);
    }
}

/// server:70 fingerprint:36
#[tokio::test]
async fn without_a_tokenizer_the_cause_is_named() {
    let server = Setup::new().start().await;
    let response = server.client().await.lookup(text("m", "hello")).await;
    assert_eq!((response.reason_code.as_str(), response.token_ids.len()), ("NO_HINT", 0));
    assert_equal(refused(&server, "disabled"), 1.0);
}

/// Lets everybody pass once it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn pass(&self) {
        drop(self.1.wait_while(self.0.lock().expect("unpoisoned"), |open| !*open).expect("unpoisoned"));
    }

    fn open(&self) {
        *self.0.lock().expect("unpoisoned") = true;
        self.1.notify_all();
    }
}

/// server:62 server:75 fingerprint:27-28: abandoned encodes keep their slots, and the one too many never reaches the encoder.
#[tokio::test(flavor = "multi_thread")]
async fn slots_are_held_until_the_encoder_returns() {
    let (gate, called) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let (closed, calls) = (gate.clone(), called.clone());
    let (server, client) = with(
        Scripted::tokenizer(move |_, _| {
            calls.fetch_add(1, Ordering::SeqCst);
            closed.pass();
            Ok((1..=16).collect())
        }),
        16,
    )
    .await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":20}]}"#);
    let abandoned: Vec<_> = (0..64)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.lookup(text("m", "hello")).await })
        })
        .collect();
    for call in abandoned {
        let response = call.await.expect("it ends");
        assert_eq!((response.reason_code.as_str(), response.token_ids.len()), ("TIMEOUT", 0));
    }
    assert_equal(server.metric(SLOTS), 64.0);

    server.policy(r#"{"version":7}"#);
    let mut client = client;
    // At once: whoever waited for a slot would time out.
    assert_eq!(client.lookup(text("m", "hello")).await.reason_code, "NO_HINT");
    assert_equal(refused(&server, "saturated"), 1.0);
    gate.open();
    until("free slots", || server.metric(SLOTS) == 0.0).await;
    assert_eq!(called.load(Ordering::SeqCst), 64);
    assert_equal(server.metric(ENCODES), 64.0);
    assert_eq!(client.lookup(text("m", "hello")).await.token_ids.len(), 16);
}

/// Long texts need much memory while they are encoded, so that there are fewer slots for them.
#[tokio::test(flavor = "multi_thread")]
async fn the_text_of_all_slots_together_is_bounded() {
    let gate = Arc::new(Gate::default());
    let closed = gate.clone();
    let (server, mut client) = with(
        Scripted::tokenizer(move |_, _| {
            closed.pass();
            Ok(vec![1; 16])
        }),
        16,
    )
    .await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":200}]}"#);
    let longest = "x".repeat(1 << 20);
    for taken in 1..=4 {
        assert_eq!(client.lookup(text("m", &longest)).await.reason_code, "TIMEOUT");
        assert_equal(server.metric(SLOTS), f64::from(taken));
    }
    assert_eq!(client.lookup(text("m", "short")).await.reason_code, "NO_HINT");
    assert_equal(refused(&server, "saturated"), 1.0);
    gate.open();
    until("free slots", || server.metric(SLOTS) == 0.0).await;
    assert_eq!(client.lookup(text("m", "short")).await.token_ids.len(), 16);
}

/// server:72-74 fingerprint:25-26
#[tokio::test]
async fn sizes_are_checked_on_both_sides_of_the_encoder() {
    let called = Arc::new(AtomicUsize::new(0));
    let calls = called.clone();
    let (server, mut client) = with(
        Scripted::tokenizer(move |_, text| {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok(vec![7; text.parse().unwrap_or(1_048_576)])
        }),
        16,
    )
    .await;
    assert_eq!(client.lookup(text("m", &"x".repeat(1_048_577))).await.reason_code, "NO_HINT");
    assert_eq!(called.load(Ordering::SeqCst), 0);
    assert_equal(refused(&server, "oversized_text"), 1.0);
    assert_eq!(client.lookup(text("m", "1048577")).await.token_ids.len(), 0);
    assert_equal(refused(&server, "oversized_tokens"), 1.0);
    assert_eq!(client.lookup(text("m", "15")).await.token_ids, [7; 15]);
    assert_equal(refused(&server, "sub_block"), 1.0);
    assert_eq!(called.load(Ordering::SeqCst), 2);
    // The largest on both sides; each id is one byte on the wire.
    assert_eq!(client.lookup(text("m", &"x".repeat(1_048_576))).await.token_ids.len(), 1_048_576);
}
