//! P15 and P16: what a call costs from its bytes to its bytes, without transport, against prost alone.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inferencecache_core::route::Step;
use inferencecache_core::{Index, IndexApi, IndexOptions, ManualClock, PolicyStore, Router};
use inferencecache_wire::convert::Refused;
use inferencecache_wire::hot::{LookupReply, LookupRequest, Pooled, Report};
use inferencecache_wire::pb;
use prost::Message as _;

use crate::measure::{Effort, Spread, percentile};
use crate::report::{Figure, Outcome, Target};
use crate::workload::Workload;

const START: i64 = 1_000_000_000_000;
const PROST: &str = "prost alone";

fn index() -> Arc<Index> {
    let clock = Arc::new(ManualClock::at(START));
    Arc::new(Index::new(IndexOptions { clock, max_entries: 0, ..IndexOptions::default() }))
}

fn single(replica: &str, hashes: &[u64], from: usize) -> pb::CacheStateUpdate {
    let prefixes = hashes.iter().enumerate().map(|(i, hash)| pb::PrefixEntry {
        prefix_hash: hash.to_be_bytes().to_vec(),
        token_count: (from + i + 1) as i32 * 16,
        tier: 1,
        ..pb::PrefixEntry::default()
    });
    update(replica, prefixes.collect())
}

fn chained(replica: &str, chains: &[Vec<u64>]) -> pb::CacheStateUpdate {
    let prefixes = chains.iter().map(|hashes| pb::PrefixEntry {
        block_hashes: hashes.iter().map(|hash| hash.to_be_bytes().to_vec()).collect(),
        block_token_counts: vec![16; hashes.len()],
        tier: 1,
        ..pb::PrefixEntry::default()
    });
    update(replica, prefixes.collect())
}

fn update(replica: &str, prefixes: Vec<pb::PrefixEntry>) -> pb::CacheStateUpdate {
    pb::CacheStateUpdate {
        replica_id: replica.to_owned(),
        model_id: "m".to_owned(),
        tenant_id: "t".to_owned(),
        hash_scheme: "vllm".to_owned(),
        timestamp_us: START - 1_000_000,
        prefixes,
        ..pb::CacheStateUpdate::default()
    }
}

fn ingest(index: &Index, message: &[u8]) {
    let report = Pooled::<Report>::read(message).expect("a good message");
    let (mut entries, mut refused) = (Vec::new(), Refused::default());
    let update = report.update(START, &mut entries, &mut refused).expect("within the limits");
    black_box(index.ingest(&update));
}

pub(super) fn lookup_route(effort: Effort) -> Vec<Outcome> {
    const BATCH: usize = 4;
    let index = index();
    let background = Workload::of(effort.blocks / 4, 64, 512);
    for (i, chain) in background.chains.iter().enumerate() {
        // The first few chains are held by sixteen of the 64: what everybody has is no reason to prefer anybody.
        let holders = if i < 64 { 0..16 } else { i % 64..i % 64 + 1 };
        for holder in holders {
            ingest(&index, &chained(&format!("replica-{holder}"), std::slice::from_ref(chain)).encode_to_vec());
        }
    }
    let router = Router::new(index, Arc::new(PolicyStore::default()));
    let requests: Vec<Vec<u8>> = background.chains[..64]
        .iter()
        .map(|chain| {
            pb::LookupRouteRequest {
                model_id: "m".to_owned(),
                tenant_id: "t".to_owned(),
                hash_scheme: "vllm".to_owned(),
                block_hashes: chain.iter().map(|hash| hash.to_be_bytes().to_vec()).collect(),
                block_token_counts: vec![16; chain.len()],
                ..pb::LookupRouteRequest::default()
            }
            .encode_to_vec()
        })
        .collect();
    let answer = |bytes: &[u8], out: &mut Vec<u8>| {
        out.clear();
        let request = Pooled::<LookupRequest>::read(bytes).expect("a good request");
        let question = request.question();
        let mut answer = LookupReply::scratch();
        if let Step::Lookup(pending) = router.begin(&question, None, &mut answer) {
            router.finish(&question, &pending, &mut answer);
        }
        let reply = LookupReply { answer, adapter: String::new(), latency: Duration::ZERO };
        reply.write(out);
        reply.recycle();
    };
    let mut out = Vec::new();
    answer(&requests[0], &mut out);
    let response = pb::LookupRouteResponse::decode(out.as_slice()).expect("our own encoding");
    assert_eq!((response.replica_scores.len(), response.replica_scores[0].matched_tokens), (16, 512 * 16));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        ours.push(batches(effort.lookups / 8, BATCH, |i| answer(&requests[i % requests.len()], &mut out)));
        let mut encoded = Vec::new();
        theirs.push(batches(effort.lookups / 8, BATCH, |i| {
            black_box(pb::LookupRouteRequest::decode(requests[i % requests.len()].as_slice()).expect("a good request"));
            encoded.clear();
            black_box(&response).encode(&mut encoded).expect("room enough");
        }));
    }
    let figures = vec![Figure::new("ours", Spread::of(ours)), Figure::new(PROST, Spread::of(theirs))];
    let workload = "LookupRoute, bytes to bytes, 512 hashes, 16 replicas scored";
    vec![Outcome::judge("P15", workload, "ns", figures, Target::Peers(0.18, &[PROST]))]
}

/// Median nanoseconds of one call, `batch` calls between two looks at the clock.
fn batches(count: usize, batch: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut times: Vec<u64> = (0..count.max(10))
        .map(|i| {
            let start = Instant::now();
            (0..batch).for_each(|j| call(i * batch + j));
            start.elapsed().as_nanos() as u64 / batch as u64
        })
        .collect();
    percentile(&mut times, 50.0) as f64
}

pub(super) fn report_cache_state(effort: Effort) -> Vec<Outcome> {
    let workload = Workload::of(effort.blocks, 64, 256);
    let chains = || workload.chains.iter().enumerate();
    let name = |i: usize| format!("replica-{}", i % 64);
    let singles: Vec<Vec<u8>> = chains().map(|(i, chain)| single(&name(i), chain, 0).encode_to_vec()).collect();
    let chain_form: Vec<Vec<u8>> =
        chains().map(|(i, chain)| chained(&name(i), std::slice::from_ref(chain)).encode_to_vec()).collect();
    let blocks = (workload.chains.len() * 256) as f64;
    let each = [("single entries, 256 an update", singles), ("one chain entry of 256 an update", chain_form)].map(
        |(form, messages)| {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..effort.rounds {
                let index = index();
                let start = Instant::now();
                messages.iter().for_each(|message| ingest(&index, message));
                ours.push(start.elapsed().as_nanos() as f64 / blocks);
                assert_eq!(index.storage_entries().0, blocks as u64, "every block is there");
                let start = Instant::now();
                for message in &messages {
                    black_box(pb::CacheStateUpdate::decode(message.as_slice()).expect("a good message"));
                }
                theirs.push(start.elapsed().as_nanos() as f64 / blocks);
            }
            let figures = vec![Figure::new("ours, to index", Spread::of(ours)), Figure::new(PROST, Spread::of(theirs))];
            let workload = format!("ReportCacheState, bytes to index, new blocks, {form}");
            Outcome::judge("P16", workload, "ns/block", figures, Target::Peers(0.95, &[PROST]))
        },
    );
    each.into()
}
