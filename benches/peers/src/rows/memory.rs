//! P1 to P3: live heap, each cell in a process of its own whose allocator counts.

use std::process::Command;

use super::{EXACT_PEERS, subjects};
use crate::measure::{Effort, Spread, check, queries};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::make;
use crate::workload::Workload;

/// The binary that measures one cell; it stands beside the one that runs.
const BINARY: &str = "peers-memory";

pub(super) fn private(effort: Effort) -> Vec<Outcome> {
    let figures = cells("private", effort, &subjects(&EXACT_PEERS));
    vec![Outcome::judge("P1", "private chains of 64, everything included", "B/block", figures, Target::Absolute(20.0))]
}

pub(super) fn shared(effort: Effort) -> Vec<Outcome> {
    let figures = cells("shared", effort, &subjects(&EXACT_PEERS));
    let workload = "every block held by 8";
    vec![Outcome::judge("P2", workload, "B/membership", figures, Target::Absolute(4.0))]
}

pub(super) fn left(effort: Effort) -> Vec<Outcome> {
    let figures = cells("left", effort, &["ours, single", "kv-index", "smg-radix-tree", "crtc"]);
    let workload = "left after everything was removed";
    vec![Outcome::judge("P3", workload, "B/former membership", figures, Target::Absolute(2.0))]
}

fn cells(layout: &str, effort: Effort, names: &[&str]) -> Vec<Figure> {
    let path = std::env::current_exe().expect("a program knows where it is").with_file_name(BINARY);
    let each = names.iter().map(|name| {
        let run = Command::new(&path).args([layout, name, &effort.blocks.to_string()]).output();
        let run = run.unwrap_or_else(|error| panic!("{} does not start: {error}", path.display()));
        let text = String::from_utf8_lossy(&run.stdout);
        let bytes: f64 = text.trim().parse().unwrap_or_else(|_| {
            panic!("{name}, {layout}: no figure but {text:?}\n{}", String::from_utf8_lossy(&run.stderr))
        });
        Figure::new(name, Spread::of(vec![bytes]))
    });
    each.collect()
}

/// Measures one cell with `live` reading the bytes that are allocated, and returns bytes a unit.
///
/// # Panics
/// When there is no such cell, or an answer is wrong.
#[must_use]
pub fn one(layout: &str, name: &str, blocks: usize, live: impl Fn() -> usize) -> f64 {
    let (holders, blocks) = if layout == "shared" { (8, blocks / 8) } else { (1, blocks) };
    let workload = Workload::of(blocks, 64, 64);
    let ops = workload.stores(holders, 32);
    let units = Workload::blocks(&ops) as f64;
    // A first one of everything, so that what a process allocates once is not counted.
    drop(make(name, 64));
    let before = live();
    let mut subject = make(name, 64);
    // What is prepared is freed by the run, except what ours leaks in place of a decoder's buffers.
    subject.prepare(&workload, &ops);
    subject.run();
    let after = live();
    let leaked = if name.starts_with("ours") { leak(name, &ops) } else { 0 };
    let used = after - before - leaked;
    if layout != "left" {
        check(name, &mut *subject.reader(), &queries(&workload, 500), holders);
        return used as f64 / units;
    }
    let removes = workload.removes(holders, 32);
    subject.prepare(&workload, &removes);
    subject.run();
    (live() - before - leaked) as f64 / units
}

/// Bytes that preparing leaves behind for good: the hashes, and in chain form the counts.
fn leak(name: &str, ops: &[crate::workload::Op]) -> usize {
    let blocks = Workload::blocks(ops) as usize;
    if name == "ours, single" { blocks * 8 } else { chain_leak(ops) }
}

fn chain_leak(ops: &[crate::workload::Op]) -> usize {
    use crate::workload::Op;
    let each = ops.iter().map(|op| match *op {
        Op::Store { to, last: true, .. } => to as usize * 12,
        Op::Store { .. } | Op::Remove { .. } => 0,
    });
    each.sum()
}
