//! How long does the longest prompt take to fingerprint?

use std::num::NonZeroU32;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inferencecache_core::fingerprint::chain;

fn fingerprints(c: &mut Criterion) {
    let tokens: Vec<u32> = (0..1 << 20).collect();
    let size = NonZeroU32::new(16).expect("above 0");
    let (mut keys, mut counts) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 16));
    let mut group = c.benchmark_group("fingerprint");
    group.throughput(Throughput::Elements(1 << 20));
    group.bench_function("chain/1048576", |b| {
        b.iter(|| {
            keys.clear();
            counts.clear();
            chain(&tokens, size, &mut keys, &mut counts);
        });
    });
    group.finish();
}

criterion_group!(benches, fingerprints);
criterion_main!(benches);
