//! P9 to P12: what storing and removing cost, by the block.

use super::{EXACT_PEERS, subjects};
use crate::measure::{Effort, Spread, check, queries, store};
use crate::report::{Figure, Outcome, Target};
use crate::subjects::{Subject, make};
use crate::workload::{Op, Workload};

const REPLICAS: u32 = 64;

/// Takes a figure of every subject `rounds` times in turn, each time on a fresh structure.
fn rounds(
    effort: Effort,
    names: &[&'static str],
    mut take: impl FnMut(&'static str, &mut dyn Subject) -> f64,
) -> Vec<Figure> {
    let mut figures = vec![Vec::new(); names.len()];
    for _ in 0..effort.rounds {
        for (i, name) in names.iter().enumerate() {
            let mut subject = make(name, REPLICAS);
            figures[i].push(take(name, &mut *subject));
        }
    }
    names.iter().zip(figures).map(|(name, times)| Figure::new(name, Spread::of(times))).collect()
}

fn checked(name: &str, subject: &dyn Subject, workload: &Workload, scored: u32) {
    check(name, &mut *subject.reader(), &queries(workload, 500), scored);
}

pub(super) fn fresh(effort: Effort) -> Vec<Outcome> {
    let workload = Workload::of(effort.blocks, REPLICAS, 64);
    let ops = workload.stores(1, 32);
    let figures = rounds(effort, &subjects(&EXACT_PEERS), |name, subject| {
        let cost = store(subject, &workload, &ops);
        checked(name, subject, &workload, 1);
        cost
    });
    let stored = Outcome::judge(
        "P9",
        "store, new blocks, 32 an event, private",
        "ns/block",
        figures,
        Target::Peers(0.7, &["kv-index"]),
    );
    vec![stored, pause(effort, &workload, &ops)]
}

/// The longest event. What only one run of several saw was the machine's doing, so the least of the runs counts.
fn pause(effort: Effort, workload: &Workload, ops: &[Op]) -> Outcome {
    let figures = subjects(&["kv-index"]).into_iter().map(|name| {
        let mut least: Vec<u64> = Vec::new();
        for _ in 0..effort.rounds.max(3) {
            let mut subject = make(name, REPLICAS);
            subject.prepare(workload, ops);
            let times = subject.run_each().expect("this one is applied here");
            least = if least.is_empty() { times } else { least.iter().zip(&times).map(|(a, b)| *a.min(b)).collect() };
        }
        let longest = least.into_iter().max().unwrap_or(0) as f64 / 1000.0;
        Figure::new(name, Spread::of(vec![longest]))
    });
    let workload = "longest event of 32 new blocks while growing to full size";
    Outcome::judge("P9", workload, "µs", figures.collect(), Target::Absolute(100.0))
}

pub(super) fn known(effort: Effort) -> Vec<Outcome> {
    let workload = Workload::of(effort.blocks, REPLICAS, 64);
    let first = workload.stores(1, 32);
    // The same chains, each by the replica after its owner.
    let second: Vec<Op> = first
        .iter()
        .map(|op| match *op {
            Op::Store { replica, chain, from, to, last } => {
                Op::Store { replica: (replica + 1) % REPLICAS, chain, from, to, last }
            }
            Op::Remove { .. } => op.clone(),
        })
        .collect();
    let figures = rounds(effort, &subjects(&EXACT_PEERS), |name, subject| {
        store(subject, &workload, &first);
        let cost = store(subject, &workload, &second);
        checked(name, subject, &workload, 2);
        cost
    });
    let workload = "store, blocks that another replica already holds, 32 an event";
    vec![Outcome::judge("P10", workload, "ns/block", figures, Target::Peers(0.45, &["kv-index", "crtc"]))]
}

pub(super) fn decode(effort: Effort) -> Vec<Outcome> {
    let workload = Workload::of(effort.blocks, REPLICAS, 64);
    let ops = workload.stores(1, 1);
    let names = ["ours, single", "kv-index", "smg-radix-tree", "crtc", "positional"];
    let figures = rounds(effort, &names, |name, subject| {
        let cost = store(subject, &workload, &ops);
        checked(name, subject, &workload, 1);
        cost
    });
    let peers = ["positional", "crtc", "kv-index"];
    vec![Outcome::judge("P11", "store, decode: one block an event", "ns/block", figures, Target::Peers(0.35, &peers))]
}

pub(super) fn remove(effort: Effort) -> Vec<Outcome> {
    let names = ["ours, single", "kv-index", "smg-radix-tree", "crtc"];
    let cases = [(1u32, effort.blocks, 1.0, "private"), (8, effort.blocks / 8, 0.4, "shared by 8")];
    let each = cases.into_iter().map(|(holders, blocks, limit, layout)| {
        let workload = Workload::of(blocks, REPLICAS, 64);
        let (stores, removes) = (workload.stores(holders, 32), workload.removes(holders, 32));
        let figures = rounds(effort, &names, |name, subject| {
            store(subject, &workload, &stores);
            checked(name, subject, &workload, holders);
            let cost = store(subject, &workload, &removes);
            let asked = queries(&workload, 500);
            let mut reader = subject.reader();
            reader.prepare(&asked);
            assert!((0..asked.len()).all(|i| reader.ask(i).depth == 0), "{name}: removed blocks are still there");
            cost
        });
        let workload = format!("remove, {layout}, 32 an event, tail first");
        Outcome::judge("P12", workload, "ns/block", figures, Target::Peers(limit, &["kv-index"]))
    });
    each.collect()
}
