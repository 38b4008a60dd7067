//! How long does it take to forget: one hash, a whole replica, nothing at all, what has expired?

use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use inferencecache_benches::{CHAIN, chain, check_against_the_oracle, filled, options, report};
use inferencecache_core::{Event, EventKind, Index, IndexApi, IndexOptions, ManualClock};

fn event<'a>(kind: EventKind, replica: &'a str, hash: &'a [u8]) -> Event<'a> {
    Event { kind, replica, model: "m", tenant: "t", prefix_hash: hash, ..Event::default() }
}

fn evictions(c: &mut Criterion) {
    check_against_the_oracle();
    let mut group = c.benchmark_group("evict");
    for blocks in [10_000, 1_000_000] {
        let (index, _) = filled(blocks, 64, 0, CHAIN);
        let absent = chain(1 << 40, 1, 0);
        group.bench_function(BenchmarkId::new("absent-hash", blocks), |b| {
            b.iter(|| index.apply_event(&event(EventKind::PrefixEvicted, "replica-0", &absent[0])));
        });
        let mut next = 1 << 32;
        group.bench_function(BenchmarkId::new("stored-hash", blocks), |b| {
            b.iter_batched(
                || {
                    next += 1;
                    let block = chain(next, 1, 0);
                    report(&index, "replica-0", &block);
                    block
                },
                |block| index.apply_event(&event(EventKind::PrefixEvicted, "replica-0", &block[0])),
                BatchSize::LargeInput,
            );
        });
        group.bench_function(BenchmarkId::new("clear-of-1024-blocks", blocks), |b| {
            b.iter_batched(
                || {
                    for _ in 0..1024 / CHAIN {
                        next += 1;
                        report(&index, "leaving", &chain(next, CHAIN, 0));
                    }
                },
                |()| index.apply_event(&event(EventKind::AllCleared, "leaving", &[])),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("sweep-of-nothing", blocks), |b| b.iter(|| index.sweep()));
    }
    group.sample_size(10).bench_function("sweep-of-100k-expired", |b| {
        b.iter_batched(
            || {
                let clock = ManualClock::at(1_000_000_000_000);
                let index = Index::new(IndexOptions { clock: Arc::new(clock.clone()), ..options() });
                for id in 0..100_000 / CHAIN as u64 {
                    report(&index, "replica-0", &chain(id, CHAIN, 0));
                }
                clock.advance(Duration::from_secs(3600));
                index
            },
            |index| index.sweep(),
            BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, evictions);
criterion_main!(benches);
