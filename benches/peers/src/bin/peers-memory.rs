//! Measures one cell of live heap. Started by `peers`, one process a cell.

use std::alloc::System;

use inferencecache_peers::rows::one_memory_cell;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [layout, name, blocks] = args.as_slice() else {
        anyhow::bail!("expected LAYOUT SUBJECT BLOCKS; `peers` starts this");
    };
    let live = || {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    println!("{}", one_memory_cell(layout, name, blocks.parse()?, live));
    Ok(())
}
