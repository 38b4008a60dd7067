//! The check against an engine that is played here, and against a live one if there is one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inferencecache_wire::canary::{Canary, CanaryError, Completion, CounterError, Engine, EngineError, HITS, prompt};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a played engine answers to a request line, as status and body.
type Script = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// Plays an engine; gives its address, and what it was sent.
async fn play(script: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (sink, script): (_, Arc<Script>) = (heard.clone(), Arc::new(script));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (sink, script) = (sink.clone(), script.clone());
            tokio::spawn(async move { answer(stream, &sink, &*script).await });
        }
    });
    (format!("http://{address}"), heard)
}

async fn answer(mut stream: TcpStream, heard: &Mutex<Vec<String>>, script: &Script) {
    let mut request = Vec::new();
    let (line, length) = loop {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.lines().next().unwrap_or_default().to_owned(), body.len());
        }
    };
    let body = String::from_utf8_lossy(&request[request.len() - length..]).into_owned();
    heard.lock().expect("unpoisoned").push(format!("{line} {body}"));
    let (status, body) = script(&line);
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body.as_bytes()).await;
}

fn completion() -> String {
    r#"{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#
        .to_owned()
}

#[tokio::test]
async fn a_completion_carries_ids_and_brings_the_first_choice() {
    let (url, heard) = play(|_| (200, completion())).await;
    let engine = Engine::new(&format!("{url}//")).expect("an address");
    let mut ask = Completion { model: "m", prompt: &[1, 2, 3], max_tokens: 1, temperature: 0.0 };
    let got = engine.complete(&ask).await.expect("an answer");
    assert_eq!((&*got.text, &*got.finish_reason, got.prompt_tokens, got.completion_tokens), ("x", "length", 3, 1));
    ask.max_tokens = 0;
    engine.complete(&ask).await.expect("an answer");
    assert_eq!(
        *heard.lock().expect("unpoisoned"),
        [
            r#"POST /v1/completions HTTP/1.1 {"model":"m","prompt":[1,2,3],"max_tokens":1,"temperature":0.0,"stream":false}"#,
            r#"POST /v1/completions HTTP/1.1 {"model":"m","prompt":[1,2,3],"temperature":0.0,"stream":false}"#,
        ]
    );
}

#[tokio::test]
async fn what_is_no_completion_is_an_error() {
    let ask = Completion { model: "m", prompt: &[1], max_tokens: 1, temperature: 0.0 };
    let outcome = async |status: u16, body: &'static str| {
        let (url, _) = play(move |_| (status, body.to_owned())).await;
        Engine::new(&url).expect("an address").complete(&ask).await.expect_err("no completion").to_string()
    };
    assert_eq!(outcome(400, "bad model").await, "status 400: bad model");
    assert_eq!(outcome(200, "no json").await, "the answer is not a completion");
    assert_eq!(outcome(200, r#"{"choices":[]}"#).await, "the answer has no choices");
    assert_eq!(outcome(200, "{}").await, "the answer has no choices");

    let (url, _) = play(|_| (200, "x".repeat((1 << 20) + 1))).await;
    let error = Engine::new(&url).expect("an address").complete(&ask).await;
    assert!(matches!(error, Err(EngineError::TooLarge(_))), "{error:?}");
    for address in ["", "localhost:8000", "https://localhost", "http://", "ftp://x"] {
        assert!(matches!(Engine::new(address), Err(EngineError::Address)), "{address}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let engine = Engine::new(&format!("http://{}", nobody.local_addr().expect("bound"))).expect("an address");
    let error = engine.timeout(Duration::from_millis(20)).complete(&ask).await;
    assert!(matches!(error, Err(EngineError::Timeout(_))), "{error:?}");
}

#[tokio::test]
async fn the_second_send_must_raise_the_hits() {
    for reuses in [true, false] {
        let sent = Arc::new(Mutex::new(0));
        let (url, heard) = play(move |line| {
            let mut sent = sent.lock().expect("unpoisoned");
            if line.starts_with("POST") {
                *sent += 1;
                return (200, completion());
            }
            let hits = if reuses { 16 * (*sent - 1) } else { 0 };
            (200, format!("{HITS}{{a=\"1\"}} {hits}\nvllm:prefix_cache_queries_total {}\n", 32 * *sent))
        })
        .await;
        let report = Canary::new(Engine::new(&url).expect("an address")).run("m", &prompt(32, 16)).await;
        let report = report.expect("a result");
        assert_eq!(report.hit(), reuses);
        assert_eq!(report.queries, [32.0, 64.0]);
        let lines: Vec<_> = heard.lock().expect("unpoisoned").iter().map(|line| line[..4].to_owned()).collect();
        assert_eq!(lines, ["POST", "GET ", "POST", "GET "]);
    }
}

#[tokio::test]
async fn a_counter_that_is_not_there_is_an_error() {
    let (url, _) =
        play(|line| (200, if line.starts_with("POST") { completion() } else { "other 1\n".to_owned() })).await;
    let canary = Canary::new(Engine::new(&url).expect("an address"));
    let error = canary.clone().run("m", &[1]).await;
    assert!(matches!(error, Err(CanaryError::Counter { source: CounterError::Absent, .. })), "{error:?}");
    let report = canary.metrics(&format!("{url}/elsewhere")).counters("other", "other").run("m", &[1]).await;
    assert!(!report.expect("a result").hit());
}

#[test]
fn prompts_walk_through_the_vocabulary() {
    assert_eq!(prompt(5, 4), [1, 2, 3, 1, 2]);
    assert_eq!(prompt(3, 1), [1, 1, 1]);
    assert_eq!(prompt(2, 0), [1, 1]);
}

#[tokio::test]
#[ignore = "needs a live engine: IC_ENGINE_URL and IC_ENGINE_MODEL name it"]
#[expect(clippy::disallowed_methods, reason = "a test may be told where the engine is")]
async fn a_live_engine_reuses_its_cache() {
    let (Ok(url), Ok(model)) = (std::env::var("IC_ENGINE_URL"), std::env::var("IC_ENGINE_MODEL")) else {
        eprintln!("skipped: IC_ENGINE_URL and IC_ENGINE_MODEL are not both set");
        return;
    };
    let or = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let number = |name: &str, default: &str| or(name, default).parse().expect("a number");
    let prompt = prompt(number("IC_ENGINE_PROMPT_TOKENS", "2048"), number("IC_ENGINE_VOCAB", "256"));
    let hits = or("IC_ENGINE_HITS_METRIC", HITS);
    let queries = or("IC_ENGINE_QUERIES_METRIC", inferencecache_wire::canary::QUERIES);
    let canary = Canary::new(Engine::new(&url).expect("an address")).counters(&hits, &queries);
    let report = canary.run(&model, &prompt).await.expect("a result");
    assert!(report.hit(), "{report:?}");
}
