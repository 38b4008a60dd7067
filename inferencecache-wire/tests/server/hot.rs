//! The hand-written codecs against prost: the same messages are accepted, with the same values, and the same bytes written.

use std::time::Duration;

use inferencecache_core::Entry;
use inferencecache_wire::convert::{self, Refused};
use inferencecache_wire::hot::{LookupReply, LookupRequest, Report};
use inferencecache_wire::pb;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

const NOW: i64 = 1_700_000_000_000_000;

fn hashes() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop_oneof![vec(vec(any::<u8>(), 8), 0..20), vec(vec(any::<u8>(), 0..70), 0..6)]
}

fn counts() -> impl Strategy<Value = Vec<i32>> {
    prop_oneof![vec(Just(16), 0..20), vec(any::<i32>(), 0..6)]
}

fn lookup() -> impl Strategy<Value = pb::LookupRouteRequest> {
    let texts = (".{0,6}", ".{0,6}", ".{0,6}", ".{0,9}", ".{0,6}");
    let numbers = (any::<i32>(), proptest::option::of((any::<i32>(), any::<i32>())));
    (texts, vec(any::<u8>(), 0..12), numbers, hashes(), counts(), vec(any::<u32>(), 0..9)).prop_map(
        |(texts, prefix_hash, (prefix_token_count, slo), block_hashes, block_token_counts, token_ids)| {
            let (model_id, tenant_id, hash_scheme, prompt_text, adapter_id) = texts;
            pb::LookupRouteRequest {
                model_id,
                tenant_id,
                prefix_hash,
                prefix_token_count,
                hash_scheme,
                slo: slo.map(|(ttft_ms, tbt_ms)| pb::Slo { ttft_ms, tbt_ms }),
                block_hashes,
                block_token_counts,
                token_ids,
                prompt_text,
                adapter_id,
            }
        },
    )
}

fn prefix() -> impl Strategy<Value = pb::PrefixEntry> {
    (vec(any::<u8>(), 0..12), any::<i32>(), hashes(), counts(), any::<i32>(), ".{0,4}").prop_map(
        |(prefix_hash, token_count, block_hashes, block_token_counts, tier, adapter_id)| pb::PrefixEntry {
            prefix_hash,
            token_count,
            block_hashes,
            block_token_counts,
            tier,
            adapter_id,
        },
    )
}

fn report() -> impl Strategy<Value = pb::CacheStateUpdate> {
    let texts = (".{0,6}", ".{0,6}", ".{0,6}", ".{0,6}", ".{0,6}");
    let stats = (any::<i64>(), any::<f32>(), any::<f32>(), any::<i64>(), any::<i64>(), ".{0,4}");
    (texts, any::<i64>(), vec(prefix(), 0..6), proptest::option::of(stats)).prop_map(
        |((replica_id, model_id, tenant_id, hash_scheme, adapter_id), timestamp_us, prefixes, stats)| {
            pb::CacheStateUpdate {
                replica_id,
                model_id,
                tenant_id,
                hash_scheme,
                timestamp_us,
                prefixes,
                stats: stats.map(|(cache_memory_bytes, hit_rate, pressure, t2_hit_tokens, t2_query_tokens, text)| {
                    pb::ReplicaStats {
                        replica_id: text.clone(),
                        cache_memory_bytes,
                        hit_rate,
                        pressure,
                        client_version: text,
                        t2_hit_tokens,
                        t2_query_tokens,
                    }
                }),
                adapter_id,
            }
        },
    )
}

/// Bytes changed, cut out, doubled, or added: unknown fields and broken messages.
fn bent(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0u8..5, any::<u8>(), vec(any::<u8>(), 0..12));
    vec(change, 0..4).prop_map(move |changes| {
        let mut bytes = bytes.clone();
        for (place, kind, byte, more) in changes {
            let at = place.index(bytes.len() + 1);
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => drop(bytes.splice(at..at, more)),
                3 => bytes.extend(more),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

fn messages<M: prost::Message>(of: impl Strategy<Value = M>) -> impl Strategy<Value = Vec<u8>> {
    // Two in a row are one message whose fields repeat.
    vec(of, 1..3)
        .prop_map(|all| all.iter().flat_map(prost::Message::encode_to_vec).collect::<Vec<u8>>())
        .prop_flat_map(|bytes| prop_oneof![Just(bytes.clone()), bent(bytes)])
}

fn same_lookup(bytes: &[u8]) {
    match (LookupRequest::read(bytes), pb::LookupRouteRequest::decode(bytes)) {
        (Ok(ours), Ok(theirs)) => {
            let (ours, theirs) = (ours.question(), convert::question(&theirs));
            let shape = |q: &inferencecache_core::Question<'_>| {
                let hashes: Vec<Vec<u8>> = q.block_hashes.iter().map(<[u8]>::to_vec).collect();
                let texts = [q.tenant, q.model, q.scheme, q.adapter, q.prompt_text].map(str::to_owned);
                let numbers = (q.prefix_token_count, q.ttft_ms);
                (texts, q.prefix_hash.to_vec(), hashes, q.block_token_counts.to_vec(), q.token_ids.to_vec(), numbers)
            };
            assert_eq!(shape(&ours), shape(&theirs));
        }
        (Err(_), Err(_)) => {}
        (ours, theirs) => panic!("{bytes:02x?}: ours {ours:?}, prost {theirs:?}"),
    }
}

fn entries(entries: &[Entry<'_>]) -> Vec<impl PartialEq + std::fmt::Debug> {
    let one = |entry: &Entry<'_>| {
        let hashes: Vec<Vec<u8>> = entry.block_hashes.iter().map(<[u8]>::to_vec).collect();
        let counts = entry.block_token_counts.to_vec();
        (entry.adapter.to_owned(), entry.tier, entry.prefix_hash.to_vec(), entry.token_count, hashes, counts)
    };
    entries.iter().map(one).collect()
}

fn same_report(bytes: &[u8]) {
    match (Report::read(bytes), pb::CacheStateUpdate::decode(bytes)) {
        (Ok(ours), Ok(theirs)) => {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            let (mut refused, mut refusals) = (Refused::default(), Refused::default());
            let ours = ours.update(NOW, &mut a, &mut refused);
            let theirs = convert::update(&theirs, NOW, &mut b, &mut refusals);
            assert_eq!(refused, refusals);
            assert_eq!(ours.is_some(), theirs.is_some());
            let (Some(ours), Some(theirs)) = (ours, theirs) else { return };
            let keys = |u: &inferencecache_core::Update<'_>| {
                let stats = u.stats.map(|s| {
                    let rates = (s.hit_rate.to_bits(), s.pressure.to_bits());
                    (s.cache_memory_bytes, rates, s.t2_hit_tokens, s.t2_query_tokens)
                });
                let texts = [u.replica, u.model, u.tenant, u.scheme, u.adapter].map(str::to_owned);
                (texts, u.timestamp, stats)
            };
            assert_eq!(keys(&ours), keys(&theirs));
            assert_eq!(entries(ours.entries), entries(theirs.entries));
        }
        (Err(_), Err(_)) => {}
        (ours, theirs) => panic!("{bytes:02x?}: ours {ours:?}, prost {theirs:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lookups_are_read_as_prost_reads_them(bytes in messages(lookup())) {
        same_lookup(&bytes);
    }

    #[test]
    fn reports_are_read_as_prost_reads_them(bytes in messages(report())) {
        same_report(&bytes);
    }

    #[test]
    fn any_bytes_are_read_as_prost_reads_them(bytes in vec(any::<u8>(), 0..64)) {
        same_lookup(&bytes);
        same_report(&bytes);
    }

    #[test]
    fn replies_are_written_as_prost_writes_them(
        rows in vec((".{0,9}", any::<f32>(), any::<i32>(), any::<f32>(), -2i32..6), 0..20),
        tokens in vec(any::<u32>(), 0..9),
        adapter in ".{0,6}",
        consulted: bool,
        micros: u64,
    ) {
        let mut reply = LookupReply { adapter, latency: Duration::from_micros(micros), ..LookupReply::default() };
        let rows = rows.into_iter().map(|(replica, score, matched_tokens, hit_prob, tier)| inferencecache_core::Row {
            replica: replica.into(), score, matched_tokens, hit_prob, tier,
        });
        reply.answer.lookup.rows = rows.collect();
        reply.answer.tokens = tokens;
        reply.answer.consulted = consulted;
        let prost = convert::lookup_response(&reply.answer, &reply.adapter, reply.latency).encode_to_vec();
        let mut ours = Vec::new();
        reply.write(&mut ours);
        prop_assert_eq!(ours, prost);
    }
}

/// Deep groups end where prost ends them, and a length that lies costs nothing.
#[test]
fn nesting_and_lengths_have_the_limits_of_prost() {
    for depth in 90..110 {
        let mut bytes = vec![0xfb, 0x07]; // a group in field 127
        bytes = bytes.repeat(depth);
        bytes.extend([0xfc, 0x07].repeat(depth));
        same_lookup(&bytes);
        same_report(&bytes);
        // The same within a field that is a message.
        let inner =
            [&[0x32, 0x80 | (bytes.len() % 128).to_le_bytes()[0], (bytes.len() / 128).to_le_bytes()[0]][..], &bytes];
        same_lookup(&inner.concat());
        same_report(&inner.concat());
    }
    for lie in [&[0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0x3a, 8, 1, 2], &[0x42, 0xff, 0xff, 0xff, 0xff, 0x07, 1]] {
        same_lookup(lie);
        same_report(lie);
    }
}
