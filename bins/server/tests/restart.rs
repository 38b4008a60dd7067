//! The index over a restart of the process, however that ended.

mod common;

use std::path::Path;

use common::*;
use inferencecache_wire::grpc::client::{ClientOptions, channel};
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use tonic::transport::Channel;

fn client(server: &Running) -> InferenceCacheClient<Channel> {
    let options = ClientOptions { call_timeout: PATIENCE, ..Default::default() };
    InferenceCacheClient::new(channel(&server.grpc, &options).expect("an address"))
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Reports the keys of these numbers.
async fn report(client: &mut InferenceCacheClient<Channel>, keys: std::ops::Range<u64>) {
    let entry = |number| pb::PrefixEntry { prefix_hash: key(number), token_count: 128, ..Default::default() };
    let update = pb::CacheStateUpdate {
        replica_id: "pod-0".to_owned(),
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        prefixes: keys.map(entry).collect(),
        ..Default::default()
    };
    client.report_cache_state(tokio_stream::iter([update])).await.expect("an Ack");
}

/// Whether a key is found.
async fn finds(client: &mut InferenceCacheClient<Channel>, number: u64) -> bool {
    let request = pb::LookupRouteRequest {
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        prefix_hash: key(number),
        ..Default::default()
    };
    let response = client.lookup_route(request).await.expect("status OK").into_inner();
    assert!(response.replica_scores.iter().all(|score| score.replica_id == "pod-0"));
    response.reason_code == "PREFIX_MATCH"
}

fn flags(file: &Path, interval: &str) -> Vec<String> {
    vec![format!("--index-snapshot-file={}", file.display()), format!("--index-snapshot-interval={interval}")]
}

fn start(flags: &[String]) -> Running {
    Running::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn has(server: &Running, line: &str) -> bool {
    server.get("/metrics").is_some_and(|text| text.contains(&format!("\n{line}\n")))
}

#[test]
fn a_server_that_is_told_to_end_remembers_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("index");
    let flags = flags(&file, "1h");
    let runtime = runtime();
    let server = start(&flags);
    assert!(has(&server, "inferencecache_index_snapshot_restores_total{result=\"absent\"} 1"));
    runtime.block_on(async { report(&mut client(&server), 0..100).await });
    server.signal("-TERM");
    assert!(server.ended().0.success());

    let server = start(&flags);
    assert_eq!(server.said("index_snapshot_restored")["entries"], 100);
    assert!(has(&server, "inferencecache_index_snapshot_restores_total{result=\"ok\"} 1"));
    assert!(has(&server, "inferencecache_index_snapshot_restored_entries 100"));
    assert!(has(&server, "inferencecache_index_entries{model=\"m\"} 100"));
    runtime.block_on(async {
        let mut client = client(&server);
        assert!(finds(&mut client, 0).await && finds(&mut client, 99).await && !finds(&mut client, 100).await);
    });
    assert!(!folder.path().join("index.new").exists());
}

#[test]
fn a_server_that_is_killed_remembers_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("index");
    let flags = flags(&file, "20ms");
    let runtime = runtime();
    let server = start(&flags);
    runtime.block_on(async { report(&mut client(&server), 0..100).await });
    // A write that begins after the report holds it: the second from now.
    let saves = || {
        let text = server.get("/metrics").unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("inferencecache_index_snapshot_saves_total{result=\"ok\"} "));
        line.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = saves();
    server.until("written twice", || saves() >= before + 2);
    server.signal("-KILL");
    drop(server);

    let server = start(&flags);
    assert_eq!(server.said("index_snapshot_restored")["entries"], 100);
    assert!(runtime.block_on(async { finds(&mut client(&server), 50).await }));
}

/// While it writes all the time: whenever it dies, the file is whole, and nothing that it once held is missing.
#[test]
fn whenever_a_server_is_killed_its_file_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("index");
    let flags = flags(&file, "1ms");
    let runtime = runtime();
    let mut written = 0;
    for round in 0..12u64 {
        let server = start(&flags);
        if written > 0 {
            let entries = server.said("index_snapshot_restored")["entries"].as_u64().expect("a number");
            assert!(entries >= written, "{entries} of {written}");
        }
        let keys = round * 2_000..(round + 1) * 2_000;
        runtime.block_on(async { report(&mut client(&server), keys).await });
        server.until("written", || has_written(&server));
        written = server.get("/metrics").map_or(0, |_| entries_of(&file));
        // Somewhere in one of the next writes.
        std::thread::sleep(std::time::Duration::from_micros(731 * round));
        server.signal("-KILL");
        drop(server);
    }
}

fn has_written(server: &Running) -> bool {
    server.get("/metrics").is_some_and(|text| text.contains("inferencecache_index_snapshot_saves_total{result=\"ok\"}"))
}

fn entries_of(file: &Path) -> u64 {
    let file = std::fs::File::open(file).expect("there is one");
    let restored = inferencecache_core::Index::restore(inferencecache_core::IndexOptions::default(), file);
    restored.expect("whole at every moment").1.entries
}

#[test]
fn a_damaged_file_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("index");
    let flags = flags(&file, "1h");
    for (content, why) in [(&b"something else"[..], "not an image"), (&b"ic-index\x09\0\0\0"[..], "version 9")] {
        std::fs::write(&file, content).expect("written");
        let server = start(&flags);
        let ignored = server.said("index_snapshot_ignored");
        assert_eq!(ignored["level"], "WARN");
        assert!(ignored["err"].as_str().is_some_and(|err| err.contains(why)), "{ignored}");
        assert!(has(&server, "inferencecache_index_snapshot_restores_total{result=\"ignored\"} 1"));
        server.signal("-TERM");
        assert!(server.ended().0.success());
        assert_eq!(entries_of(&file), 0);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_and_changes_nothing_else() {
    let server = start(&flags(Path::new("/no/such/folder/index"), "5ms"));
    assert_eq!(server.said("index_snapshot_failed")["level"], "WARN");
    server.until("counted", || {
        server
            .get("/metrics")
            .is_some_and(|text| text.contains("inferencecache_index_snapshot_saves_total{result=\"error\"}"))
    });
    server.signal("-TERM");
    assert!(server.ended().0.success());
}

#[test]
fn it_is_off_by_default() {
    let server = Running::start(&[]);
    assert!(server.get("/metrics").is_some_and(|text| !text.contains("index_snapshot_restores_total{")));
    server.signal("-TERM");
    let (_, said) = server.ended();
    assert!(said.iter().all(|message| !message.starts_with("index_snapshot")), "{said:?}");
    assert_refused(&["--insecure-disable-auth", "--index-snapshot-interval=0"], 2, "--index-snapshot-interval");
}
