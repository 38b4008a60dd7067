//! The second tier against a real store, and against things that are none.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::server::{Setup, http};
use inferencecache_core::probe::{ProbeTarget, T2Client as _, T2Error};
use inferencecache_wire::second_tier::{BUDGET, RedisStore};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::redis::RedisServer;

const TARGET: ProbeTarget<'static> = ProbeTarget { backend: "cb-1", model: "m", scheme: "vllm", backend_type: "" };

/// One trip, from a thread that may wait.
async fn trip(store: RedisStore) -> Result<(), T2Error> {
    let trip = tokio::task::spawn_blocking(move || store.round_trip(&TARGET, &TARGET.hash().payload()));
    trip.await.expect("it does not panic")
}

fn at(address: SocketAddr) -> RedisStore {
    RedisStore::new(format!("redis://{address}").parse().expect("an address"), Handle::current())
}

#[track_caller]
fn put_failed(outcome: Result<(), T2Error>) -> String {
    match outcome {
        Err(T2Error::Put(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn get_failed(outcome: Result<(), T2Error>) -> String {
    match outcome {
        Err(T2Error::Get(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// server:142
#[tokio::test]
async fn what_is_put_comes_back_and_does_not_stay() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let mut monitor = BufReader::new(TcpStream::connect(server.address).expect("it accepts"));
    monitor.get_mut().set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    monitor.get_mut().write_all(b"MONITOR\r\n").expect("written");
    let mut line = String::new();
    monitor.read_line(&mut line).expect("an answer");
    assert_eq!(line, "+OK\r\n");

    let mut keys = Vec::new();
    for _ in 0..2 {
        assert_eq!(trip(at(server.address)).await, Ok(()));
        let [set, get, del] = ["SET", "GET", "DEL"].map(|command| command_of(&mut monitor, command));
        let key = &set[1];
        assert!(key.starts_with(&format!("inferencecache.io/probe/{}/", TARGET.hash())), "{key}");
        assert!(set[2].starts_with(r"probe-payload-v1\n\x8b\x0b\xcb\xe0"), "{set:?}");
        assert_eq!(set[3..], ["EX", "60"]);
        assert_eq!((&get[1..], &del[1..]), (&set[1..2], &set[1..2]));
        keys.push(key.clone());
    }
    assert_ne!(keys[0], keys[1], "each trip has a key of its own");
    assert_eq!(server.ask("DBSIZE"), ":0");
}

/// The words of the next `command` that a monitor shows.
fn command_of(monitor: &mut BufReader<TcpStream>, command: &str) -> Vec<String> {
    loop {
        let mut line = String::new();
        monitor.read_line(&mut line).expect("a line");
        let words: Vec<_> =
            line.trim().split(" \"").skip(1).map(|word| word.trim_end_matches('"').to_owned()).collect();
        if words.first().is_some_and(|word| word == command) {
            return words;
        }
    }
}

/// server:144
#[tokio::test]
async fn nobody_there_is_a_refused_connection() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    assert_eq!(put_failed(trip(at(closed)).await), "connection refused");
}

#[tokio::test]
async fn a_password_comes_from_a_file_that_may_change() {
    const SECRET: &str = "correct horse battery staple";
    let Some(server) = RedisServer::start(&["--requirepass", SECRET]) else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    let store = at(server.address).password_file(file.path());

    assert!(put_failed(trip(at(server.address)).await).contains("NOAUTH"));
    assert_eq!(put_failed(trip(store.clone()).await), "the password file is empty");
    std::fs::write(file.path(), "wrong\n").expect("written");
    let why = put_failed(trip(store.clone()).await);
    assert!(!why.contains("wrong ") && !why.contains(SECRET), "{why}");
    std::fs::write(file.path(), format!("{SECRET}\n")).expect("written");
    assert_eq!(trip(store.clone()).await, Ok(()));
    assert!(!format!("{store:?}").contains(SECRET));
}

#[tokio::test]
async fn a_store_that_fails_is_told_by_half() {
    // Full, and told to keep what it has.
    let Some(server) = RedisServer::start(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]) else { return };
    let why = put_failed(trip(at(server.address)).await);
    assert!(why.contains("OOM"), "{why}");

    let Some(server) = RedisServer::start(&["--rename-command", "GET", ""]) else { return };
    let why = get_failed(trip(at(server.address)).await);
    assert!(why.contains("unknown command"), "{why}");
    assert_eq!(server.ask("DBSIZE"), ":0", "deleted all the same");

    // GET answers with the name of the key.
    let Some(server) = RedisServer::start(&["--rename-command", "GET", "", "--rename-command", "ECHO", "GET"]) else {
        return;
    };
    let why = get_failed(trip(at(server.address)).await);
    assert!(why.contains("other bytes came back"), "{why}");

    // SET deletes.
    let Some(server) = RedisServer::start(&["--rename-command", "SET", "", "--rename-command", "DEL", "SET"]) else {
        return;
    };
    assert_eq!(get_failed(trip(at(server.address)).await), "nothing came back");
}

/// Accepts one connection, says `words` again and again, and hears nothing.
fn mute(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let Ok((mut peer, _)) = listener.accept() else { return };
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && peer.write_all(words).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    address
}

#[tokio::test]
async fn no_trip_takes_longer_than_its_time() {
    // Silence, and a reply that drips for ever.
    for words in [&b""[..], b"+"] {
        assert_eq!(put_failed(trip(at(mute(words))).await), format!("timed out after {BUDGET:?}"));
    }
}

#[tokio::test]
async fn something_else_is_not_a_store() {
    for words in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\0\0\0", b"-ERR no\r\n", b"$9\r\n"] {
        put_failed(trip(at(mute(words))).await);
    }
}

/// server:142-144, with nothing made up
#[tokio::test]
async fn a_probe_asks_the_store() {
    let Some(redis) = RedisServer::start(&[]) else { return };
    let mut setup = Setup::new();
    setup.second_tier = Some(Arc::new(at(redis.address)));
    let server = setup.start().await;
    let probe = async |kind: &str| -> Value {
        let body = json!({"backend": "cb-1", "model": "m", "hashScheme": "vllm", "backendType": kind}).to_string();
        let reply = http(server.bridge, "POST", "/probe", &[], body.as_bytes()).await;
        assert_eq!(reply.status, 200);
        serde_json::from_slice(&reply.body).expect("JSON")
    };
    let passed = json!({"backend": "cb-1", "ingest": "ok", "routing": "ok", "t2": "ok"});
    assert_eq!(probe("LMCache").await, passed);
    assert_eq!(probe("").await, passed);
    assert_eq!(redis.ask("DBSIZE"), ":0");

    drop(redis);
    let failed = probe("LMCache").await;
    assert_eq!((&failed["routing"], &failed["t2"]), (&json!("ok"), &json!("failed")));
    assert_eq!(failed["errors"], json!([{"stage": "t2", "message": "put failed: connection refused"}]));
    assert_eq!(probe("Memory").await["t2"], "skipped");
    assert_eq!(server.index.storage_entries(), (0, 0));
}
