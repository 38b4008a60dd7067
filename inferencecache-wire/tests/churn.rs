//! Many keys that come and go leave nothing behind.

#[path = "common/server.rs"]
mod server;

use inferencecache_wire::pb;
use inferencecache_wire::pb::cache_event::Type;
use server::*;

const ROUNDS: u64 = 20;
const KEYS: u64 = 50_000;
const KEYS_PER_UPDATE: u64 = 2_500;
const CHAINS: u64 = 10;

fn block(chain: u64, block: u64) -> Vec<u8> {
    format!("chain-{chain}-{block}").into_bytes()
}

/// Keys that were never seen before, and ten chains of four blocks.
fn updates(round: u64) -> Vec<pb::CacheStateUpdate> {
    let single = |key: u64| pb::PrefixEntry {
        prefix_hash: key.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec(),
        token_count: 16,
        ..Default::default()
    };
    let first = round * KEYS;
    let keys = (first..first + KEYS).step_by(KEYS_PER_UPDATE as usize);
    let singles = keys.map(|first| report("r1", (first..first + KEYS_PER_UPDATE).map(single).collect()));
    let chains = (0..CHAINS).map(|chain| pb::PrefixEntry {
        block_hashes: (1..=4).map(|i| block(chain, i)).collect(),
        block_token_counts: vec![16; 4],
        ..Default::default()
    });
    singles.chain([report("r1", chains.collect())]).collect()
}

/// field:38
#[tokio::test]
async fn churn_does_not_cost_memory() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    let (mut resident, mut threads) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        client.report(updates(round)).await;
        for chain in 0..CHAINS {
            for i in [2, 4, 1, 3] {
                client
                    .publish(pb::CacheEvent { prefix_hash: block(chain, i), ..event(Type::PrefixEvicted, "r1") })
                    .await;
            }
        }
        assert_eq!(client.total().await, i64::try_from(KEYS).expect("small"));
        client.publish(event(Type::AllCleared, "r1")).await;
        assert_eq!(client.total().await, 0);
        assert_eq!(get(server.bridge, "/snapshot").await.text().matches("replicaId").count(), 0, "nobody is left");
        assert_eq!(server.index.storage_entries(), (0, 0));
        resident.push(server.metric("process_resident_memory_bytes"));
        threads.push(server.metric("process_threads"));
    }
    let last = resident.len() - 1;
    assert!(resident[last] <= 1.2 * resident[2], "resident after each round: {resident:?}");
    assert!(threads[last] <= threads[2], "threads after each round: {threads:?}");
}
