//! How long does one routed lookup take, by chain length, replicas and size of the index?

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use inferencecache_benches::{BLOCK, CHAIN, chain, check_against_the_oracle, filled, look};
use inferencecache_core::Lookup;

fn lookups(c: &mut Criterion) {
    check_against_the_oracle();
    let mut group = c.benchmark_group("lookup");
    for len in [64, 512, 4096] {
        let (index, chains) = filled(1_000_000, 64, 0, len);
        let counts = vec![BLOCK; len];
        let mut out = Lookup::new();
        let mut next = 0;
        group.bench_function(BenchmarkId::new("all-hit/one-holder/1M", len), |b| {
            b.iter(|| {
                next = (next + 1) % chains.len();
                black_box(look(&index, &chains[next], &counts, &mut out))
            });
        });
    }
    for holders in [8, 64] {
        let (index, chains) = filled(100_000, holders, 32, CHAIN);
        let counts = [BLOCK; CHAIN];
        let mut out = Lookup::new();
        let mut next = 0;
        group.bench_function(BenchmarkId::new("shared-root/64-blocks/100k/holders", holders), |b| {
            b.iter(|| {
                next = (next + 1) % chains.len();
                black_box(look(&index, &chains[next], &counts, &mut out))
            });
        });
    }
    for blocks in [10_000, 100_000, 1_000_000] {
        let (index, _) = filled(blocks, 64, 0, CHAIN);
        let missing = chain(1 << 30, CHAIN, 0);
        let counts = [BLOCK; CHAIN];
        let mut out = Lookup::new();
        group.bench_function(BenchmarkId::new("first-block-miss", blocks), |b| {
            b.iter(|| black_box(look(&index, black_box(&missing), &counts, &mut out)));
        });
    }
}

criterion_group!(benches, lookups);
criterion_main!(benches);
