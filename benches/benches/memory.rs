//! How many bytes of live heap does a block cost, and what stays after everything is gone?
//!
//! Counts what the allocator hands out on this thread and prints a table instead of times.

use inferencecache_benches::{CHAIN, chain, check_against_the_oracle, options, report};
use inferencecache_core::{Event, EventKind, Index, IndexApi};

/// Live bytes that `work` leaves behind, and what it made.
fn live<T>(work: impl FnOnce() -> T) -> (i64, T) {
    let mut made = None;
    let counted = allocation_counter::measure(|| made = Some(work()));
    (counted.bytes_current, made.expect("the work ran"))
}

#[expect(clippy::cast_precision_loss, reason = "for a table")]
fn row(name: &str, bytes: i64, units: u64, unit: &str) {
    println!("| {name} | {units} | {:.1} | {unit} |", bytes as f64 / units as f64);
}

fn main() {
    check_against_the_oracle();
    println!("| workload | count | bytes each | of |\n|---|---|---|---|");
    for blocks in [10_000u64, 100_000, 1_000_000] {
        let (bytes, index) = live(|| {
            let index = Index::new(options());
            for id in 0..blocks / CHAIN as u64 {
                report(&index, &format!("replica-{}", id % 64), &chain(id, CHAIN, 0));
            }
            index
        });
        row("private chains", bytes, index.storage_entries().0, "block");
        let before = index.storage_entries().0;
        let (freed, ()) = live(|| {
            for replica in 0..64 {
                let replica = format!("replica-{replica}");
                let kind = EventKind::AllCleared;
                index.apply_event(&Event { kind, replica: &replica, model: "m", tenant: "t", ..Event::default() });
            }
        });
        row("left after everything was cleared", bytes + freed, before, "former block");
    }
    for holders in [2u64, 8] {
        let (bytes, index) = live(|| {
            let index = Index::new(options());
            for id in 0..100_000 / CHAIN as u64 {
                for holder in 0..holders {
                    report(&index, &format!("replica-{holder}"), &chain(id, CHAIN, 0));
                }
            }
            index
        });
        row(&format!("every block held by {holders}"), bytes, index.storage_entries().0, "membership");
    }
}
