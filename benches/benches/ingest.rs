//! How long does it take to store blocks: new ones, ones that another replica holds, refreshes, one block a report?

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use inferencecache_benches::{CHAIN, REPORT, chain, check_against_the_oracle, filled, options, report};
use inferencecache_core::{Index, IndexOptions};

fn ingest(c: &mut Criterion) {
    check_against_the_oracle();
    let mut group = c.benchmark_group("ingest");
    group.throughput(Throughput::Elements(CHAIN as u64));
    let mut next = 1 << 32;
    let (index, chains) = filled(100_000, 64, 0, CHAIN);
    group.bench_function("new/64-blocks", |b| {
        b.iter_batched(
            || {
                next += 1;
                chain(next, CHAIN, 0)
            },
            |blocks| report(&index, "replica-0", &blocks),
            BatchSize::SmallInput,
        );
    });
    let mut at = 0;
    group.bench_function("refresh/64-blocks", |b| {
        b.iter(|| {
            at = (at + 1) % chains.len();
            report(&index, &format!("replica-{}", at % 64), &chains[at]);
        });
    });
    group.bench_function("held-by-another/64-blocks", |b| {
        b.iter(|| {
            at = (at + 1) % chains.len();
            report(&index, &format!("replica-{}", (at + 1) % 64), &chains[at]);
        });
    });
    let full = Index::new(IndexOptions { max_entries: 100_000, ..options() });
    for id in 0..100_000 / CHAIN as u64 + 1 {
        report(&full, "replica-0", &chain(id, CHAIN, 0));
    }
    group.bench_function("new-at-the-cap/64-blocks", |b| {
        b.iter_batched(
            || {
                next += 1;
                chain(next, CHAIN, 0)
            },
            |blocks| report(&full, "replica-0", &blocks),
            BatchSize::SmallInput,
        );
    });
    group.throughput(Throughput::Elements(REPORT as u64));
    group.bench_function("decode/one-block-a-report", |b| {
        b.iter_batched(
            || {
                next += 1;
                chain(next, REPORT, 0)
            },
            |blocks| {
                for block in &blocks {
                    report(&index, "replica-0", std::slice::from_ref(block));
                }
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, ingest);
criterion_main!(benches);
